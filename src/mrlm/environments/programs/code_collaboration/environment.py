"""The code collaboration environment: agents that each write one function of a program, and an
optional adviser between turns. Code runs only in a sandbox."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.programs.code.formats import PROBLEM, converted
from mrlm.environments.programs.code.grading import CodeGrader
from mrlm.environments.programs.code.problems import CodeProblem
from mrlm.environments.programs.code.scoring import test_board
from mrlm.environments.programs.code_collaboration.generator import problem as generated
from mrlm.environments.programs.code_collaboration.scoring import CollaborationScore, worth
from mrlm.environments.programs.writers import INSTRUCTION, Mode, Pay, Writers
from mrlm.environments.shared.rows import RowTable, others, row_matters, whole_number
from mrlm.sandbox.types import Sandbox

CODES = "codes"
"""Column with the reference answers of the writers."""


class CodeCollaborationEnvironment(Writers[CollaborationScore]):
    """An environment in which several agents write one program concurrently: the last one the
    tested function, each other one a helper `aux` (`aux_1`, `aux_2`, ... if there are several).

    The score of a program is at most 4.0: 0.4 for `aux` with a return value; 0.6 for the entry
    point with one (without it scoring stops); 0.5 if all code parses (likewise); the fraction of
    tests passed; and, if one passes and the entry point depends on `aux`: 0.5 for that, 1.0 if it
    is not a thin wrapper of `aux`, minus 0.5 if the result of `aux` is not used. Several functions
    `aux` share 0.4, 0.5 and -0.5 equally. The reward of a turn is the change of the score since the
    previous turn, so that the return of an episode is the score of its last program.

    Args:
        dataset: rows of MBPP, HumanEval or CoopHumanEval, as in the environment `code`, optionally
            with `codes`, the reference answer of each writer; unlimited generated problems when
            `None`.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        agents: names of the writers, two or more, the writer of the entry point last.
        feedback: feedback between turns: `none`, `count` (number of passed tests), `graded`
            (structural defects, and roughly how many tests pass), `tests` (the visible tests, one
            by one, with errors), `expert` (advice of one more agent).
        expert_agent: name of that role, which any agent may play; its reward is the team's gain
            in the next turn.
        rewards: `team`: every agent gets the score of the program; `individual`: without the parts
            that only others contributed.
        max_turns: maximum number of submissions.
        num_visible, max_tests: tests of a row that are shown, and that are used.
        num_hidden: tests of a generated problem that are not shown.
        test_timeout: seconds for every test.
        isolation: isolation of the code, as in `open_sandbox`.
        sandbox: an open sandbox, instead of `isolation`.
        instruction: text after the question; none if empty.
        seed: seed of generated problems and of the split.
    """

    label = "code_collaboration"
    kind = CodeProblem
    reward_range: tuple[float, float] | None = (0.0, 4.0)
    expert_return: float | None = 4.0
    slow_proof = True
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "dataset", rows=["max_tests"], generated=["num_hidden"]
    )

    def __init__(
        self,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        agents: Sequence[str] = ("aux", "main"),
        feedback: Mode = "tests",
        expert_agent: str = "expert",
        rewards: Pay = "team",
        max_turns: int = 1,
        num_visible: int = 1,
        max_tests: int = 20,
        num_hidden: int = 4,
        test_timeout: float = 5.0,
        isolation: str | Mapping[str, Any] = "auto",
        sandbox: Sandbox[Any] | None = None,
        instruction: str = INSTRUCTION,
        seed: int = 0,
    ) -> None:
        common = (max_turns, test_timeout, num_visible, instruction, seed)
        super().__init__(agents, feedback, expert_agent, rewards, *common)
        whole_number(1, max_tests=max_tests)
        whole_number(2, num_hidden=num_hidden)
        if len(self.writers) < 2:
            raise ConfigError("agents: code collaboration needs at least two writers, but got one")
        number = len(self.writers)
        several = tuple(f"aux_{i}" for i in range(1, number))
        self.names: tuple[str, ...] = ("aux",) if number == 2 else several
        self.num_hidden: int = num_hidden
        self._bench = CodeGrader(isolation, sandbox)
        self.isolation: str | Mapping[str, Any] | None = isolation if sandbox is None else None
        if dataset is not None:
            tests = {"num_visible": num_visible, "max_tests": max_tests}
            convert = partial(_converted, **tests, count=number)
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = RowTable(dataset, *settings, convert=convert)

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            name = f"code_collaboration-{split}-{index}"
            prompt = [Message(CodeProblem.of(row[PROBLEM], name).question)]
            return Task(name, prompt, row.get(CODES), seed, others(row))
        key = f"{self.seed}/{seed}"
        problem, codes = generated(key, split, self.num_visible, self.num_hidden)
        answer = codes if len(codes) == len(self.writers) else None
        name = f"code_collaboration-{self.seed}-{split}-{seed}"
        return Task(name, [Message(problem.question)], answer, seed, {PROBLEM: problem.record()})

    def asked(self) -> list[str]:
        entry = self._problem.entry
        parts = [
            f"Write only the function `{name}`, which returns what is of use to `{entry}`. Another "
            f"writer writes `{entry}` at the same time and calls it."
            for name in self.names
        ]
        listed = ", ".join(f"`{name}`" for name in self.names)
        return [
            *parts,
            f"Write only the function `{entry}`. Other writers provide {listed} at the same time: "
            "call what they provide, use what it returns, and do not define it yourself.",
        ]

    async def judged(self, codes: Sequence[str]) -> CollaborationScore:
        test = partial(self._bench.test, self._problem, limits=self.limits)
        return await worth(self._problem, self.names, codes, test)

    def shown(self) -> list[str]:
        return [f"`{name}`" for name in [*self.names, self._problem.entry]]

    def render(self, agent: str | None = None) -> Html | None:
        """The functions, whether they are used, and the tests of the last program; not for the
        agents."""
        if agent is not None or self._problem is None:
            return None
        score = self._score
        if score is None:
            return test_board(self._problem, [])
        rows = []
        for writer, (name, stats) in zip(self.writers, score.of_aux.items(), strict=False):
            use = "ignored" if stats["ignored"] else "used" if stats["called"] else "not called"
            use = use if stats["aux"] else "missing"
            rows.append((writer, name, (use, "good" if use == "used" else "bad")))
        written, kind = ("written", "good") if score.paid["main"] else ("missing", "bad")
        rows.append((self.writers[-1], self._problem.entry, (written, kind)))
        drawn = table(rows, ("writer", "function", ""))
        return stacked(drawn, test_board(self._problem, score.verdicts))

    def solution(self) -> list[str] | None:
        return self._task.answer


def _converted(row: Row, where: str, num_visible: int, max_tests: int, count: int) -> Row:
    """A row with its problem, which must have a function to test. Raises `DataError`: the row has
    no such function or an unknown form, or `codes` does not match the number of writers."""
    result = converted(row, where, num_visible, max_tests)
    if not result[PROBLEM]["entry"]:
        raise DataError(f"{where}: its tests run a whole program; tests of a function are needed")
    codes = row.get(CODES)
    if codes is not None and (isinstance(codes, str) or len(codes) != count):
        raise DataError(f"{where}, column 'codes': expected {count} texts, one per writer")
    return result

"""The world of code collaboration: seats that each write one function of a program, and perhaps one
that advises them between turns. It knows nothing of models, and runs code in a sandbox only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, StepResult, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.code.answers import fenced
from mrlm.environments.code.formats import PROBLEM, converted
from mrlm.environments.code.grading import Bench
from mrlm.environments.code.problems import CodeProblem
from mrlm.environments.code_collaboration.feedback import told
from mrlm.environments.code_collaboration.generator import problem as generated
from mrlm.environments.code_collaboration.scoring import CollaborationScore, worth
from mrlm.environments.shared.program import INSTRUCTION, Mode, Pay, Writers
from mrlm.environments.shared.rows import Table, at_least, others, row_matters
from mrlm.sandbox.types import Sandbox

CODES = "codes"
"""The column with what honest writers would say."""


class CodeCollaborationEnvironment(Writers):
    """Writers of one program, who write at the same time: the last one the function that is tested,
    each other one a function `aux` (`aux_1`, `aux_2`, ... if there are several) for it.

    A program is worth, at most 4.0: 0.4 for `aux` with a return value; 0.6 for the entry point with
    one (without it nothing follows); 0.5 if all parses (the same); the share of the tests that
    pass; and, if one does and the entry point needs `aux`: 0.5 for that, 1.0 if it is no thin
    wrapper of it, less 0.5 if what `aux` gives is not used. Several functions `aux` have equal
    parts of 0.4, 0.5 and -0.5. Every turn earns the difference to the one before, so that an
    episode is paid what its last program is worth.

    Args:
        dataset: rows of MBPP, HumanEval or CoopHumanEval, as the world `code` takes them, perhaps
            with `codes`, what each writer should say; problems without end when `None`.
        eval_dataset: held-out rows; a tenth of the prompts of `dataset` when `None`.
        split: which split of the data set.
        columns: our column name -> the data set's.
        on_bad_row: `raise` or `skip`.
        agents: names of the writers, two or more, the writer of the entry point last.
        feedback: what is told between turns: `none`, `count` (how many tests pass), `graded` (what
            the structure lacks, and in words how many pass), `tests` (the tests that may be seen,
            one by one, with errors), `expert` (what one more seat says of the program).
        expert_agent: name of that seat, which any agent may take; it earns what the team gains
            in the next turn.
        rewards: `team` pays everybody for the program; `individual` without what only others did.
        max_turns: programs that may be handed in.
        num_visible, max_tests: tests of a row that are shown, and that are used.
        num_hidden: tests of a generated problem that are not shown.
        test_timeout: seconds for every test.
        isolation: how code is run, as `open_sandbox` takes it.
        sandbox: one that is open already, instead of `isolation`.
        instruction: put after the question; none if empty.
        seed: of generated problems and of the split.

    Raises:
        ConfigError: impossible arguments.
        DataError: rows that cannot be used.
    """

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
        sandbox: Sandbox | None = None,
        instruction: str = INSTRUCTION,
        seed: int = 0,
    ) -> None:
        at_least("num_visible", num_visible, 0, whole=True)
        at_least("max_tests", max_tests, 1, whole=True)
        at_least("num_hidden", num_hidden, 2, whole=True)
        super().__init__(agents, feedback, expert_agent, rewards, max_turns, test_timeout)
        if len(self.writers) < 2:
            raise ConfigError("code collaboration has two or more writers; agents names one")
        number = len(self.writers) - 1
        self.names: tuple[str, ...] = (
            ("aux",) if number == 1 else tuple(f"aux_{i}" for i in range(1, number + 1))
        )
        self.instruction = instruction
        self.num_visible, self.num_hidden, self.seed = num_visible, num_hidden, seed
        self._bench = Bench(isolation, sandbox)
        self._table: Table | None = None
        if dataset is not None:
            self._table = Table(
                dataset,
                eval_dataset=eval_dataset,
                split=split,
                columns=columns,
                on_bad_row=on_bad_row,
                seed=seed,
                convert=partial(
                    _converted, num_visible=num_visible, max_tests=max_tests, count=number + 1
                ),
            )
        self._problem = CodeProblem("", "calls", [])

    # -- tasks -------------------------------------------------------------------------------------

    def num_tasks(self, split: Split = "train") -> int | None:
        return None if self._table is None else self._table.count(split)

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            name = f"code_collaboration-{split}-{index}"
            prompt = [Message(CodeProblem.of(row[PROBLEM], name).question)]
            return Task(name, prompt, row.get(CODES), seed, others(row))
        key = f"{self.seed}/{seed}"
        found, codes = generated(key, split, self.num_visible, self.num_hidden)
        answer = codes if len(codes) == len(self.writers) else None
        name = f"code_collaboration-{self.seed}-{split}-{seed}"
        return Task(name, [Message(found.question)], answer, seed, {PROBLEM: found.record()})

    # -- play --------------------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        where = f"code collaboration: task {self._task.id!r}"
        if PROBLEM not in self._task.info:
            raise ConfigError(f"{where} has no {PROBLEM} in its info")
        self._problem = CodeProblem.of(self._task.info[PROBLEM], where)
        return self.begin()

    def asked(self) -> list[str]:
        """The opening question of every writer."""
        question, entry = self._problem.question, self._problem.entry
        parts = [
            f"Write only the function `{name}`, which returns what is of use to `{entry}`. Another "
            f"writer writes `{entry}` at the same time and calls it."
            for name in self.names
        ]
        listed = ", ".join(f"`{name}`" for name in self.names)
        parts.append(
            f"Write only the function `{entry}`. Other writers provide {listed} at the same time: "
            "call what they provide, use what it returns, and do not define it yourself."
        )
        return [f"{question}\n{part}\n{self.instruction}".strip() for part in parts]

    async def judged(self, codes: Sequence[str]) -> CollaborationScore:
        test = partial(self._bench.test, self._problem, limits=self.limits)
        return await worth(self._problem, self.names, codes, test)

    def share(self, found: CollaborationScore, place: int) -> float:
        return found.share(place if place < len(self.names) else None)

    def told(self, mode: Mode, found: CollaborationScore) -> str:
        return told(mode, self._problem, self.names, found)

    def shown(self) -> tuple[str, list[str]]:
        return self._problem.question, [f"`{name}`" for name in [*self.names, self._problem.entry]]

    def state(self) -> str:
        return f"{self._problem.question}\nattempt {self._attempts + 1} of {self.max_attempts}"

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        codes = self._task.answer
        if codes is None:
            return None
        if agent == self.adviser:
            return "\n\n".join(map(fenced, codes))
        return fenced(codes[self.writers.index(agent)])


def _converted(row: Row, where: str, num_visible: int, max_tests: int, count: int) -> Row:
    """A row with its problem, which must have a function to test.

    Raises:
        DataError: it has none, is in none of the known forms, or `codes` does not fit the writers.
    """
    found = converted(row, where, num_visible, max_tests)
    if not found[PROBLEM]["entry"]:
        raise DataError(f"{where}: it tests a whole program, and no function of it")
    codes = row.get(CODES)
    if codes is not None and (isinstance(codes, str) or len(codes) != count):
        raise DataError(f"{where}, column 'codes': expected {count} texts, one for each writer")
    return found

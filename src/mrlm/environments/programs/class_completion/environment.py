"""The class completion environment: agents that each write some methods of one class, and an
optional adviser between turns. Code runs only in a sandbox."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.programs.class_completion.generator import row as generated
from mrlm.environments.programs.class_completion.grading import ClassGrader
from mrlm.environments.programs.class_completion.merging import Division, divided, honest
from mrlm.environments.programs.class_completion.problems import PROBLEM, ClassProblem, converted
from mrlm.environments.programs.class_completion.scoring import CompletionScore, worth
from mrlm.environments.programs.writers import INSTRUCTION, Mode, Pay, Writers
from mrlm.environments.shared.rows import RowTable, others, row_matters, whole_number
from mrlm.sandbox.types import Sandbox


class ClassCompletionEnvironment(Writers[CompletionScore]):
    """An environment in which several agents write the methods of one class concurrently.

    The score of a class is at most 6: 2 x the fraction of valid methods (written by the assigned
    writer, with the required parameters, and not empty) + 4 x the fraction of passed tests - the
    fraction of methods written by a writer to whom they are not assigned; 0 if the whole is not
    valid Python. The reward of a turn is the change of the score since the previous turn.

    Args:
        dataset: rows in the form of ClassEval, optionally with `division`, the names of the methods
            of each writer; unlimited generated classes when `None`.
        eval_dataset: held-out rows; a tenth of the classes of `dataset` when `None`.
        split, columns, on_bad_row: settings of rows, see `RowTable`.
        agents: names of the writers, one or more.
        division: assignment of methods: by `parameters` (the first writer gets the methods with the
            fewest), by `dependency` (those that depend on no others), or lists of names per writer.
        feedback: feedback between turns: `none`, `count` (number of passed tests), `graded`
            (structural defects, and roughly how many tests pass), `tests` (also the visible cases),
            `expert` (advice of one more agent).
        expert_agent: name of that agent; its reward is the team's gain in the next turn.
        rewards: `team`: every agent gets the score of the class; `individual`: that of the tests
            and of its own methods.
        max_turns: maximum number of submissions.
        num_visible: test cases shown in the question.
        max_tests: test cases of a row that are used, spread evenly.
        test_timeout: seconds for every case.
        isolation: isolation of the code, as in `open_sandbox`.
        sandbox: an open sandbox, instead of `isolation`.
        instruction: text after the question; none if empty.
        seed: seed of generated classes and of the split.
    """

    label = "class_completion"
    kind = ClassProblem
    reward_range: tuple[float, float] | None = (-1.0, 6.0)
    expert_return: float | None = 6.0
    slow_proof = True
    matters: ClassVar[Mapping[str, Matters]] = row_matters("dataset", rows=["max_tests"])

    def __init__(
        self,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        agents: Sequence[str] = ("first", "second"),
        division: Division | Sequence[Sequence[str]] = "dependency",
        feedback: Mode = "tests",
        expert_agent: str = "expert",
        rewards: Pay = "team",
        max_turns: int = 1,
        num_visible: int = 1,
        max_tests: int = 40,
        test_timeout: float = 5.0,
        isolation: str | Mapping[str, Any] = "auto",
        sandbox: Sandbox[Any] | None = None,
        instruction: str = INSTRUCTION,
        seed: int = 0,
    ) -> None:
        common = (max_turns, test_timeout, num_visible, instruction, seed)
        super().__init__(agents, feedback, expert_agent, rewards, *common)
        whole_number(2, max_tests=max_tests)
        if isinstance(division, str) and division not in ("parameters", "dependency"):
            raise ConfigError(
                "division must be 'parameters', 'dependency' or lists of names, one list per "
                f"writer, not {division!r}"
            )
        self.division: Division | Sequence[Sequence[str]] = division
        self._bench = ClassGrader(isolation, sandbox, self.limits)
        self.isolation: str | Mapping[str, Any] | None = isolation if sandbox is None else None
        tests = {"num_visible": num_visible, "max_tests": max_tests}
        self._convert = partial(converted, num_writers=len(self.writers), **tests)
        if dataset is not None:
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = RowTable(dataset, *settings, convert=self._convert)
        self._division: list[list[str]] = []

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            name, info = f"class_completion-{split}-{index}", others(row)
        else:
            name = f"class_completion-{self.seed}-{split}-{seed}"
            row = self._convert(generated(f"{self.seed}/{seed}", split), name)
            info = {PROBLEM: row[PROBLEM]}
        return Task(name, [Message(row["prompt"])], row.get("solution_code"), seed, info)

    def asked(self) -> list[str]:
        self._division = divided(self._problem, len(self.writers), self.division)
        parts = []
        for names in self._division:
            part = f"Write only {_listed(names)} of the class `{self._problem.name}`"
            if len(self.writers) > 1:
                part += "; others write the rest at the same time, and you may call it"
            parts.append(f"{part}.")
        return parts

    async def judged(self, codes: Sequence[str]) -> CompletionScore:
        judge = partial(self._bench.judge, self._problem, limits=self.limits)
        return await worth(self._problem, self._division, codes, judge)

    def shown(self) -> list[str]:
        return [_listed(names) for names in self._division]

    def render(self, agent: str | None = None) -> Html | None:
        """The methods with their writers, and the tests of the last class; not for the agents."""
        score = self._score
        if agent is not None or self._problem is None:
            return None
        rows = []
        for writer, names in zip(self.writers, self._division, strict=True):
            for name in names:
                word, kind = "", ""
                if score is not None:
                    there = score.parses and name not in score.missing
                    word, kind = ("valid", "good") if there else ("missing or not valid", "bad")
                    word += ", also of others" * (name in score.foreign)
                rows.append((writer, name, (word, kind)))
        drawn = table(rows, ("writer", "method", ""))
        return stacked(drawn, "" if score is None else self._results(score))

    def _results(self, score: CompletionScore) -> Html:
        """The results of the visible test cases, and the number of all that pass."""
        verdicts = {tuple(case): verdict for case, verdict in score.judged}
        rows = []
        for case in self._problem.cases[: len(self._problem.samples)]:
            if (verdict := verdicts.get(tuple(case))) is not None:
                kind = "good" if verdict.passed else "bad"
                word = "passes" if verdict.passed else f"fails ({verdict.kind})"
                rows.append((".".join(case), (word, kind)))
        count = f"{score.passed} of {len(score.judged)} tests pass, hidden ones included"
        drawn = table(rows, ("visible test", "")) if rows else ""
        return stacked(drawn, count if score.judged else "no test was run")

    def state(self) -> str:
        who = [
            f"{writer}: {', '.join(names)}"
            for writer, names in zip(self.writers, self._division, strict=False)
        ]
        question, attempt = super().state().rsplit("\n", 1)
        return "\n".join([question, *who, attempt])

    def solution(self) -> list[str] | None:
        return honest(self._problem, self._division)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

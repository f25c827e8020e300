"""The world of class completion: seats that each write some methods of one class, and perhaps one
that advises them between turns. It knows nothing of models, and runs code in a sandbox only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Message, StepResult, Task
from mrlm.data.tasks import OnBadRow, Row
from mrlm.environments.class_completion.dividing import Division, divided
from mrlm.environments.class_completion.generator import row as generated
from mrlm.environments.class_completion.grading import ClassBench
from mrlm.environments.class_completion.merging import honest
from mrlm.environments.class_completion.problems import PROBLEM, ClassProblem, converted
from mrlm.environments.class_completion.scoring import CompletionScore, told, worth
from mrlm.environments.code.answers import fenced
from mrlm.environments.shared.program import INSTRUCTION, Mode, Pay, Writers
from mrlm.environments.shared.rows import Table, at_least, others, row_matters
from mrlm.sandbox.types import Sandbox


class ClassCompletionEnvironment(Writers):
    """Writers of one class, who write at the same time, each its own methods.

    A class is worth, at most 6: 2 x the share of the methods that are valid (written by whoever was
    asked, with the parameters asked for, and not empty), 4 x the share of the tests that pass, less
    the share of the methods that somebody wrote who should not; 0 if the whole is not Python. Every
    turn earns the difference to the one before.

    Args:
        dataset: rows in the form of ClassEval, perhaps with `division`, the names of the methods of
            each writer; classes without end when `None`.
        eval_dataset: held-out rows; a tenth of the classes of `dataset` when `None`.
        split: which split of the data set.
        columns: our column name -> the data set's.
        on_bad_row: `raise` or `skip`.
        agents: names of the writers, one or more.
        division: who writes what: by `parameters` (the first writer has the methods with the
            fewest), by `dependency` (those that need no others), or the names, writer by writer.
        feedback: what is told between turns: `none`, `count` (how many tests pass), `graded` (what
            the structure lacks, and in words how many pass), `tests` (the cases that may be seen,
            too), `expert` (what one more seat says of the class).
        expert_agent: name of that seat, which earns what the team gains in the next turn.
        rewards: `team` pays everybody for the class; `individual` for the tests and for its own
            methods.
        max_turns: classes that may be handed in.
        num_visible: cases that the question shows.
        max_tests: cases of a row that are used, spread over all.
        test_timeout: seconds for every case.
        isolation: how code is run, as `open_sandbox` takes it.
        sandbox: one that is open already, instead of `isolation`.
        instruction: put after the question; none if empty.
        seed: of generated classes and of the split.

    Raises:
        ConfigError: impossible arguments.
        DataError: rows that cannot be used.
    """

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
        sandbox: Sandbox | None = None,
        instruction: str = INSTRUCTION,
        seed: int = 0,
    ) -> None:
        at_least("num_visible", num_visible, 0, whole=True)
        at_least("max_tests", max_tests, 2, whole=True)
        super().__init__(agents, feedback, expert_agent, rewards, max_turns, test_timeout)
        if isinstance(division, str) and division not in ("parameters", "dependency"):
            raise ConfigError(
                "division must be 'parameters', 'dependency' or lists of names, one for each "
                f"writer, not {division!r}"
            )
        self.division: Division | Sequence[Sequence[str]] = division
        self.instruction: str = instruction
        self.seed: int = seed
        self._bench = ClassBench(isolation, sandbox)
        self._convert = partial(
            converted,
            num_writers=len(self.writers),
            num_visible=num_visible,
            max_tests=max_tests,
        )
        self._table: Table | None = None
        if dataset is not None:
            self._table = Table(
                dataset,
                eval_dataset=eval_dataset,
                split=split,
                columns=columns,
                on_bad_row=on_bad_row,
                seed=seed,
                convert=self._convert,
            )
        self._problem = ClassProblem("", "", "", [], [], "", [])
        self._division: list[list[str]] = []

    # -- tasks -------------------------------------------------------------------------------------

    def num_tasks(self, split: Split = "train") -> int | None:
        return None if self._table is None else self._table.count(split)

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            index, row = self._table.row(seed, split)
            return self._task_of(f"class_completion-{split}-{index}", row, seed)
        name = f"class_completion-{self.seed}-{split}-{seed}"
        return self._task_of(
            name, self._convert(generated(f"{self.seed}/{seed}", split), name), seed
        )

    def _task_of(self, name: str, row: Row, seed: int) -> Task:
        info = {PROBLEM: row[PROBLEM]} if self._table is None else others(row)
        return Task(name, [Message(row["prompt"])], row.get("solution_code"), seed, info)

    # -- play --------------------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        where = f"class completion: task {self._task.id!r}"
        if PROBLEM not in self._task.info:
            raise ConfigError(f"{where} has no {PROBLEM} in its info")
        self._problem = ClassProblem.of(self._task.info[PROBLEM], where)
        self._division = divided(self._problem, len(self.writers), self.division)
        return self.begin()

    def asked(self) -> list[str]:
        """The opening question of every writer."""
        parts = []
        for names in self._division:
            said = f"Write only {_listed(names)} of the class `{self._problem.name}`"
            if len(self.writers) > 1:
                said += "; others write the rest at the same time, and you may call it"
            parts.append(f"{self._problem.question}\n{said}.\n{self.instruction}".strip())
        return parts

    async def judged(self, codes: Sequence[str]) -> CompletionScore:
        judge = partial(self._bench.judge, self._problem, limits=self.limits)
        return await worth(self._problem, self._division, codes, judge)

    def share(self, found: CompletionScore, place: int) -> float:
        return found.share(place)

    def told(self, mode: Mode, found: CompletionScore) -> str:
        return told(mode, self._problem, found)

    def shown(self) -> tuple[str, list[str]]:
        return self._problem.question, [_listed(names) for names in self._division]

    def state(self) -> str:
        who = [
            f"{writer}: {', '.join(names)}"
            for writer, names in zip(self.writers, self._division, strict=False)
        ]
        attempt = f"attempt {self._attempts + 1} of {self.max_attempts}"
        return "\n".join([self._problem.question, *who, attempt])

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        codes = honest(self._problem, self._division)
        if codes is None:
            return None
        if agent == self.adviser:
            return "\n\n".join(map(fenced, codes))
        return fenced(codes[self.writers.index(agent) if len(self.writers) > 1 else 0])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

"""Base class of environments in which several agents write one program concurrently, in one or
several turns, optionally with an adviser between turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.programs.code.answers import extract_code, fenced
from mrlm.environments.programs.code.grading import patient
from mrlm.environments.shared.generators import attempts
from mrlm.environments.shared.rows import RowTasks, agent_names, whole_number
from mrlm.sandbox.types import Limits

Mode = Literal["none", "count", "graded", "tests", "expert"]
Pay = Literal["team", "individual"]
INSTRUCTION = "Answer with the code in one ```python block."
MAX_SHOWN = 4_000
"""Maximum number of characters of an advice, or of code shown to the adviser."""


@dataclass(slots=True)
class ProgramScore:
    """The score of a program.

    Args:
        paid: component -> reward; the team's reward is their sum.
    """

    paid: dict[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The reward of the team."""
        return sum(self.paid.values())

    @property
    def solved(self) -> bool:
        """Whether the program is complete."""
        raise NotImplementedError

    def share(self, index: int) -> float:
        """The reward of one writer with individual rewards."""
        raise NotImplementedError

    def feedback(self, mode: Mode, problem: Any) -> str:
        """Feedback of a mode on an unfinished program; empty for `expert`. Hidden tests contribute
        only numbers."""
        raise NotImplementedError


S = TypeVar("S", bound=ProgramScore)


def problem_of(task: Task, kind: Any, title: str) -> Any:
    """The problem in a task's info, in the column of its kind. Raises `ConfigError`: it is missing
    or not valid."""
    where = f"{title}: task {task.id!r}"
    if kind.column not in task.info:
        raise ConfigError(f"{where} has no {kind.column} in its info")
    return kind.of(task.info[kind.column], where)


def grade_of(passed: int, number: int) -> str:
    """Roughly how many tests pass, in words."""
    share = passed / number if number else 0.0
    few = "No test passes." if not share else "Some tests pass."
    return few if share < 0.5 else "Most tests pass."


class Writers(RowTasks, Environment, Generic[S]):
    """An environment in which several agents write one program. The reward of a turn is the change
    of the score since the previous turn, so that the return of an episode is the score of its last
    program.

    A subclass sets `label` and `kind`, and implements `task`, `asked`, `judged`, `shown`
    and `solution`.
    """

    label: str
    """Name of the environment, the first part of the names of tasks."""
    kind: type
    """Class of the problems."""

    def __init__(
        self,
        agents: Sequence[str],
        feedback: Mode,
        expert_agent: str,
        rewards: Pay,
        max_turns: int,
        test_timeout: float,
        num_visible: int,
        instruction: str,
        seed: int,
    ) -> None:
        whole_number(0, num_visible=num_visible)
        self.feedback: Mode = feedback
        self.rewards: Pay = rewards
        self.writers: tuple[str, ...] = agent_names(agents)
        self.adviser: str | None = expert_agent if feedback == "expert" else None
        self.agents: tuple[str, ...] = agent_names(
            self.writers if self.adviser is None else (*self.writers, self.adviser)
        )
        self.max_attempts: int = attempts(None, max_turns)
        advised = self.max_attempts - 1 if self.adviser is not None else 0
        self.max_turns: int | None = self.max_attempts + advised
        self.limits: Limits = Limits(wall=test_timeout)
        self.alone: Mapping[str, Any] = {"limits": patient(self.limits), "rewards": "team"}
        self.num_visible: int = num_visible
        self.instruction: str = instruction
        self.seed: int = seed
        self._task = Task("none")
        self._problem: Any = None
        self._attempts = 0
        self._paid: dict[str, dict[str, float]] = {}
        self._advised = False
        self._score: S | None = None
        """The score of the last program."""

    # -- implemented by a subclass -----------------------------------------------------------------

    def asked(self) -> list[str]:
        """The part of every writer, after the question."""
        raise NotImplementedError

    async def judged(self, codes: Sequence[str]) -> S:
        """The score of the writers' codes together."""
        raise NotImplementedError

    def shown(self) -> list[str]:
        """For the adviser: the part of each writer."""
        raise NotImplementedError

    def solution(self) -> list[str] | None:
        """The reference code of every writer, if it is known."""
        raise NotImplementedError

    # -- play --------------------------------------------------------------------------------------

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self._task = task or self.task(seed or 0)
        self._problem = problem_of(self._task, self.kind, self.label.replace("_", " "))
        self._attempts, self._paid, self._advised, self._score = 0, {}, False, None
        question = self._problem.question
        prompts = [f"{question}\n{part}\n{self.instruction}".strip() for part in self.asked()]
        pairs = zip(self.writers, prompts, strict=True)
        return StepResult({name: Observation([Message(words)]) for name, words in pairs})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        if self._advised:
            self._advised = False
            advice = stated_by(actions, self.adviser)
            return StepResult(self._to_all(f"Advice:\n{advice[:MAX_SHOWN]}"))
        texts = [stated_by(actions, name) for name in self.writers]
        codes = [extract_code(text) for text in texts]
        self._score = score = await self.judged(codes)
        self._attempts += 1
        over = score.solved or self._attempts >= self.max_attempts
        rewards = self._rewards(score)
        if over:
            return StepResult(rewards=rewards, done=True)
        if self.adviser is not None:
            self._advised = True
            observation = Observation([Message(self._for_adviser(codes, score))])
            return StepResult({self.adviser: observation}, rewards)
        return StepResult(self._to_all(score.feedback(self.feedback, self._problem)), rewards)

    def _to_all(self, words: str) -> dict[str, Observation]:
        again = f"Try again (attempt {self._attempts + 1} of {self.max_attempts})."
        message = Message(f"{words}\n{again}".strip())
        return {name: Observation([message]) for name in self.writers}

    def _for_adviser(self, codes: Sequence[str], score: S) -> str:
        parts = [
            f"The writer of {name}:\n{fenced(code[:MAX_SHOWN])}"
            for name, code in zip(self.shown(), codes, strict=True)
        ]
        closing = "Say to each writer, in few words or as code, what to change."
        feedback = score.feedback("tests", self._problem)
        return "\n\n".join([self._problem.question, *parts, feedback, closing])

    def _rewards(self, score: S) -> dict[str, Reward]:
        """The changes of the score and of all components since the previous program."""
        rewards = {}
        for index, name in enumerate(self.writers):
            value = score.share(index) if self.rewards == "individual" else score.value
            rewards[name] = self._gained(name, value, score.paid)
        if self.adviser is not None:
            gained = self._gained(self.adviser, score.value, score.paid)
            rewards |= {self.adviser: gained} if self._attempts > 1 else {}
        return rewards

    def state(self) -> str:
        attempt = f"attempt {self._attempts + 1} of {self.max_attempts}"
        return f"{self._problem.question}\n{attempt}"

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        codes = self.solution()
        if codes is None:
            return None
        if agent == self.adviser:
            return "\n\n".join(map(fenced, codes))
        return fenced(codes[self.writers.index(agent)])

    def _gained(self, name: str, value: float, components: Mapping[str, float]) -> Reward:
        now = {"value": value, **components}
        before, self._paid = self._paid.get(name, {}), {**self._paid, name: now}
        gained = {part: number - before.get(part, 0.0) for part, number in now.items()}
        return Reward(gained.pop("value"), gained, {"program": now})

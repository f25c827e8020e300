"""Worlds in which several seats write one program at the same time, perhaps some times over and
with somebody's advice between: how turns follow and what a turn earns, for any kind of program."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from mrlm.core.environment import Environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.code.answers import extract_code, fenced
from mrlm.environments.shared.generators import attempts, chosen
from mrlm.environments.shared.rows import seats
from mrlm.sandbox.types import Limits

Mode = Literal["none", "count", "graded", "tests", "expert"]
MODES: tuple[Mode, ...] = ("none", "count", "graded", "tests", "expert")
Pay = Literal["team", "individual"]
INSTRUCTION = "Answer with the code in one ```python block."
MAX_SHOWN = 4_000
"""Characters of an advice, or of a code shown to the adviser."""


class Found(Protocol):
    """What a program is worth."""

    paid: dict[str, float]
    """Component -> what it pays."""

    @property
    def value(self) -> float:
        """What the team is paid: the sum of the components."""
        ...

    @property
    def solved(self) -> bool:
        """Whether nothing is left to do."""
        ...


class Writers(Environment):
    """Writers of one program. Every turn earns the difference to the one before, so that an episode
    is paid what its last program is worth.

    A world writes `asked`, `judged`, `share`, `told` and `shown`.

    Args:
        agents: names of the writers.
        feedback: what is told between turns.
        expert_agent: name of the seat that advises where `feedback` is `expert`.
        rewards: `team`, or `individual`.
        max_turns: programs that may be handed in.
        test_timeout: seconds for every test.

    Raises:
        ConfigError: impossible arguments.
    """

    blocking: bool = False  # steps are coroutines, and nothing else takes long

    def __init__(
        self,
        agents: Sequence[str],
        feedback: Mode,
        expert_agent: str,
        rewards: Pay,
        max_turns: int,
        test_timeout: float,
    ) -> None:
        chosen(feedback, MODES, "feedback")
        if rewards not in ("team", "individual"):
            raise ConfigError(f"rewards must be 'team' or 'individual', not {rewards!r}")
        self.feedback: Mode = feedback
        self.rewards: Pay = rewards
        self.writers: tuple[str, ...] = seats(agents)
        self.adviser: str | None = expert_agent if feedback == "expert" else None
        self.agents: tuple[str, ...] = seats(
            self.writers if self.adviser is None else (*self.writers, self.adviser)
        )
        self.max_attempts: int = attempts(None, max_turns)
        advised = self.max_attempts - 1 if self.adviser is not None else 0
        self.max_turns: int | None = self.max_attempts + advised
        self.limits: Limits = Limits(wall=test_timeout)
        self._task = Task("none")
        self._attempts = 0
        self._paid: dict[str, dict[str, float]] = {}
        self._advised = False

    # -- what a world writes -----------------------------------------------------------------------

    def asked(self) -> list[str]:
        """The opening question of every writer."""
        raise NotImplementedError

    async def judged(self, codes: Sequence[str]) -> Any:
        """What the writers' codes are worth together: something like `Found`."""
        raise NotImplementedError

    def share(self, found: Any, place: int) -> float:
        """The reward of one writer where each is paid for its own part."""
        raise NotImplementedError

    def told(self, mode: Mode, found: Any) -> str:
        """What a mode says of a program that is not finished."""
        raise NotImplementedError

    def shown(self) -> tuple[str, list[str]]:
        """For the adviser: the question, and what each writer writes."""
        raise NotImplementedError

    # -- play --------------------------------------------------------------------------------------

    def spawn(self) -> Writers:
        """A copy, which begins anew at its reset."""
        return copy.copy(self)

    def begin(self) -> StepResult:
        """The first observations of an episode."""
        self._attempts, self._paid, self._advised = 0, {}, False
        asked = zip(self.writers, self.asked(), strict=True)
        return StepResult({name: Observation([Message(words)]) for name, words in asked})

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Judge a program, or pass on what the adviser says."""
        if self._advised:
            return self._pass_on(actions)
        said = [actions[name].content if name in actions else "" for name in self.writers]
        codes = [extract_code(text) for text in said]
        found: Found = await self.judged(codes)
        self._attempts += 1
        over = found.solved or self._attempts >= self.max_attempts
        rewards = self._rewards(found)
        if over:
            return StepResult(rewards=rewards, done=True)
        if self.adviser is not None:
            self._advised = True
            shown = Observation([Message(self._for_adviser(codes, found))])
            return StepResult({self.adviser: shown}, rewards)
        return StepResult(self._to_all(self.told(self.feedback, found)), rewards)

    def _pass_on(self, actions: Mapping[str, Message]) -> StepResult:
        """What the adviser says, to every writer."""
        assert self.adviser is not None
        self._advised = False
        said = actions[self.adviser].content if self.adviser in actions else ""
        return StepResult(self._to_all(f"Advice:\n{said[:MAX_SHOWN]}"))

    def _to_all(self, words: str) -> dict[str, Observation]:
        again = f"Try again (attempt {self._attempts + 1} of {self.max_attempts})."
        message = Message(f"{words}\n{again}".strip())
        return {name: Observation([message]) for name in self.writers}

    def _for_adviser(self, codes: Sequence[str], found: Found) -> str:
        question, names = self.shown()
        parts = [
            f"The writer of {name}:\n{fenced(code[:MAX_SHOWN])}"
            for name, code in zip(names, codes, strict=True)
        ]
        closing = "Say to each writer, in few words or as code, what to change."
        return "\n\n".join([question, *parts, self.told("tests", found), closing])

    def _rewards(self, found: Found) -> dict[str, Reward]:
        """The differences to what was paid for the program before, in every number."""
        rewards = {}
        for place, name in enumerate(self.writers):
            value = self.share(found, place) if self.rewards == "individual" else found.value
            rewards[name] = self._gained(name, value, found.paid)
        if self.adviser is not None:
            gained = self._gained(self.adviser, found.value, found.paid)
            rewards |= {self.adviser: gained} if self._attempts > 1 else {}
        return rewards

    def _gained(self, name: str, value: float, paid: Mapping[str, float]) -> Reward:
        now = {"value": value, **paid}
        before, self._paid = self._paid.get(name, {}), {**self._paid, name: now}
        gained = {part: number - before.get(part, 0.0) for part, number in now.items()}
        return Reward(gained.pop("value"), gained, {"program": now})

"""Another world with one seat instead of several: one agent writes everybody's part.

What a team has to beat: a single agent that sees what all see, with as many tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mrlm.core.environment import Environment, validated_reward
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.shared.wrapped import Wrapped


class CentralisedEnvironment(Wrapped):
    """Plays `environment` with one agent in all its seats.

    The agent is shown what every seat is shown, each text after the seat's name in brackets, and
    answers in the same form: `[row] A [column] B`. A part ends where the next name begins; a seat
    without a part says nothing; of several parts of one seat the first counts. Where only one seat
    has to speak, or where there are no names in the answer and `separator` is not set, the whole
    answer is the first seat's.

    It is paid the team's reward, the mean over those who are paid; components are named
    `<seat>/<component>`. For the same budget of tokens give it
    `generation.max_new_tokens` times the number of seats.

    Args:
        environment: the world: an instance, or a section with `env_type` and its arguments.
        agent: name of the one seat.
        separator: the parts stand in the order of the seats and are divided by this instead of
            being named (short answers of small models).

    Example:
        >>> from mrlm.environments.matrix import MatrixEnvironment
        >>> world = CentralisedEnvironment(MatrixEnvironment("climbing"))
        >>> world.parts("[row] A [column] B", ("row", "column"))
        {'row': 'A', 'column': 'B'}
    """

    def __init__(
        self,
        environment: Environment | Mapping[str, Any],
        agent: str = "team",
        separator: str | None = None,
    ) -> None:
        super().__init__(environment)
        self.seats: tuple[str, ...] = self.environment.agents
        self.agents: tuple[str, ...] = (agent,)
        self.separator = separator
        self._speakers: tuple[str, ...] = ()

    def spawn(self) -> Environment:
        """A fresh copy of the world underneath."""
        return CentralisedEnvironment(self.environment.spawn(), self.agents[0], self.separator)

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        """Start the world underneath."""
        return self._joined(await self.reset_underneath(task, seed))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Everybody's part to the world underneath, and what it answers in one."""
        (message,) = actions.values()
        parts = self.parts(message.content, self._speakers)
        said = {seat: Message(text, message.role, agent=seat) for seat, text in parts.items()}
        return self._joined(await self.step_underneath(said))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """What the world's honest players would say, in one."""
        said = {seat: self.environment.expert(seat, messages) for seat in self._speakers}
        if not said or any(text is None for text in said.values()):
            return None
        if self.separator is not None:
            return self.separator.join(str(text) for text in said.values())
        if len(said) == 1:
            return next(iter(said.values()))
        return " ".join(f"[{seat}] {text}" for seat, text in said.items())

    def parts(self, text: str, speakers: tuple[str, ...]) -> dict[str, str]:
        """What each of the seats that have to speak says in an answer."""
        if self.separator is not None:
            pieces = text.split(self.separator)
            pieces += [""] * (len(speakers) - len(pieces))
            return {seat: piece.strip() for seat, piece in zip(speakers, pieces, strict=False)}
        names = "|".join(re.escape(seat) for seat in speakers)
        found = re.split(rf"\[({names})\]", text)
        if len(found) == 1:
            return {seat: text.strip() if seat == speakers[0] else "" for seat in speakers}
        named: dict[str, str] = {}
        for seat, piece in zip(found[1::2], found[2::2], strict=True):
            named.setdefault(seat, piece.strip())
        return {seat: named.get(seat, "") for seat in speakers}

    def _joined(self, result: StepResult) -> StepResult:
        shown = {seat: seen for seat, seen in result.observations.items() if not seen.done}
        self._speakers = tuple(shown)
        alone = len(shown) == 1 and len(self.seats) > 1
        (agent,) = self.agents
        observations = {}
        if shown:
            texts = {
                seat: "\n".join(message.content for message in seen.messages)
                for seat, seen in shown.items()
            }
            named = [text if alone else f"[{seat}] {text}" for seat, text in texts.items()]
            observations = {agent: Observation([Message("\n".join(named))])}
        rewards = {agent: _team(result.rewards)} if result.rewards else {}
        return StepResult(observations, rewards, result.done, result.truncated, result.info)


def _team(rewards: Mapping[str, Any]) -> Reward:
    """The mean of what the seats are paid, with everybody's components; rewards that are not known
    are left out."""
    given = {seat: validated_reward(reward, f"seat {seat!r}") for seat, reward in rewards.items()}
    paid = {seat: reward for seat, reward in given.items() if reward.known}
    if not paid:
        return Reward(0.0, known=False)
    components = {
        f"{seat}/{name}": value
        for seat, reward in paid.items()
        for name, value in reward.components.items()
    }
    return Reward(sum(reward.value for reward in paid.values()) / len(paid), components)


PLUGIN = CentralisedEnvironment

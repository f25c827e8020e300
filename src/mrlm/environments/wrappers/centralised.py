"""Centralised control of a multi-agent environment: one agent writes the messages of all roles.

The baseline for a team: a single agent with all observations and the same number of tokens."""

import re
from collections.abc import Mapping
from typing import Any

from mrlm.core.board import stacked
from mrlm.core.environment import Environment
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.environments.wrappers.wrapped import Wrapped, known_rewards, mean


class CentralisedEnvironment(Wrapped):
    """A wrapper of `environment` in which one agent plays all roles.

    The agent sees the observations of all roles, each after the role's name in brackets, and
    answers in the same form: `[row] A [column] B`. A part ends at the next name; a role without a
    part sends an empty message; of several parts of one role the first counts. If only one role has
    to act, or the answer contains no names and `separator` is not set, the whole answer belongs to
    the first role.

    Its reward is the team's: the mean over the roles with a known reward; components are named
    `<role>/<component>`. For an equal token budget set `generation.max_new_tokens` to that of one
    agent times the number of roles.

    Args:
        environment: an environment instance, or a section with `env_type` and its arguments.
        agent: name of the single agent.
        separator: delimiter between the parts, given in the order of the roles, instead of names
            (short answers of small models).

    Examples:
        >>> from mrlm.environments.games.matrix import MatrixEnvironment
        >>> env = CentralisedEnvironment(MatrixEnvironment("climbing"))
        >>> env.parts("[row] A [column] B", ("row", "column"))
        {'row': 'A', 'column': 'B'}
    """

    def __init__(
        self,
        environment: Environment | Mapping[str, Any],
        agent: str = "team",
        separator: str | None = None,
    ) -> None:
        super().__init__(environment)
        self.roles: tuple[str, ...] = self.environment.agents
        self.agents: tuple[str, ...] = (agent,)
        self.separator = separator
        self._speakers: tuple[str, ...] = ()

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return self._joined(await self.reset_underneath(task, seed))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Step the wrapped environment with the part of each role, and join its observations."""
        (message,) = actions.values()
        parts = self.parts(stated_text(message), self._speakers)
        messages = {role: Message(text, message.role, agent=role) for role, text in parts.items()}
        return self._joined(await self.step_underneath(messages))

    def render(self, agent: str | None = None) -> str | None:
        """The board of the environment; the agent sees those of all roles."""
        if agent is None:
            return self.environment.render()
        boards = dict.fromkeys(filter(None, map(self.environment.render, self.roles)))
        return next(iter(boards)) if len(boards) == 1 else stacked(*boards) or None

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The expert messages of all roles, joined into one."""
        texts = {role: self.environment.expert(role, messages) for role in self._speakers}
        if not texts or any(text is None for text in texts.values()):
            return None
        if self.separator is not None:
            return self.separator.join(str(text) for text in texts.values())
        if len(texts) == 1:
            return next(iter(texts.values()))
        return " ".join(f"[{role}] {text}" for role, text in texts.items())

    def parts(self, text: str, speakers: tuple[str, ...]) -> dict[str, str]:
        """Role -> its part of an answer, for the roles that have to act."""
        if self.separator is not None:
            pieces = text.split(self.separator)
            pieces += [""] * (len(speakers) - len(pieces))
            return {role: piece.strip() for role, piece in zip(speakers, pieces, strict=False)}
        names = "|".join(re.escape(role) for role in speakers)
        sections = re.split(rf"\[({names})\]", text)
        if len(sections) == 1:
            return {role: text.strip() if role == speakers[0] else "" for role in speakers}
        named: dict[str, str] = {}
        for role, piece in zip(sections[1::2], sections[2::2], strict=True):
            named.setdefault(role, piece.strip())
        return {role: named.get(role, "") for role in speakers}

    def _joined(self, result: StepResult) -> StepResult:
        active = {role: seen for role, seen in result.observations.items() if not seen.done}
        self._speakers = tuple(active)
        alone = len(active) == 1 and len(self.roles) > 1
        (agent,) = self.agents
        parts = []
        for role, seen in active.items():
            text = "\n".join(message.content for message in seen.messages)
            parts.append(text if alone else f"[{role}] {text}")
        observations = {agent: Observation([Message("\n".join(parts))])} if parts else {}
        rewards = {agent: _team(result)} if result.rewards else {}
        return StepResult(observations, rewards, result.done, result.truncated, result.info)


def _team(result: StepResult) -> Reward:
    """The mean of the known rewards of the roles, with all their components."""
    role_rewards = known_rewards(result, "role")
    if not role_rewards:
        return Reward(0.0, known=False)
    components = {
        f"{role}/{name}": value
        for role, reward in role_rewards.items()
        for name, value in reward.components.items()
    }
    return Reward(mean(role_rewards), components)


PLUGIN = CentralisedEnvironment

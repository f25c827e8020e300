"""Rollouts that a user brings, written by hand or recorded by a `Generator`, as the groups that
algorithms compare."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.transcripts import transcript_turns
from mrlm.core.types import Episode, Group, Role, Rollout, Task, Turn

log: logging.Logger = logging.getLogger("mrlm")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads rollouts for one policy.

    Args:
        policy: its name.
        chat: renders what was written by hand.
        agents: whose messages are trained on; everybody's when `None`.
    """

    policy: str
    chat: Chat
    agents: frozenset[str] | None

    def groups(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[float] | None = None,
        group_by: Callable[[Rollout], Any] | None = None,
    ) -> list[Group]:
        """Groups of one-agent episodes, with their rewards on the last turn.

        Raises:
            ConfigError: rewards of the wrong number or not finite.
        """
        if rewards is not None and len(rewards) != len(rollouts):
            raise ConfigError(
                f"{len(rollouts)} rollouts but {len(rewards)} rewards; give one reward per rollout"
            )
        by_key: dict[Any, list[Episode]] = {}
        for index, rollout in enumerate(rollouts):
            turns = self.turns(rollout)
            if rewards is not None:
                _pay(turns, float(rewards[index]), index)
            total = sum(turn.reward for turn in turns)
            key = group_by(rollout) if group_by else opening_of(rollout)
            copy = replace(rollout, policy=self.policy, turns=turns)
            episode = Episode(
                str(index), Task(str(key)), {rollout.agent or "agent": copy}, total, status="done"
            )
            episode.step_rewards = [total]
            by_key.setdefault(key, []).append(episode)
        return [Group(episodes, str(key)) for key, episodes in by_key.items()]

    def turns(self, rollout: Rollout) -> list[Turn]:
        """The turns an engine recorded, and one per MODEL message that was written by hand."""
        recorded = {id(turn) for turn in rollout.turns}
        by_hand = [
            index
            for index, message in enumerate(rollout.messages)
            if message.role is Role.ASSISTANT
            and (message.turn is None or id(message.turn) not in recorded)
        ]
        turns = list(rollout.turns)
        if by_hand and not (turns and all(message.turn is None for message in rollout.messages)):
            name = rollout.agent or "agent"
            written = transcript_turns(self.chat, rollout.messages, name, self.policy, self.agents)
            turns += [
                turn for turn in written if turn.message is not None and turn.message.turn is None
            ]
            turns.sort(key=lambda turn: len(turn.prompt_ids))
        for turn in turns:
            turn.policy = self.policy
            turn.advantages = turn.returns = turn.values = None
            turn.ref_logprobs = turn.old_logprobs = None
            turn.trained = self.agents is None or turn.agent in self.agents
        return turns


def compared(groups: list[Group], algorithm: str) -> list[Group]:
    """Groups that an algorithm can compare inside: all as one, where each has a single member.

    Raises:
        ConfigError: there is only one rollout.
    """
    if any(len(group) > 1 for group in groups):
        return groups
    if len(groups) == 1:
        raise ConfigError(
            f"{algorithm} compares rollouts with each other, and there is only one; "
            "give several rollouts of the same question"
        )
    log.info("no two rollouts start alike, so all %d are compared as one group", len(groups))
    return [Group([episode for group in groups for episode in group])]


def _pay(turns: Sequence[Turn], reward: float, index: int) -> None:
    if not math.isfinite(reward):
        raise ConfigError(f"reward {index} is {reward}; rewards must be finite numbers")
    for turn in turns:
        turn.reward = 0.0
    if turns:
        turns[-1].reward = reward


def opening_of(rollout: Rollout) -> Any:
    """What rollouts must share to be compared: their task, else everything before the first MODEL
    message."""
    if rollout.task_id is not None:
        return rollout.task_id
    opening = []
    for message in rollout.messages:
        if message.role is Role.ASSISTANT:
            break
        opening.append((str(message.role), message.content))
    return tuple(opening)

"""Dr. MAS: a turn's reward against the mean and the deviation of its own agent's turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from mrlm.algorithms.grpo import GRPO
from mrlm.config.words import FlatWords
from mrlm.core.types import Group
from mrlm.learn.algorithm import STRICT
from mrlm.learn.credit import EPSILON, Member, centred, group_std, members, trained_turns
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class DrMAS(GRPO):
    """`A = (R - mean_k) / (std_k + 1e-6)` over all turns of one agent in all episodes of one task
    (arXiv 2602.08847): agents whose rewards differ in scale, or who speak differently often, do not
    disturb each other's gradients.

    A turn counts with what its agent earned in the episode, so that an agent called twice is
    counted twice in its own statistics and long episodes weigh more. `dedupe_per_episode` counts an
    episode once, with the mean of its turns; `average_rows` also gives each turn that mean. The
    two differ only where turns of one key have different scores, that is with `key="task"`.

    `key="task"` pools the turns of all agents of a task: the comparison that the paper argues
    against, and what "GRPO with the team's reward" means elsewhere. A group whose scores are all
    equal, or that has one episode left, gets exactly 0. Groups of 8, no divergence and no entropy
    are the authors' settings; the clipped surrogate and its averaging are GRPO's.

    Args:
        key: who is compared: turns of one `agent`, or of all agents of a `task`.
        dedupe_per_episode: an episode counts once in mean and deviation.
        average_rows: every turn counts with the mean of its key in its episode.
    """

    key: Literal["agent", "task"] = "agent"
    dedupe_per_episode: bool = False
    average_rows: bool = False

    scales: ClassVar[tuple[str, ...]] = ("group", "none")

    def credit_group(self, group: Group) -> None:
        by_agent = list(members(group).values())
        pooled = [member for found in by_agent for member in found]
        for found in by_agent if self.key == "agent" else [pooled]:
            self._credit(found)

    def _credit(self, found: Sequence[Member]) -> None:
        """Credit of the rollouts of one key."""
        if not found:
            return
        sizes = [len(trained_turns(rollout)) for _, rollout in found]
        rows = np.repeat([self.score(rollout) for _, rollout in found], sizes)
        places: dict[int, int] = {}
        where = [places.setdefault(id(episode), len(places)) for episode, _ in found]
        episode = np.repeat(where, sizes)
        first = rows[np.unique(episode, return_index=True)[1]]
        means = first + np.bincount(episode, rows - first[episode]) / np.bincount(episode)
        if self.average_rows:
            rows = means[episode]
        counted = means if self.dedupe_per_episode or self.average_rows else rows
        advantages = np.zeros(len(rows))
        if len(means) > 1 and centred(counted).any():
            advantages = rows - counted.mean()
        if self.scale_rewards == "group":
            advantages = advantages / (group_std(counted) + EPSILON)
        turns = [turn for _, rollout in found for turn in trained_turns(rollout)]
        for turn, advantage in zip(turns, advantages, strict=True):
            turn.advantages = float(advantage)


@dataclass(kw_only=True, config=STRICT)
class DrMASConfig(FlatWords, DrMAS):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Dr. MAS with the flat words of its trainer."""


class DrMASTrainer(Trainer):
    """Train with `DrMAS` in one call."""

    algorithm = "dr_mas"


PLUGIN = DrMAS

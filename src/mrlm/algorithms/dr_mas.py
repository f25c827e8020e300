"""Dr. MAS: a turn's reward against the mean and the deviation of its own agent's turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.grpo import GRPO
from mrlm.config.words import FlatWords
from mrlm.core.types import Episode, Group, Rollout, Turn
from mrlm.learn.algorithm import STRICT
from mrlm.learn.credit import (
    EPSILON,
    Member,
    centred,
    group_std,
    members,
    sides,
    trained_turns,
)
from mrlm.trainer import Trainer

VALID = ("valid", "legal")
"""Components of a reward by which worlds say whether an action could be carried out."""


@dataclass(kw_only=True, config=STRICT)
class DrMAS(GRPO):
    """`A = (R - mean_k) / (std_k + 1e-6)` over all turns of one agent in all episodes of one task
    (arXiv 2602.08847): agents whose rewards differ in scale, or who speak differently often, do not
    disturb each other's gradients.

    A turn counts with what its agent earned in the episode, so that an agent called twice is
    counted twice in its own statistics and long episodes weigh more. `dedupe_per_episode` counts an
    episode once, with the mean of its turns; `average_rows` also gives each turn that mean. The
    two differ only where turns of one key have different scores: where some were invalid, or with
    `key="task"`.

    What was earned is what the world pays the agent (teams are paid alike by most worlds), or with
    `rewards="team"` the mean of what it pays everybody. A turn whose action the world could not
    carry out counts less by `invalid_penalty`: worlds say so by a component `valid` or `legal` of
    the reward, below 0.5.

    `key="task"` pools the turns of all agents of a task: the comparison that the paper argues
    against, and what "GRPO with the team's reward" means elsewhere. A group whose scores are all
    equal, or that has one episode left, gets exactly 0. Groups of 8, a penalty of 0.1, no
    divergence and no entropy are the authors' settings; the clipped surrogate and its averaging are
    GRPO's.

    Args:
        dedupe_per_episode: an episode counts once in mean and deviation.
        average_rows: every turn counts with the mean of its key in its episode.
        invalid_penalty: what an invalid action costs its turn.
    """

    dedupe_per_episode: bool = False
    average_rows: bool = False
    invalid_penalty: float = Field(default=0.1, ge=0)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")

    def credit_group(self, group: Group) -> None:
        for found in sides(members(group), self.key).values():
            self._credit(found)

    def turn_scores(self, episode: Episode, rollout: Rollout) -> list[float]:
        """What each trained turn of a rollout is compared by."""
        score = self.score(episode, rollout)
        return [score - self._invalid(turn) for turn in trained_turns(rollout)]

    def _invalid(self, turn: Turn) -> float:
        refused = any(turn.components.get(name, 1.0) < 0.5 for name in VALID)
        return self.invalid_penalty if refused else 0.0

    def _credit(self, found: Sequence[Member]) -> None:
        """Credit of the rollouts of one key."""
        sizes = [len(trained_turns(rollout)) for _, rollout in found]
        rows = np.concatenate([self.turn_scores(*member) for member in found])
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

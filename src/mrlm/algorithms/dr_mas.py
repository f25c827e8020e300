"""Dr. MAS: a turn's reward against the mean and the deviation of its own agent's turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.algorithms.grpo import GRPO
from mrlm.config.paper_presets import PaperPreset
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout, Turn
from mrlm.learn.bases.algorithm import STRICT
from mrlm.learn.credit.baselines import comparisons, deviation, exact_mean
from mrlm.learn.credit.groups import EPSILON, Member, members, sides, trained_turns

VALID = ("valid", "legal")
"""Components of a reward by which worlds say whether an action could be carried out."""


@dataclass(kw_only=True, config=STRICT)
class DrMAS(GRPO):
    """`A = (R - mean_k) / (std_k + 1e-6)` over all turns of one agent in all episodes of one task
    (arXiv 2602.08847): agents whose rewards differ in scale, or who speak differently often, do not
    disturb each other's gradients.

    A turn counts with what its agent earned in the episode, so that an agent called twice is
    counted twice in its own statistics and long episodes weigh more (`baseline_by="role"`, the
    paper's; a score is that of a whole episode, so that a constant on every reward cancels here
    too). `baseline_by="episode"`, also known as `dedupe_per_episode`, counts an episode once, with
    the mean of its turns; `average_rows` also gives each turn that mean. The two differ only where
    turns of one key have different scores: where some were invalid, or with `key="task"`.

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
        baseline_by: which scores a turn is compared with (`mrlm.learn.credit.baselines`).
        dedupe_per_episode: the authors' name of `baseline_by="episode"`.
        average_rows: every turn counts with the mean of its key in its episode.
        invalid_penalty: what an invalid action costs its turn.
    """

    baseline_by: Literal["turn", "episode", "role"] = "role"
    dedupe_per_episode: bool = False
    average_rows: bool = False
    invalid_penalty: float = Field(default=0.1, ge=0)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")

    presets: ClassVar[Mapping[str, PaperPreset]] = {
        "dr_mas": PaperPreset(
            "Dr. MAS, arXiv 2602.08847",
            {
                "scale_rewards": ("group", "authors' code, ray_trainer.py"),
                "group_size": (8, "authors' code, run_math.sh"),
                "kl_coef": (0.0, "authors' code, run_math.sh"),
                "entropy_coef": (0.0, "authors' code, run_math.sh"),
                "update_epochs": (1, "authors' code, run_math.sh"),
                "num_minibatches": (1, "authors' code, run_math.sh"),
                "invalid_penalty": (0.1, "authors' code, run_math.sh"),
            },
            (1e-6, "authors' code, run_math.sh"),
            (
                "Mean and deviation are over all turns of an agent, as there: an episode in which "
                "it speaks often counts often (`dedupe_per_episode` counts it once).",
                "A group in which all turns of an agent scored the same gets exactly 0, where the "
                "authors' code divides by a small number. Clip ranges are the library's.",
            ),
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dedupe_per_episode or self.average_rows:
            if self.baseline_by == "turn":
                name = "dedupe_per_episode" if self.dedupe_per_episode else "average_rows"
                raise ConfigError(
                    f"{name} counts every episode once, and baseline_by='turn' compares turns; "
                    "remove one of the two"
                )
            self.baseline_by = "episode"

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
        rows = [self.turn_scores(*member) for member in found]
        if self.average_rows:
            rows = _averaged(found, rows)
        compared = comparisons(found, rows, self.baseline_by)
        scale = deviation(compared) + EPSILON if self.scale_rewards == "group" else 1.0
        for each in compared:
            advantages = each.advantages("mean") / scale
            for turn, advantage in zip(each.turns, advantages, strict=True):
                turn.advantages = float(advantage)


def _averaged(found: Sequence[Member], rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """Every score replaced by the mean over the turns of its key in its episode."""
    by_episode: dict[int, list[float]] = {}
    for (episode, _), row in zip(found, rows, strict=True):
        by_episode.setdefault(id(episode), []).extend(row)
    means = {key: exact_mean(np.array(scores)) for key, scores in by_episode.items()}
    return [[means[id(episode)]] * len(row) for (episode, _), row in zip(found, rows, strict=True)]


PLUGIN = DrMAS

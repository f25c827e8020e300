"""Dr. MAS: rewards normalised by the mean and standard deviation of the same agent's turns.

- **Kind** teams without a critic
- **Paper** arXiv 2602.08847.
- **Formula** `(R - mean_agent) / (std_agent + eps)` over all turns of one agent and task.
- **Differs** from the authors' code: groups with equal scores have exactly 0, where it divides by a
  small number; its other numbers are the defaults (`preset: dr_mas`).
- **Knobs** plan: `chain(G)`; credit: team; group: task and agent; baseline: mean / deviation.
- **Use it** for teams whose agents have rewards of different scale, or different numbers of turns.
"""

from typing import ClassVar, Literal

from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.credit.baselines import compare
from mrlm.learn.credit.groups import members, sides, trained_turns

VALID = ("valid", "legal")
"""Reward components by which environments report whether an action was valid."""


@settings
class DrMAS(GroupRelative, PolicyGradient):
    """`A = (R - mean_k) / (std_k + 1e-6)` over all turns of one agent in all episodes of one task
    (arXiv 2602.08847), so that agents of different reward scales or numbers of turns do not disturb
    each other's gradients.

    The score of a turn is the return of its agent in the episode, so an agent called twice counts
    twice in its own statistics (`baseline_by="role"`, the paper's). `baseline_by="episode"` counts
    an episode once, with the mean of its turns. The return is the agent's own, or with
    `rewards="team"` the team's. A group whose scores are all equal, or that has one episode left,
    gets exactly 0.

    `key="task"` pools the turns of all agents, the comparison that the paper argues against. An
    invalid action is one whose reward component `valid` or `legal` is below 0.5.

    Args:
        baseline_by: which scores a turn is compared with (`mrlm.learn.credit.baselines`).
        dedupe_per_episode: the authors' name of `baseline_by="episode"`.
        invalid_penalty: subtracted from the score of a turn with an invalid action.
    """

    baseline_by: Literal["turn", "episode", "role"] = "role"
    dedupe_per_episode: bool = False
    invalid_penalty: float = Field(default=0.1, ge=0)

    scales: ClassVar[tuple[str, ...]] = ("group", "none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dedupe_per_episode:
            if self.baseline_by == "turn":
                raise ConfigError(
                    "dedupe_per_episode counts every episode once, and baseline_by='turn' compares "
                    "turns; remove one of the two"
                )
            self.baseline_by = "episode"

    def credit_group(self, group: Group) -> None:
        for side_members in sides(members(group), self.key).values():
            rows = [self.turn_scores(*member) for member in side_members]
            scaled = self.scale_rewards == "group"
            compare(side_members, rows, self.baseline_by, scaled=scaled, noted=False)

    def turn_scores(self, episode: Episode, rollout: Rollout) -> list[float]:
        """Score of each trained turn of a rollout."""
        score, turns = self.score(episode, rollout), trained_turns(rollout)
        wrong = [any(turn.components.get(name, 1.0) < 0.5 for name in VALID) for turn in turns]
        return [score - self.invalid_penalty if each else score for each in wrong]


PLUGIN = DrMAS

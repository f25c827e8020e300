"""MARSHAL: turn-level returns, standardised over the turns of the role in sibling episodes.

- **Kind** teams without a critic
- **Paper** arXiv 2510.15414.
- **Formula** the return of every turn to the end, less the mean of the role's turns of the same
  number in the task's episodes, by their deviation from these means; with `baseline_by: role`
  normalised over all turns of the role, as in the paper.
- **Differs** from the paper: a turn is compared with those of its number (`preset: marshal` sets
  the paper's `baseline_by: role`, all turns of the role); no divergence; the batch is not whitened
  afterwards and nothing is clipped twice, as in the authors' code.
- **Knobs** plan: `chain(G)`; credit: to go, per turn; group: task and role; baseline: mean /
  deviation.
- **Use it** for games of many turns with intermediate rewards.
"""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.credit.baselines import compare
from mrlm.learn.credit.groups import discounted, members, sides, team_rewards, trained_turns


@settings
class MARSHAL(GroupRelative, PolicyGradient):
    """`A_t = (G_t - mean) / (std + 1e-6)` with `G_t` the agent's return from its turn `t` to the
    end of the episode, and mean and standard deviation over the turns of that role in the episodes
    of the task (arXiv 2510.15414), so that an intermediate reward counts for the turns before it
    and not for those after it. Then GRPO's surrogate.

    A turn is compared with those of the same number (`baseline_by="turn"`), with one standard
    deviation around these means for all turns. The paper takes all turns of the role (`role`),
    which favours early turns wherever there are intermediate rewards. Every agent is a role unless
    `key` names them. A role with the same returns in every episode, turn by turn, or with one
    episode left, gets exactly 0. The length penalty (`overlong_max_length`) is added to the reward
    of the last turn.

    Args:
        gamma: discount from one of the agent's turns to its next.
        baseline_by: which returns a turn is compared with (`mrlm.learn.credit.baselines`).
    """

    gamma: float = Field(default=1.0, ge=0, le=1)
    baseline_by: Literal["turn", "episode", "role"] = "turn"

    scales: ClassVar[tuple[str, ...]] = ("group", "none")

    def turn_returns(self, episode: Episode, rollout: Rollout) -> np.ndarray:
        """Return of each trained turn (turns,) of an agent."""
        turns, turn_rewards = rollout.turns, [turn.reward for turn in rollout.turns]
        if self.rewards == "team":
            turns, turn_rewards = trained_turns(rollout), team_rewards(episode, rollout)
        turn_rewards[-1] += self.too_long(sum(len(turn) for turn in rollout.turns))
        pairs = zip(turns, discounted(turn_rewards, self.gamma), strict=True)
        to_go = {id(turn): value for turn, value in pairs}
        return np.array([to_go[id(turn)] for turn in trained_turns(rollout)])

    def credit_group(self, group: Group) -> None:
        for side_members in sides(members(group), self.key).values():
            rows = [self.turn_returns(*member) for member in side_members]
            compare(side_members, rows, self.baseline_by, scaled=self.scale_rewards == "group")


PLUGIN = MARSHAL

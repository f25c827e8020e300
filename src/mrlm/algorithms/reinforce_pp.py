"""REINFORCE++: token returns, whitened over the batch, in a clipped surrogate; no critic.

- **Kind** one agent, or independent agents
- **Paper** arXiv 2501.03262.
- **Formula** token returns with the divergence k1 in the reward, whitened over the agent's turns of
  the same number in the batch; with `baseline: group`, `R - mean of the group` first; `clip(A)`.
- **Differs** from the paper: turns are compared with those of the same number (`baseline_by:
  batch`, in `preset: reinforce_pp`, takes all); no divergence; rewards are not normalised.
- **Knobs** credit: to go and k1; group: batch; baseline: none or mean, whitened; loss: token ratio.
- **Use it** for many different tasks with few answers each.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.baselines import whiten_batch
from mrlm.learn.credit.explain import because
from mrlm.learn.credit.groups import credited_turns, is_trained, members, sampled_kl, trained_turns


@settings
class ReinforcePP(PolicyGradient):
    """`A = (G - mean) / std` over all tokens of the batch, where `G` is the return from a token on,
    less the rollout's sampled KL to the reference (arXiv 2501.03262, eq. 6 to 8); then the clipped
    token surrogate.

    Statistics over the batch need no siblings, and do not drift with the difficulty of single
    tasks; `baseline="group"` (REINFORCE++-baseline) subtracts the siblings' mean reward first. Each
    agent has its own statistics, in episodes of several turns those of its turns of the same
    number, with one standard deviation for all; `baseline_by="batch"` takes all turns, which
    favours early ones, whose returns contain more rewards. A batch in which all returns are equal
    gets exactly 0.

    Args:
        gamma: discount from one turn to the next.
        baseline: `none`, or the mean over the `group`, which then needs at least two siblings.
        baseline_by: which returns mean and standard deviation are taken over.
    """

    gamma: float = Field(default=1.0, ge=0, le=1)
    baseline: Literal["none", "group"] = "none"
    baseline_by: Literal["turn", "batch"] = "turn"

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline == "group" and self.group_size < 2:
            raise ConfigError(
                "reinforce_pp.baseline='group' compares siblings, and reinforce_pp.group_size is "
                f"{self.group_size}; set it to 2 or more"
            )

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(siblings=self.baseline == "group"))

    def token_returns(self, rollout: Rollout) -> np.ndarray:
        """Return from each trained token (tokens,) of a rollout on. The reward of a turn is on its
        last token; that of an untrained turn is added to the preceding trained one."""
        rewards: list[np.ndarray] = []
        for turn in rollout.turns:
            if is_trained(turn):
                token_rewards = np.zeros(len(turn))
                if self.kl_coef:
                    token_rewards -= self.kl_coef * sampled_kl(turn)
                rewards.append(token_rewards)
            if rewards:
                rewards[-1][-1] += turn.reward
        following, returns = 0.0, []
        for token_rewards in reversed(rewards):
            token_rewards[-1] += self.gamma * following
            returns.append(np.cumsum(token_rewards[::-1])[::-1])
            following = returns[-1][0]
        return np.concatenate(returns[::-1])

    def credit_group(self, group: Group) -> None:
        for agent_members in members(group).values():
            rows = [self.token_returns(rollout) for _, rollout in agent_members]
            if self.baseline == "group":
                mean = float(np.mean([row[0] for row in rows]))
                rows = [np.full(len(row), row[0] - mean) for row in rows]
            for (_, rollout), row in zip(agent_members, rows, strict=True):
                turns = trained_turns(rollout)
                cuts = np.cumsum([len(turn) for turn in turns])[:-1]
                for turn, returns in zip(turns, np.split(row, cuts), strict=True):
                    turn.returns, turn.advantages = returns, 0.0
                    if self.baseline == "group":
                        because(turn, "mean of the group subtracted, {}", returns)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        whiten_batch(credited_turns(groups, self.baseline_by), self.baseline_by)


PLUGIN = ReinforcePP

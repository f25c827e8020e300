"""MATPO: the planner's reward, relative to its siblings', for the planner and all its workers.

- **Kind** teams without a critic
- **Paper** arXiv 2510.04678.
- **Formula** the planner's group-normalised reward, for the planner and for every worker it called.
- **Differs** from the paper: a policy for each agent unless they share one, where it trains one for
  all roles; the reward is the environment's.
- **Knobs** plan: `chain(G)`, planner and workers on one policy; credit: inherited; group: task,
  over planners; baseline: mean / deviation.
- **Use it** if one model plans and calls itself as a worker.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core.episodes import Group
from mrlm.core.matters import SEVERAL_AGENTS, Matters
from mrlm.learn.bases.algorithm import check_agent, settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.credit.explain import against
from mrlm.learn.credit.groups import assign, trained_turns


@settings
class MATPO(GroupRelative, PolicyGradient):
    """`A = (R - mean) / (std + 1e-6)` over the planner's rollouts of one task; every worker rollout
    in the same episode gets the same advantage (arXiv 2510.04678), whatever its own rewards. Losses
    are averaged over all tokens of planner and workers. Separate policies and a frozen planner are
    supported; episodes without a turn of the planner are left out.

    Args:
        planner: the agent whose rewards are compared; `None` is the first agent of the environment.
    """

    planner: str | None = None

    scales: ClassVar[tuple[str, ...]] = ("group", "none")
    decides: ClassVar[tuple[str, ...]] = ("key",)

    matters: ClassVar[Mapping[str, Matters]] = {"planner": SEVERAL_AGENTS}

    def check_agents(self, policy_of: Mapping[str, str], num_agents: int) -> None:
        super().check_agents(policy_of, num_agents)
        check_agent("matpo.planner", self.planner, policy_of)

    def credit_group(self, group: Group) -> None:
        planner = self.planner or group.agents[0]
        acted = [episode for episode in group.valid if planner in episode.rollouts]
        episodes = [e for e in acted if math.isfinite(e.rollouts[planner].reward)]
        rewards = np.array([self.score(episode, episode.rollouts[planner]) for episode in episodes])
        rows = zip(episodes, rewards, self.compared(rewards), strict=True)
        for episode, reward, advantage in rows:
            for rollout in episode.rollouts.values():
                assign(rollout, advantage)
                against(trained_turns(rollout), reward, rewards, advantage)


PLUGIN = MATPO

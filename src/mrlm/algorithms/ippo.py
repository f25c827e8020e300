"""IPPO: PPO for each agent on its own observations, with its own or the team's rewards.

- **Kind** teams with critics
- **Paper** arXiv 2011.09533.
- **Formula** PPO's, over an agent's own turns: the next value is that of its own next turn.
- **Knobs** credit: own or team; group: batch, per agent; baseline: GAE, whitened; critic:
  `separate` or `shared`, its values normalised; loss: token ratio.
- **Against `mappo`**: its critic reads the agent's context, and its rewards are the agent's own.
  With `rewards: team` and `critic: separate` only the critic's input differs: equal values give
  equal advantages (`tests/properties/test_value_units.py`). The divergence of `kl_coef` is part of
  the reward here and of the loss there.
- **Differs** from the paper: four epochs, no entropy bonus, gamma 1 (`preset: ippo`).
- **Use it** if agents have separate rewards or models.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode
from mrlm.core.types import Rollout
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.credit.groups import team_rewards


@settings
class IPPO(PPO):
    """Independent PPO (arXiv 2011.09533): `PPO` under its multi-agent name, with values normalised
    as in `mappo`. With a policy per agent each has its own critic too; agents with a shared policy
    share the critic, and their advantages are whitened separately.

    Args:
        rewards: `own`: the agent's rewards from the environment. `team`: the team's rewards for
            every agent, from the joint step of a turn up to that of its next one.
    """

    rewards: Literal["own", "team"] = "own"

    normalizes: ClassVar[bool] = True

    also: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "IAC": {"loss_type": "reinforce", "critic": "separate", "level": "turn"}
    }

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        if self.rewards == "own":
            return super().turn_rewards(episode, rollout)
        return team_rewards(episode, rollout)


PLUGIN = IPPO

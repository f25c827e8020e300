"""Router-R1: PPO with the settings of a model that learns to route queries to other models.

- **Kind** one agent, or independent agents
- **Paper** arXiv 2506.09033.
- **Differs** from the authors' code: values per turn (`preset: router_r1`: per token), and text of
  other models is not in the value loss.
- **Formula** PPO over the router's tokens. The paper's reward is in
  `environments/search_qa/routing.py`, for routing environments: -1 for a wrong format, else 0 for a
  wrong answer, else `(1 - c) outcome + c (1 - x)`, `x` the rank of its cost among the latest costs.
- **Knobs** plan: `chain` with frozen workers; credit: format before outcome before cost, k1 in the
  reward; baseline: GAE that skips other models' text; critic: `separate`.
- **Use it** to train a model that calls other models.
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError
from mrlm.core.types import Rollout
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Topology
from mrlm.learn.credit.groups import all_members
from mrlm.learn.credit.running_stats import Window

COST = "cost"
"""Reward component by which an environment reports the cost of queries."""
LATEST = 1000
"""Rollouts whose costs are kept."""


@settings
class RouterR1(PPO):
    """`PPO` with the settings of Router-R1 (arXiv 2506.09033). The router is a trained agent; the
    models it queries are agents with frozen policies, or part of the environment. Their answers
    occur only in the router's prompts: policy loss, value loss and KL exclude them. With gamma and
    lambda 1 the advantages of the router's tokens are the same but for the whitening.

    With `cost_coef` c above 0 a rollout with a positive reward R gets `(1 - c) R + c (1 - x)`,
    where x is the position of the square root of its cost between the 5th and the 95th percentile
    of the latest 1000 (0.5 where these are equal): cheap answers get more, cheap failures do not.
    All rollouts of an iteration enter the percentiles before any is scored; these costs are part of
    a checkpoint.

    Args:
        cost_coef: weight of the cost, which environments report as the reward component `cost`
            (price times tokens); 0 as in the authors' script.
    """

    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    value_clip_range: float | None = Field(default=0.5, gt=0)
    entropy_coef: float = 0.001
    kl_coef: float = Field(default=0.001, ge=0)
    critic: Topology = "separate"
    update_epochs: int = Field(default=1, ge=1)
    num_minibatches: int = Field(default=2, ge=1)
    cost_coef: float = Field(default=0.0, ge=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.costs: Window = Window(LATEST)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        if self.cost_coef:
            members = [member for row in all_members(groups).values() for member in row]
            parts = ops.global_gather([_cost(rollout) for _, rollout in members])
            everywhere = [cost for part in parts for cost in part]
            if everywhere and all(cost is None for cost in everywhere):
                raise TrainingError(
                    f"router_r1.cost_coef={self.cost_coef} weighs the cost of queries, but no "
                    f"reward has a component {COST!r}; report it in the environment, or set "
                    "cost_coef to 0"
                )
            self.costs.add(math.sqrt(cost or 0.0) for cost in everywhere)
        super().credit_batch(groups)

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        rewards = super().turn_rewards(episode, rollout)
        if self.cost_coef and rollout.reward > 0:
            cheap = 1 - self.costs.place(math.sqrt(_cost(rollout) or 0.0))
            rewards[-1] += self.cost_coef * (cheap - rollout.reward)
        return rewards

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"costs": self.costs.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.costs.numbers = [float(cost) for cost in state["costs"]]


def _cost(rollout: Rollout) -> float | None:
    """Cost of a rollout; `None` where the environment does not report it."""
    costs = [turn.components[COST] for turn in rollout.turns if COST in turn.components]
    return sum(costs) if costs else None


PLUGIN = RouterR1

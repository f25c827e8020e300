"""A2C: advantages from learned values, the plain policy gradient, one epoch.

- **Kind** one agent, or independent agents
- **Paper** arXiv 1602.01783.
- **Formula** `A` by GAE or over n steps (`estimator`); `-A l`, one epoch, no ratio. A step is a
  turn, with `level: token` a token.
- **Differs** from the paper: GAE and no entropy bonus (`preset: a2c` has both as there).
- **Knobs** baseline: GAE or n steps; critic: `shared` or `separate`; loss: no ratio.
- **Use it** as the actor-critic without PPO's clipping.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.algorithms.ppo import PPO
from mrlm.core.matters import Matters
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import LossType
from mrlm.learn.ops import Aggregation


@settings
class A2C(PPO):
    """Loss `-A log pi` without ratio or clipping, plus the critic's squared error (the synchronous
    form of arXiv 1602.01783); rows, values and rewards are `PPO`'s.

    One epoch: a second one would be off-policy, and the loss has no correction for it. No whitening
    and no value clipping, as in the paper.

    Args:
        estimator: of advantages and returns.
        n_steps: of `n_step`; the paper has 5.
    """

    loss_type: LossType = "reinforce"
    aggregation: Aggregation | None = "token_mean"
    estimator: Literal["gae", "n_step"] = "gae"
    n_steps: int = Field(default=5, ge=1)
    update_epochs: int = Field(default=1, ge=1)
    whiten_advantages: bool = False
    value_clip_range: float | None = Field(default=None, gt=0)

    matters: ClassVar[Mapping[str, Matters]] = {
        "gae_lambda": Matters(
            lambda s, run: s.estimator == "gae",
            "estimator is n_step; remove it, or set estimator=gae",
        ),
        "n_steps": Matters(
            lambda s, run: s.estimator == "n_step",
            "estimator is gae; remove it, or set estimator=n_step",
        ),
    }

    def estimate(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        lengths: Sequence[int],
        discounts: np.ndarray,
        last: np.ndarray,
    ) -> np.ndarray:
        if self.estimator == "gae":
            return super().estimate(rewards, values, lengths, discounts, last)
        return ops.n_step(rewards, values, lengths, discounts, self.n_steps, last)


PLUGIN = A2C

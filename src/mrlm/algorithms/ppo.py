"""PPO: advantages from learned values, a clipped surrogate, a few epochs.

- **Kind** one agent, or independent agents
- **Paper** arXiv 1707.06347, eq. 7; GAE 1506.02438.
- **Formula** `delta = r + gamma V' - V` over the agent's turns (`level: token`: over its tokens),
  `A = delta + gamma lambda A'`, whitened; `clip(A)` and a clipped value loss, four epochs.
- **Knobs** credit: own, k1 in the reward; baseline: GAE, whitened; critic: `shared` or `separate`;
  loss: token ratio.
- **Differs** from the paper: values per turn, whitened advantages, a clipped value loss, a value
  head on the policy, gamma 1. `preset: ppo` is the paper's table, `preset: instruct_gpt` PPO as it
  tuned language models first; both have values per token.
- **Use it** if there is only one answer per task, or rewards in intermediate steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.bases.agent_critic import AgentCritic
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.credit.groups import (
    Member,
    adaptive_kl_coef,
    sampled_kl,
    trained_turns,
)
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs


@settings
class PPO(AgentCritic):
    """Clipped surrogate (arXiv 1707.06347, eq. 7) on advantages by GAE (arXiv 1506.02438), and a
    clipped value loss.

    GAE runs over the tokens or turns of one agent in one episode (`AgentCritic`).

    No reference unless `kl_coef` is set (.05 is common); its KL is then part of the reward.
    `vf_coef` is .1 because a value head on the policy must not dominate its gradient.

    Args:
        vf_coef: weight of the value loss where the critic is `shared`.
        kl_target: adapt `kl_coef` to keep the KL of an episode near this; `None` keeps it fixed.
        kl_horizon: episodes over which it adapts.
    """

    vf_coef: float = Field(default=0.1, ge=0)
    kl_target: float | None = Field(default=None, gt=0)
    kl_horizon: float = Field(default=10000.0, gt=0)

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    matters: ClassVar[Mapping[str, Matters]] = {
        "vf_coef": Matters(
            lambda s, run: s.critic == "shared",
            "the critic has a network and an optimiser of its own; remove it, or set critic=shared",
        ),
        "kl_horizon": Matters(
            lambda s, run: s.kl_target is not None,
            "kl_coef is adapted only towards kl_target; set that, or remove this",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.current_kl_coef: float = self.kl_coef
        if self.kl_target is not None and not self.kl_coef:
            raise ConfigError(
                "kl_target adapts kl_coef, which is 0; set kl_coef, for example to 0.05"
            )

    # -- the divergence from the reference ---------------------------------------------------------

    def kl_coef_of(self, policy: str) -> float:
        """Current KL coefficient in the rewards of a policy's turns."""
        return self.current_kl_coef

    def kl_column(self, turn: Turn) -> np.ndarray:
        """KL to the reference at each token (tokens,)."""
        return sampled_kl(turn)

    def token_rewards(self, turn: Turn) -> np.ndarray:
        if not self.kl_coef:
            return super().token_rewards(turn)
        return -self.kl_coef_of(turn.policy) * self.kl_column(turn)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        super().credit_batch(groups)
        if self.kl_coef:
            everyone = self.successions(groups).values()
            self._adapt([member for succession in everyone for member in succession])

    def _adapt(self, members: list[Member]) -> None:
        turns = [turn for _, rollout in members for turn in trained_turns(rollout)]
        total = sum(float(self.kl_column(turn).sum()) for turn in turns)
        ((total, count),) = ops.global_sum({"kl": [total, len(members)]}).values()
        if not count:
            return
        self.metrics.update(kl=total / count, kl_coef=self.current_kl_coef)
        if self.kl_target is not None:
            self.current_kl_coef = adaptive_kl_coef(
                self.current_kl_coef, total / count, self.kl_target, int(count), self.kl_horizon
            )

    # -- loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        loss = super().loss(batch, outputs)
        if self.critic != "shared":
            return loss
        if outputs.values is None:
            raise TrainingError(f"{type(self).__name__} needs values; give the policy a value head")
        errors, number = self.value_errors(batch, outputs.values)
        value = errors.sum() / number
        loss.total = loss.total + self.vf_coef * value
        loss.metrics["value_loss"] = value.detach()
        loss.tokens[PART] = loss.tokens[PART] + self.vf_coef * errors.detach() / number
        return loss

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"kl_coef": self.current_kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.current_kl_coef = float(state["kl_coef"])


PLUGIN = PPO

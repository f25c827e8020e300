"""SAC: maximum reward at a target entropy, with an adaptive entropy coefficient.

- **Kind** teams with critics
- **Paper** arXiv 1910.07207, the entropy coefficient 1812.05905.
- **Formula** `max E[R]` with the mean entropy of a token held at `H'`: `V` learns lambda-returns of
  `r + alpha (H - H')`; `clip(A) - alpha H(pi)`; `log alpha += rate (H' - H)` between iterations;
  rewards and loss of one iteration have the same alpha.
- **Differs** from the papers: no replay, no twin critics and no slow target; lambda-returns instead
  of one step, a target entropy that is a share of the policy's own, the constant target inside the
  reward, PPO's ratio for later epochs.
- **Knobs** credit: own, with the entropy bonus in the reward; baseline: soft GAE, not whitened;
  critic: `shared` or `separate`; loss: token ratio. `td3` is refused: it needs continuous actions.
- **Use it** if a policy must not lose entropy before it has found high rewards.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.types import Turn
from mrlm.learn import ops
from mrlm.learn.bases.actor_critic import Level
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import all_members, column, trained_turns
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs

ALPHA_LEARNING_RATE = 0.05
"""Learning rate of the logarithm of `alpha`."""


@settings
class SAC(PPO):
    """Soft actor-critic over tokens: `max E[sum_t r_t]` where the mean entropy of the next token is
    held at a target `H'` (discrete actions: arXiv 1910.07207; the constraint and its coefficient
    `alpha`: arXiv 1812.05905, section 5).

    An action is a token, and its state is all tokens before it. The next state of an action is
    therefore known, and one soft value per state gives that of every action: `Q(s_t, a_t) = r_t +
    gamma V(s_{t+1})`, `V(s) = E_a[Q(s, a)] + alpha (H(s) - H')`. `V` is fitted to lambda-returns of
    `r_t + alpha (H_t - H')`. The policy minimises `E_a[alpha log pi(a|s) - Q(s, a)]`: its entropy
    is exact over the vocabulary, the expectation of Q is taken from the sampled tokens, with
    baseline `V(s) - alpha (H - H')` and PPO's clipped ratio for later epochs.

    `alpha` is updated per policy after each iteration. The constant `H'` in the reward keeps a
    policy from writing long answers for their entropy alone. The distribution of a language model
    is far from uniform, so the target is a fraction of the policy's own entropy in the first
    iteration and not of log V. Without a replay buffer there is no overestimation that twin critics
    would correct. Advantages are not whitened, which would change the scale of `alpha`.

    Args:
        alpha: initial weight of the entropy, in units of reward per nat.
        auto_alpha: adapt it to the target; otherwise it is constant.
        target_entropy: mean entropy of a token in nats; `None` is `target_entropy_ratio` times the
            entropy of the first iteration.
        target_entropy_ratio: see there.
    """

    alpha: float = Field(default=0.01, gt=0)
    auto_alpha: bool = True
    target_entropy: float | None = Field(default=None, ge=0)
    target_entropy_ratio: float = Field(default=0.5, ge=0)
    level: Level = "token"
    whiten_advantages: bool = False
    value_clip_range: float | None = Field(default=None, gt=0)

    levels: ClassVar[tuple[Level, ...]] = ("token",)

    matters: ClassVar[Mapping[str, Matters]] = {
        "target_entropy_ratio": Matters(
            lambda s, run: s.target_entropy is None, "target_entropy is set; keep one of them"
        )
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entropy_coef:
            raise ConfigError(
                "entropy_coef is called alpha in sac; set alpha (auto_alpha=false keeps it fixed)"
            )
        self.log_alphas: dict[str, float] = {}
        self.next_log_alphas: dict[str, float] = {}
        self.targets: dict[str, float] = {}

    @property
    def spec(self) -> Spec:
        spec = super().spec
        columns = spec.columns | {"entropies"}
        return replace(spec, columns=columns, entropy=True, ignores_zero=False)

    def alpha_of(self, policy: str) -> float:
        """Entropy coefficient of a policy in this iteration."""
        return math.exp(self.log_alphas.get(policy, math.log(self.alpha)))

    # -- credit -----------------------------------------------------------------------------------

    def token_rewards(self, turn: Turn) -> np.ndarray:
        surplus = column(turn, "entropies") - self.targets[turn.policy]
        return super().token_rewards(turn) + self.alpha_of(turn.policy) * surplus

    def credit_batch(self, groups: Sequence[Group]) -> None:
        self.log_alphas = dict(self.next_log_alphas)
        entropies, target = self._entropies(groups), self.target_entropy
        for policy, entropy in entropies.items():
            share = self.target_entropy_ratio * entropy if target is None else target
            self.targets.setdefault(policy, share)
        super().credit_batch(groups)
        self._note("alpha", {policy: self.alpha_of(policy) for policy in entropies})
        self._note("target_entropy", {policy: self.targets[policy] for policy in entropies})
        # the loss of this iteration keeps the alpha that its rewards were computed with
        for policy, entropy in entropies.items() if self.auto_alpha else ():
            step = ALPHA_LEARNING_RATE * (self.targets[policy] - entropy)
            self.next_log_alphas[policy] = math.log(self.alpha_of(policy)) + step

    def _note(self, name: str, numbers: dict[str, float]) -> None:
        """Log a number per policy, and the mean over policies, as updates do."""
        if numbers:
            self.metrics[name] = sum(numbers.values()) / len(numbers)
        if len(numbers) > 1:
            self.metrics.update({f"{name}/{policy}": value for policy, value in numbers.items()})

    def _entropies(self, groups: Sequence[Group]) -> dict[str, float]:
        """Mean entropy of a trained token of each policy, over all processes."""
        sums: dict[str, list[float]] = {}
        for _, rollout in chain.from_iterable(all_members(groups).values()):
            for turn in trained_turns(rollout):
                row = sums.setdefault(turn.policy, [0.0, 0.0])
                row[0] += float(column(turn, "entropies").sum())
                row[1] += len(turn)
        return {policy: total / n for policy, (total, n) in ops.global_sum(sums).items()}

    # -- loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        loss = super().loss(batch, outputs)
        alpha = self.alpha_of(batch.turns[0].policy)
        bonus = outputs.entropy * self._shares(outputs.entropy, batch)
        loss.total = loss.total - alpha * bonus.sum()
        loss.tokens[PART] = loss.tokens[PART] - alpha * bonus.detach()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "log_alphas": dict(self.next_log_alphas),
            "targets": dict(self.targets),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.log_alphas = dict(state["log_alphas"])
        self.next_log_alphas = dict(state["log_alphas"])
        self.targets = dict(state["targets"])


PLUGIN = SAC

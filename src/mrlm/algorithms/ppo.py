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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.matters import Matters
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.bases.actor_critic import ActorCritic
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.credit.explain import explain_estimate
from mrlm.learn.credit.groups import (
    Member,
    adaptive_kl_coef,
    all_members,
    column,
    is_trained,
    sampled_kl,
    trained_turns,
)
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs


@settings
class PPO(ActorCritic, PolicyGradient):
    """Clipped surrogate (arXiv 1707.06347, eq. 7) on advantages by GAE (arXiv 1506.02438), and a
    clipped value loss.

    Advantages follow one agent through an episode: the next value after a turn is that of the
    agent's own next turn, whatever messages others send in between. The reward of a turn is on its
    last token; that of an untrained turn is added to the preceding trained one. Advantages are
    whitened per agent over the batch. An episode whose last turn was truncated counts as truncated.

    A refinement gives other rewards (`turn_rewards`, `token_rewards`), another sequence of turns
    (`successions`) or another estimate (`estimate`).

    No reference unless `kl_coef` is set (.05 is common); its KL is then part of the reward.
    `vf_coef` is .1 because a value head on the policy must not dominate its gradient.

    Args:
        gamma_token: discount from one token to the next inside a turn.
        vf_coef: weight of the value loss where the critic is `shared`.
        kl_target: adapt `kl_coef` to keep the KL of an episode near this; `None` keeps it fixed.
        kl_horizon: episodes over which it adapts.
    """

    gamma_token: float = Field(default=1.0, ge=0, le=1)
    vf_coef: float = Field(default=0.1, ge=0)
    kl_target: float | None = Field(default=None, gt=0)
    kl_horizon: float = Field(default=10000.0, gt=0)

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    matters: ClassVar[Mapping[str, Matters]] = {
        "gamma_token": Matters(
            lambda s, run: s.level == "token",
            "it discounts from token to token, and level is turn; remove it, or set level=token",
        ),
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

    # -- credit -----------------------------------------------------------------------------------

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        """Reward of each trained turn of a rollout."""
        rewards: list[float] = []
        for turn in rollout.turns:
            if is_trained(turn):
                rewards.append(turn.reward)
            elif rewards:
                rewards[-1] += turn.reward
        return rewards

    def successions(self, groups: Sequence[Group]) -> dict[str, list[Member]]:
        """Rollouts whose turns form one sequence, by the name under which they are whitened
        together. Here each agent's own."""
        return all_members(groups)

    def policies_of(self, found: Mapping[str, Sequence[Member]]) -> dict[str, str]:
        """Agent -> its policy, for the names of `successions` that are agents."""
        return {agent: trained_turns(members[0][1])[0].policy for agent, members in found.items()}

    def values_of(self, turn: Turn) -> np.ndarray:
        """Values of a turn (tokens,) in units of reward."""
        mean, std = self.units_of(turn.policy)
        return column(turn, "values") * std + mean

    def row(self, episode: Episode, rollout: Rollout) -> np.ndarray:
        """Rewards, values and discounts (3, tokens or turns) of one rollout."""
        parts: list[np.ndarray] = []
        turns = trained_turns(rollout)
        for turn, reward in zip(turns, self.turn_rewards(episode, rollout), strict=True):
            values = self.values_of(turn)
            rewards, discounts = self.token_rewards(turn), np.full(len(turn), self.gamma_token)
            rewards[-1] += reward
            discounts[-1] = self.gamma
            if self.turn_values:
                rewards, values, discounts = rewards.sum(keepdims=True), values[:1], discounts[-1:]
            parts.append(np.stack([rewards, values, discounts]))
        return np.concatenate(parts, axis=1)

    def last_value(self, episode: Episode, rollout: Rollout) -> float:
        """Bootstrap value after the end of a rollout."""
        last = trained_turns(rollout)[-1]
        cut = episode.status == "truncated" or last.finish_reason == "length"
        # a turn's value is that of its first token; only there is the critic trained
        value = self.values_of(last)[0 if self.turn_values else -1]
        return float(value) if cut and self.bootstrap_on_truncation else 0.0

    def estimate(
        self,
        rewards: np.ndarray,
        values: np.ndarray,
        lengths: Sequence[int],
        discounts: np.ndarray,
        last: np.ndarray,
    ) -> np.ndarray:
        """Advantages (N,) of rows of these `lengths`; `last` is the value (R,) after each row."""
        return ops.gae(rewards, values, lengths, discounts, self.gae_lambda, last)

    def credit_batch(self, groups: Sequence[Group]) -> None:
        everyone = self.successions(groups)
        advantages: dict[str, np.ndarray] = {}
        returns: dict[str, np.ndarray] = {}
        for agent, rollouts in everyone.items():
            rows = [self.row(*member) for member in rollouts]
            rewards, values, discounts = np.concatenate(rows, axis=1)
            lengths = [row.shape[1] for row in rows]
            last = np.array([self.last_value(*member) for member in rollouts])
            advantages[agent] = self.estimate(rewards, values, lengths, discounts, last)
            returns[agent] = advantages[agent] + values
        moments = ops.global_moments(advantages)
        predicted: dict[str, list[np.ndarray]] = {}
        for agent, rollouts in everyone.items():
            estimates, targets = advantages[agent], returns[agent]
            if self.whiten_advantages:
                estimates = ops.whiten(estimates, moments=moments[agent])
            for turn, part in self._written(rollouts, estimates, targets, advantages[agent]):
                predicted.setdefault(turn.policy, []).append(part)
        self.observe_returns({policy: np.concatenate(x) for policy, x in predicted.items()})
        self.explain(returns, advantages, self.policies_of(everyone))
        if self.kl_coef:
            self._adapt([member for rollouts in everyone.values() for member in rollouts])

    def _written(
        self,
        rollouts: list[Member],
        advantages: np.ndarray,
        returns: np.ndarray,
        estimates: np.ndarray,
    ) -> Iterator[tuple[Turn, np.ndarray]]:
        """Writes advantages and returns on the turns (`estimates` are the advantages before they
        were whitened); yields each with the returns that its critic should predict."""
        start = 0
        for turn in (turn for _, rollout in rollouts for turn in trained_turns(rollout)):
            here = slice(start, start + (1 if self.turn_values else len(turn)))
            turn.advantages = np.broadcast_to(advantages[here], len(turn)).copy()
            turn.returns = np.broadcast_to(returns[here], len(turn)).copy()
            explain_estimate(turn, returns[here], returns[here] - estimates[here])
            start = here.stop
            yield turn, returns[here]

    # -- the divergence from the reference ---------------------------------------------------------

    def kl_coef_of(self, policy: str) -> float:
        """Current KL coefficient in the rewards of a policy's turns."""
        return self.current_kl_coef

    def kl_column(self, turn: Turn) -> np.ndarray:
        """KL to the reference at each token (tokens,)."""
        return sampled_kl(turn)

    def token_rewards(self, turn: Turn) -> np.ndarray:
        """Reward of each token of a turn (tokens,), without that of the turn itself."""
        if not self.kl_coef:
            return np.zeros(len(turn))
        return -self.kl_coef_of(turn.policy) * self.kl_column(turn)

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

"""PPO: advantages from a value head, a clipped surrogate, a few epochs; IPPO with several
agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.config.words import FlatWords
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.types import Episode, Group, Rollout
from mrlm.learn import ops
from mrlm.learn.algorithm import STRICT
from mrlm.learn.batch import Batch, Loss, Outputs
from mrlm.learn.credit import (
    Member,
    adaptive_kl_coef,
    all_members,
    column,
    sampled_kl,
    trained_turns,
)
from mrlm.learn.policy_gradient import PolicyGradient
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class PPO(PolicyGradient):
    """Clipped surrogate (arXiv 1707.06347, eq. 7) on advantages by GAE (arXiv 1506.02438), and a
    clipped value loss.

    The row that GAE runs over is what one agent wrote in one episode: the next value after a turn
    is that of its own next turn, whatever others said between. With a policy per agent this is
    independent PPO. A turn is paid on its last token; what is paid for a turn that is not trained
    goes to the trained one before it. Advantages are whitened per agent over the batch.

    Defaults: gamma 1 and lambda .95 (episodes are short and paid at the end), four epochs, vf_coef
    .1 (a value head on the policy itself must not drown it). No reference unless `kl_coef` is set
    (.05 is common); its divergence is then part of the reward.

    Args:
        gamma: discount from one turn to the next.
        gamma_token: discount from one token to the next inside a turn.
        gae_lambda: exponential weight of longer estimates.
        level: `token`: a value for every token. `turn`: one value per turn, read at the last token
            of its prompt, and one advantage for all its tokens.
        whiten_advantages: mean 0, deviation 1, per agent.
        value_clip_range: how far the value may move from the old one before its gradient stops;
            `None` is off.
        vf_coef: weight of the value loss.
        kl_target: adapt `kl_coef` so that the divergence of an episode stays near this; `None`
            keeps it fixed.
        kl_horizon: episodes over which it adapts.
        bootstrap_on_truncation: where an episode or its last turn was cut short, go on with the
            last value known (of the state before the last token) instead of 0. Off: an answer that
            is cut short is a failure.
    """

    gamma: float = Field(default=1.0, ge=0, le=1)
    gamma_token: float = Field(default=1.0, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    level: Literal["token", "turn"] = "token"
    whiten_advantages: bool = True
    value_clip_range: float | None = Field(default=0.2, gt=0)
    vf_coef: float = Field(default=0.1, ge=0)
    kl_target: float | None = Field(default=None, gt=0)
    kl_horizon: float = Field(default=10000.0, gt=0)
    bootstrap_on_truncation: bool = False
    update_epochs: int = Field(default=4, ge=1)

    kl_in: ClassVar[Literal["loss", "reward"]] = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.current_kl_coef: float = self.kl_coef
        if self.kl_target is not None and not self.kl_coef:
            raise ConfigError(
                "kl_target adapts kl_coef, which is 0; set kl_coef, for example to 0.05"
            )

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"values"}

    @property
    def ignores_zero(self) -> bool:
        return False  # values are learned from every token

    # -- credit -----------------------------------------------------------------------------------

    def turn_rewards(self, episode: Episode, rollout: Rollout) -> list[float]:
        """What each trained turn of a rollout is paid."""
        found: list[float] = []
        trained = {id(turn) for turn in trained_turns(rollout)}
        for turn in rollout.turns:
            if id(turn) in trained:
                found.append(turn.reward)
            elif found:
                found[-1] += turn.reward
        return found

    def row(self, episode: Episode, rollout: Rollout) -> np.ndarray:
        """Rewards, values and discounts (3, tokens or turns) of one rollout."""
        parts: list[np.ndarray] = []
        turns = trained_turns(rollout)
        for turn, reward in zip(turns, self.turn_rewards(episode, rollout), strict=True):
            values = column(turn, "values")
            rewards, discounts = np.zeros(len(turn)), np.full(len(turn), self.gamma_token)
            if self.current_kl_coef:
                rewards -= self.current_kl_coef * sampled_kl(turn)
            rewards[-1] += reward
            discounts[-1] = self.gamma
            if self.level == "turn":
                rewards, values, discounts = rewards.sum(keepdims=True), values[:1], discounts[-1:]
            parts.append(np.stack([rewards, values, discounts]))
        return np.concatenate(parts, axis=1)

    def last_value(self, episode: Episode, rollout: Rollout) -> float:
        """Value of what comes after the end of a rollout."""
        last = trained_turns(rollout)[-1]
        cut = episode.status == "truncated" or last.finish_reason == "length"
        return float(column(last, "values")[-1]) if cut and self.bootstrap_on_truncation else 0.0

    def credit_batch(self, groups: Sequence[Group]) -> None:
        everyone = all_members(groups)
        advantages, returns, residuals = {}, [], []
        for agent, found in everyone.items():
            rows = [self.row(*member) for member in found]
            rewards, values, discounts = np.concatenate(rows, axis=1)
            lengths = [row.shape[1] for row in rows]
            last = np.array([self.last_value(*member) for member in found])
            advantages[agent] = ops.gae(rewards, values, lengths, discounts, self.gae_lambda, last)
            returns.append(advantages[agent] + values)
            residuals.append(advantages[agent])
        moments = ops.global_moments(advantages)
        for (agent, found), targets in zip(everyone.items(), returns, strict=True):
            estimates = advantages[agent]
            if self.whiten_advantages:
                estimates = ops.whiten(estimates, moments=moments[agent])
            self._write(found, estimates, targets)
        self._explain(returns, residuals)
        if self.kl_coef:
            self._adapt([member for found in everyone.values() for member in found])

    def _write(self, found: list[Member], advantages: np.ndarray, returns: np.ndarray) -> None:
        start = 0
        for _, rollout in found:
            for turn in trained_turns(rollout):
                stop = start + (1 if self.level == "turn" else len(turn))
                turn.advantages = np.broadcast_to(advantages[start:stop], len(turn)).copy()
                turn.returns = np.broadcast_to(returns[start:stop], len(turn)).copy()
                start = stop

    def _explain(self, returns: list[np.ndarray], residuals: list[np.ndarray]) -> None:
        """How much of the variance of returns the values knew before the update (1 is all of
        it)."""
        table = {"returns": returns, "residuals": residuals}
        moments = ops.global_moments({key: np.concatenate(x) for key, x in table.items() if x})
        if "returns" in moments:
            varies = moments["returns"].variance
            left = moments["residuals"].variance
            self.metrics["explained_variance"] = 1 - left / varies if varies else 0.0

    def _adapt(self, found: list[Member]) -> None:
        turns = [turn for _, rollout in found for turn in trained_turns(rollout)]
        total = sum(float(sampled_kl(turn).sum()) for turn in turns)
        ((total, count),) = ops.global_sum({"kl": [total, len(found)]}).values()
        if not count:
            return
        self.metrics.update(kl=total / count, kl_coef=self.current_kl_coef)
        if self.kl_target is not None:
            self.current_kl_coef = adaptive_kl_coef(
                self.current_kl_coef, total / count, self.kl_target, int(count), self.kl_horizon
            )

    # -- loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        if outputs.values is None:
            raise TrainingError(f"{type(self).__name__} needs values; give the policy a value head")
        loss = super().loss(batch, outputs)
        errors = ops.value_loss(outputs.values, batch.returns, batch.values, self.value_clip_range)
        if self.level == "turn":
            first = torch.ones_like(errors)
            first[1:] = (batch.turn[1:] != batch.turn[:-1]).to(errors.dtype)
            value = (errors * first).sum() / batch.totals.turns
        else:
            value = errors.sum() / batch.totals.tokens
        loss.total = loss.total + self.vf_coef * value
        loss.metrics["value_loss"] = value.detach()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"kl_coef": self.current_kl_coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.current_kl_coef = float(state["kl_coef"])


@dataclass(kw_only=True, config=STRICT)
class PPOConfig(FlatWords, PPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """PPO with the flat words of its trainer."""


class PPOTrainer(Trainer):
    """Train with `PPO` in one call."""

    algorithm = "ppo"


PLUGIN = PPO

"""REINFORCE: the plain policy gradient, what followed a turn times the gradient of its
log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.config.words import FlatWords
from mrlm.core.types import Group
from mrlm.learn import ops
from mrlm.learn.algorithm import STRICT
from mrlm.learn.credit import credited_turns, discounted, members, trained_turns
from mrlm.learn.policy_gradient import LossType, PolicyGradient
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class REINFORCE(PolicyGradient):
    """`A_t = sum_{k >= t} gamma^(k - t) r_k` over the agent's own turns, loss `-A log pi` summed
    over a sequence (Williams 1992).

    No baseline and no whitening by default: this is the unbiased estimator that others are compared
    with. Its variance is high; `baseline="mean"` subtracts the mean return of the agent in the
    batch, `whiten` also divides by its deviation.

    Args:
        gamma: discount from one turn to the next.
        baseline: `none`, or the `mean` of the agent's returns over the whole batch.
        whiten: centre and scale the agent's returns over the whole batch.
    """

    loss_type: LossType = "reinforce"
    gamma: float = Field(default=1.0, ge=0, le=1)
    baseline: Literal["none", "mean"] = "none"
    whiten: bool = False

    def credit_group(self, group: Group) -> None:
        for found in members(group).values():
            for _, rollout in found:
                returns = discounted([turn.reward for turn in rollout.turns], self.gamma)
                trained = {id(turn) for turn in trained_turns(rollout)}
                for turn, value in zip(rollout.turns, returns, strict=True):
                    if id(turn) in trained:
                        turn.advantages = turn.returns = value

    def credit_batch(self, groups: Sequence[Group]) -> None:
        if self.baseline == "none" and not self.whiten:
            return
        credited = credited_turns(groups)
        table = {agent: np.array([t.returns for t in turns]) for agent, turns in credited.items()}
        moments = ops.global_moments(table)
        for agent, returns in table.items():
            if self.whiten:
                advantages = ops.whiten(returns, moments=moments[agent])
            elif moments[agent].variance == 0.0:
                advantages = np.zeros_like(returns)
            else:
                advantages = returns - moments[agent].mean
            for turn, advantage in zip(credited[agent], advantages, strict=True):
                turn.advantages = float(advantage)


@dataclass(kw_only=True, config=STRICT)
class ReinforceConfig(FlatWords, REINFORCE):  # pyright: ignore[reportIncompatibleVariableOverride]
    """REINFORCE with the flat words of its trainer."""


class ReinforceTrainer(Trainer):
    """Train with `REINFORCE` in one call."""

    algorithm = "reinforce"


PLUGIN = REINFORCE

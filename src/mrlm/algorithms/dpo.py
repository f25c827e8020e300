"""DPO: direct preference optimisation on pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import logsigmoid

from mrlm.config.words import FlatWords
from mrlm.core.types import Group, Rollout
from mrlm.learn import ops
from mrlm.learn.algorithm import STRICT, Algorithm
from mrlm.learn.batch import Batch, Loss, Outputs
from mrlm.learn.credit import assign, clear, members, trained_turns
from mrlm.trainer import Trainer


@dataclass(kw_only=True, config=STRICT)
class DPO(Algorithm):
    """Raise what was chosen over what was rejected, measured against a frozen reference (arXiv
    2305.18290, eq. 7).

    With `d = (log pi - log ref)(chosen) - (log pi - log ref)(rejected)`, summed over tokens:
    `sigmoid` is `-log s(beta d)`; with `label_smoothing` e, `-(1-e) log s(beta d) - e log s(-beta
    d)`; `robust` (arXiv 2403.00409) is `[-(1-e) log s(beta d) + e log s(-beta d)] / (1 - 2e)`;
    `hinge` is `max(0, 1 - beta d)`; `ipo` (arXiv 2310.12036) is `(d - 1/(2 beta))^2`.

    A group is a pair: the better reward is chosen, and where rewards are equal the first of two.
    Pairs that are identical, that do not begin with the same prompt, or that lost a side, are
    dropped (`frac_dropped_pairs`). beta 0.1 and a learning rate of 1e-6 are the settings most
    reported results use.

    Args:
        loss_type: see above.
        beta: how strongly the reference holds.
        label_smoothing: probability that a label is wrong; used by `sigmoid` and `robust`.
        normalize_lengths: `ipo` only: divide each side by its number of tokens.
    """

    loss_type: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    normalize_lengths: bool = True
    group_size: int = Field(default=2, ge=2)

    requires: ClassVar[frozenset[str]] = frozenset({"rows", "pairs"})
    unit: ClassVar[Literal["turn", "pair", "joint_step"]] = "pair"
    reads_old: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"ref_logprobs"})

    def credit(self, groups: Sequence[Group]) -> None:
        self.metrics: dict[str, float] = {}
        clear(groups)
        pairs = sum(len(group.agents) for group in groups)
        kept = sum(self._mark(group) for group in groups)
        ((pairs, kept),) = ops.global_sum({"pairs": [pairs, kept]}).values()
        self.metrics["frac_dropped_pairs"] = 1.0 - kept / pairs if pairs else 0.0

    def _mark(self, group: Group) -> int:
        """Write +1 on what was chosen and -1 on what was rejected; returns the number of pairs."""
        kept = 0
        for found in members(group).values():
            ranked = sorted(found, key=lambda member: -member[0].reward)
            tied = ranked[0][0].reward == ranked[-1][0].reward
            chosen, rejected = ranked[0][1], ranked[-1][1]
            if len(found) < 2 or (tied and len(found) > 2) or not comparable(chosen, rejected):
                continue
            assign(chosen, 1.0)
            assign(rejected, -1.0)
            kept += 1
        return kept

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        units, pair = torch.unique(batch.unit, return_inverse=True)
        size = len(units)
        gain = outputs.logprobs - batch.ref_logprobs
        sides = [(batch.advantages * sign > 0).to(gain.dtype) for sign in (1.0, -1.0)]
        chosen, rejected = (ops.segment_sum(gain * side, pair, size) for side in sides)
        if self.loss_type == "ipo" and self.normalize_lengths:
            lengths = [ops.segment_sum(side, pair, size) for side in sides]
            losses = self.pair_loss(chosen / lengths[0] - rejected / lengths[1])
        else:
            losses = self.pair_loss(chosen - rejected)
        good, bad = self.beta * chosen.detach(), self.beta * rejected.detach()
        metrics = {
            "rewards/chosen": good,
            "rewards/rejected": bad,
            "rewards/margins": good - bad,
            "rewards/accuracies": (good > bad).to(good.dtype),
        }
        shares: dict[str, Tensor | float] = {
            name: value.sum() / batch.totals.units for name, value in metrics.items()
        }
        shares["entropy"] = outputs.entropy.detach().sum() / batch.totals.tokens
        return Loss(losses.sum() / batch.totals.units, shares)

    def pair_loss(self, margin: Tensor) -> Tensor:
        """Loss of each pair from its margin `d` (pairs,)."""
        if self.loss_type == "ipo":
            return (margin - 1 / (2 * self.beta)).square()
        logit, smoothing = self.beta * margin, self.label_smoothing
        if self.loss_type == "hinge":
            return (1 - logit).clamp(min=0)
        right, wrong = -logsigmoid(logit), -logsigmoid(-logit)
        if self.loss_type == "robust":
            return ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing)
        return (1 - smoothing) * right + smoothing * wrong


def comparable(chosen: Rollout, rejected: Rollout) -> bool:
    """Whether two rollouts answer the same prompt, and differently."""
    a, b = trained_turns(chosen), trained_turns(rejected)
    said = [[turn.completion_ids for turn in turns] for turns in (a, b)]
    return a[0].prompt_ids == b[0].prompt_ids and said[0] != said[1]


@dataclass(kw_only=True, config=STRICT)
class DPOConfig(FlatWords, DPO):  # pyright: ignore[reportIncompatibleVariableOverride]
    """DPO with the flat words of its trainer."""


class DPOTrainer(Trainer):
    """Train with `DPO` in one call."""

    algorithm = "dpo"


PLUGIN = DPO

"""DPO: direct preference optimisation on pairs of a chosen and a rejected answer.

- **Kind** learning from data
- **Paper** arXiv 2305.18290, eq. 7; IPO 2310.12036; robust 2403.00409.
- **Formula** `d = (l - f)(chosen) - (l - f)(rejected)`, summed over tokens; `-log s(beta d)`, or
  hinge `max(0, 1 - beta d)`, IPO `(d - 1 / (2 beta))^2`, robust. `rpo_alpha` (2404.19733) adds the
  chosen answers' likelihood, without which the likelihood of both sides may fall.
- **Differs** from the paper: pairs that are identical or begin with different prompts are dropped;
  AdamW and not RMSProp. IPO takes the means over lengths (`normalize_lengths`), as TRL does and its
  paper does not.
- **Knobs** plan: pairs; loss: preference, against a frozen reference; pairs: a data set.
- **Use it** if you have preferences between two answers. Per agent: a row names its agent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.learn import ops
from mrlm.learn.bases import preference
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.spec import Spec
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs, Sample


@settings
class DPO(Algorithm):
    """Raise the chosen answer over the rejected one, relative to a frozen reference (arXiv
    2305.18290, eq. 7).

    With `d = (log pi - log ref)(chosen) - (log pi - log ref)(rejected)`, summed over tokens:
    `sigmoid` is `-log s(beta d)`; with `label_smoothing` e, `-(1-e) log s(beta d) - e log s(-beta
    d)`; `robust` (arXiv 2403.00409) is `[-(1-e) log s(beta d) + e log s(-beta d)] / (1 - 2e)`;
    `hinge` is `max(0, 1 - beta d)`; `ipo` (arXiv 2310.12036) is `(d - 1/(2 beta))^2`.

    A group is a pair: the answer with the higher reward is chosen, with equal rewards the first of
    two. Pairs that are identical, that do not begin with the same prompt, or that lost a side, are
    dropped (`frac_dropped_pairs`). Both sides may become less likely as long as the rejected one
    falls faster; `rpo_alpha` adds `-rpo_alpha * log pi(chosen) / |chosen|` (arXiv 2404.19733, eq.
    1), which prevents that.

    Args:
        loss_type: see above.
        beta: strength of the regularisation towards the reference.
        rpo_alpha: weight of the chosen answers' log-likelihood, per token; 0 leaves it out.
        label_smoothing: probability that a label is wrong; used by `sigmoid` and `robust`.
        normalize_lengths: `ipo` only: divide each side by its number of tokens.
        ref_update_freq: iterations between updates of the reference to the policy; 0 is never.
    """

    loss_type: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    rpo_alpha: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    normalize_lengths: bool = True
    ref_update_freq: int = Field(default=0, ge=0)
    group_size: int = Field(default=2, ge=2)

    matters: ClassVar[Mapping[str, Matters]] = {
        "label_smoothing": Matters(
            lambda s, run: s.loss_type in ("sigmoid", "robust"),
            "only loss_type=sigmoid and robust read it; remove it",
        ),
        "normalize_lengths": Matters(
            lambda s, run: s.loss_type == "ipo", "only loss_type=ipo reads it; remove it"
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pairs: list[preference.PreferencePair] = []
        if self.label_smoothing and self.loss_type not in ("sigmoid", "robust"):
            raise ConfigError(
                f"label_smoothing={self.label_smoothing:g} is not used by "
                f"loss_type={self.loss_type!r}; set loss_type to 'sigmoid' or 'robust', or "
                "label_smoothing to 0"
            )

    @property
    def spec(self) -> Spec:
        columns = frozenset({"ref_logprobs"})
        return replace(preference.PAIRS, columns=columns, renew_reference=self.ref_update_freq)

    # -- credit -----------------------------------------------------------------------------------

    def credit(self, groups: Sequence[Group]) -> None:
        self.pairs, metrics = preference.credit_pairs(groups, self.pairs_of)
        self.metrics: dict[str, float] = metrics

    def pairs_of(self, group: Group) -> tuple[int, list[preference.PreferencePair]]:
        """The number of possible pairs of a group, and its usable pairs."""
        return len(group.agents), preference.row_pairs(group)

    def samples(self, groups: Sequence[Group], policy: str) -> list[Sample]:
        return preference.pair_samples(self.pairs, policy)

    # -- loss --------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        units, pair = torch.unique(batch.unit, return_inverse=True)
        size = len(units)
        gain = outputs.logprobs - batch.ref_logprobs
        sides = [side.to(gain.dtype) for side in (batch.advantages > 0, batch.advantages < 0)]
        chosen, rejected = (ops.segment_sum(gain * side, pair, size) for side in sides)
        lengths = [ops.segment_sum(side, pair, size).clamp(min=1) for side in sides]
        weights = ops.segment_sum(batch.advantages * sides[0], pair, size) / lengths[0]
        if self.loss_type == "ipo" and self.normalize_lengths:
            losses = self.pair_loss(chosen / lengths[0] - rejected / lengths[1])
        else:
            losses = self.pair_loss(chosen - rejected)
        if self.rpo_alpha:
            likely = ops.segment_sum(outputs.logprobs * sides[0], pair, size) / lengths[0]
            losses = losses - self.rpo_alpha * likely
        good, bad = self.beta * chosen.detach(), self.beta * rejected.detach()
        shares: dict[str, Tensor | float] = {
            name: (weights * value).sum() / batch.totals.units
            for name, value in preference.margins(good, bad).items()
        }
        entropy = outputs.entropy.detach()
        shares["entropy"] = entropy.sum() / batch.totals.tokens
        weighted = weights * losses
        parts = preference.pair_parts(weighted / batch.totals.units, pair)
        return Loss(weighted.sum() / batch.totals.units, shares, {PART: parts, "entropy": entropy})

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


PLUGIN = DPO

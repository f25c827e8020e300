"""Base of policy gradients: the surrogate loss and its settings; subclasses assign credit."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.matters import SEVERAL_TURNS, Matters
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import Algorithm, settings
from mrlm.learn.bases.spec import ROUNDED, Spec
from mrlm.learn.credit.groups import clear, sibling_metrics
from mrlm.learn.credit.reward_shaping import Shaping, shaped
from mrlm.learn.data.batch import PART, Batch, Loss, Outputs
from mrlm.learn.fast.prefix_tree import to_device

SAME = {"dapo": "ppo", "bnpo": "ppo"}
"""Aliases of losses."""
LossType = Annotated[
    Literal[
        "reinforce", "ppo", "dapo", "bnpo", "grpo", "dr_grpo", "gspo", "cispo", "sequence", "turn"
    ],
    AfterValidator(lambda name: SAME.get(name, name)),
]
GSPO_CLIP = {"clip_range": 3e-4, "clip_range_high": 4e-4}
"""GSPO's clip ranges (arXiv 2507.18071, section 5.1): sequence ratios, as geometric means over
tokens, are much closer to 1 than token ratios."""
AGGREGATIONS: dict[str, ops.Aggregation] = {
    "reinforce": "sequence_mean_token_sum", "ppo": "token_mean", "grpo": "sequence_mean_token_mean",
    "dr_grpo": "constant", "gspo": "sequence_mean_token_mean", "cispo": "token_mean",
    "sequence": "sequence_mean_token_mean", "turn": "turn_mean",
}  # fmt: skip
"""Default aggregation of each loss."""
WHOLE = {"gspo", "sequence", "sequence_mask", "geometric_mask"}
"""Losses and importance weights with one ratio for all tokens of a rollout."""
UNWEIGHED = (
    "{name}: loss_type=reinforce with importance=none has no correction for samples of older "
    "weights; set importance=auto, or training.max_lag=0"
)


@settings
class PolicyGradient(Algorithm):
    """Base of algorithms that raise the log-probs of completions with higher reward. A subclass
    gives `credit_group`, `credit_batch` or both.

    Args:
        loss_type: `reinforce` has no ratio; `ppo`, `grpo` and `dr_grpo` are the clipped token
            ratio, averaged over all tokens, over sequences, and by a constant length; `gspo` (token
            form), `sequence` (product over a sequence) and `turn` (geometric mean over a turn) clip
            the ratio of a whole; `cispo` clips weights and keeps every gradient. `dapo` and `bnpo`
            are aliases of `ppo`: TRL's `bnpo` divides by the tokens of a micro-batch, whereas
            results here do not depend on micro-batches. A name sets the loss and its aggregation,
            with `gspo` the clip ranges too; `preset` sets all numbers of a paper.
        aggregation: reduction of per-token losses (`ops.aggregate`); `None` is the default of
            `loss_type`. Avoid `token_mean` with sequence ratios, since it weighs sequences by their
            length.
        constant_length: divisor of `constant`; `None` takes the maximum completion length.
        clip_range: clip range of the ratio below 1 (and above, unless `clip_range_high` is given);
            .2, with `gspo` 3e-4 and 4e-4.
        clip_range_high: clip range of the ratio above 1; `None` is `clip_range`. DAPO's clip-higher
            is .28 (arXiv 2503.14476).
        dual_clip: bound of the loss for negative advantages, as a multiple of them; `None` is off,
            3 is usual.
        delta: alternative to `dual_clip`: upper bound of unclipped ratios (two-sided clipping,
            arXiv 2505.07291); must exceed `1 + clip_range_high`, `None` is off.
        cispo_cap: bound of the weight of `cispo`; with `cispo_cap_mode="relative"` the clip ranges
            are used instead.
        cispo_cap_mode: `absolute`: `cispo_cap` bounds the weight. `relative`: the clip ranges do.
        kl_coef: weight of the KL divergence from the reference; above 0 a reference is kept.
        kl_estimator: estimator of the divergence in the loss.
        kl_bias_correction: multiply the estimate by the token's ratio, which makes its gradient
            unbiased for off-policy samples too (k3 alone is biased).
        entropy_coef: weight of an entropy bonus.
        importance: importance weights for the mismatch of sampler and trained policy. `auto`:
            `token` for tokens from older weights, and in losses with a ratio for those sampled with
            top-p, top-k or min-p; else none. The kinds are those of `ops.mismatch_weights`.
        importance_cap, importance_floor: bounds of those weights.
        recompute_old: take the ratio to log-probs recomputed by the trained model before the update
            (decoupled), as `importance` weights require. Without it they are the sampler's
            (bypass): one pass less, and the ratio corrects for the mismatch.
        shaping: reshape rewards by `Q`, the mean reward of the turns of earlier joint steps, in
            environments that score each answer in [0, 1]. `margin`: `r + a (r - Q)`. `quality`:
            `r + a (Q r - (1 - Q) (1 - r))`.
        shaping_coef: `a` of these (0.5 as in MARTI).
        outcome_coef: share of the last step's reward added to every earlier turn; 0 is off, 0.5 is
            usual.
    """

    loss_type: LossType = "ppo"
    aggregation: ops.Aggregation | None = None
    constant_length: int | None = Field(default=None, ge=1)
    clip_range: float = Field(default=0.2, gt=0)
    clip_range_high: float | None = Field(default=None, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    delta: float | None = Field(default=None, gt=1)
    cispo_cap: float = Field(default=5.0, gt=0)
    cispo_cap_mode: Literal["absolute", "relative"] = "absolute"
    kl_coef: float = Field(default=0.0, ge=0)
    kl_estimator: ops.KLEstimator = "k3"
    kl_bias_correction: bool = False
    entropy_coef: float = 0.0
    importance: Literal["auto", "none"] | ops.MismatchKind = "auto"
    importance_cap: float = Field(default=2.0, gt=0)
    importance_floor: float = Field(default=0.5, ge=0)
    recompute_old: bool = False
    shaping: Shaping = "none"
    shaping_coef: float = Field(default=0.5, ge=0)
    outcome_coef: float = Field(default=0.0, ge=0)

    kl_in: ClassVar[Literal["loss", "reward"]] = "loss"
    """Place in which `kl_coef` acts."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "constant_length": Matters(
            lambda s, run: (s.aggregation or AGGREGATIONS[s.loss_type]) == "constant",
            "only aggregation=constant (loss_type=dr_grpo) divides by it; remove it, or set that",
        ),
        **dict.fromkeys(
            ("clip_range", "clip_range_high"),
            Matters(
                lambda s, run: s.clips,
                "this loss_type clips nothing at it (cispo: at cispo_cap); remove it, or set ppo",
            ),
        ),
        "dual_clip": Matters(
            lambda s, run: s.loss_type not in ("reinforce", "cispo"),
            "this loss_type has no clipped loss; remove it, or set loss_type=ppo",
        ),
        "cispo_cap": Matters(
            lambda s, run: s.loss_type == "cispo" and s.cispo_cap_mode == "absolute",
            "only loss_type=cispo with cispo_cap_mode=absolute reads it; remove it, or set these",
        ),
        "cispo_cap_mode": Matters(
            lambda s, run: s.loss_type == "cispo",
            "only loss_type=cispo reads it; remove it, or set that",
        ),
        "kl_estimator": Matters(
            lambda s, run: s.kl_coef and s.kl_in == "loss",
            "there is no divergence in the loss (kl_coef=0, or it is in the reward); remove it",
        ),
        "importance_cap": Matters(
            lambda s, run: s.weighs(run.lags, run.truncates),
            "no importance weights are used; set importance, or remove it",
        ),
        "importance_floor": Matters(
            lambda s, run: s.importance in ("icepop", "geometric_mask"),
            "only importance=icepop and geometric_mask have a floor; set one, or remove it",
        ),
        "recompute_old": Matters(
            lambda s, run: s.loss_type != "reinforce",
            "loss_type=reinforce has no ratio to old log-probs; remove it, or set loss_type=ppo",
        ),
        "shaping": SEVERAL_TURNS,
        "shaping_coef": Matters(
            lambda s, run: s.shaping != "none", "shaping is none; set it, or remove this"
        ),
        "outcome_coef": SEVERAL_TURNS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None:
            high = 1 + (self.clip_range_high or self.clip_range)
            if self.loss_type in ("reinforce", "cispo"):
                raise ConfigError(
                    f"delta={self.delta}: loss_type={self.loss_type!r} clips no ratio; remove "
                    "delta, or set loss_type=ppo"
                )
            if self.delta <= high:
                raise ConfigError(
                    f"delta={self.delta} must exceed 1 + clip_range_high, {high:g}; set it "
                    "higher (4 is usual)"
                )
        if self.kl_bias_correction and not (self.kl_coef and self.kl_in == "loss"):
            where = "kl_coef is 0" if self.kl_in == "loss" else "it is part of the reward here"
            raise ConfigError(
                f"kl_bias_correction needs a divergence in the loss, but {where}; remove it, or "
                "use an algorithm such as grpo with kl_coef above 0"
            )

    @classmethod
    def implied(cls, given: Mapping[str, object]) -> dict[str, object]:
        settings = super().implied(given)
        loss = given.get("loss_type", settings.get("loss_type", cls.loss_type))
        default_clip = given.get("clip_range", GSPO_CLIP["clip_range"]) == GSPO_CLIP["clip_range"]
        return {**GSPO_CLIP, **settings} if loss == "gspo" and default_clip else settings

    @property
    def spec(self) -> Spec:
        weighs, ratio = self.importance not in ("auto", "none"), self.loss_type != "reinforce"
        columns = {"ref_logprobs"} if self.kl_coef else set[str]()
        if self.recompute_old or (weighs and ratio):
            columns.add("old_logprobs")
        uncorrected = self.importance == "none" and not ratio
        return Spec(
            columns=frozenset(columns),
            rescores_lagged=self.importance != "none",
            refuses_lag=UNWEIGHED if uncorrected else None,
            refuses_rounded=None if weighs else ROUNDED + "importance=token",
            unit="rollout" if WHOLE & {self.loss_type, self.importance} else "turn",
            entropy=self.entropy_coef != 0.0,
            ignores_zero=not self.entropy_coef and not (self.kl_coef and self.kl_in == "loss"),
        )

    @property
    def clips(self) -> bool:
        """Whether the loss clips a ratio or weight at `clip_range`."""
        if self.loss_type == "cispo":
            return self.cispo_cap_mode == "relative"
        return self.loss_type != "reinforce"

    def weighs(self, lags: bool, truncates: bool) -> bool:
        """Whether importance weights may be used, given lagging weights or truncated sampling."""
        if self.importance == "auto":
            return lags or (truncates and self.loss_type != "reinforce")
        return self.importance != "none"

    # -- credit -----------------------------------------------------------------------------------

    def credit(self, groups: Sequence[Group]) -> None:
        self.metrics: dict[str, float] = {}
        clear(groups)
        with self.reshaped(groups):
            for group in groups:
                self.credit_group(group)
            self.credit_batch(groups)
        if self.spec.sampling.siblings:
            self.metrics.update(sibling_metrics(groups))

    def reshaped(self, groups: Sequence[Group]) -> AbstractContextManager[None]:
        """Context in which turns and episodes have rewards shaped by `shaping`."""
        return shaped(groups, self.shaping, self.shaping_coef, self.outcome_coef)

    def credit_group(self, group: Group) -> None:
        """Credit within one group; a no-op by default."""

    def credit_batch(self, groups: Sequence[Group]) -> None:
        """Credit across all groups, after `credit_group`; a no-op by default."""

    # -- loss -------------------------------------------------------------------------------------

    def loss(self, batch: Batch, outputs: Outputs) -> Loss:
        difference = ops.log_ratio(outputs.logprobs, batch.old_logprobs)
        per_token, was_clipped = self._surrogate(batch, outputs.logprobs, difference)
        weights = self._importance(batch, outputs.logprobs)
        if weights is not None:
            per_token = per_token * weights
        share = self._shares(per_token, batch)
        parts = per_token * share
        policy = total = parts.sum()
        parts = parts.detach()
        means = {
            "entropy": outputs.entropy,
            "approx_kl": ops.approx_kl(difference),
            "ratio_mean": difference.exp(),
        }
        if was_clipped is not None:
            means["clip_fraction"] = was_clipped
        if self.kl_coef and self.kl_in == "loss":
            kl = ops.kl_estimate(outputs.logprobs, batch.ref_logprobs, self.kl_estimator)
            means["kl"] = kl
            if self.kl_bias_correction:
                kl = kl * difference.exp()
            kl = kl * share
            total, parts = total + self.kl_coef * kl.sum(), parts + self.kl_coef * kl.detach()
        if self.entropy_coef:
            bonus = outputs.entropy * share
            total = total - self.entropy_coef * bonus.sum()
            parts = parts - self.entropy_coef * bonus.detach()
        tokens = {name: x.detach() for name, x in means.items()}
        metrics = {name: x.sum() / batch.totals.seen for name, x in tokens.items()}
        return Loss(total, {"policy_loss": policy.detach(), **metrics}, {PART: parts, **tokens})

    def _shares(self, like: Tensor, batch: Batch) -> Tensor:
        """The weight of each token in the loss (N,)."""
        mode = self.aggregation or AGGREGATIONS[self.loss_type]
        return ops.token_weights(like, batch, mode, self.constant_length)

    def _surrogate(
        self, batch: Batch, logprobs: Tensor, difference: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Losses per token (N,), and which tokens were clipped (`None` without clipping)."""
        advantages = batch.advantages
        low, high = self.clip_range, self.clip_range_high or self.clip_range
        if self.loss_type == "reinforce":
            return -advantages * logprobs, None
        if self.loss_type == "cispo":
            ratio, bounds = difference.exp(), (1 - low, 1 + high)
            if self.cispo_cap_mode == "absolute":
                bounds = (None, self.cispo_cap)
            was_clipped = (ratio > bounds[1]) | (ratio < (bounds[0] or 0.0))
            return ops.cispo(logprobs, ratio, advantages, *bounds), was_clipped.to(ratio.dtype)
        ratio, advantages = self._ratio(batch, logprobs, difference)
        per_token = ops.ppo_clip(ratio, advantages, low, high, self.delta)
        if self.dual_clip is not None:
            per_token = ops.dual_clip(per_token, advantages, self.dual_clip)
        return per_token, ops.clipped(ratio, advantages, low, high)

    def _ratio(self, batch: Batch, logprobs: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
        """The ratios to clip, and their advantages, both (N,)."""
        advantages = batch.advantages
        if self.loss_type == "gspo":
            return ops.gspo_ratio(difference, logprobs, *batch.whole), advantages
        if self.loss_type not in ("sequence", "turn"):
            return difference.exp(), advantages
        whole = self.loss_type == "sequence"
        index, size = batch.whole if whole else (batch.turn, batch.num_turns)
        limit = ops.LOG_RATIO_LIMIT if whole else ops.TURN_LOG_RATIO_LIMIT
        ratio = ops.sequence_ratio(difference, index, size, mean=not whole, limit=limit)
        return ratio, ops.segment_mean(advantages, index, size)[index]

    def _importance(self, batch: Batch, logprobs: Tensor) -> Tensor | None:
        """Weights (N,) for a mismatch of sampler and trained policy, or `None`: `pi_old /
        pi_behaviour` with a ratio (1 if the old log-probs are the engine's own, since the ratio
        then includes the correction), else `pi / pi_behaviour`."""
        if self.importance == "none":
            return None
        new = logprobs if self.loss_type == "reinforce" else batch.old_logprobs
        bounds = (self.importance_cap, self.importance_floor)
        pair = new, batch.behaviour_logprobs
        if self.importance != "auto":
            return ops.mismatch_weights(*pair, self.importance, *bounds, *batch.whole)
        ratio = self.loss_type != "reinforce"
        cut = [turn.lag > 0 or (ratio and turn.sampling.truncates) for turn in batch.turns]
        if not any(cut):
            return None
        weights = ops.mismatch_weights(*pair, "token", *bounds)
        return torch.where(to_device(np.array(cut), weights.device)[batch.turn], weights, 1.0)

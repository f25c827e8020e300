"""Pure functions of losses and advantages, over flat vectors with one entry per trained token."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mrlm.learn.data.batch import Batch
from mrlm.learn.fast.prefix_tree import to_device

Aggregation = Literal[
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "constant",
    "turn_mean",
    "turn_mean_token_sum",
    "sequence_mean_turn_mean",
    "agent_balanced",
]
KLEstimator = Literal["k1", "k2", "k3", "k1+", "k3+"]
MismatchKind = Literal["token", "icepop", "sequence", "sequence_mask", "geometric_mask"]

LOG_RATIO_LIMIT = 20.0
TURN_LOG_RATIO_LIMIT = 3.0


def token_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probs (N,) of `targets` (N,) under `logits` (N, V), in float32."""
    logits = logits.float()
    return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy (N,) in nats of `logits` (N, V), in float32: `logsumexp(z) - sum_v p_v z_v`."""
    logits = logits.float()
    top = logits.logsumexp(-1)
    return top - torch.einsum("nv,nv->n", (logits - top[:, None]).exp(), logits)


def segment_sum(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums (size,) of the entries of `x` (N,) that share an `index` (N,), from 0 to size - 1."""
    return x.new_zeros(size).index_add(0, index, x)


def segment_mean(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Means (size,) of the entries of `x` (N,) that share an `index`; 0 for empty segments."""
    return segment_sum(x, index, size) / _counts(x, index, size).clamp(min=1)


def _counts(like: Tensor, index: Tensor, size: int) -> Tensor:
    return segment_sum(torch.ones_like(like), index, size)


def aggregate(
    per_token: Tensor, batch: Batch, mode: Aggregation, constant_length: int | None = None
) -> Tensor:
    """Reduces per-token losses (N,) of a micro-batch to a scalar, divided by counts of the whole
    optimiser batch: the results of micro-batches add up, for any split.

    `token_mean`: over all tokens (DAPO). `sequence_mean_token_mean`: GRPO paper, GSPO.
    A sequence is a rollout, however many samples hold its turns.
    `sequence_mean_token_sum`: the exact policy gradient. `constant`: sums over sequences x a fixed
    length (Dr. GRPO), `constant_length` or each turn's `SamplingParams.max_new_tokens`.
    `turn_mean`, `turn_mean_token_sum`: the same with turns for sequences.
    `sequence_mean_turn_mean`: turns are averaged inside a sequence first (ReMA). `agent_balanced`:
    mean over agents of the agent's own token mean, so that a verbose one does not dominate.
    """
    return (per_token * token_weights(per_token, batch, mode, constant_length)).sum()


def token_weights(
    like: Tensor, batch: Batch, mode: Aggregation, constant_length: int | None = None
) -> Tensor:
    """The weights (N,) of the tokens in `aggregate`, in the type and on the device of `like`."""
    totals = batch.totals
    ones = torch.ones_like(like, requires_grad=False)
    sequences = ones / totals.sequences
    if mode == "token_mean":
        return ones / totals.tokens
    if mode == "sequence_mean_token_sum":
        return sequences
    if mode == "sequence_mean_token_mean":
        return sequences / numbers(batch.of_rollout(0), ones)[batch.turn]
    if mode == "turn_mean_token_sum":
        return ones / totals.turns
    if mode == "constant":
        if constant_length is not None:
            return sequences / constant_length
        allowed = [float(turn.sampling.max_new_tokens) for turn in batch.turns]
        return sequences / numbers(allowed, ones)[batch.turn]
    if mode == "agent_balanced":
        counts = [float(totals.tokens_by_agent[agent]) for agent in batch.agents]
        return ones / numbers(counts, ones)[batch.agent] / len(totals.tokens_by_agent)
    in_turn = _counts(ones, batch.turn, batch.num_turns)[batch.turn]
    if mode == "turn_mean":
        return ones / in_turn / totals.turns
    return sequences / in_turn / numbers(batch.of_rollout(1), ones)[batch.turn]


def numbers(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers of the host in the type and on the device of `like`, which is not waited for."""
    return to_device(np.array(values), like.device).to(like.dtype)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """`log pi / pi_old` per token, clamped to +-20 so that its exponential stays finite."""
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_ratio(
    difference: Tensor, index: Tensor, size: int, mean: bool = False, limit: float = LOG_RATIO_LIMIT
) -> Tensor:
    """`pi / pi_old` of whole segments, repeated for each of their tokens (N,): the product of the
    token ratios, or with `mean` their geometric mean, at most `exp(limit)`. `difference` (N,) is
    that of the log-probs, `index` (N,) the sequence or turn of each token, of `size` many."""
    together = (segment_mean if mean else segment_sum)(difference, index, size)
    return together.clamp(-LOG_RATIO_LIMIT, limit).exp()[index]


def gspo_ratio(difference: Tensor, logprobs: Tensor, index: Tensor, size: int) -> Tensor:
    """`sg(s) pi / sg(pi)` (N,), with `s` the geometric mean of a sequence's token ratios (GSPO,
    arXiv 2507.18071, token form): its value is the sequence's, its gradient the token's.
    Arguments as in `sequence_ratio`; `logprobs` (N,) are those of the policy."""
    log_s = segment_mean(difference.detach(), index, size)[index]
    return (log_s + logprobs - logprobs.detach()).exp()


def ppo_clip(
    ratio: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float | None = None,
    delta: float | None = None,
) -> Tensor:
    """`max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))` (N,) for ratios r and advantages A (N,):
    the pessimistic bound (PPO, arXiv 1707.06347, eq. 7). `clip_high` is `clip_low` if `None`.
    `delta` caps the unclipped `r`, bounding the loss for negative advantages (arXiv 2505.07291)."""
    high = clip_low if clip_high is None else clip_high
    held = ratio if delta is None else ratio.clamp(max=delta)
    return torch.maximum(-advantages * held, -advantages * ratio.clamp(1 - clip_low, 1 + high))


def clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float | None = None
) -> Tensor:
    """1 for the tokens whose gradient `ppo_clip` removes, else 0, (N,)."""
    high = clip_low if clip_high is None else clip_high
    above = (ratio > 1 + high) & (advantages > 0)
    return (above | ((ratio < 1 - clip_low) & (advantages < 0))).to(ratio.dtype)


def dual_clip(loss: Tensor, advantages: Tensor, bound: float) -> Tensor:
    """Bounds losses (N,) of tokens with negative advantages by `-A bound` (arXiv 1912.09729)."""
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * bound), loss)


def cispo(
    logprobs: Tensor, ratio: Tensor, advantages: Tensor, low: float | None, high: float
) -> Tensor:
    """`-sg(clip(r, low, high)) A log pi` (N,): weights are clipped, gradients never (arXiv
    2506.13585). The bounds are those of the ratio itself; `low=None` leaves it open."""
    return -ratio.detach().clamp(min=low, max=high) * advantages * logprobs


def mismatch_weights(
    new: Tensor,
    behaviour: Tensor,
    kind: MismatchKind = "token",
    cap: float = 2.0,
    floor: float = 0.5,
    index: Tensor | None = None,
    size: int = 0,
) -> Tensor:
    """Detached importance weights `pi_new / pi_behaviour` (N,), from log-probs (N,), that correct
    for a sampling distribution other than the trained one.

    `token`: `min(w, cap)`. `icepop`: `w` inside [floor, cap], else 0. `sequence`: the product over
    a sequence, at most `cap`. `sequence_mask`: the product, 0 where above `cap`. `geometric_mask`:
    the geometric mean, 0 outside [floor, cap]. The last three need `index` (N,) and `size` of the
    sequences. Raises `ValueError`: they are missing.
    """
    difference = log_ratio(new.detach(), behaviour)
    if kind in ("token", "icepop"):
        weight = difference.exp()
    elif index is None:
        raise ValueError(
            f"mismatch weights of kind {kind!r} need `index` and `size` of the sequences"
        )
    else:
        weight = sequence_ratio(difference, index, size, mean=kind == "geometric_mask")
    if kind in ("token", "sequence"):
        return weight.clamp(max=cap)
    low = 0.0 if kind == "sequence_mask" else floor
    return torch.where((weight >= low) & (weight <= cap), weight, 0.0)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLEstimator = "k3") -> Tensor:
    """Estimates (N,) of `KL(pi || ref)` in nats from sampled tokens, with `x = log pi - log ref`
    (J. Schulman, Approximating KL divergence, 2020).

    `k1`: `x` (correct as a reward; as a loss its expected gradient is zero). `k2`: `x^2 / 2`, whose
    gradient is correct on-policy. `k3`: `exp(-x) - 1 + x` with the exponent within +-20 and the
    result at most 10. `k1+`, `k3+`: the value of k1 or k3 with the gradient of k2.
    """
    x = logprobs - ref_logprobs
    if kind.endswith("+"):
        straight = x.square() / 2
        value = kl_estimate(logprobs, ref_logprobs, "k1" if kind == "k1+" else "k3")
        return straight - straight.detach() + value.detach()
    if kind == "k1":
        return x
    if kind == "k2":
        return x.square() / 2
    y = (-x).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (y.exp() - 1 - y).clamp(max=10.0)


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """`KL(p || q)` (N,) in nats of the distributions with logits (N, V), in float32."""
    p, q = logits.float().log_softmax(-1), ref_logits.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def approx_kl(difference: Tensor) -> Tensor:
    """`r - 1 - log r` (N,) of `log r`: estimates (nats) of the KL to the sampling policy, >= 0."""
    return difference.exp() - 1 - difference


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None = None
) -> Tensor:
    """Half the squared error (N,), at least that of values clipped to `clip` round `old_values`."""
    error = (values - returns).square()
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    return error / 2


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    lengths: Sequence[int],
    gamma: float | np.ndarray = 1.0,
    lam: float = 0.95,
    bootstrap: float | np.ndarray = 0.0,
) -> np.ndarray:
    """Generalised advantage estimates (N,) of ragged rows, concatenated: `A_t = r_t + gamma_t
    V_next - V_t + gamma_t lam A_next` (arXiv 1506.02438, eq. 16). Returns are `A + V`.

    Only entries of a row count: environment tokens between turns neither bootstrap nor decay.

    Args:
        rewards, values: (N,).
        lengths: (R,) row lengths, which sum to N.
        gamma: discount after each entry, a scalar or (N,).
        lam: lambda of GAE.
        bootstrap: value after the end of each row, a scalar or (R,); 0 for terminated episodes.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    row = np.repeat(np.arange(len(sizes)), sizes)
    column = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = int(sizes.max(initial=0))

    def grid(x: float | np.ndarray) -> np.ndarray:
        table = np.zeros((len(sizes), width))
        table[row, column] = x
        return table

    discount, value, delta = grid(gamma), grid(values), grid(rewards)
    following = np.zeros_like(value)
    following[:, :-1] = value[:, 1:]
    full = sizes > 0
    following[full, sizes[full] - 1] = np.broadcast_to(bootstrap, sizes.shape)[full]
    delta += discount * following - value
    for t in range(width - 2, -1, -1):
        delta[:, t] += discount[:, t] * lam * delta[:, t + 1]
    return delta[row, column]


def n_step(
    rewards: np.ndarray,
    values: np.ndarray,
    lengths: Sequence[int],
    gamma: np.ndarray,
    steps: int,
    bootstrap: np.ndarray,
) -> np.ndarray:
    """`A_t = r_t + gamma_t r_{t+1} + ... + (gamma_t ... gamma_{t+n-1}) V_{t+n} - V_t` (N,),
    truncated at the end of the row (arXiv 1602.01783). Arguments as in `gae`, with `gamma` (N,),
    `bootstrap` (R,)."""
    advantages = np.empty_like(values)
    start = 0
    for size, last in zip(lengths, bootstrap, strict=True):
        here = slice(start, start + size)
        row_rewards, discount = rewards[here], gamma[here]
        value = np.append(values[here], last)
        returns = value.copy()
        for _ in range(min(steps, size)):
            returns = np.append(row_rewards + discount * returns[1:], last)
        advantages[here] = returns[:-1] - value[:-1]
        start += size
    return advantages


_COMPLETE: ContextVar[bool] = ContextVar("complete", default=False)


@contextmanager
def complete() -> Iterator[None]:
    """Context in which every rank holds the whole batch, so that reductions are skipped."""
    token = _COMPLETE.set(True)
    try:
        yield
    finally:
        _COMPLETE.reset(token)


def _apart() -> bool:
    """Whether other ranks hold other parts of the batch."""
    distributed = torch.distributed
    return not _COMPLETE.get() and distributed.is_available() and distributed.is_initialized()


def global_gather(value: Any) -> list[Any]:
    """A value of all ranks, in rank order; `[value]` with one rank or inside `complete`."""
    if not _apart():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def global_rank() -> int:
    """Index of this rank in the result of `global_gather`."""
    return torch.distributed.get_rank() if _apart() else 0


def global_sum(table: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Sums short lists of numbers by name over all ranks; a name may be missing on some."""
    sums: dict[str, list[float]] = {}
    for part in global_gather({key: [float(x) for x in row] for key, row in table.items()}):
        for key, row in part.items():
            sums[key] = [a + b for a, b in zip(sums[key], row, strict=True)] if key in sums else row
    return sums


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and unbiased variance of a sample (`variance` is exactly 0 for equal numbers)."""

    count: int
    mean: float
    variance: float

    @property
    def std(self) -> float:
        return math.sqrt(self.variance)


def global_moments(table: Mapping[str, np.ndarray]) -> dict[str, Moments]:
    """Moments by name over all ranks. Collective: every rank must call it; names may differ."""
    table = {key: np.asarray(x, dtype=np.float64) for key, x in table.items() if np.size(x)}
    sums = global_sum({key: [x.size, x.sum()] for key, x in table.items()})
    means = {key: total / count for key, (count, total) in sums.items()}
    squares = global_sum({key: [np.square(x - means[key]).sum()] for key, x in table.items()})
    ranges: dict[str, list[float]] = {}
    for part in global_gather({key: (float(x.min()), float(x.max())) for key, x in table.items()}):
        for key, pair in part.items():
            ranges.setdefault(key, []).extend(pair)
    moments: dict[str, Moments] = {}
    for key, (count, _) in sums.items():
        flat = count < 2 or min(ranges[key]) == max(ranges[key])
        variance = 0.0 if flat else squares[key][0] / (count - 1)
        moments[key] = Moments(int(count), means[key], variance)
    return moments


def whiten(
    x: np.ndarray, mask: np.ndarray | None = None, moments: Moments | None = None
) -> np.ndarray:
    """`(x - mean) / sqrt(var + 1e-8)` (N,) with the unbiased variance; zeros if it is 0 or there
    are fewer than two numbers. Entries outside `mask` (N,) do not count and become 0. `moments` are
    those of the whole batch; computed from `x` (over all ranks) if `None`."""
    counted = x if mask is None else x[mask.astype(bool)]
    statistics = moments or global_moments({"": counted}).get("", Moments(0, 0.0, 0.0))
    if statistics.variance == 0.0:
        return np.zeros_like(x, dtype=np.float64)
    scaled = (x - statistics.mean) / math.sqrt(statistics.variance + 1e-8)
    return scaled if mask is None else scaled * mask

"""The output head at trained positions only: log-probs and entropies from the logits of one chunk
of tokens at a time. Gradients are computed from the same logits if the loss is known by then,
otherwise from recomputed logits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CELLS = 1 << 22
"""Approximate number of logits held at once on a CPU, for its caches; more for a vocabulary so
large that matmuls would be inefficient."""
LEAST_ROWS = 256
CELL_BYTES = 12
"""Bytes per logit at the same time: logits and exponentials in float32, and in 16 bits the product
and the gradient."""
MEMORY_SHARE = 64
"""The part of an accelerator's memory that the logits of one chunk may take, as a divisor."""
MOST_BYTES = 2 << 30
UNKNOWN_MEMORY = 16 << 30
"""Assumed memory of an accelerator that does not tell its own."""


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """Number of tokens scored together: on an accelerator as many as a share of its memory holds,
    for few kernels. Depends on the machine only, so that a resumed run computes the same bits."""
    if device.type == "cpu":
        return max(LEAST_ROWS, CELLS // vocabulary)
    memory = UNKNOWN_MEMORY
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    cells = min(memory // MEMORY_SHARE, MOST_BYTES) // CELL_BYTES
    return max(LEAST_ROWS, cells // vocabulary)


@dataclass(frozen=True, slots=True)
class Head:
    """The map to logits: `weight` (V, H), and `softcap`, the `c` of `c tanh(x / c)`."""

    weight: Tensor
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions over the vocabulary at N positions, computed where they are read.

    Args:
        states: hidden states (N, H), or without a `head` logits (N, V) at their temperatures.
        head: the map from hidden states to logits.
        temperature: (N,) divisors of the logits of a head; `None` for 1.
    """

    states: Tensor
    head: Head | None = None
    temperature: Tensor | None = None

    def __len__(self) -> int:
        return self.states.shape[0]

    def __getitem__(self, here: slice) -> "Distributions":
        warmth = None if self.temperature is None else self.temperature[here]
        return Distributions(self.states[here], self.head, warmth)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return self.states.shape[1] if self.head is None else self.head.weight.shape[0]

    def logprobs(self) -> Tensor:
        """Log-probs (N, V) of all tokens, in float32, or in float64 if the states are."""
        if self.head is None:
            return _precise(self.states).log_softmax(-1)
        logits = _precise(self.states @ self.head.weight.t())
        if self.head.softcap is not None:
            logits = self.head.softcap * (logits / self.head.softcap).tanh()
        if self.temperature is not None:
            logits = logits / self.temperature[:, None]
        return logits.log_softmax(-1)


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The most likely tokens at N positions: `ids` and log-probs `states` (N, K), of a `vocabulary`
    in which all others are unknown (`-inf`)."""

    states: Tensor
    ids: Tensor
    vocabulary: int

    def __getitem__(self, here: slice) -> "TopTokens":
        return TopTokens(self.states[here], self.ids[here], self.vocabulary)

    def logprobs(self) -> Tensor:
        """Log-probs (N, V)."""
        rows = self.states.new_full((len(self.states), self.vocabulary), -torch.inf)
        return rows.scatter_(1, self.ids, self.states)


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


Measure = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Log-probs (M, V) of distributions p and q at M positions -> a number for each (M,), and weights
(M, V) of the log-probs of p, whose weighted sum has the number's gradient by the logits of p."""


def compare(p: Distributions, q: Distributions | TopTokens, measure: Measure) -> Tensor:
    """A number (N,) for each pair of distributions, with its gradient by p, chunk by chunk: no more
    than a chunk of log-probs exists at once, also in backward, which computes them again."""

    def part(p_states: Tensor, q_states: Tensor, here: slice) -> Tensor:
        logprobs = replace(p[here], states=p_states).logprobs()
        with torch.no_grad():
            value, weights = measure(logprobs, replace(q[here], states=q_states).logprobs())
        slope = (weights * logprobs).sum(-1)
        return value + (slope - slope.detach())

    size = rows_at_once(p.vocabulary, p.states.device)
    parts: list[Tensor] = []
    for start in range(0, len(p), size):
        here = slice(start, start + size)
        states = p.states[here], q.states[here]
        parts.append(checkpoint(part, *states, here, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts) if parts else p.states.sum(-1)


class TokenChunk:
    """Distributions of M tokens; holds their logits while it lives.

    Args:
        hidden: (M, H).
        tokens, temperature: (M,) sampled token ids, and divisors of the logits (`None` for 1).

    `logprobs` and `entropy` are (M,) in float32.
    """

    def __init__(
        self, head: Head, hidden: Tensor, tokens: Tensor, temperature: Tensor | None
    ) -> None:
        self.head: Head = head
        self.hidden: Tensor = hidden
        self.tokens: Tensor = tokens
        self.temperature: Tensor | None = None if temperature is None else temperature[:, None]
        logits = (hidden @ head.weight.t()).float()
        self.slope: Tensor | None = None
        if head.softcap is not None:
            bent = (logits / head.softcap).tanh_()
            self.slope = 1 - bent.square()
            logits = bent.mul_(head.softcap)
        if self.temperature is not None:
            logits = logits.div_(self.temperature)
        logits -= logits.amax(-1, keepdim=True)
        chosen = logits.gather(1, tokens[:, None])
        weights = logits.exp()
        total = weights.sum(-1, keepdim=True)
        self.logprobs: Tensor = (chosen - total.log())[:, 0]
        mean = torch.bmm(weights[:, None], logits[:, :, None])[:, 0] / total
        self.entropy: Tensor = (total.log() - mean)[:, 0]
        self.logits: Tensor = logits
        self.weights: Tensor = weights
        self.total: Tensor = total

    def gradient(self, by_logprob: Tensor, by_entropy: Tensor | None = None) -> Tensor:
        """Gradient by the raw logits, (M, V), in the type of the hidden states, from those by
        log-probs and entropies, (M,). Consumes the chunk."""
        slope = by_logprob.float()[:, None]
        if by_entropy is not None:
            # dH/dz = -p (log p + H)
            surprise = self.logits.sub_(self.total.log() - self.entropy[:, None])
            surprise.mul_(-by_entropy.float()[:, None] / self.total).sub_(slope / self.total)
            by_logits = self.weights.mul_(surprise)
        else:
            by_logits = self.weights.mul_(-slope / self.total)
        by_logits.scatter_add_(1, self.tokens[:, None], slope)
        if self.slope is not None:
            by_logits.mul_(self.slope)
        if self.temperature is not None:
            by_logits.div_(self.temperature)
        return by_logits.to(self.hidden.dtype)


class _Scores(torch.autograd.Function):
    """Log-probs and entropies of many tokens; backward recomputes the logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: Any, cap: Any
    ) -> tuple[Tensor, Tensor]:
        parts = chunks(Head(weight, cap), hidden, tokens, temperature)
        logprobs, entropies = zip(*((x.logprobs, x.entropy) for x in parts), strict=True)
        ctx.save_for_backward(hidden, weight, tokens, temperature)
        ctx.set_materialize_grads(False)
        ctx.cap = cap
        return torch.cat(logprobs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        by_logprob, by_entropy = grads
        hidden, weight, tokens, temperature = ctx.saved_tensors
        if by_logprob is None:
            by_logprob = torch.zeros_like(by_entropy)
        back = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        entropic = by_entropy is not None
        if entropic and by_entropy.device.type == "cpu":
            entropic = bool(by_entropy.any())  # an accelerator would be waited for
        start = 0
        for chunk in chunks(Head(weight, ctx.cap), hidden, tokens, temperature):
            stop = start + len(chunk.tokens)
            here = slice(start, stop)
            step = chunk.gradient(by_logprob[here], by_entropy[here] if entropic else None)
            if back is not None:
                torch.mm(step, weight, out=back[here])
            if for_weight is not None:
                for_weight.addmm_(step.t(), chunk.hidden)
            start = stop
        return back, for_weight, None, None, None


def chunks(
    head: Head, hidden: Tensor, tokens: Tensor, temperature: Tensor | None
) -> Iterator[TokenChunk]:
    """The distributions of tokens (N,) at hidden states (N, H), chunk by chunk."""
    size = rows_at_once(head.weight.shape[0], hidden.device)
    for start in range(0, len(tokens), size):
        here = slice(start, start + size)
        warmth = None if temperature is None else temperature[here]
        yield TokenChunk(head, hidden[here], tokens[here], warmth)


def scores(
    head: Head, hidden: Tensor, tokens: Tensor, temperature: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Differentiable log-probs and entropies (N,) of `tokens` (N,) at `hidden` (N, H)."""
    weight = head.weight
    if len(tokens) == 0:
        empty = hidden.sum() * 0 + weight.sum() * 0
        return empty.expand(0), empty.expand(0)
    return _Scores.apply(hidden, weight, tokens, temperature, head.softcap)  # pyright: ignore

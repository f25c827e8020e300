"""Common parts of engines that sample in this process: random numbers, truncation, sampling and
stop conditions. Independent of models."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mrlm.core.sampling import OFF, SamplingParams
from mrlm.core.types import Completion
from mrlm.engines.shared.calls import cut
from mrlm.learn.fast.double import double, double_dtype
from mrlm.learn.fast.prefix_tree import to_device
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request

STOP_WINDOW = 64
"""Least number of tokens at the end of a completion in which stop strings are searched: a token may
be a single byte, so a longer stop string takes as many tokens as it has bytes."""


BLOCK = 512
"""Most tokens of the vocabulary whose probabilities are added up together on an accelerator."""
LEAST_BLOCK = 64
"""Fewest of them; a vocabulary that no such number divides is padded."""


@dataclass(slots=True)
class Draft:
    """An unfinished completion; `ends` are the tokens that end it (`Policy.eos_ids`)."""

    request: Request
    policy: Policy
    ends: frozenset[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str | None = None
    finish_reason: str | None = None

    def judge(self) -> None:
        """Record whether the last token ended it, and the reason."""
        sampling = self.request.sampling
        if self.token_ids[-1] in self.ends or (sampling.stop and self._says_stop()):
            self.finish_reason = "stop"
        elif len(self.token_ids) >= sampling.max_new_tokens:
            self.finish_reason = "length"

    def completion(self, version: int) -> Completion:
        text = self.policy.chat.decode(self.token_ids) if self.text is None else self.text
        reason = "length" if self.finish_reason == "length" else "stop"
        return Completion(self.token_ids, self.logprobs, text, reason, version)

    def _says_stop(self) -> bool:
        """Whether a stop string has appeared; the text is cut before it."""
        stop, decode = self.request.sampling.stop, self.policy.chat.decode
        window = max(STOP_WINDOW, *(len(mark.encode()) + 4 for mark in stop))
        tail = decode(self.token_ids[-window:])
        if not any(mark in tail for mark in stop):
            return False
        self.text = cut(decode(self.token_ids), stop)
        return True


def uniforms_of(requests: Sequence[Request], width: int) -> np.ndarray:
    """The first `width` of each request's own random numbers in [0, 1), (N, width): those of
    `numpy.random.Philox` with its seed."""
    uniforms = np.empty((len(requests), width))
    for row, request in zip(uniforms, requests, strict=True):
        np.random.Generator(np.random.Philox(request.seed)).random(out=row)
    return uniforms


class Columns:
    """The sampling parameters of the rows of a batch, one column each."""

    def __init__(self, sampling: Sequence[SamplingParams], device: torch.device) -> None:
        kinds = {id(params): params for params in sampling}
        places = {kind: index for index, kind in enumerate(kinds)}
        numbers = [places[id(params)] for params in sampling]
        rows = to_device(np.array(numbers, np.int64), device)
        sampling = [*kinds.values()]

        def column(values: list[float]) -> Tensor:
            return to_device(np.array(values, np.float32), device)[rows]

        greedy = [params.greedy for params in sampling]
        self.temperature: Tensor = column([1.0 if s.greedy else s.temperature for s in sampling])
        self.plain: bool = all(params.greedy or params.temperature == 1.0 for params in sampling)
        self.truncates: bool = any(params.truncates for params in sampling)
        values = [s.carried(DONE, HERE) | (OFF if s.greedy else {}) for s in sampling]
        self.cuts: dict[str, Tensor] = {name: column([v[name] for v in values]) for name in CUTS}
        self.greedy: Tensor | None = None
        if any(greedy):
            self.greedy = to_device(np.array(greedy), device)[rows]

    def keep(self, copy: Callable[[str, Tensor | None], Any]) -> None:
        """Replace every column by a copy, made from its name and numbers."""
        self.temperature = copy("temperature", self.temperature)
        self.greedy = copy("greedy", self.greedy)
        self.cuts = {name: copy(name, numbers) for name, numbers in self.cuts.items()}

    def draw(self, logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Sample tokens and their log-probs, each (B,), from logits (B, V) and uniforms (B,)."""
        scaled = logits if self.plain else logits / self.temperature[:, None]
        if self.truncates:
            scaled = truncated(scaled.float(), **self.cuts)
        if logits.device.type == "cpu":
            return sample(scaled.float(), uniforms, self.greedy)
        return sample_in_blocks(scaled, uniforms, self.greedy)


def sample(logits: Tensor, uniforms: Tensor, greedy: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Inverse-CDF sampling.

    Args:
        logits: (B, V), already divided by the temperature and truncated.
        uniforms: (B,) in [0, 1).
        greedy: (B,) rows that take the most probable token instead; `None` for none.

    Returns:
        Tokens (B,) and their log-probs (B,) under `softmax(logits)`.
    """
    highest = logits.amax(-1, keepdim=True)
    cumulative = (logits - highest).exp_().cumsum(-1, dtype=double_dtype(logits.device))
    total = cumulative[:, -1:]
    targets = double(uniforms[:, None]) * total
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    if greedy is not None:
        tokens = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), tokens)
    logprobs = double(logits.gather(1, tokens) - highest) - total.log()
    return tokens[:, 0], logprobs[:, 0].float()


def sample_in_blocks(
    logits: Tensor, uniforms: Tensor, greedy: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As `sample`, for accelerators, from logits of any type in few passes over them: only the sums
    of blocks of probabilities, and the probabilities of one block, are added up in float64. The
    sums are exact to rounding of float32, so that a token differs only if a uniform number is that
    close to its border."""
    rows, size = logits.shape
    width = math.gcd(size, BLOCK)
    if width < LEAST_BLOCK:
        width = BLOCK
        logits = F.pad(logits, (0, -size % BLOCK), value=-torch.inf)
    flat = logits.softmax(-1, dtype=torch.float32)
    weights = flat.view(rows, -1, width)
    cumulative = weights.sum(-1).cumsum(-1, dtype=double_dtype(logits.device))
    total = cumulative[:, -1:]
    targets = double(uniforms[:, None]) * total
    # the factor keeps a number below a sum
    below = 1 - max(2**-50, torch.finfo(total.dtype).eps)
    block = torch.searchsorted(cumulative, torch.minimum(targets, total * below), right=True)
    before = cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    chosen = weights.gather(1, block[..., None].expand(rows, 1, width))[:, 0]
    inside = chosen.cumsum(-1, dtype=double_dtype(logits.device))
    whole = inside[:, -1:]
    position = (targets - before) * (whole / (cumulative.gather(1, block) - before))
    position = torch.minimum(position, whole * below)
    tokens = block * width + torch.searchsorted(inside, position, right=True)
    if greedy is not None:
        tokens = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), tokens)
    logprobs = double(flat.gather(1, tokens)).log() - total.log()
    return tokens[:, 0], logprobs[:, 0].float()


def truncated(logits: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Mask logits (B, V) outside top-k, top-p and min-p with minus infinity; each parameter (B,),
    off at 0, 1 and 0."""
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    rank = torch.arange(logits.shape[-1], device=logits.device)[None]
    limit = torch.where(top_k > 0, top_k, float(logits.shape[-1]))[:, None]
    before = probs.cumsum(-1) - probs
    cut = (rank >= limit) | ((before >= top_p[:, None]) & (top_p[:, None] < 1))
    cut |= probs < min_p[:, None] * probs[:, :1]
    cut[:, 0] = False
    return logits.masked_fill(torch.zeros_like(cut).scatter(1, order, cut), -torch.inf)


CUTS: tuple[str, ...] = tuple(signature(truncated).parameters)[1:]
"""The truncations that are done here."""
HERE = "an engine in this process"
DONE = {"max_new_tokens", "temperature", "stop", *CUTS}

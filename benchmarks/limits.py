"""What the machine can do at best, measured beside the work: matrix products and memory reads; and
from these the least time that work can take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.models import SHAPES
from benchmarks.timing import Clock
from benchmarks.work import Work

TRIES = 3
SLOW = 2.0
"""Seconds that a product may take."""
BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of a device.

    Args:
        products: precision -> operations per second of a large matrix product, the faster of the
            libraries at hand.
        reads: bytes per second that memory can be read with.
    """

    products: dict[str, float]
    reads: float

    def __str__(self) -> str:
        products = ", ".join(f"{name} {each / 1e9:.0f}" for name, each in self.products.items())
        return f"products {products} GFLOP/s, reads {self.reads / 1e9:.0f} GB/s"


@functools.cache
def measured(clock: Clock, quick: bool = False) -> Limits:
    """The ceilings of the machine as `clock` sees it; roughly, if it has to be quick."""
    tries = 1 if quick else TRIES
    with clock.applied():
        return Limits({name: _products(name, clock, tries) for name in BYTES}, reads(clock, tries))


def least_seconds(work: Work, limits: Limits, sampled: bool = True, references: int = 0) -> float:
    """The least time of a step in which every prompt is computed once for its siblings, at the peak
    of products, and every decoding step reads the weights once. Attention, the optimiser and
    everything else are free.

    Args:
        work: the step.
        limits: of the machine.
        sampled: completions are sampled first.
        references: frozen models that score the completions as well.
    """
    size = SHAPES[work.shape]
    prompts = work.completions // work.group * work.read  # siblings share theirs
    written = work.completions * work.written
    forward = _operations(work.shape, prompts, written)
    least = (3 + references) * forward / limits.products[work.precision]
    if sampled:
        policies = work.agents if work.weights == "own" else 1
        passes = policies * work.turns * work.written
        least += max(
            forward / limits.products[work.precision],
            passes * size.weights * BYTES[work.precision] / limits.reads,
        )
    return least


def least_seconds_of_rollouts(
    shape: str, read: int, lengths: Sequence[int], rows: int, precision: str, limits: Limits
) -> float:
    """The least time of completions of given lengths, `rows` at a time with finished ones replaced
    at once, after different prompts of `read` tokens. Attention and everything else are free."""
    forward = _operations(shape, read * len(lengths), sum(lengths))
    steps = max(max(lengths), math.ceil(sum(lengths) / rows))
    weights = SHAPES[shape].weights * BYTES[precision]
    return max(forward / limits.products[precision], steps * weights / limits.reads)


def _operations(shape: str, prompts: int, written: int) -> float:
    """Of one pass over so many tokens, the head at the written ones alone."""
    size = SHAPES[shape]
    return 2.0 * (size.body * (prompts + written) + size.head * written)


def decode_floor(shape: str, bytes_per_second: float) -> float:
    """Seconds that reading all weights (float32) once takes: the least time of a token."""
    return SHAPES[shape].weights * BYTES["fp32"] / bytes_per_second


def _products(precision: str, clock: Clock, tries: int) -> float:
    """Of matrices as large as `SLOW` seconds allow: without instructions for bf16, a processor is
    slow by orders of magnitude."""
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    size, most = 256, 2048 if clock.device == "cpu" else 8192
    while True:
        left, right = (torch.randn(size, size, device=clock.device, dtype=dtype) for _ in range(2))
        ways = [partial(torch.mm, left, right), *_through_onednn(left, right)]
        first = min(clock.time(way) for way in ways for _ in range(2))  # a library starts once
        if size == most or 8 * first > SLOW:
            break
        size *= 2
    best = min(min(clock.time(way) for _ in range(tries)) for way in ways)
    return 2 * size**3 / min(first, best)


def _through_onednn(left: Tensor, right: Tensor) -> list[Callable[[], Tensor]]:
    """The product of oneDNN, if it has one for this processor and type."""
    if left.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return []
    product = partial(torch.ops.mkldnn._linear_pointwise, left, right, None, "none", [], "")
    try:
        product()
    except RuntimeError:
        return []
    return [product]


def reads(clock: Clock, tries: int = TRIES) -> float:
    """Bytes per second that memory is read with, now."""
    matrix = torch.ones(1 << 14, 1 << 13, device=clock.device)  # 512 MiB: larger than any cache
    vector = torch.ones(1 << 13, device=clock.device)
    ways = [matrix.sum, lambda: matrix @ vector]
    with clock.applied():
        best = min(min(clock.time(way) for _ in range(tries + 1)) for way in ways)
    return matrix.numel() * 4 / best

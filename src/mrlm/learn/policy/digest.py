"""Digests of tensors: numbers that are others as soon as any element is, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

CHUNK = 1 << 17
"""Elements that are read at once on a processor, so that what is computed of them stays in its
cache; elsewhere 32 times as many."""
FACTOR = 6364136223846793005
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers by size in bytes."""


@torch.no_grad()
def digests(tensors: Sequence[Tensor]) -> list[int]:
    """A 64-bit digest of every tensor's bits, over all of its elements: the sum of the elements,
    each times a random number of its own, modulo 2^64. It reads memory once, and leaves a tensor
    where it is."""
    found = [_digest(tensor) for tensor in tensors]
    return torch.stack([each.cpu() for each in found]).tolist() if found else []


def digest(tensors: Iterable[Tensor]) -> int:
    """One number for the bits of several tensors in their order, of 63 bits with the highest set:
    no counter comes near it."""
    total = 1
    for each in digests(list(tensors)):
        total = (total * FACTOR + each) % (1 << 62)
    return total | (1 << 62)


def _digest(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().view(-1)
    words = flat.view(WORDS[flat.element_size()])
    chunk = CHUNK if flat.device.type == "cpu" else CHUNK << 5
    factors = _factors(chunk, flat.device)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in words.split(chunk):
        total = total * FACTOR + (part * factors[: len(part)]).sum()
    return total


@cache
def _factors(count: int, device: torch.device) -> Tensor:
    """Random odd numbers, (count,)."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator)
    return (2 * drawn + 1).to(device)

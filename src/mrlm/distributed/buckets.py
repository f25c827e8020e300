"""Bucketed communication of tensors: gradients are reduced and weights broadcast in flat buckets,
each of which is sent while the next one is filled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mrlm.learn.policy.storage import is_cut

HALVES = (torch.float16, torch.bfloat16)
"""Types with too little precision for a sum: their gradients are added up in float32."""


def add_gradients(parameters: Sequence[nn.Parameter], size: int) -> None:
    """Replace every gradient with its sum over all processes.

    A gradient that only some processes have counts as zero on the others. One that no process has
    stays `None`: an optimiser skips such a parameter. Gradients of sharded parameters are sums
    already. The parameters are in the same order in every process; `size` is the bytes of a bucket.
    """
    whole = [weight for weight in parameters if weight.requires_grad and not is_cut(weight)]
    if not whole:
        return
    present = torch.tensor([weight.grad is not None for weight in whole], dtype=torch.int32)
    distributed.all_reduce(present, distributed.ReduceOp.MAX)
    known = [weight for weight, there in zip(whole, present.tolist(), strict=True) if there]
    for weight in known:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    under_way: list[tuple[list[nn.Parameter], Tensor, Any]] = []
    for chosen in pieces(known, size):
        flat = torch.cat([_gradient(weight).reshape(-1) for weight in chosen])
        if flat.dtype in HALVES:
            flat = flat.float()
        under_way.append((chosen, flat, distributed.all_reduce(flat, async_op=True)))
    for chosen, flat, work in under_way:
        work.wait()
        for weight, part in zip(chosen, flat.split([w.numel() for w in chosen]), strict=True):
            if part.dtype == weight.dtype:
                weight.grad = part.view_as(weight)
            else:
                _gradient(weight).copy_(part.view_as(weight))


@torch.no_grad()
def spread(tensors: Sequence[Tensor], size: int) -> None:
    """Broadcast the values of the first process, in place."""
    under_way: list[tuple[list[Tensor], Tensor, Any]] = []
    for chosen in pieces([tensor for tensor in tensors if not is_cut(tensor)], size):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in chosen])
        if flat.dtype == torch.bool:
            flat = flat.to(torch.uint8)
        under_way.append((chosen, flat, distributed.broadcast(flat, 0, async_op=True)))
    for chosen, flat, work in under_way:
        work.wait()
        for tensor, part in zip(chosen, flat.split([t.numel() for t in chosen]), strict=True):
            tensor.copy_(part.view_as(tensor))


def pieces(tensors: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Group tensors of one type and device, about `size` bytes at a time."""
    held: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        chosen = held.setdefault(key, [])
        chosen.append(tensor)
        if sum(each.numel() for each in chosen) * tensor.element_size() >= size:
            yield held.pop(key)
    yield from held.values()


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad

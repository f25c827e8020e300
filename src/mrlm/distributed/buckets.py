"""Many tensors as few messages: gradients are added up and weights handed out in flat pieces, each
of which travels while the next one is put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mrlm.learn.policy.shards import is_cut

HALVES = (torch.float16, torch.bfloat16)
"""Types in which too little is left of a sum: gradients of these are added up in float32."""


def add_gradients(parameters: Sequence[nn.Parameter], size: int) -> None:
    """Make every gradient the sum over all processes.

    A gradient that only some processes have counts as zero on the others. One that nobody has stays
    absent: an optimiser does not touch such a parameter at all. Those that are sharded are sums
    already.

    Args:
        parameters: the same ones in every process, in the same order.
        size: bytes of a piece.
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
    """Give every process the numbers of the first one, in place."""
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
    """Tensors of one type and device together, about `size` bytes at a time."""
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

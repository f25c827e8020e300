"""Bucketed communication of tensors: gradients are reduced and weights broadcast in flat buckets,
each of which is sent while the next one is filled."""

from collections.abc import Callable, Iterator, Sequence
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
    weights = [weight for weight, there in zip(whole, present.tolist(), strict=True) if there]
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    for weight, part in _sent(weights, size, _summed):
        if part.dtype == weight.dtype:
            weight.grad = part
        else:
            _gradient(weight).copy_(part)


@torch.no_grad()
def spread(tensors: Sequence[Tensor], size: int) -> None:
    """Broadcast the values of the first process, in place."""
    whole = [tensor for tensor in tensors if not is_cut(tensor)]
    for tensor, part in _sent(whole, size, _broadcast):
        tensor.copy_(part)


Sending = tuple[Tensor, Any]
"""A flat bucket, and the operation that sends it."""


def _sent(
    tensors: Sequence[Any], size: int, send: Callable[[list[Any]], Sending]
) -> Iterator[tuple[Any, Tensor]]:
    """Every tensor, and its part of the received bucket, in the tensor's shape."""
    under_way = [(chosen, *send(chosen)) for chosen in pieces(tensors, size)]
    for chosen, flat, work in under_way:
        work.wait()
        for tensor, part in zip(chosen, flat.split([t.numel() for t in chosen]), strict=True):
            yield tensor, part.view_as(tensor)


def _summed(weights: list[nn.Parameter]) -> Sending:
    flat = torch.cat([_gradient(weight).reshape(-1) for weight in weights])
    if flat.dtype in HALVES:
        flat = flat.float()
    return flat, distributed.all_reduce(flat, async_op=True)


def _broadcast(tensors: list[Tensor]) -> Sending:
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    return flat, distributed.broadcast(flat, 0, async_op=True)


def pieces(tensors: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Group tensors of one type and device, about `size` bytes at a time."""
    held: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        chosen = held.setdefault(key, [])
        chosen.append(tensor)
        if sum(part.numel() for part in chosen) * tensor.element_size() >= size:
            yield held.pop(key)
    yield from held.values()


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad

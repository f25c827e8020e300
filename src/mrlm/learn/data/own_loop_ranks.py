"""Custom loops on several ranks: losses over all rollouts, gradients averaged afterwards."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from mrlm.learn import ops
from mrlm.learn.data.batch import Sample, Totals

BUCKET = 25 * 2**20
"""Bytes of gradients per all-reduce."""


@dataclass(frozen=True, slots=True)
class Across:
    """The process group of a user's `DistributedDataParallel` wrapper. Its forward is not called,
    since a loss runs the model several times or on packed input: gradients of all parameters of a
    learner, heads and critics included, are averaged here after `backward`."""

    wrapper: DistributedDataParallel

    @property
    def size(self) -> int:
        return torch.distributed.get_world_size(self.wrapper.process_group)

    def totals(self, samples: Sequence[Sample]) -> Totals:
        """Loss denominators over all ranks. Collective: every rank must call it."""
        rank_totals = Totals.of(samples)
        parts = ops.global_gather(asdict(replace(rank_totals, by_rollout={})))
        agents: Counter[str] = Counter()
        for part in parts:
            agents.update(part["tokens_by_agent"])
        names = ("tokens", "sequences", "turns", "units", "seen")
        sums = {name: sum(part[name] for part in parts) for name in names}
        return Totals(**sums, tokens_by_agent=dict(agents), by_rollout=rank_totals.by_rollout)

    def averaged(self, loss: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The loss, with a hook that averages gradients over ranks in `backward`, unless in
        `no_sync()`."""
        if not self.wrapper.require_backward_grad_sync:
            return loss
        return _Averaged.apply(loss, self, list(parameters))  # pyright: ignore

    @torch.no_grad()
    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Averages gradients over ranks; a gradient that a rank lacks counts as 0."""
        group = self.wrapper.process_group
        device = parameters[0].device
        has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32).to(device)
        torch.distributed.all_reduce(has, group=group)
        pairs = zip(parameters, has.tolist(), strict=True)
        active = [parameter for parameter, count in pairs if count]
        for parameter in active:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([parameter.grad for parameter in active]):  # pyright: ignore
            flat = _flatten_dense_tensors(bucket)
            torch.distributed.all_reduce(flat, group=group)
            flat /= self.size
            for slope, mean in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                slope.copy_(mean)


class _Averaged(torch.autograd.Function):
    """Identity on the loss whose backward queues the gradient average for the end of the pass."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, across: Across, parameters: list[nn.Parameter]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.across, ctx.parameters = across, parameters
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        engine: Any = Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]
        engine.queue_callback(lambda: ctx.across.average(ctx.parameters))
        return slope, None, None


def _buckets(slopes: Sequence[Tensor]) -> list[list[Tensor]]:
    """Splits gradients into buckets of one dtype and about `BUCKET` bytes."""
    buckets: list[list[Tensor]] = []
    held, kind = BUCKET, None
    for slope in slopes:
        if held >= BUCKET or slope.dtype != kind:
            buckets.append([])
            held, kind = 0, slope.dtype
        buckets[-1].append(slope)
        held += slope.numel() * slope.element_size()
    return buckets

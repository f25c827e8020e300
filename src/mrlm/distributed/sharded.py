"""Models sharded over processes by FSDP2, block by block. Gradients are sums over processes."""

import copy
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from mrlm.config.sections import FsdpConfig
from mrlm.core.errors import ConfigError
from mrlm.core.process_group import Peers
from mrlm.learn.critics.critic import Critic
from mrlm.learn.critics.mixing_critic import MixedCritic
from mrlm.learn.learner import Learner
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.storage import Storage


def shard(
    learners: Sequence[Learner], critics: Sequence[Critic], section: FsdpConfig, peers: Peers
) -> None:
    """Shard everything that is trained. Heads, references and frozen policies stay whole, and so
    does the encoder of a mixed critic. Raises `ConfigError`: the settings are incompatible."""
    bodies = [learner.weights_of for learner in learners]
    bodies += [critic.body for critic in critics if not isinstance(critic, MixedCritic)]
    for policy in bodies:
        check(policy)
    mesh = mesh_of(section.sharding, peers.size, bodies[0].device.type)
    for policy in bodies:
        policy.shards = ShardedModel(policy, section, mesh, peers)
        policy.lean = False
        policy.passes.clear()


def check(policy: Policy) -> None:
    """Refuse policies that cannot be sharded."""
    if policy.adapter is not None:
        raise ConfigError(
            f"policy {policy.name!r} is an adapter, and distributed.strategy=fsdp shards whole "
            "models: several adapters take turns on one base, whose blocks would be gathered "
            "once for each. Use distributed.strategy=ddp, which holds the frozen base once in "
            "every process and adds up the gradients of the adapters alone"
        )
    if policy.precision == "fp16":
        raise ConfigError(
            "training.precision=fp16 scales losses in each process separately, which "
            "distributed.strategy=fsdp does not support; use bf16"
        )


def mesh_of(sharding: str, size: int, kind: str) -> DeviceMesh:
    """The device mesh: one dimension, or (`hybrid`) nodes times processes of a node."""
    if sharding != "hybrid":
        return init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    local = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
    if size % local:
        raise ConfigError(
            f"distributed.fsdp.sharding=hybrid: {size} processes are not a multiple of the "
            f"{local} of this node"
        )
    return init_device_mesh(kind, (size // local, local), mesh_dim_names=("replicate", "shard"))


def blocks_of(model: Any) -> list[nn.Module]:
    """The modules that are gathered at once: those that the model names as not to be split, else
    its longest list of modules."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in names]
    if blocks:
        return blocks
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


class ShardedModel(Storage[Policy]):
    """A policy's sharded model. The policy's model becomes the unsharded copy; a new, sharded one
    computes."""

    sharded = True

    def __init__(self, policy: Policy, section: FsdpConfig, mesh: DeviceMesh, peers: Peers) -> None:
        self._device = policy.device
        self._peers = peers
        self.whole: Policy = policy.alike()
        model = copy.deepcopy(policy.model)
        reduce = getattr(torch, section.reduce_dtype or "float32")
        param = torch.bfloat16 if policy.precision == "bf16" else None
        mixed = MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
        offload = CPUOffloadPolicy() if section.cpu_offload else OffloadPolicy()
        again = section.sharding != "grad_op"
        for module in [*blocks_of(model), model]:
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=again and module is not model,
                mp_policy=mixed,
                offload_policy=offload,
            )
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                if self._device.type == "cpu":
                    module.set_force_sum_reduction_for_comms(True)
        policy.model = self._model = model

    @property
    def device(self) -> torch.device:
        return self._device

    def begin(self, last: bool) -> None:
        self._model.set_requires_gradient_sync(last)
        self._model.set_is_last_backward(last)

    def reshard(self) -> None:
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        grads = [weight.grad for weight in parameters if weight.grad is not None]
        parts = [grad.to_local() for grad in grads if isinstance(grad, DTensor)]
        heads = [grad for grad in grads if not isinstance(grad, DTensor)]
        square = sum(float(part.double().square().sum()) for part in parts) / self._copies()
        (sums,) = self._peers.add_numbers([{"square": square}])
        whole = sum(float(head.double().square().sum()) for head in heads)
        norm = math.sqrt(sums["square"] + whole) if math.isfinite(sums["square"]) else math.nan
        if norm > limit:  # as torch.nn.utils.clip_grad_norm_ does
            for grad in [*parts, *heads]:
                grad.mul_(min(1.0, limit / (norm + 1e-6)))
        return norm

    @torch.no_grad()
    def fingerprint(self) -> tuple[float, ...]:
        first = second = 0.0
        for weight in self._model.parameters():
            part = weight.to_local().detach().double()
            first, second = first + float(part.sum()), second + float(part.square().sum())
        copies = self._copies()
        (sums,) = self._peers.add_numbers([{"sum": first / copies, "square": second / copies}])
        head = self.whole.value_head
        for weight in () if head is None else head.parameters():
            sums["sum"] += float(weight.double().sum())
            sums["square"] += float(weight.double().square().sum())
        return sums["sum"], sums["square"]

    def _copies(self) -> int:
        """The number of processes that hold the same shard."""
        mesh = next(self._model.parameters()).device_mesh
        return mesh.size(0) if mesh.ndim > 1 else 1

    @torch.no_grad()
    def refresh(self) -> None:
        pairs = zip(self._model.parameters(), self.whole.model.parameters(), strict=True)
        for part, weight in pairs:
            weight.copy_(part.to(self._device).full_tensor())

    @torch.no_grad()
    def take(self) -> None:
        pairs = zip(self._model.parameters(), self.whole.model.parameters(), strict=True)
        for part, weight in pairs:
            part.to_local().copy_(self.place(part, weight).to_local())

    def place(self, weight: nn.Parameter, value: Tensor) -> Any:
        here = isinstance(value, DTensor) or not isinstance(weight, DTensor)
        if here or value.shape != weight.shape:
            return value
        cut: Any = weight
        mesh, there = cut.device_mesh, value.detach().to(cut.device_mesh.device_type)
        placed = distribute_tensor(there, mesh, cut.placements, src_data_rank=None)
        return placed.to(cut.to_local().device)

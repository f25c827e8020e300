"""Placement of the parts of a run, and their memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mrlm.planning.communication import Ring
from mrlm.planning.devices import Device
from mrlm.planning.memory import (
    ADAPTER_BYTES,
    COPIES,
    PASSING,
    PLAYING,
    MemoryLoad,
    engine_copy,
    parts_of,
    peak,
)
from mrlm.planning.plan import Plan
from mrlm.planning.timing import Share, learned_tokens

USABLE = 0.92
"""Share of a device's memory that a run may take; the rest is for allocator and libraries."""

PROCESS = 3 << 27
"""Bytes of the interpreter, its libraries and the run's own data, where they share a device."""


@dataclass(frozen=True, slots=True)
class Place:
    """A placement of a run.

    Args:
        strategy: one of `STRATEGIES`.
        devices, nodes: totals.
        engines: devices that only sample; 0 if the training devices sample, too.
    """

    strategy: str
    devices: int
    nodes: int = 1
    engines: int = 0

    @property
    def learners(self) -> int:
        """Devices that train."""
        return self.devices - self.engines

    @property
    def inside(self) -> int:
        """Devices of a node."""
        return self.devices // self.nodes

    def ring(self, device: Device) -> Ring:
        if self.engines == 0:
            return Ring(device, self.inside, self.nodes)
        inside = min(self.inside, self.learners)
        return Ring(device, inside, math.ceil(self.learners / inside))


def placed_memory(
    learning: Share, playing: Share, strategy: str, placement: Place, ring: Ring, ahead: bool
) -> tuple[dict[str, dict[str, int]], int, float]:
    """Bytes on the device that needs most, its peak bytes, and the memory left for keys and values
    on a device that samples. `ahead`: episodes are played during training, so that engines have
    copies of the trained weights."""
    plan, device = learning.plan, learning.device
    usable = USABLE * device.memory
    members = {"ddp": 1, "fsdp": ring.members, "fsdp-hybrid": ring.inside}[strategy]
    reduces = members == 1 and ring.members > 1
    job = _job(plan, learning, playing, plays=plan.job.plays and placement.engines == 0)
    job = replace(job, accelerated=not device.shared)
    memory = {
        policy.name: parts_of(policy, replace(job, tokens=tokens), members, reduces)
        for policy, tokens in zip(plan.weights, _tokens(learning, job), strict=True)
    }
    if device.shared and memory:
        next(iter(memory.values()))["process"] = PROCESS
    if job.plays:
        _add_engine(memory, plan, job, members > 1, device.shared, ahead)
    if job.plays and ahead:
        for policy in plan.weights:
            bytes_each = ADAPTER_BYTES if policy.lora is not None else job.width
            memory[policy.name]["ahead"] = policy.trained * bytes_each
    if placement.engines == 0:
        standing = peak({name: _standing(parts) for name, parts in memory.items()})
        return memory, peak(memory), _room(job, usable - standing)
    served = _served(plan, _job(plan, learning, playing, plays=True))
    standing = peak({name: _standing(parts) for name, parts in served.items()})
    worst = max(peak(memory), peak(served))
    return (served if peak(served) > peak(memory) else memory), worst, _room(job, usable - standing)


def _tokens(share: Share, job: MemoryLoad) -> list[int]:
    """Tokens of a forward pass of each policy; those on one base run through it together."""
    plan = share.plan
    by_base: dict[str, float] = {}
    for each in plan.weights:
        tokens = learned_tokens(share, each)[0] / plan.minibatches if each.trainable else 0.0
        by_base[each.base] = by_base.get(each.base, 0.0) + tokens
    return [min(job.tokens, max(1, math.ceil(by_base[model.base]))) for model in plan.weights]


def _room(job: MemoryLoad, free: float) -> float:
    """Bytes for keys and values of what is free."""
    return max(0.0, free if job.most_keys is None else min(free, job.most_keys))


def _job(plan: Plan, learning: Share, playing: Share, plays: bool) -> MemoryLoad:
    job = plan.job
    tokens = max(1, math.ceil(plan.trained_tokens * learning.part))
    rows = max(1, math.ceil(plan.at_once * playing.part) * plan.agents)
    return replace(job, plays=plays, tokens=min(job.tokens, tokens), rows=min(job.rows, rows))


def _add_engine(
    memory: Mapping[str, dict[str, int]],
    plan: Plan,
    job: MemoryLoad,
    sharded: bool,
    on_processor: bool,
    ahead: bool,
) -> None:
    """Add the engine's weights in the same process: a whole copy if they are sharded, else the
    parts that it stores in its own layout, which a device releases for training."""
    name = "engine" if sharded or on_processor or ahead else COPIES
    for policy in plan.weights:
        if policy.owns and policy.shape is not None:
            whole = policy.shape.parameters * job.computed
            copy_bytes = engine_copy(policy.shape, job, on_processor) if job.lean else 0
            memory[policy.name][name] = whole if sharded else copy_bytes


def _served(plan: Plan, job: MemoryLoad) -> dict[str, dict[str, int]]:
    """Bytes on a device that only samples."""
    served: dict[str, dict[str, int]] = {}
    for policy in plan.weights:
        parts = parts_of(replace(policy, trainable=False, critic=0, num_opponents=0), job)
        parts["weights"] = policy.count * job.computed if policy.owns else 0
        served[policy.name] = {
            key: value for key, value in parts.items() if key not in PASSING or key in PLAYING
        }
    return served


def _standing(parts: Mapping[str, int]) -> dict[str, int]:
    """Bytes that stay while keys and values are in memory."""
    return {key: value for key, value in parts.items() if key not in PASSING or key == COPIES}

"""Estimates of one step on a number of devices: placement, memory, time; and the same for every
number of devices up to a thousand."""

import math
from dataclasses import dataclass, field, replace

from mrlm.core.errors import ConfigError
from mrlm.planning import communication, rates, timing
from mrlm.planning.communication import Ring
from mrlm.planning.devices import Device
from mrlm.planning.layout import USABLE, Place, placed_memory
from mrlm.planning.plan import Plan
from mrlm.planning.rates import Took
from mrlm.planning.timing import Lengths, Share

STRATEGIES = ("ddp", "fsdp", "fsdp-hybrid", "ray")
BETTER = 0.98
"""A strategy with more setup has to take less than this share of the time."""
SIDES = 16
"""Divisions of devices between learners and engines that are tried."""


@dataclass(slots=True)
class Estimate:
    """The estimate of a step with one placement.

    Args:
        memory: policy -> part -> bytes on the device that needs most.
        seconds: part of the step -> its duration.
        fits: whether memory suffices.
        trained_tokens, sampled_tokens: tokens of a step; prompts count for every sequence.
        needed: peak bytes on that device.
        max_lag: most iterations that playing may be ahead of training.
    """

    place: Place
    memory: dict[str, dict[str, int]]
    seconds: dict[str, Took]
    fits: bool
    needed: int
    max_lag: int = 0
    trained_tokens: float = 0.0
    sampled_tokens: float = 0.0
    peak: float = 0.0
    efficiency: float = 1.0
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> float:
        """Seconds of an iteration; with asynchronous play, the longer of playing and training."""
        play = sum(self.seconds[name].seconds for name in ("prefill", "decode", "worlds"))
        everything = sum(part.seconds for part in self.seconds.values())
        return max(play, everything - play) if self.max_lag and self.place.engines else everything

    @property
    def rate(self) -> float:
        """Trained tokens per second."""
        return self.trained_tokens / self.step

    @property
    def share_of_peak(self) -> float:
        """Useful operations over the peak operations of the devices."""
        useful = sum(
            part.operations * (self.place.engines or self.place.devices)
            if name in ("prefill", "decode")
            else part.operations * self.place.learners
            for name, part in self.seconds.items()
        )
        return useful / (self.step * self.peak * self.place.devices) if self.peak else 0.0


def estimate(
    plan: Plan, lengths: Lengths, device: Device, placement: Place, needs: "Needs", max_lag: int = 0
) -> Estimate:
    """Estimate a step with a placement; playing may be `max_lag` iterations ahead."""
    device = device.among(placement.inside)
    on_ray = placement.strategy == "ray" and placement.devices > 1
    strategy = "ddp" if placement.strategy == "ray" else placement.strategy
    ring = Ring(device, 1, 1) if on_ray else placement.ring(device)
    learning = Share(device, _dealt(plan, ring.members), plan, lengths)
    players = placement.engines or ring.members
    playing = replace(learning, tasks=_dealt(plan, players))
    if on_ray:  # one worker trains all of a policy, and the slowest of them determines the time
        learning = replace(learning, plan=_heaviest(plan, placement.learners))
        playing = playing if placement.engines else learning
    sides = learning, playing
    memory, needed, room = placed_memory(*sides, strategy, placement, ring, ahead=max_lag > 0)
    shards = {"ddp": 1, "fsdp": ring.members, "fsdp-hybrid": ring.inside}[strategy]
    both = timing.forward_backward(learning)
    seconds = {
        "prefill": timing.prefill(playing) if not plan.rows else Took(),
        "decode": timing.decode(playing, room),
        "worlds": timing.environments(playing),
        "annotate": timing.annotate(learning, needs.columns, needs.reads_old),
        "forward_backward": both,
        "optimizer": timing.optimizer(learning, shards),
        "communication": communication.communication(learning, strategy, ring, both.seconds),
        "hand_over": communication.hand_over(learning, strategy, ring, placement.engines > 0),
        "rest": Took(rates.ITERATION, "overhead"),
    }
    everything = Share(device, plan.tasks, _general(plan), lengths)
    tokens = sum(timing.learned_tokens(everything, w)[0] for w in plan.weights if w.trainable)
    return Estimate(
        placement,
        memory,
        seconds,
        fits=needed <= USABLE * device.memory,
        needed=needed,
        max_lag=max_lag,
        trained_tokens=tokens,
        sampled_tokens=float(plan.model_calls * lengths.mean),
        peak=device.peak(plan.job.computed),
    )


def _dealt(plan: Plan, devices: int) -> float:
    """Tasks of the device that has most; with fewer tasks than devices, groups are divided."""
    if plan.tasks >= devices:
        return math.ceil(plan.tasks / devices)
    return math.ceil(plan.tasks * plan.samples / devices) / plan.samples


@dataclass(frozen=True, slots=True)
class Needs:
    """The columns that an algorithm computes before credit, and whether it reads old log-probs."""

    columns: frozenset[str] = frozenset()
    reads_old: bool = True


def candidates(plan: Plan, strategy: str, devices: int, nodes: int, engine: str) -> list[Place]:
    """Placements of one strategy: with separate engines, every sensible division of the devices."""
    if strategy == "fsdp-hybrid" and nodes == 1:
        return []
    if strategy == "ray":
        return _on_ray(plan, devices, nodes)
    if strategy != "ddp" and devices > 1 and any(policy.lora for policy in plan.weights):
        return []  # adapters are not sharded: they are small
    if engine != "vllm" or plan.rows or devices == 1:
        return [Place(strategy, devices, nodes)]
    counts = sorted({max(1, round(devices * part / SIDES)) for part in range(1, SIDES)})
    return [Place(strategy, devices, nodes, count) for count in counts if count < devices]


def best(
    plan: Plan,
    lengths: Lengths,
    device: Device,
    strategy: str,
    devices: int,
    nodes: int,
    needs: Needs,
    max_lag: int = 0,
) -> Estimate:
    """The fastest placement that fits; if none does, the one that needs least. `auto` tries all
    strategies, the simplest first."""
    names = STRATEGIES if strategy == "auto" else (strategy,)
    chosen: Estimate | None = None
    least: Estimate | None = None
    for name in names:
        spread_plan = plan if name in ("ddp", "ray") or devices == 1 else _general(plan)
        for placement in candidates(plan, name, devices, nodes, lengths.engine):
            candidate = estimate(spread_plan, lengths, device, placement, needs, max_lag)
            if least is None or candidate.needed < least.needed:
                least = candidate
            same = chosen is not None and chosen.place.strategy == name
            limit = 1.0 if same else BETTER
            if candidate.fits and (chosen is None or candidate.step < limit * chosen.step):
                chosen = candidate
    if chosen or least:
        return chosen or least  # pyright: ignore[reportReturnType]
    if any(policy.lora for policy in plan.weights) and devices > 1 and strategy != "ray":
        why = "it shards whole models, and there are adapters; use ddp"
    elif strategy == "fsdp-hybrid":
        why = "it shards models within a node and copies them across nodes; set --nodes"
    else:
        why = f"no part can be placed separately on {devices} device(s)"
    raise ConfigError(f"--strategy {strategy}: {why}")


def _general(plan: Plan) -> Plan:
    """The same plan with the models' own forward pass, which sharded models use."""
    return replace(plan, job=replace(plan.job, lean=False))


def sweep(
    plan: Plan,
    lengths: Lengths,
    device: Device,
    strategy: str,
    devices: int,
    nodes: int,
    needs: Needs,
    max_lag: int = 0,
) -> list[Estimate]:
    """The best placements on 1, 2, 4, ... devices, and on `devices`; efficiency is relative to the
    fewest on which the run fits."""
    inside = devices // nodes
    rows: list[Estimate] = []
    for count in counts_up_to(devices):
        many = max(1, math.ceil(count / inside))
        if count % many:
            continue
        try:
            rows.append(best(plan, lengths, device, strategy, count, many, needs, max_lag))
        except ConfigError:
            continue  # a strategy that needs more devices
    first = next((row for row in rows if row.fits), None)
    spent = 0.0 if first is None else first.step * first.place.devices
    for row in rows:
        row.efficiency = spent / (row.step * row.place.devices) if row.fits else 0.0
    return rows


def counts_up_to(devices: int) -> list[int]:
    """1, 2, 4, ... and `devices`."""
    powers = [1 << power for power in range(devices.bit_length()) if 1 << power <= devices]
    return sorted({*powers, devices})


def nodes_of(devices: int, nodes: int | None, device: Device) -> int:
    """The number of nodes of some devices. Raises `ConfigError`: they cannot be divided among the
    nodes."""
    if devices < 1 or (nodes is not None and nodes < 1):
        options = f"--devices {devices}" + ("" if nodes is None else f" --nodes {nodes}")
        raise ConfigError(f"{options}: give at least 1")
    many = nodes or max(1, math.ceil(devices / device.per_node))
    if devices % many:
        raise ConfigError(
            f"--devices {devices}: they cannot be divided among {many} nodes; give "
            f"--nodes a divisor of {devices}, or {math.ceil(devices / many) * many} devices"
        )
    return many


# -- Ray -------------------------------------------------------------------------------------------


def _on_ray(plan: Plan, devices: int, nodes: int) -> list[Place]:
    """A worker for every trained base, with the other devices sampling; or each worker does both
    for its own policies."""
    groups = sum(any(policy.trainable for policy in group) for group in timing.bases(plan.weights))
    if devices == 1:
        return []
    placements = [Place("ray", devices, nodes)] * (groups >= 2)
    if not plan.rows and groups:
        learners = min(groups, devices - 1)
        placements.append(Place("ray", devices, nodes, devices - learners))
    return placements


def _heaviest(plan: Plan, workers: int) -> Plan:
    """The part of a run that its busiest worker has, with bases distributed over workers."""
    groups = sorted(timing.bases(plan.weights), key=lambda group: -group[0].count)
    taken = groups[:: max(1, min(workers, len(groups)))]
    return replace(plan, weights=[policy for group in taken for policy in group])

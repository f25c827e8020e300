"""Output of a plan: text for people, JSON for programs, and the command that starts the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from mrlm.planning.devices import Device
from mrlm.planning.estimate import Estimate
from mrlm.planning.layout import USABLE, Place
from mrlm.planning.plan import Plan, size_text
from mrlm.planning.timing import Lengths

OF_DEVICE = ("name", "bf16", "fp32", "bandwidth", "memory", "source")
VERSION = 1
"""Version of the JSON; raised when a key changes its meaning."""
PARTS = {
    "prefill": "play: reading prompts",
    "decode": "play: sampling",
    "worlds": "play: environments, records",
    "annotate": "annotate",
    "forward_backward": "forward and backward",
    "optimizer": "optimizer",
    "communication": "gradients and shards",
    "hand_over": "weights to engines",
    "rest": "the rest",
}


def text(
    plan: Plan, lengths: Lengths, device: Device, rows: Sequence[Estimate], command: str
) -> str:
    """The plan as text; `rows` are for growing numbers of devices, and the last is the one that
    `command` starts."""
    chosen = rows[-1]
    place = chosen.place
    apart = f" ({place.learners} train, {place.engines} sample)" if place.engines else ""
    lines = [
        *(_weights_text(plan)),
        f"episodes: {plan.episodes} an iteration, {plan.model_calls} completions of "
        f"{lengths.mean} tokens (at most {lengths.longest}) to prompts of {lengths.prompt}; "
        f"{plan.sequences} trained sequences",
        "",
        f"{place.devices} device(s) on {place.nodes} node(s){apart} of {device.name} "
        f"({device.source}), {_strategy(place)}, engine "
        f"{lengths.engine}: {chosen.step:.4g} s a step, {chosen.rate:,.0f} trained tokens/s, "
        f"{100 * chosen.share_of_peak:.1f} % of the peak",
        _fit(device, chosen),
        *([] if plan.record is None else [str(plan.record)]),
        "",
        *_memory(chosen),
        "",
        "time of a step",
        *_aligned(
            ("part", "seconds", "share", "bound by"),
            [
                (
                    PARTS[name],
                    f"{part.seconds:.3g}",
                    f"{100 * part.seconds / chosen.step:.0f} %",
                    part.bound,
                )
                for name, part in chosen.seconds.items()
                if part.seconds
            ],
        ),
        "",
        "devices",
        *_aligned(
            ("devices", "nodes", "strategy", "memory", "fits", "step s", "tokens/s", "efficiency"),
            [_table_row(each) for each in rows],
        ),
        "",
        f"start: {command}",
    ]
    notes = [*plan.notes, *hints(plan, chosen), *chosen.notes]
    return "\n".join([*lines, *(f"note: {note}" for note in dict.fromkeys(notes))])


def memory_text(plan: Plan, device: Device, chosen: Estimate) -> str:
    """The part of a plan about memory, with suggestions.

    Args:
        plan: the counts of the run.
        device: the device.
        chosen: the estimate on it.
    """
    lines = [*_weights_text(plan), f"on {device.name}, {_fit(device, chosen)}", *_memory(chosen)]
    return "\n".join([*lines, *(f"note: {hint}" for hint in hints(plan, chosen))])


def _fit(device: Device, chosen: Estimate) -> str:
    fits = "fits" if chosen.fits else "does NOT fit"
    room = size_text(USABLE * device.among(chosen.place.inside).memory)
    return f"it {fits}: {size_text(chosen.needed)} of {room} that can be used on a device"


def _memory(chosen: Estimate) -> list[str]:
    return ["memory of a device", *_aligned(("part", "size"), _memory_rows(chosen))]


def data(
    plan: Plan, lengths: Lengths, device: Device, rows: Sequence[Estimate], command: str
) -> dict[str, Any]:
    """The plan as JSON. Sizes are in bytes, times in seconds."""
    return {
        "version": VERSION,
        "algorithm": plan.algorithm,
        "device": {key: value for key, value in asdict(device).items() if key in OF_DEVICE},
        "counts": {
            "tasks": plan.tasks,
            "episodes": plan.episodes,
            "completions": plan.model_calls,
            "sequences": plan.sequences,
            "optimizer_steps": plan.optimizer_steps,
            "prompt_tokens": lengths.prompt,
            "completion_tokens": lengths.mean,
        },
        "record": None
        if plan.record is None
        else {
            "step": plan.record.step,
            "evaluation": plan.record.evaluation,
            "total": plan.record.total,
            "thinned_from": plan.record.thinned_from,
        },
        "policies": {
            each.name: {
                "weights": each.count,
                "trained": each.trained,
                "base": each.base,
                "agents": each.num_agents,
                "stand_ins": each.num_opponents,
                "critic": each.critic,
            }
            for each in plan.weights
        },
        "chosen": _estimate_data(rows[-1]),
        "table": [_estimate_data(each) for each in rows],
        "command": command,
        "notes": [*plan.notes, *hints(plan, rows[-1])],
    }


def command_of(place: Place, config: str, overrides: Sequence[str]) -> str:
    """The command that starts the run of a config file with a placement."""
    asked = ["train", "--config", config, *overrides]
    if place.strategy == "ray":
        settings = ["distributed.enabled=true", "distributed.strategy=ray"]
        return shlex.join(["mrlm", *asked, *settings])
    if place.learners == 1:
        return shlex.join(["mrlm", *asked])
    ring = place.learners if place.engines else place.inside
    start = ["torchrun", f"--nproc_per_node={ring}"]
    if place.nodes > 1 and not place.engines:
        start = ["torchrun", f"--nnodes={place.nodes}", f"--nproc_per_node={place.inside}"]
        start[2:2] = ["--node_rank=THIS_NODE"]
        start += ["--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_NODE:29500"]
    strategy = "fsdp" if place.strategy == "fsdp-hybrid" else place.strategy
    settings = ["distributed.enabled=true", f"distributed.strategy={strategy}"]
    if place.strategy == "fsdp-hybrid":
        settings.append("distributed.fsdp.sharding=hybrid")
    return shlex.join([*start, "-m", "mrlm", *asked, *settings])


def hints(plan: Plan, chosen: Estimate) -> list[str]:
    """Suggestions for a faster or smaller run."""
    found: list[str] = []
    whole = plan.tasks * plan.samples
    if chosen.place.learners > whole:
        found.append(
            f"{chosen.place.learners} devices train on {whole} episodes: "
            f"{chosen.place.learners - whole} are idle; raise training.batch_size"
        )
    elif chosen.place.learners > plan.tasks:
        found.append(
            f"{chosen.place.learners} devices share {plan.tasks} tasks: groups are divided, and "
            "each part reads the prompt again; a larger training.batch_size is better"
        )
    if not chosen.fits:
        found.append(
            "it does not fit: fsdp, LoRA, training.gradient_checkpointing=true, "
            "training.precision=bf16 with model.torch_dtype=bfloat16, or a smaller "
            "training.max_tokens_per_microbatch need less"
        )
    longest = max(chosen.seconds, key=lambda name: chosen.seconds[name].seconds)
    if longest == "decode" and chosen.seconds["decode"].bound == "memory":
        found.append(
            "sampling is bound by reading weights: more episodes at once cost little "
            "(training.batch_size, group_size)"
        )
    if longest == "communication":
        found.append("devices wait for each other most of the time: fewer would do nearly as well")
    return found


def _strategy(place: Place) -> str:
    return place.strategy if place.devices > 1 else "one process"


def _weights_text(plan: Plan) -> Iterable[str]:
    for each in plan.weights:
        kind = "frozen" if not each.trainable else "whole"
        if each.lora is not None:
            kind = f"LoRA r={each.lora.r}, {each.adapter / 1e6:.3g}M"
            kind += "" if each.owns else f", on the base of {each.base}"
        yield (
            f"policy {each.name}: {_count_text(each.count)} weights ({kind}), "
            f"{each.num_agents} agent(s)"
            + (f", {each.num_opponents} opponent copies" if each.num_opponents else "")
        )


def _count_text(count: float) -> str:
    """A number of weights: 7.615B, 426.4K."""
    unit, size = next(each for each in (("B", 1e9), ("M", 1e6), ("K", 1)) if count >= each[1])
    return f"{count / (size if unit != 'K' else 1e3):.4g}{unit}"


def _memory_rows(chosen: Estimate) -> list[tuple[str, ...]]:
    several = len(chosen.memory) > 1
    rows = []
    for policy, parts in chosen.memory.items():
        for name, size in parts.items():
            if size:
                rows.append((f"{policy}: {name}" if several else name, size_text(size)))
    return [*rows, ("at the peak", size_text(chosen.needed))]


def _table_row(found: Estimate) -> tuple[str, ...]:
    place = found.place
    apart = f" {place.learners}+{place.engines}" if place.engines else ""
    return (
        str(place.devices),
        str(place.nodes),
        f"{_strategy(place)}{apart}",
        size_text(found.needed),
        "yes" if found.fits else "no",
        f"{found.step:.4g}",
        f"{found.rate:,.0f}",
        f"{100 * found.efficiency:.0f} %" if found.efficiency else "",
    )


def _estimate_data(found: Estimate) -> dict[str, Any]:
    place = found.place
    return {
        **asdict(place),
        "learners": place.learners,
        "fits": found.fits,
        "needed": found.needed,
        "memory": found.memory,
        "step_seconds": found.step,
        "seconds": {
            name: {"seconds": part.seconds, "bound": part.bound}
            for name, part in found.seconds.items()
        },
        "trained_tokens_per_second": found.rate,
        "sampled_tokens_per_second": found.sampled_tokens / found.step,
        "share_of_peak": found.share_of_peak,
        "efficiency": found.efficiency,
    }


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as text columns; the first aligned left, others right."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        first = row[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  " + "  ".join([first, *rest]).rstrip())
    return lines

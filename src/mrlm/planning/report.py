"""Output of a plan: text for people, JSON for programs, and the command that starts the run."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from mrlm.core.progress import aligned
from mrlm.planning.devices import Device
from mrlm.planning.estimate import Estimate
from mrlm.planning.layout import USABLE, Place
from mrlm.planning.memory import size_text
from mrlm.planning.plan import Plan
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
    placement = chosen.place
    sides = f" ({placement.learners} train, {placement.engines} sample)"
    apart = sides if placement.engines else ""
    lines = [
        *(_weights_text(plan)),
        f"episodes: {plan.episodes} an iteration, {plan.model_calls} completions of "
        f"{lengths.mean} tokens (at most {lengths.longest}) to prompts of {lengths.prompt}; "
        f"{plan.sequences} trained sequences",
        "",
        f"{placement.devices} device(s) on {placement.nodes} node(s){apart} of {device.name} "
        f"({device.source}), {_strategy(placement)}, engine "
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
                (PARTS[name], f"{x.seconds:.3g}", f"{100 * x.seconds / chosen.step:.0f} %", x.bound)
                for name, x in chosen.seconds.items()
                if x.seconds
            ],
        ),
        "",
        "devices",
        *_aligned(
            ("devices", "nodes", "strategy", "memory", "fits", "step s", "tokens/s", "efficiency"),
            [_table_row(row) for row in rows],
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
            policy.name: {
                "weights": policy.count,
                "trained": policy.trained,
                "base": policy.base,
                "agents": policy.num_agents,
                "stand_ins": policy.num_opponents,
                "critic": policy.critic,
            }
            for policy in plan.weights
        },
        "chosen": _estimate_data(rows[-1]),
        "table": [_estimate_data(policy) for policy in rows],
        "command": command,
        "notes": [*plan.notes, *hints(plan, rows[-1])],
    }


def command_of(placement: Place, config: str, overrides: Sequence[str]) -> str:
    """The command that starts the run of a config file with a placement."""
    arguments = ["train", "--config", config, *overrides]
    if placement.strategy == "ray":
        settings = ["distributed.enabled=true", "distributed.strategy=ray"]
        return shlex.join(["mrlm", *arguments, *settings])
    if placement.learners == 1:
        return shlex.join(["mrlm", *arguments])
    ring = placement.learners if placement.engines else placement.inside
    start = ["torchrun", f"--nproc_per_node={ring}"]
    if placement.nodes > 1 and not placement.engines:
        start = ["torchrun", f"--nnodes={placement.nodes}", f"--nproc_per_node={placement.inside}"]
        start[2:2] = ["--node_rank=THIS_NODE"]
        start += ["--rdzv_backend=c10d", "--rdzv_endpoint=FIRST_NODE:29500"]
    strategy = "fsdp" if placement.strategy == "fsdp-hybrid" else placement.strategy
    settings = ["distributed.enabled=true", f"distributed.strategy={strategy}"]
    if placement.strategy == "fsdp-hybrid":
        settings.append("distributed.fsdp.sharding=hybrid")
    return shlex.join([*start, "-m", "mrlm", *arguments, *settings])


def hints(plan: Plan, chosen: Estimate) -> list[str]:
    """Suggestions for a faster or smaller run."""
    suggestions: list[str] = []
    whole = plan.tasks * plan.samples
    if chosen.place.learners > whole:
        suggestions.append(
            f"{chosen.place.learners} devices train on {whole} episodes: "
            f"{chosen.place.learners - whole} are idle; raise training.batch_size"
        )
    elif chosen.place.learners > plan.tasks:
        suggestions.append(
            f"{chosen.place.learners} devices share {plan.tasks} tasks: groups are divided, and "
            "each part reads the prompt again; a larger training.batch_size is better"
        )
    if not chosen.fits:
        suggestions.append(
            "it does not fit: fsdp, LoRA, training.gradient_checkpointing=true, "
            "training.precision=bf16 with model.torch_dtype=bfloat16, or a smaller "
            "training.max_tokens_per_microbatch need less"
        )
    longest = max(chosen.seconds, key=lambda name: chosen.seconds[name].seconds)
    if longest == "decode" and chosen.seconds["decode"].bound == "memory":
        suggestions.append(
            "sampling is bound by reading weights: more episodes at once cost little "
            "(training.batch_size, group_size)"
        )
    if longest == "communication":
        text = "devices wait for each other most of the time: fewer would do nearly as well"
        suggestions.append(text)
    return suggestions


def _strategy(placement: Place) -> str:
    return placement.strategy if placement.devices > 1 else "one process"


def _weights_text(plan: Plan) -> Iterable[str]:
    for policy in plan.weights:
        kind = "frozen" if not policy.trainable else "whole"
        if policy.lora is not None:
            kind = f"LoRA r={policy.lora.r}, {policy.adapter / 1e6:.3g}M"
            kind += "" if policy.owns else f", on the base of {policy.base}"
        bits = "" if plan.job.quantization is None else f" in {plan.job.quantization}"
        yield (
            f"policy {policy.name}: {_count_text(policy.count)} weights{bits} ({kind}), "
            f"{policy.num_agents} agent(s)"
            + (f", {policy.num_opponents} opponent copies" if policy.num_opponents else "")
        )


def _count_text(count: float) -> str:
    """A number of weights: 7.615B, 426.4K."""
    unit, size = ("B", 1e9) if count >= 1e9 else ("M", 1e6) if count >= 1e6 else ("K", 1e3)
    return f"{count / size:.4g}{unit}"


def _memory_rows(chosen: Estimate) -> list[tuple[str, ...]]:
    several = len(chosen.memory) > 1
    rows = [
        (f"{policy}: {name}" if several else name, size_text(size))
        for policy, parts in chosen.memory.items()
        for name, size in parts.items()
        if size
    ]
    return [*rows, ("at the peak", size_text(chosen.needed))]


def _table_row(estimate: Estimate) -> tuple[str, ...]:
    placement = estimate.place
    apart = f" {placement.learners}+{placement.engines}" if placement.engines else ""
    return (
        str(placement.devices),
        str(placement.nodes),
        f"{_strategy(placement)}{apart}",
        size_text(estimate.needed),
        "yes" if estimate.fits else "no",
        f"{estimate.step:.4g}",
        f"{estimate.rate:,.0f}",
        f"{100 * estimate.efficiency:.0f} %" if estimate.efficiency else "",
    )


def _estimate_data(estimate: Estimate) -> dict[str, Any]:
    placement = estimate.place
    return {
        **asdict(placement),
        "learners": placement.learners,
        "fits": estimate.fits,
        "needed": estimate.needed,
        "memory": estimate.memory,
        "step_seconds": estimate.step,
        "seconds": {
            name: {"seconds": part.seconds, "bound": part.bound}
            for name, part in estimate.seconds.items()
        },
        "trained_tokens_per_second": estimate.rate,
        "sampled_tokens_per_second": estimate.sampled_tokens / estimate.step,
        "share_of_peak": estimate.share_of_peak,
        "efficiency": estimate.efficiency,
    }


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as text columns; the first aligned left, others right."""
    return [f"  {line}" for line in aligned([head, *rows], right=True).splitlines()]

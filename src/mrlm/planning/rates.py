"""The efficiency that is reached of a processor's peak. Each constant names its source; those for
accelerators were fitted to published rows, those for CPUs measured on one or, if so stated,
estimated."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.planning.devices import Device

MATRIX_SHARE = 0.7
"""Share of the peak that wide models reach in training: 0.65 to 0.69 of it, recomputing included,
for 13B and 70B on A100 (pytorch/torchtitan, docs/performance.md); 0.7 to 0.78 measured on a CPU,
15M and 120M."""
NARROWNESS = 3.2e-12
"""Width, over the peak in operations per second, at which half of that is reached: everything
besides products takes longer relative to faster products. Fitted to 8B on A100 and H100
(torchtitan, the same page and benchmarks/llama3_h100_202412_torchtitan.md), with 0.6B on H100 and
8B on B200 in sight (PrimeIntellect-ai/prime-rl, benchmarks/baselines)."""
ATTENTION_SHARE = 0.5
"""Share of the peak of attention: flash kernels on accelerators, forward and backward (arXiv
2307.08691, table 1, and 2407.08608, figure 6)."""
FORWARD_SHARE = 0.7
"""The same as MATRIX_SHARE without a backward pass."""
DECODE_SHARE = 0.55
"""Share of the peak of products with few rows; measured on a CPU, 32 rows of 15M and 120M."""
READ_SHARE = 0.8
"""Share of the memory's bandwidth that decoding reaches: 77 % on an A100 at 8B
(https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on)."""
UPDATE_SHARE = 0.6
"""The same for an optimizer's step, which reads and writes; an estimate."""
LINK_SHARE = 0.75
"""Share of a link's or network's speed that collectives reach."""
OVERLAP = 0.7
"""Share of the computing time that overlaps with the transfer of sharded weights."""
COLLECTIVE = 20e-6
"""Seconds of one collective per doubling of its members, however small the data."""
OPS_OF_A_BLOCK = 25
"""Operations of a block, forward; a backward pass has twice as many."""
GRAPH = 0.15
"""Share of the launch overhead that is left with CUDA graphs."""
DRAW = {"lean": 1.5e-3, "vllm": 1.5e-3}
"""Seconds of a decoding step besides the model: scheduling, sampling, stopping. `lean` as measured
on a CPU; `vllm` from 6.5 ms per token of 8B on an H100, of which reading is 4.8
(https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/)."""
COMPLETION = 1.5e-3
"""Seconds of one completion besides the model: rendering, the environment, records; an estimate for
one core, and the part of a step that more devices do not shorten unless each plays its own."""
ITERATION = 0.03
"""Seconds of a step besides all that: metrics, packing, logs; an estimate."""
SERVER = 2e9
"""Bytes per second at which an engine behind a server loads new weights; not measured."""


@dataclass(frozen=True, slots=True)
class Took:
    """The time of a part of a step.

    Args:
        seconds: its duration.
        bound: the bottleneck: `compute`, `memory`, `network`, `link`, `overhead`, `latency` or
            `nothing`.
        operations: useful operations, on one device.
    """

    seconds: float = 0.0
    bound: str = "nothing"
    operations: float = 0.0


def reached(device: Device, computed: int, share: float, hidden: int = 0) -> float:
    """Operations per second of products that reach a share of the peak. On a CPU the values between
    products stay in float32, and take equally long for faster products of a shorter type.

    Args:
        device: the device.
        computed: bytes of a value.
        share: share of the peak, in a type whose peak matches the speed of the rest.
        hidden: width of the model, if narrow ones reach less.
    """
    peak = device.peak(computed)
    narrow = hidden / (hidden + NARROWNESS * peak) if hidden else 1.0
    return narrow / (1 / peak + (1 / share - 1) / attention_peak(device, computed))


def attention_peak(device: Device, computed: int) -> float:
    """Operations per second of which attention reaches its share; on a CPU it is computed in
    float32."""
    return device.fp32 if device.shared else device.peak(computed)


def roofline(seconds: dict[str, float], operations: float = 0.0) -> Took:
    """The longest of several concurrent bounds, plus the part that cannot overlap (`overhead`)."""
    overhead = seconds.pop("overhead", 0.0)
    bound = max(seconds, key=lambda name: seconds[name])
    total = seconds[bound] + overhead
    return Took(total, "overhead" if overhead > seconds[bound] else bound, operations)


def added(parts: list[Took]) -> Took:
    """The sum of sequential parts; the longest of them determines the bottleneck."""
    if not parts:
        return Took()
    longest = max(parts, key=lambda part: part.seconds)
    return Took(
        sum(part.seconds for part in parts),
        longest.bound if longest.seconds else "nothing",
        sum(part.operations for part in parts),
    )

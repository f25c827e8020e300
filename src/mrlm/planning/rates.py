"""What of a processor's best is reached. The constants are named with where they are from; those
for accelerators were fitted to published rows, those for processors measured on one or, where that
is said, estimated."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.planning.devices import Device

MATRIX_SHARE = 0.7
"""Share of the peak that wide models reach in training: 0.65 to 0.69 of it, recomputing included,
for 13B and 70B on A100 (pytorch/torchtitan, docs/performance.md); 0.7 to 0.78 measured here on a
processor, 15M and 120M."""
NARROWNESS = 3.2e-12
"""Width, over the peak in operations per second, at which half of that is reached: what is not a
product takes longer beside faster products. Fitted to 8B on A100 and H100 (torchtitan, the same
page and benchmarks/llama3_h100_202412_torchtitan.md), with 0.6B on H100 and 8B on B200 in sight
(PrimeIntellect-ai/prime-rl, benchmarks/baselines)."""
ATTENTION_SHARE = 0.5
"""Share of the peak of attention. Of flash kernels on accelerators, forward and backward (arXiv
2307.08691, table 1, and 2407.08608, figure 6)."""
FORWARD_SHARE = 0.7
"""The same as MATRIX_SHARE, where nothing is kept for a backward pass."""
DECODE_SHARE = 0.55
"""Share of the peak of products with few rows; measured here, 32 rows of 15M and 120M."""
READ_SHARE = 0.8
"""Share of the memory's bandwidth that decoding reaches: 77 % on an A100 at 8B
(https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on)."""
UPDATE_SHARE = 0.6
"""The same of an optimiser's step, which reads and writes; an estimate."""
LINK_SHARE = 0.75
"""Share of a link's or network's speed that collectives reach."""
OVERLAP = 0.7
"""Share of the time of computing under which sharded weights travel."""
COLLECTIVE = 20e-6
"""Seconds of one collective per doubling of its members, however little it carries."""
OPS_OF_A_BLOCK = 25
"""Operations of a block, forward; a backward pass has twice as many."""
GRAPH = 0.15
"""What is left of the time to begin operations where they are recorded once (CUDA graphs)."""
DRAW = {"lean": 1.5e-3, "vllm": 1.5e-3}
"""Seconds of a decoding step beside the model: who goes on, drawing, stopping. `lean` as measured
here on a processor; `vllm` from 6.5 ms per token of 8B on an H100, of which reading is 4.8
(https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/)."""
COMPLETION = 1.5e-3
"""Seconds that one completion costs beside the model: rendering, the world, records; an estimate
for one core, and the part of a step that more devices do not shorten unless each plays its own."""
ITERATION = 0.03
"""Seconds of a step beside all that: metrics, packing, logs; an estimate."""
SERVER = 2e9
"""Bytes per second at which an engine behind a server takes new weights; not measured."""


@dataclass(frozen=True, slots=True)
class Took:
    """A part of a step.

    Args:
        seconds: that it takes.
        bound: what bounds it: `compute`, `memory`, `network`, `link`, `overhead`, `latency` or
            `nothing`.
        operations: useful ones, on one device.
    """

    seconds: float = 0.0
    bound: str = "nothing"
    operations: float = 0.0


def reached(device: Device, computed: int, share: float, hidden: int = 0) -> float:
    """Operations per second of products that reach a share of the peak. On a processor what stands
    between products stays in float32 and takes as long as there, however fast products of a shorter
    type are.

    Args:
        device: that computes.
        computed: bytes of a value.
        share: of the peak, in a type whose peak is what the rest is as fast as.
        hidden: width of the model, where narrow ones reach less.
    """
    peak = device.peak(computed)
    narrow = hidden / (hidden + NARROWNESS * peak) if hidden else 1.0
    return narrow / (1 / peak + (1 / share - 1) / attention_peak(device, computed))


def attention_peak(device: Device, computed: int) -> float:
    """Operations per second of which attention reaches its share; on a processor it is computed in
    float32."""
    return device.fp32 if device.shared else device.peak(computed)


def roofline(seconds: dict[str, float], operations: float = 0.0) -> Took:
    """The longest of several bounds that hold at once, with what cannot overlap (`overhead`)
    added."""
    overhead = seconds.pop("overhead", 0.0)
    bound = max(seconds, key=lambda name: seconds[name])
    total = seconds[bound] + overhead
    return Took(total, "overhead" if overhead > seconds[bound] else bound, operations)


def added(parts: list[Took]) -> Took:
    """Parts that follow one another; the longest of them says what bounds the whole."""
    if not parts:
        return Took()
    longest = max(parts, key=lambda part: part.seconds)
    return Took(
        sum(part.seconds for part in parts),
        longest.bound if longest.seconds else "nothing",
        sum(part.operations for part in parts),
    )

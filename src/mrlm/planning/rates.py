"""The efficiency that is reached of a processor's peak; meanings and sources of the constants are
in `rates.yaml`."""

from dataclasses import dataclass
from typing import Any

from mrlm.core.content import content
from mrlm.planning.devices import Device

_VALUES: dict[str, Any] = {name: row["value"] for name, row in content(__file__).items()}
MATRIX_SHARE: float = _VALUES["MATRIX_SHARE"]
NARROWNESS: float = _VALUES["NARROWNESS"]
ATTENTION_SHARE: float = _VALUES["ATTENTION_SHARE"]
FORWARD_SHARE: float = _VALUES["FORWARD_SHARE"]
DECODE_SHARE: float = _VALUES["DECODE_SHARE"]
READ_SHARE: float = _VALUES["READ_SHARE"]
UPDATE_SHARE: float = _VALUES["UPDATE_SHARE"]
LINK_SHARE: float = _VALUES["LINK_SHARE"]
HOST_LINK: float = _VALUES["HOST_LINK"]
OVERLAP: float = _VALUES["OVERLAP"]
COLLECTIVE: float = _VALUES["COLLECTIVE"]
OPS_OF_A_BLOCK: int = _VALUES["OPS_OF_A_BLOCK"]
GRAPH: float = _VALUES["GRAPH"]
DRAW: dict[str, float] = _VALUES["DRAW"]
COMPLETION: float = _VALUES["COMPLETION"]
ITERATION: float = _VALUES["ITERATION"]
SERVER: float = _VALUES["SERVER"]


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
        computed: bytes of a value.
        share: share of the peak, in a type whose peak matches the speed of the rest.
        hidden: width of the model, if narrow ones reach less.
    """
    peak = device.peak(computed)
    narrow = hidden / (hidden + NARROWNESS * peak) if hidden else 1.0
    return narrow / (1 / peak + (1 / share - 1) / attention_peak(device, computed))


def attention_peak(device: Device, computed: int) -> float:
    """Operations per second that attention has a share of; on a CPU it is computed in float32."""
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

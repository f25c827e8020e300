"""What a row of the table is, and what measuring it gives."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from benchmarks.timing import Clock

PEERS = {
    "trl_peer": "trl",
    "comlrl_peer": "comlrl",
    "hf_peer": "transformers",
    "vllm_peer": "vllm",
}
"""Module of ours -> the library that it needs."""


class Unavailable(Exception):
    """Something that a row needs is not there; the message says what."""


@dataclass(frozen=True, slots=True)
class Bench:
    """How rows are measured.

    Args:
        rounds: timed rounds of each side, after a warm-up.
        threads: of rows that do not fix them.
        quick: tiny work, which shows that a row runs and nothing else.
        peers: whether other libraries are run where they are installed.
        dry: rows that need an accelerator run on the CPU, to see that they run.
    """

    rounds: int = 3
    threads: int = 1
    quick: bool = False
    peers: bool = True
    dry: bool = False

    def accelerator(self) -> str:
        """The device of rows that need an accelerator.

        Raises:
            Unavailable: there is none.
        """
        if self.dry:
            return "cpu"
        if not torch.cuda.is_available():
            raise Unavailable("torch finds no CUDA device here")
        return "cuda"

    def clock(self, threads: int | None = None, device: str = "cpu") -> Clock:
        return Clock(threads or self.threads, device)

    def peer(self, module: str) -> Any:
        """The module that runs a peer.

        Raises:
            Unavailable: the peer is not installed, or not wanted.
        """
        library = PEERS[module]
        if not self.peers:
            raise Unavailable(f"{library} is left out (--no-peers)")
        if importlib.util.find_spec(library) is None:
            raise Unavailable(f"{library} is not installed (`make bench` installs TRL and CoMLRL)")
        return importlib.import_module(f"benchmarks.{module}")


@dataclass(slots=True)
class Result:
    """What came out of a row.

    Args:
        value: the number that is judged; `None` if there is none.
        low, high: its smallest and largest value over the rounds.
        ours, peer: median seconds of either side.
        limit: share of what the machine could do at best that ours reached.
        reason: why there is no value, after `skipped: ` or `failed: `.
        note: anything else worth knowing.
        lines: name of a line -> points (x, y) of a plot.
        axis, scale: what x and y are.
        threads, clock, rounds: how it was measured.
        ceiling: what the machine could do at best then.
        load: processes that wanted to run when it began, of which the row is one.
        version: of the library, as its repository names it.
        quick: on tiny work, so that the value says nothing.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    ours: float | None = None
    peer: float | None = None
    limit: float | None = None
    reason: str = ""
    note: str = ""
    lines: dict[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    axis: str = ""
    scale: str = "seconds per step"
    threads: int = 1
    clock: str = ""
    rounds: int = 0
    ceiling: str = ""
    load: float = 0.0
    version: str = ""
    quick: bool = False

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        name: what `--rows` calls it.
        title: what it measures, against what.
        measure: does so.
        must, goal: bounds of the value; `None` where there is none.
        unit: of the value; `x` is a ratio.
        less: whether less is better.
    """

    name: str
    title: str
    measure: Callable[[Bench], Result]
    must: float | None = None
    goal: float | None = None
    unit: str = "x"
    less: bool = False

    def verdict(self, result: Result) -> Literal["goal", "must", "missed", ""]:
        """What a result reaches; nothing where there is no value or no bound."""
        value = result.value
        if value is None or self.must is None or result.quick:
            return ""
        for name, bound in (("goal", self.goal), ("must", self.must)):
            if bound is not None and (value <= bound if self.less else value >= bound):
                return name  # type: ignore[return-value]
        return "missed"

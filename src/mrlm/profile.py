"""Where the time of a run's steps went, phase by phase and agent by agent: a file while it runs and
a table at its end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mrlm.core.timing import IDLE, PHASES, Profile, profiling
from mrlm.run import Callback, Run

FILE = "profile.jsonl"
ABOUT = {
    "play": "prompts, workflows, waiting",
    "sampling": "engines",
    "environment": "resets and steps of worlds",
    "annotate": "values, reference and old log-probs",
    "credit": "advantages",
    "update": "packing, waiting",
    "forward": "blocks of the models",
    "head": "logits, losses, their gradient",
    "backward": "blocks of the models",
    "optimizer": "clipping and stepping",
    "sync": "weights to the engines",
    "evaluation": "held-out tasks, everything included",
    "saving": "checkpoints",
    "logging": "files and trackers",
    IDLE: "none of these",
}


class Profiler(Callback):
    """Writes a line per step to `profile.jsonl` in the run folder: seconds by phase and by whom
    they were spent for, and tokens by agent."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._profile: Profile | None = None
        self._path: Path | None = None

    def on_train_begin(self, run: Run) -> None:
        """Begin to measure."""
        device = run.learners[0].weights_of.device if run.learners else None
        wait = None
        if device is not None and device.type == "cuda":
            import torch

            wait = torch.cuda.synchronize
        self._path = run.folder / FILE
        self._path.unlink(missing_ok=True)
        self._profile = self._open.enter_context(profiling(wait))

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Write what has been measured since the step before."""
        assert self._profile is not None and self._path is not None
        seconds, counts = self._profile.take()
        row = {"step": run.step, "seconds": _nested(seconds), "tokens": _nested(counts)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Stop measuring."""
        self._open.close()


def _nested(table: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (first, second), value in table.items():
        found.setdefault(first, {})[second] = value
    return found


def read_profile(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run folder's profile; of its stages one after the other."""
    files = sorted(folder.glob(f"**/{FILE}"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines]


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of some steps: seconds per step and share of each phase, then tokens by agent."""
    if not rows:
        return "profile: no step was finished"
    totals = _sum(row["seconds"] for row in rows)
    whole = sum(sum(each.values()) for each in totals.values())
    lines = [f"profile of {len(rows)} steps, {whole / len(rows):.3f} s each:"]
    for phase in [*PHASES, IDLE]:
        by = totals.get(phase, {})
        spent = sum(by.values())
        if not spent:
            continue
        line = f"  {phase:<12}{spent / len(rows):>9.3f} s {spent / whole:>6.1%}  {ABOUT[phase]}"
        named = {name: seconds for name, seconds in by.items() if name}
        if len(named) > 1:
            line += " (" + ", ".join(f"{k} {v / spent:.0%}" for k, v in sorted(named.items())) + ")"
        lines.append(line)
    counts = _sum(row["tokens"] for row in rows)
    agents = sorted({name for by in counts.values() for name in by})
    if agents:
        width = max(len("agent"), *map(len, agents)) + 2
        lines.append("tokens per step:")
        lines.append("  " + "agent".ljust(width) + "".join(f"{what:>10}" for what in COUNTED))
        for agent in agents:
            numbers = (counts.get(what, {}).get(agent, 0) / len(rows) for what in COUNTED)
            lines.append("  " + agent.ljust(width) + "".join(f"{x:>10.0f}" for x in numbers))
    return "\n".join(lines)


COUNTED = ("read", "sampled", "trained")
"""Tokens of prompts, of answers, and of answers that were learned from."""


def _sum(tables: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for table in tables:
        for first, by in table.items():
            for second, value in by.items():
                row = found.setdefault(first, {})
                row[second] = row.get(second, 0.0) + value
    return found

"""Profile of a run: time by phase and agent, a line per step in its folder, a table at the end."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrlm.core.timing import OTHER, PHASES, Profile, profiling
from mrlm.training.run import Callback, Run

Table = dict[str, dict[str, float]]
"""Phase or counter -> owner -> value."""

ABOUT: dict[str, str] = json.loads(
    Path(__file__).with_name("phases.json").read_text(encoding="utf-8")
)
"""Phase -> what its time is spent on."""
OF_PLAY = ("prompts", "environment")
"""Phases of agents and environments; the others are of policies and critics."""
LEARNING = ("update", "forward", "head", "backward", "optimizer")
COUNTED = ("read", "sampled", "trained")
"""Tokens of prompts, of answers, and of answers that were trained on (once for each epoch)."""


class Profiler(Callback):
    """Measures a run inside `with profiler:`. A step lasts from its beginning to that of the next
    one, with the evaluation, the checkpoint and the logging between them; time before the first
    step (an evaluation) is step 0.

    Args:
        run: the run; `profile.jsonl` is written by its log.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.report: Report = Report(run.config.experiment_name)
        self._open = ExitStack()
        self._profile: Profile | None = None
        self._step: int | None = None if run.step else 0
        self._logged = False

    def __enter__(self) -> None:
        run = self.run
        self._profile = self._open.enter_context(profiling(_wait_of(run)))
        before, run.callbacks = run.callbacks, (self, *run.callbacks)
        self._open.callback(setattr, run, "callbacks", before)

    def on_step_begin(self, run: Run) -> None:
        self._cut()
        self._step, self._logged = run.step + 1, False

    def on_step_end(self, run: Run, metrics: Mapping[str, float]) -> None:
        """Counts the step, even if the run fails afterwards."""
        self._logged = True

    def __exit__(self, *exception: object) -> None:
        """Stops measuring; an interrupted step is left out."""
        with self._open:
            if self._logged:
                self._cut()

    def _cut(self) -> None:
        assert self._profile is not None
        seconds, counts = self._profile.take()
        beside = {name: other.take() for name, other in self._profile.others.items()}
        for _, more in beside.values():
            for key, number in more.items():
                counts[key] = counts.get(key, 0) + number
        if self._step is not None:
            row = {"step": self._step, "seconds": _nested(seconds), "tokens": _nested(counts)}
            if beside:
                row["beside"] = {name: _nested(spent) for name, (spent, _) in beside.items()}
            self.run.log.profile(row)
            self.report.add(row)


@dataclass(slots=True)
class Report:
    """Totals over the steps of a run; as text it is a table.

    Args:
        name: of the run.
    """

    name: str
    steps: int = 0
    seconds: Table = field(default_factory=dict)
    tokens: Table = field(default_factory=dict)
    before: float = 0.0
    """Seconds before the first step."""
    beside: dict[str, Table] = field(default_factory=dict)
    """Seconds of threads that run in parallel to the steps and are not part of their time."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a line of `profile.jsonl`."""
        if row["step"] == 0:
            self.before += _total(row["seconds"])
            return
        self.steps += 1
        tables = [(self.seconds, row["seconds"]), (self.tokens, row["tokens"])]
        for name, table in row.get("beside", {}).items():
            tables.append((self.beside.setdefault(name, {}), table))
        for mine, table in tables:
            for what, by in table.items():
                for whose, number in by.items():
                    totals = mine.setdefault(what, {})
                    totals[whose] = totals.get(whose, 0.0) + number

    def __str__(self) -> str:
        if not self.steps:
            return f"profile of {self.name}: no step was finished"
        whole = _total(self.seconds)
        lines = [f"profile of {self.name}: {self.steps} steps, {whole / self.steps:.3f} s each"]
        lines += [f"  {row}{self._parts(phase)}" for phase, row in self._rows(self.seconds, ABOUT)]
        if self.before >= 0.0005:
            lines.append(f"  before the first step {self.before:.3f} s")
        return "\n".join([*lines, *self._others(), *self._agents(), *self._speeds()])

    def _others(self) -> list[str]:
        """Threads in parallel to the steps, phase by phase."""
        lines: list[str] = []
        for name, table in sorted(self.beside.items()):
            lines.append(f"  in parallel, {name}:")
            about = {**ABOUT, OTHER: "between rounds"}
            lines += [f"    {row}" for _, row in self._rows(table, about)]
        return lines

    def _rows(self, table: Table, about: Mapping[str, str]) -> list[tuple[str, str]]:
        """The phases that took time, each with its seconds a step and its share."""
        spent = {phase: _total(table, phase) for phase in (*PHASES, OTHER)}
        whole = _total(table) or 1.0
        rows = [(phase, t, about.get(phase, phase)) for phase, t in spent.items() if t]
        return [
            (phase, f"{phase:<13}{t / self.steps:>9.3f} s {t / whole:>6.1%}  {text}")
            for phase, t, text in rows
        ]

    def _parts(self, phase: str) -> str:
        """Shares of the owners of a phase, where there are several."""
        of_models = [by for other, by in self.seconds.items() if other not in OF_PLAY]
        rivals = [self.seconds[phase]] if phase in OF_PLAY else of_models
        named = sorted((name, part) for name, part in self.seconds[phase].items() if name)
        if not named or len({name for by in rivals for name in by if name}) < 2:
            return ""
        spent = _total(self.seconds, phase)
        return " (" + ", ".join(f"{name} {part / spent:.0%}" for name, part in named) + ")"

    def _agents(self) -> list[str]:
        agents = sorted({name for by in self.tokens.values() for name in by})
        if not agents:
            return []
        counted = [*COUNTED, *(["eval/sampled"] if _total(self.tokens, "eval/sampled") else [])]
        width = max(len("tokens per step"), *map(len, agents)) + 2
        heads = "".join(f"{head:>15}" for head in [*counted, "sampled share"])
        lines = ["  " + "tokens per step".ljust(width) + heads]
        for agent in agents:
            numbers = [self.tokens.get(what, {}).get(agent, 0) for what in counted]
            sampled = _total(self.tokens, "sampled") or 1
            share = self.tokens.get("sampled", {}).get(agent, 0) / sampled
            cells = "".join(f"{number / self.steps:>15,.0f}" for number in numbers)
            lines.append("  " + agent.ljust(width) + cells + f"{share:>15.0%}")
        return lines

    def _speeds(self) -> list[str]:
        """Tokens sampled per second of sampling, and trained on per second of training."""
        pairs = (("sampled", ("sampling",)), ("trained", LEARNING))
        tables = [self.seconds, *self.beside.values()]
        speeds: list[str] = []
        for what, phases in pairs:
            tokens, spent = _total(self.tokens, what), sum(_total(t, *phases) for t in tables)
            speeds += [f"{tokens / spent:,.0f} tokens/s {what}"] if tokens and spent else []
        return ["  " + ", ".join(speeds)] if speeds else []


def _total(table: Table, *names: str) -> float:
    """The sum over owners of some phases or counters; of all by default."""
    return sum(sum(table.get(name, {}).values()) for name in names or table)


def _nested(table: Mapping[tuple[str, str], float]) -> Table:
    rows: Table = {}
    for (first, second), value in table.items():
        rows.setdefault(first, {})[second] = round(value, 6)
    return rows


def _wait_of(run: Run) -> Callable[[], object] | None:
    """The function that waits for the accelerator of a run; `None` without one."""
    device = run.learners[0].weights_of.device
    if device.type != "cuda":
        return None
    import torch

    return lambda: torch.cuda.synchronize(device)

"""A run on one screen: what was trained, how long, rewards by agent, held-out results, files."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrlm.core.content import parse_yaml
from mrlm.core.progress import aligned, counted
from mrlm.core.statistics import Z
from mrlm.tracking.console import clock
from mrlm.tracking.curves import prefix_sums

Rows = Sequence[Mapping[str, Any]]

MOST = 8
"""Agents with a row of their own."""
SHARE = 10
"""Sampled rewards are means of this part of the run: a tenth."""
_ZERO = re.compile(r"advantage/[^/]+/zero")
WIDTH = 100
"""Most characters of a line."""


def run_summary(history: Rows, folder: Path) -> str:
    """Describes a run by its rows of metrics with `step`, and `stage` where there are several, and
    its folder, with a `config.yaml` in it or in those of its stages."""
    configs = _configs(folder)
    stages = sorted({row.get("stage", 0) for row in history})
    lines = []
    for stage in stages:
        rows = [row for row in history if row.get("stage", 0) == stage]
        config = configs[min(stage, len(configs) - 1)] if configs else {}
        lines += [_about(config, rows), *_table(rows)]
        if tied := tied_steps(rows):
            lines.append(f"  {tied}")
    lines.append(f"files: {folder} (trained model: {folder / 'final'})")
    lines.append(f"page:  mrlm export {folder} -o run.html")
    return "\n".join(lines)


def tied_steps(rows: Rows) -> str:
    """How many steps of a run trained nothing because all compared episodes had equal rewards;
    empty if none."""
    alike = [row for row in rows if "divergence" not in row]  # a teacher trains on ties, too
    zeros = ([x for n, x in row.items() if x is not None and _ZERO.fullmatch(n)] for row in alike)
    steps = [shares for shares in zeros if shares]
    none = sum(row.get("tokens/trained") == 0 for row in rows)
    tied = sum(min(shares) == 1 for shares in steps) + none
    return f"{tied} of {len(steps) + none} steps had only ties, and trained nothing" if tied else ""


def _configs(folder: Path) -> list[dict[str, Any]]:
    """The config of the run, or those of its stages in order."""

    def number(path: Path) -> int:
        head = path.parent.name.partition("-")[0]
        return int(head) if head.isdecimal() else 0

    config_files = [folder / "config.yaml"]
    if not config_files[0].is_file():
        config_files = sorted(folder.glob("*/config.yaml"), key=number)
    return [parse_yaml(path.read_text(encoding="utf-8")) for path in config_files]


def _about(config: Mapping[str, Any], rows: Rows) -> str:
    """The trained policies, their model and environments, and the time."""
    training = config.get("training") or {}
    usual = (config.get("model") or {}).get("model_name_or_path") or ""
    models = {
        name: str((section or {}).get("model") or usual)
        for name, section in (config.get("policies") or {}).items()
        if (section or {}).get("trainable", True) and not (section or {}).get("endpoint")
    }
    model = ", ".join(dict.fromkeys(models.values())) or usual
    places = [str(environment.get("env_type")) for environment in config.get("environments") or ()]
    steps = [row["step"] for row in rows]
    parts = [
        str(config.get("experiment_name", "run")),
        str(training.get("algorithm", "")),
        f"{', '.join(models)} from {model}" if models else model,
        ", ".join(places) or str((config.get("data") or {}).get("dataset") or ""),
        counted(max(steps), "iteration"),
        clock(_seconds(rows)),
    ]
    return _cut(": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:] if part))


def _seconds(rows: Rows) -> float:
    """Time of the steps; interruptions are not counted."""
    keys = ("seconds/play", "seconds/learn")
    spent = sum(row.get(key) or 0.0 for row in rows for key in keys)
    times = [row["time"] for row in rows if row.get("time") is not None]
    return spent or (times[-1] - times[0] if times else 0.0)


def _table(rows: Rows) -> list[str]:
    """First, last and best values; the loss where there are no rewards."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    agents = [m[1] for name in names if (m := re.fullmatch(r"reward/([^/]+)/mean", name))]
    agents = agents if len(agents) > 1 else []
    values: list[tuple[str, ...]] = []
    for title, start in (("reward", "reward"), ("held-out", "eval/reward")):
        for who in ("", *(f"/{agent}" for agent in agents[:MOST])):
            line = _line(rows, f"{start}{who}/mean", start != "reward")
            if line:
                values.append((f"{title} {who[1:]}".strip(), *line))
    if len(agents) > MOST:
        values.append((f"{len(agents) - MOST} more agents", "", "", ""))
    if not values and (line := _line(rows, "loss", False, best=min)):
        values.append(("loss", *line))
    if not values:
        return []
    table = aligned([("", "first", "last", "best"), *values])
    return [_cut(f"  {line}") for line in table.split("\n")]


def _line(rows: Rows, key: str, evaluated: bool, best: Any = max) -> tuple[str, str, str] | None:
    """First, last and best value of a metric. Evaluations of the team have a 95 % interval; sampled
    values are means of a tenth of the run."""
    rows_with = [row for row in rows if row.get(key) is not None]
    if not rows_with:
        return None
    size = 1 if evaluated else max(1, len(rows_with) // SHARE)
    sums = prefix_sums([row[key] for row in rows_with])
    means = [float(sums[at + size] - sums[at]) / size for at in range(len(rows_with) - size + 1)]
    top = means.index(best(means))
    first, last = 0, len(means) - 1
    steps = sorted({rows_with[top]["step"], rows_with[top + size - 1]["step"]})
    at = f" (step {'-'.join(map(str, steps))})"
    if not evaluated:
        return _number(means[first]), _number(means[last]), _number(means[top]) + at
    values = [_with_interval(means[i], rows_with[i], key) for i in (first, last, top)]
    return values[0], values[1], values[2] + at


def _with_interval(value: float, row: Mapping[str, Any], key: str) -> str:
    """A mean of an evaluation with its 95 % interval, where deviation and number are known."""
    spread = row.get(key.removesuffix("mean") + "std")
    count = row.get("eval/episodes/count")
    if not spread or not count or count < 2:  # equal rewards have no width
        return _number(value)
    return f"{_number(value)} ± {Z * spread / math.sqrt(count):.3f}"


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"

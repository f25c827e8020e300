"""`mrlm train`: run an experiment from a config file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mrlm.cli._options import Overrides, Quiet, config_of

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig
    from mrlm.runs import TrainResult


def train(
    config: Annotated[Path, typer.Option(help="The experiment, a YAML file.")],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run folder from its newest checkpoint.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the resolved config and the arithmetic.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train the agents of an experiment."""
    from mrlm.runs import dry_run as describe
    from mrlm.runs import run_experiment

    if quiet:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
    changes = list(overrides or ())
    place = output or resume
    if place is not None:
        changes.append(f"output_dir={str(place)!r}")
    loaded = config_of(config, changes)
    if dry_run:
        print(describe(loaded))
        return
    result = run_experiment(loaded, resume)
    print(closing(loaded, result, config, quiet))


def closing(config: ExperimentConfig, result: TrainResult, path: Path, quiet: bool) -> str:
    """What is said at the end: what came out, where it is, what to try next."""
    from mrlm.console import learning_curve

    lines: list[str] = []
    names = [name for name, _ in config.stage_configs()]
    for index, name in enumerate(names):
        rows = [row for row in result.history if row.get("stage", index) == index]
        title = f"stage {name}: " if name else ""
        for key, what in (
            ("reward/mean", "sampled reward"),
            ("eval/reward/mean", "held-out evaluation"),
        ):
            values = [row[key] for row in rows if row.get(key) is not None]
            if values:
                tail = values[-max(1, len(values) // 10) :]
                lines.append(f"{title}{what} {values[0]:.3f} -> {sum(tail) / len(tail):.3f}")
    last = [row for row in result.history if row.get("stage", len(names) - 1) == len(names) - 1]
    curve = learning_curve(last)
    folder = result.run_folder
    if quiet:
        return f"{folder}"
    return "\n".join(
        [
            *(["", curve, ""] if curve else []),
            *lines,
            f"run folder: {folder}",
            "try next:",
            f"  mrlm eval --config {path} --model {folder} --num-episodes 200",
            f"  tensorboard --logdir {folder}",
            f"  mrlm train --config {path} --dry-run",
        ]
    )

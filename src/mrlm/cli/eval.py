"""`mrlm eval`: play held-out tasks with a model and say how often it succeeds, with intervals."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from mrlm.cli._options import Overrides, Quiet, config_of, write_json


def eval(
    overrides: Overrides = None,
    config: Annotated[Path | None, typer.Option(help="The experiment, a YAML file.")] = None,
    model: Annotated[str | None, typer.Option(help="Model folder, hub id or run folder.")] = None,
    environment: Annotated[
        list[str] | None, typer.Option(help="A world by name; may be given several times.")
    ] = None,
    num_episodes: Annotated[int, typer.Option(min=1, help="Held-out tasks.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Plays of each task (k).")] = 1,
    greedy: Annotated[
        bool | None, typer.Option("--greedy/--sampled", help="Greedy unless --samples is above 1.")
    ] = None,
    success: Annotated[
        float, typer.Option(help="Reward from which a play counts as passed.")
    ] = 1.0,
    output: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate the agents of an experiment on held-out tasks."""
    from mrlm.core.errors import ConfigError
    from mrlm.runs import evaluate_model
    from mrlm.statistics import summarize

    if quiet:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
    if config is None and model is None:
        raise ConfigError("give --config, or --model with --environment")
    chosen = samples == 1 if greedy is None else greedy
    if chosen and samples > 1:
        raise ConfigError("--samples above 1 needs --sampled: greedy plays are all the same")
    loaded = config_of(config, overrides, model, environment)
    result = evaluate_model(loaded, num_episodes, samples, chosen)
    by_task: dict[str, list[float]] = {}
    for episode in result.episodes:
        if not episode.failed:
            key = f"{episode.environment}/{episode.task.id}"
            by_task.setdefault(key, []).append(episode.reward)
    summary = summarize(list(by_task.values()), samples, success)
    for name, row in summary.items():
        print(f"{name:<14} {row['value']:.4f}   95 % [{row['low']:.4f}, {row['high']:.4f}]")
    agents = {
        name: value
        for name, value in result.metrics.items()
        if name.startswith("eval/reward/") and name.endswith("/mean")
    }
    for name, value in agents.items():
        print(f"{name.removeprefix('eval/'):<24} {value:.4f}")
    if output is not None:
        report: dict[str, Any] = {
            "summary": summary,
            "metrics": result.metrics,
            "tasks": by_task,
            "num_episodes": len(result.episodes),
            "samples": samples,
            "greedy": chosen,
            "success": success,
        }
        write_json(output, report)

"""`mrlm train`: run an experiment from a config file, or resume one."""

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from mrlm import distributed
from mrlm.cli._options import app_sections, no_experiment
from mrlm.core.errors import ConfigError, MRLMError

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig
    from mrlm.runs import TrainResult

OWN = ""
"""The value of a bare `--resume`: the experiment's own run folder."""


class Train(TyperCommand):
    """The command, with a `--resume` that takes a folder or nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Adds the value that a bare `--resume` leaves out."""
        if "--resume" in args:
            position = args.index("--resume") + 1
            following = args[position : position + 1]
            if not following or following[0].startswith("-") or "=" in following[0]:
                args = [*args[:position], OWN, *args[position:]]
        return super().parse_args(ctx, args)


PARSER = Train


def train(
    overrides: list[str] | None = None,
    config: Path | None = None,
    output: Path | None = None,
    resume: str | None = None,
    dry_run: bool = False,
    profile: bool = False,
    steps: int | None = None,
    show: str | None = None,
    app: str | None = None,
    reward: str | None = None,
    data: str | None = None,
    agents: str | None = None,
    quiet: bool = False,
) -> None:
    """Train the agents of an experiment."""
    if distributed.world_size() > 1:
        distributed.start()  # before anything can fail, so that only one process prints
    if profile:
        overrides = [*(overrides or ()), "training.profile=true"]
    if show is not None:
        names = [name.strip() for name in show.split(",") if name.strip()]
        overrides = [*(overrides or ()), f"training.show={json.dumps(names)}"]
    worlds = app_sections(app, reward, data, agents)
    path, loaded = _experiment(config, overrides or (), output, resume, worlds)
    from mrlm.experiment import at_most, run_experiment
    from mrlm.experiment import dry_run as describe  # config errors come before this import

    if steps is not None:
        loaded = at_most(loaded, steps)
    if dry_run:
        from mrlm.tracking.console import encodable, is_terminal

        text, problems = describe(loaded, is_terminal() and not os.environ.get("NO_COLOR"))
        print(encodable(text))
        if problems:
            raise ConfigError("\n".join(problems))
        return
    folder = Path(loaded.output_dir or f"outputs/{loaded.experiment_name}")
    here = folder.absolute()  # the user's code may change the current folder
    began = time.time() if resume is None else None
    try:
        result = run_experiment(loaded, folder if resume == OWN else resume)
    except KeyboardInterrupt as interrupt:
        again = f"the run is saved; continue with\n  {_again(path, folder, overrides or ())}"
        saved = _saved(here, began)
        raise KeyboardInterrupt(again if saved else "nothing was saved yet") from interrupt
    except MRLMError as error:
        if error.exit_code == 1 and _saved(here, began):
            error.add_note(f"continue with\n  {_again(path, folder, overrides or ())}")
        raise
    if not distributed.is_main():
        return
    again = _again(path, folder, overrides or ())
    if result.run_folder == here:  # shown as it was given
        result = replace(result, run_folder=folder)
    print(folder if quiet else closing(loaded, result, again))


def _experiment(
    config: Path | None,
    overrides: Sequence[str],
    output: Path | None,
    resume: str | None,
    app: list[dict[str, Any]],
) -> "tuple[Path, ExperimentConfig]":
    """The config file and its content, with the run folder and an app in it."""
    from mrlm.config import load_config, parse_config

    run = Path(resume) if resume else None
    if run is not None and run.name.startswith("checkpoint-"):
        run = run.parent
    if config is None and app and run is None:
        loaded = parse_config({"environments": app}, overrides, "the command line")
        return Path("config.yaml"), loaded.merged({"output_dir": str(output)} if output else {})
    if config is None:
        if run is None:
            raise no_experiment(overrides, ", --app, or --resume with a run folder")
        if not run.is_dir():
            raise ConfigError(f"--resume {resume}: folder {str(run)!r} does not exist")
        config = run / "config.yaml"
        if not config.is_file():
            raise ConfigError(f"--resume {resume}: it has no config.yaml; give --config too")
    loaded = load_config(config, overrides)
    if app:
        loaded = loaded.merged({"environments": app})
    folder = output or run
    return config, loaded if folder is None else loaded.merged({"output_dir": str(folder)})


def _saved(folder: Path, began: float | None) -> bool:
    """Whether there is a checkpoint to continue from, written since `began` (`None`: at any time):
    an earlier run in the same folder does not count."""
    manifests = folder.glob("**/checkpoint-*/manifest.json")
    return any(began is None or file.stat().st_mtime >= began for file in manifests)


def _again(path: Path, folder: Path, overrides: Sequence[str]) -> str:
    """The command that continues a run; a run folder knows its own settings, but for the folder of
    a pipeline."""
    if (folder / "config.yaml").is_file():
        return f"mrlm train --resume {_word(folder)}"
    settings = f" {shlex.join(overrides)}" if overrides else ""
    return f"mrlm train --config {_word(path)} --resume {_word(folder)}{settings}"


def _word(path: Path) -> str:
    return shlex.quote(str(path))


def closing(config: "ExperimentConfig", result: "TrainResult", again: str) -> str:
    """The closing text: results, their location, and what to try next; `again` is the command that
    continues the run."""
    from mrlm.tracking.curves import learning_curve

    stages = config.stage_configs()
    lines: list[str] = []
    rows: list[Any] = []
    played = 1 + max((row.get("stage", 0) for row in result.history), default=0)
    for number, (name, _) in enumerate(stages[-played:]):  # finished ones are not repeated
        rows = [row for row in result.history if row.get("stage", 0) == number]
        lines += _came_to(rows, f"stage {name}: " if name else "")
    curve = learning_curve(rows)
    folder, last = result.run_folder, stages[-1][1]
    tries = [f"mrlm view {_word(folder)}", f"mrlm export {_word(folder)} -o run.html"]
    if last.environments:
        tries.append(f"mrlm eval --model {_word(folder)} --num-episodes 200")
    if "tensorboard" in last.training.report_to and find_spec("tensorboard"):
        tries.append(f"tensorboard --logdir {_word(folder)}")
    if not config.stages:
        done = max((row["step"] for row in rows), default=1)
        tries.append(f"{again} training.num_iterations={2 * done}")
    lines = [*(["", curve, ""] if curve else []), *lines]
    lines.append(f"run folder: {folder} (the trained model is in {folder / 'final'})")
    return "\n".join([*lines, "try next:", *(f"  {line}" for line in tries)])


def _came_to(rows: Sequence[Any], title: str) -> list[str]:
    """First and last values of the sampled reward (of the loss where nothing is sampled), each the
    mean of a tenth of the run, and of evaluations."""
    lines = []
    played = any(row.get("reward/mean") is not None for row in rows)
    trained = "reward/mean" if played else "loss"
    sampled = "sampled reward" if played else "loss"
    for key, what in ((trained, sampled), ("eval/reward/mean", "held-out evaluation")):
        values = [row[key] for row in rows if row.get(key) is not None]
        if values:
            size = max(1, len(values) // 10) if key == trained else 1
            begun, ended = values[:size], values[-size:]
            mean = f" (means of {size} steps)" if size > 1 else ""
            lines.append(f"{title}{what} {sum(begun) / size:.3f} -> {sum(ended) / size:.3f}{mean}")
    return lines

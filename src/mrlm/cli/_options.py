"""What several commands do with their arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mrlm.core.errors import ConfigError

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings that replace those of the file, as key.of.setting=value."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the result and errors.")]


def config_of(
    path: Path | None,
    overrides: Sequence[str] | None,
    model: str | None = None,
    environments: Sequence[str] | None = None,
) -> ExperimentConfig:
    """The experiment that a command is about.

    Args:
        path: a config file.
        overrides: settings on top of it.
        model: a model folder, hub id or run folder that takes the place of `model:`.
        environments: names of worlds that take the place of `environments:`.
    """
    from mrlm.config import load_config, parse_config
    from mrlm.runs import resolve_run_model

    wrong = [text for text in overrides or () if "=" not in text]
    if wrong:
        raise ConfigError(f"{wrong[0]!r}: settings are written as key.of.setting=value")
    more = list(overrides or ())
    if model is not None:
        more.append(f"model.model_name_or_path={json.dumps(resolve_run_model(model))}")
    if environments:
        more.append(f"environments={json.dumps([{'env_type': name} for name in environments])}")
    return parse_config({}, more, "the command line") if path is None else load_config(path, more)


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file, all at once.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        temporary.write_text(json.dumps(data, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error

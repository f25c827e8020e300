"""Arguments that several commands share."""

import functools
import inspect
import json
import logging
import math
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer

from mrlm.core.errors import ConfigError
from mrlm.core.replacing import replacing

if TYPE_CHECKING:
    from mrlm.config import ExperimentConfig

TABLE = "options.json"
"""Command (or `shared`) -> parameter -> its names on the command line, bounds and help."""


def _set_verbose(value: bool) -> None:
    if value:
        logging.getLogger("mrlm").setLevel(logging.DEBUG)


Verbose = Annotated[
    bool, typer.Option("--verbose", callback=_set_verbose, help="Show whole tracebacks.")
]


def _set_trust(value: bool) -> None:
    from mrlm.config.trust import grant

    grant(value)


Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        callback=_set_trust,
        help="Accept a pulled config that imports code, runs programs or contacts servers.",
    ),
]


def _show_version(value: bool) -> None:
    if value:
        from mrlm import __version__

        print(f"mrlm {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
]


def with_options(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """The function of a command with the names, bounds and help texts of its options: those of its
    own annotations, or of the table. All take `--verbose`; those that use a config, or whose rows
    say so, `--trust`; a parameter `quiet` silences the log."""

    @functools.wraps(command)
    def wrapped(*args: Any, verbose: bool = False, trust: bool = False, **options: Any) -> None:
        for key, value in options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"--{key.replace('_', '-')} {value}: give a finite number")
        if options.get("quiet"):
            logging.getLogger("mrlm").setLevel(logging.WARNING)
        command(*args, **{key: _home(value) for key, value in options.items()})

    table = json.loads(Path(__file__).with_name(TABLE).read_text(encoding="utf-8"))
    rows = table["shared"] | table.get(name, {})
    command_signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter
        if get_origin(parameter.annotation) is Annotated
        else parameter.replace(
            annotation=Annotated[parameter.annotation, _option(**rows[parameter.name])]
        )
        for parameter in command_signature.parameters.values()
    ]
    trusting = "trust" in rows or "config" in command_signature.parameters
    flags = {"trust": Trust} if trusting else {}
    for flag, kind in {**flags, "verbose": Verbose}.items():
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(flag, keyword, default=False, annotation=kind))
    wrapped.__signature__ = command_signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapped


def _home(value: Any) -> Any:
    """Paths with the home folder for `~`, which a shell leaves in `--output=~/runs`."""
    if isinstance(value, list):
        return list(map(_home, value))
    if isinstance(value, Path) or (isinstance(value, str) and value.startswith("~/")):
        return type(value)(Path(value).expanduser())
    return value


def _option(names: Sequence[str] = (), argument: bool = False, **rest: Any) -> Any:
    return typer.Argument(**rest) if argument else typer.Option(*names, **rest)


def config_to_play(
    path: Path | None,
    overrides: Sequence[str] | None,
    model: str | None,
    environments: Sequence[str | dict[str, Any]] | None,
) -> "ExperimentConfig":
    """The experiment whose agents should play, with the models they should use.

    Args:
        path: a config file; of a pipeline the last stage counts. Without one, a run folder's own
            config is used.
        overrides: settings on top of everything else.
        model: replaces `model:`: a hub id, a model folder, or a run folder, from which each policy
            takes its own model.
        environments: names or sections of environments that replace `environments:`.

    Raises:
        ConfigError: something is missing, unknown or wrong.
    """
    from mrlm.config import load_config, parse_config
    from mrlm.learn.policy.loading import run_model

    if path is None and model is None:
        raise no_experiment(overrides or (), ", or --model with --environment or --app")
    if model is not None and not environments and path is None and not Path(model).is_dir():
        raise ConfigError(
            f"--model {model}: folder {model!r} does not exist; give a run folder, or a hub id "
            "with --environment or --config"
        )
    trained = None if model is None else Path(run_model(model))
    if path is None and trained is not None and str(trained) != model:
        beside = trained.resolve().parent / "config.yaml"
        path = beside if beside.is_file() else None
    data: dict[str, Any] = {}
    if path is not None:
        data = load_config(path).stage_configs()[-1][1].given()
    if trained is not None:
        data = _with_models(data, str(model), trained)
    if environments:
        data["environments"] = [
            {"env_type": entry} if isinstance(entry, str) else entry for entry in environments
        ]
    where = "the command line" if path is None else str(path)
    return parse_config(data, list(overrides or ()), where)


def no_experiment(words: Sequence[str], others: str = "") -> ConfigError:
    """The error that a command has no config file, which names a file among its other words."""
    files = (f" {word}" for word in words if "=" not in word)
    return ConfigError(f"no experiment is given; use --config{next(files, others)}")


def app_sections(
    app: str | None, reward: str | None, data: str | None, agents: str | None
) -> list[dict[str, Any]]:
    """The environment `app` that options describe, as a list of sections; empty without `--app`.
    Raises `ConfigError`: an option of an app is given without one, or the rows are missing."""
    if app is None:
        why = "is for an app; give --app too, or set it in the config"
        refuse(why, reward=reward, data=data, agents=agents)
        return []
    if data is None:
        raise ConfigError("--app needs rows: give --data, such as rows.jsonl")
    source = str(Path(data).absolute()) if Path(data).exists() else data
    section: dict[str, Any] = {"env_type": "app", "app": app, "dataset": source}
    if reward is not None:
        section["reward"] = reward
    if agents is not None:
        section["agents"] = [name.strip() for name in agents.split(",") if name.strip()]
    return [section]


def _with_models(data: dict[str, Any], model: str, trained: Path) -> dict[str, Any]:
    """A canonical config that starts from trained models: from one for all policies, or, where a
    run trained several, from its own for each. Saved adapters are not added again."""
    from mrlm.learn.policy.loading import is_model, model_folders

    section = {key: value for key, value in data.get("model", {}).items() if key != "lora"}
    policies = {name: dict(value) for name, value in data.get("policies", {}).items()}
    folders = model_folders(trained) if trained.is_dir() else {}
    if trained.is_dir() and not folders and not is_model(trained):
        raise ConfigError(
            f"--model {model}: {trained} has no model (no config.json, no "
            "adapter_config.json); give a Hugging Face folder, a hub id or a finished run folder"
        )
    if not folders:
        section["model_name_or_path"] = str(trained)
        folders = {
            name: ""
            for name, value in policies.items()
            if value.get("trainable", True) and value.get("endpoint") is None
        }
    for name, folder in folders.items():
        section_of = policies.setdefault(name, {})
        for key in ("model", "tokenizer", "lora"):
            section_of.pop(key, None)
        if folder:
            section_of["model"] = folder
    return data | {"model": section} | ({"policies": policies} if policies else {})


def recorded_at(folder: Path) -> str:
    """A line with the folder of recorded episodes, and the commands that show them."""
    quoted = shlex.quote(str(folder))
    return f"recorded in {quoted}: mrlm look {quoted}, or mrlm export {quoted} -o run.html"


def refuse(why: str, **options: Any) -> None:
    """Refuse options that would do nothing. Raises `ConfigError`: one is given."""
    for name, value in options.items():
        if not (value is None or value is False or value == []):
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def check_targets(file: Path | None, folder: Path | None = None) -> None:
    """Check before anything is played that a file and a folder can be written; they may be there
    already. Raises `ConfigError`: one cannot."""
    if file is not None and file.is_dir():
        raise ConfigError(f"{file} cannot be written: it is a folder; give a file")
    for path in filter(None, (file, folder)):
        try:
            nearest = next(parent for parent in path.absolute().parents if parent.exists())
            tempfile.TemporaryFile(dir=nearest).close()
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: Path, data: Any) -> None:
    """Writes a JSON file atomically. Raises `ConfigError`: it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(data, indent=1, allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error

"""Files and folders named in a config. In a config file they are relative to that file, so that an
experiment and its run folders can be moved; in memory they are absolute."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

INPUTS = "inputs.json"
"""Beside the `config.yaml` of a run: where its inputs were when it began, and digests of data."""
DATA: frozenset[str] = frozenset(
    (
        *("dataset", "eval_dataset", "train_dataset", "preference_dataset"),
        *("tasks", "eval_tasks", "generator_or_dataset", "documents", "corpus", "search", "index"),
    )
)
"""Keys whose value may be a file or folder of data."""
MODELS: frozenset[str] = frozenset(
    (
        *("model_name_or_path", "tokenizer_name_or_path", "model", "tokenizer", "critic_model"),
        *("reward_model", "source", "teacher_model"),
    )
)
"""Keys whose value may be a model folder."""
PATH_KEYS: frozenset[str] = DATA | MODELS | {"servers_file", "tls_ca", "tls_cert", "tls_key", "ca"}
"""All keys whose value may be a path."""

OUTPUT = "output_dir"
"""The key of the folder that a run writes: relative to the current folder."""
LENT = "policy:"
"""Prefix of the name of a frozen policy as the model of an environment."""
STAGE = "stage:"
"""Prefix of the name of an earlier stage, whose model an environment or an algorithm uses."""
PROGRAM = "live-object:"
"""Prefix of a recorded setting that was a live object of a program; its description follows."""

Change = Callable[[str], str]


def absolute(data: object, folder: Path, aliases: Mapping[str, str] | None = None) -> Any:
    """Config data with its paths made absolute.

    A path is looked up in `folder`, that of the config file, then in the current folder, then in
    `aliases` (path as written -> its original location). A path found in none of these is
    unchanged: it may be a hub id, or the name of a preset.
    """

    def change(text: str) -> str:
        text = os.path.expanduser(text)
        places = (folder / text, Path(text), Path((aliases or {}).get(text, "")))
        for candidate in places:
            if candidate.parts and _exists(candidate):
                return os.path.abspath(candidate)
        return text

    return _changed(data, change)


def relative(data: object, folder: Path, outside: bool = False) -> Any:
    """Config data with paths relative to a file in `folder`; with `outside` also those that are not
    below the current folder."""

    def change(text: str) -> str:
        if not _exists(Path(text)):
            return text
        if outside:
            return os.path.relpath(os.path.realpath(text), folder.resolve())
        return written(text, folder)

    return _changed(data, change)


def written(path: str, folder: Path) -> str:
    """A path for a config in `folder`: relative, if it is below the current folder (which is moved
    as a whole), else absolute."""
    here = os.path.abspath(path)
    inside = Path(here).is_relative_to(Path.cwd())
    return os.path.relpath(here, folder) if inside else here


def data_paths(data: object) -> list[str]:
    """The files and folders of data that a config names, once each."""
    files = {value for key, value in _leaves(data) if key in DATA and _exists(Path(value))}
    return sorted(files)


def known_paths(folder: Path) -> dict[str, str]:
    """Path in a run's config -> its location at the start of the run; empty for a folder that is
    not a run folder."""
    file = folder / INPUTS
    if not file.is_file():
        return {}
    return dict(json.loads(file.read_text(encoding="utf-8"))["paths"])


def named_paths(data: object) -> list[str]:
    """All files and folders that a config names, once each."""
    return sorted({value for _, value in _leaves(data) if _exists(Path(value))})


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long to be a path
        return False


def _leaves(data: object, key: str = "") -> Iterator[tuple[str, str]]:
    """(key, text) of everything that may be a path."""
    if isinstance(data, Mapping):
        for name, value in data.items():  # of a teacher for each policy, the name is no key
            yield from _leaves(value, key if key == "teacher_model" else str(name))
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _leaves(value, key)
    elif isinstance(data, str | Path) and key in PATH_KEYS and str(data).strip():
        yield key, str(data)


def _changed(data: object, change: Change, key: str = "") -> Any:
    if isinstance(data, Mapping):
        names = {name: key if key == "teacher_model" else str(name) for name in data}
        return {name: _changed(value, change, names[name]) for name, value in data.items()}
    if isinstance(data, list):
        return [_changed(value, change, key) for value in data]
    if key == OUTPUT and isinstance(data, str):
        return os.path.expanduser(data)
    if isinstance(data, str) and key in PATH_KEYS and data.strip():
        return change(data)
    return data

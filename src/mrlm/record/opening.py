"""Opening of the files of a run folder, which may be damaged or somebody else's."""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError


def check_folder(path: Path) -> None:
    """Raises `ConfigError`: a run folder does not exist, or is a file."""
    if path.is_file():
        fix = f"; a config is examined by mrlm doctor --config {path}" * (path.suffix == ".yaml")
        raise ConfigError(f"{path}: it is a file; give a run folder, as outputs/NAME{fix}")
    if not path.is_dir():
        raise ConfigError(f"{path}: folder does not exist; give a run folder, as outputs/NAME")


def run_file(folder: Path, name: str) -> Path | None:
    """A file of a run folder, if there is one. Raises `ConfigError`: it is a link that leads out of
    the folder, which may be somebody else's."""
    path = folder / name
    if not path.is_file():
        return None
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{path}: it is a link that leads out of the run folder; remove it")
    return path


def parsed_line(line: str | bytes, path: Path) -> dict[str, Any]:
    """The object in a line of a run file. Raises `ConfigError`: there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        text = f"{path}: a line is not JSON ({error}); it was not written by a run"
        raise ConfigError(text) from error
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: a line is not an object; it was not written by a run")
    return row


NOT_WRITTEN = (
    *(LookupError, TypeError, ValueError, AttributeError, RecursionError),
    *(EOFError, zlib.error, gzip.BadGzipFile),
)
"""Errors of reading what no run wrote."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read a run folder, which may be damaged or somebody else's, inside. Raises `ConfigError`:
    what is read there is not what a run writes."""
    try:
        yield
    except NOT_WRITTEN as error:
        raise ConfigError(
            f"{folder}: its files are not what a run writes ({type(error).__name__}: {error}); "
            "give another folder (--verbose shows where it failed)"
        ) from error

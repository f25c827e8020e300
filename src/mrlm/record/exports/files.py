"""Files and folders of exports: whole, or not written at all."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mrlm.core.errors import ConfigError
from mrlm.core.replacing import replacing
from mrlm.record.exports.transcripts import Selection
from mrlm.record.reader import RecordedEpisode


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write, which takes its place when it is complete. Raises `ConfigError`: it cannot
    be written."""
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; give a file")
    with _in_place_of(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place when it is complete. Raises `ConfigError`: it exists
    and is not empty, or cannot be written."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--output {path}: exists; a file per episode needs a new folder")
    with _in_place_of(path) as temporary:
        temporary.mkdir(parents=True)
        yield temporary


def write_each(
    chosen: Selection, output: Path, suffix: str, text: Callable[[RecordedEpisode], str]
) -> int:
    """Writes a file per episode into a new folder; returns their number. Raises `ConfigError`: the
    folder exists or cannot be written."""
    count = 0
    with new_folder(output) as folder:
        for count, episode in enumerate(chosen.episodes(), start=1):
            name = re.sub(r"[^\w.-]+", "-", episode.id)[:80]
            file = f"{count:06}-step-{episode.step}-{name}{suffix}"  # names sort as episodes do
            (folder / file).write_text(text(episode), encoding="utf-8")
    return count


@contextmanager
def _in_place_of(path: Path) -> Iterator[Path]:
    """`replacing`, whose errors name the option."""
    try:
        with replacing(path) as temporary:
            yield temporary
    except OSError as error:
        if error.errno is None:  # a damaged record
            raise
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; give another with --output"
        ) from error

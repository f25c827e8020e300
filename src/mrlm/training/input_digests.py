"""`inputs.json` of a run folder: the paths and digests of the data when the run began, so that a
run is not resumed with other data and a moved folder finds data that did not move."""

import hashlib
import json
import os
from pathlib import Path

from mrlm.config import ExperimentConfig
from mrlm.config.paths import INPUTS, data_paths, known_paths, named_paths, written
from mrlm.core.errors import ConfigError
from mrlm.learn.checkpoint import file_digest, write_json


def note_inputs(config: ExperimentConfig, folder: Path) -> None:
    """Writes the paths and digests of the data of a run that begins in `folder`."""
    settings = config.resolved()
    paths = {written(file, folder): os.path.abspath(file) for file in named_paths(settings)}
    data = {written(file, folder): digest(Path(file)) for file in data_paths(settings)}
    write_json(folder / INPUTS, {"paths": paths, "data": data})


def check_inputs(folder: Path) -> None:
    """Checks that the data of a run is the same as when the run began. Raises `ConfigError`: a file
    does not exist any more, or has changed."""
    file = folder / INPUTS
    if not file.is_file():
        return
    paths = known_paths(folder)
    for name, before in json.loads(file.read_text(encoding="utf-8"))["data"].items():
        places = [each for each in (folder / name, Path(paths[name])) if each.exists()]
        if not places:
            raise ConfigError(
                f"{folder}: its data set {paths[name]!r} does not exist any more, nor does "
                f"{os.path.normpath(folder / name)!r}; restore it to resume"
            )
        now = digest(places[0])
        if now != before:
            raise ConfigError(
                f"{folder}: its data set {os.path.normpath(places[0])!r} has changed since the run "
                f"began (sha256 {before[:12]} -> {now[:12]}); restore it to resume, or start a "
                "new run"
            )


def digest(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder."""
    if path.is_file():
        return file_digest(path)
    total = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        total.update(f"{file.relative_to(path).as_posix()} {file_digest(file)}\n".encode())
    return total.hexdigest()

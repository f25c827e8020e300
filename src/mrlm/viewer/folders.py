"""The runs of a folder and their stages, also of runs that have not written a record yet."""

import re
from pathlib import Path

from mrlm.core.errors import ConfigError
from mrlm.record.files import episode_file
from mrlm.record.opening import check_folder, run_file
from mrlm.record.reader import METRICS
from mrlm.record.vocabulary import VOCABULARY
from mrlm.viewer.source import CONFIG, ViewedStage

STAGE = re.compile(r"(\d+)-.+")
"""Name of a stage's folder: `1-warmup`, `2-together`, ..."""


def runs_in(folder: Path) -> dict[str, Path]:
    """The runs of a folder by their names: the folder itself (without a name) if it is a run, else
    the run folders in it. Raises `ConfigError`: the folder does not exist."""
    check_folder(folder)
    if stages_of(folder, folder):
        return {"": folder}
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    return {path.name: path for path in folders if stages_of(path, folder)}


def stages_of(run: Path, root: Path) -> list[ViewedStage]:
    """The stages of a run that have begun. Everything has to be in `root`; links that lead out of
    it are not followed."""
    if _begun(run, root):
        return [ViewedStage("", run)]
    numbered = [
        (int(match[1]), path) for path in run.iterdir() if (match := STAGE.fullmatch(path.name))
    ]
    return [ViewedStage(path.name, path) for _, path in sorted(numbered) if _begun(path, root)]


def _begun(folder: Path, root: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        file_paths = [run_file(folder, name) for name in (CONFIG, METRICS, VOCABULARY)]
        files = [path for path in (*file_paths, episode_file(folder)) if path is not None]
    except ConfigError:  # a link that leads out of the folder
        return False
    return any(path.name != VOCABULARY for path in files) and all(
        path.resolve().is_relative_to(root.resolve()) for path in files
    )

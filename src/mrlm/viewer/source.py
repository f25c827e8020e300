"""Run folders as the viewer needs them: stages, configs, metrics, rows of episodes."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mrlm.core.content import parse_yaml
from mrlm.core.errors import ConfigError
from mrlm.record.files import PLAIN, episode_file
from mrlm.record.filters import Filter
from mrlm.record.opening import check_folder, parsed_line, run_file
from mrlm.record.reader import METRICS, json_rows, read_run

CONFIG = "config.yaml"
PROFILE = "profile.jsonl"
RATINGS = "ratings.json"
ALARMS = "alarms.jsonl"
REPLAYED = "why"
"""The folder with the results of `mrlm why`."""


@dataclass(frozen=True, slots=True)
class ViewedStage:
    """A stage of a run, or a run without stages.

    Args:
        name: name of the stage's folder, after that of the run if there are several; empty for
            a single run without stages.
        run: name of its run; empty for a single run.
        accepts: whether the row of an episode is shown.
    """

    name: str
    folder: Path
    run: str = ""
    accepts: Filter = lambda row: True

    def about(self) -> dict[str, Any]:
        """Its name, settings and ratings as JSON."""
        names = ("name", "run", "config", "config_text", "ratings")
        return {"folder": str(self.folder), **{name: getattr(self, name) for name in names}}

    @property
    def config_text(self) -> str:
        """The resolved config as it was written, or nothing."""
        path = run_file(self.folder, CONFIG)
        return "" if path is None else path.read_text(encoding="utf-8", errors="replace")

    @property
    def config(self) -> dict[str, Any]:
        try:
            settings = parse_yaml(self.config_text)
        except yaml.YAMLError:
            return {}
        return settings if isinstance(settings, dict) else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`."""
        return read_run(self.folder).metrics

    @property
    def phases(self) -> dict[str, Any]:
        """Seconds of each step by phase, as a profiled run writes them: `steps` and, as pairs,
        `seconds`; the time before the first step is left out."""
        rows = [row for row in json_rows(self.folder, PROFILE) if row["step"]]
        names = dict.fromkeys(name for row in rows for name in row["seconds"])
        spent = [
            (name, [round(sum(row["seconds"].get(name, {}).values()), 6) for row in rows])
            for name in names
        ]
        return {"steps": [row["step"] for row in rows], "seconds": spent}

    @property
    def ratings(self) -> dict[str, Any] | None:
        """Ratings and pay-offs of a population, as `ratings.json` has them."""
        path = run_file(self.folder, RATINGS)
        return None if path is None else parsed_line(path.read_bytes(), path)

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """The rows of `alarms.jsonl`."""
        return list(json_rows(self.folder, ALARMS))

    @property
    def explained(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(id of an episode, its step) -> what `mrlm why` saved about it. Raises `ConfigError`: a
        file is not such a result."""
        results = {}
        for path in sorted((self.folder / REPLAYED).glob("*.json")):
            try:
                run_file(self.folder, f"{REPLAYED}/{path.name}")
                result = json.loads(path.read_text(encoding="utf-8"))
                results[result["episode"], result["step"]] = result
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{path}: not a result of `mrlm why --save` ({error!r}); remove the file, or "
                    "write it again"
                ) from error
        return results

    @property
    def vocabulary(self) -> dict[str, list[bytes]]:
        """Policy -> bytes of each token; empty if it is not recorded."""
        return read_run(self.folder).vocabulary

    def episodes(self) -> Iterator[dict[str, Any]]:
        """The rows of episodes, without an incomplete end."""
        return filter(self.accepts, read_run(self.folder).rows())


def viewed_runs(folders: Sequence[Path]) -> list[ViewedStage]:
    """The stages of one or several runs (run folders, or those of stages), run by run. Raises
    `ConfigError`: a folder does not exist, is not a run folder, or is given twice."""
    if len(folders) == 1:
        return viewed_stages(folders[0])
    viewed = []
    for run, folder in zip(run_names(folders), folders, strict=True):
        for stage in viewed_stages(folder):
            name = f"{run}/{stage.name}" if stage.name else run
            viewed.append(ViewedStage(name, stage.folder, run))
    return viewed


def run_names(folders: Sequence[Path]) -> list[str]:
    """Short names of run folders, all different: the folder's, with as many of its parents as it
    takes. Raises `ConfigError`: a folder is given twice."""
    parts = [folder.resolve().parts for folder in folders]
    for folder, count in Counter(parts).items():
        if count > 1:
            raise ConfigError(f"{Path(*folder)}: is given {count} times; name each run once")
    names = [path[-1:] for path in parts]
    while len(set(names)) < len(names):
        again = Counter(names)
        names = [
            path[-len(name) - 1 :] if again[name] > 1 else name
            for path, name in zip(parts, names, strict=True)
        ]
    return ["/".join(name) for name in names]


def viewed_stages(folder: Path) -> list[ViewedStage]:
    """The stages of a run folder that have metrics or episodes. Raises `ConfigError`: the folder
    does not exist or is not a run folder."""
    check_folder(folder)
    if _has_record(folder):
        return [ViewedStage("", folder)]
    stages = sorted(filter(_has_record, folder.iterdir()), key=lambda path: _number(path.name))
    if not stages:
        raise ConfigError(
            f"{folder}: not a run folder: neither {METRICS} nor {PLAIN} exists in it or in "
            "the folders of its stages; give the folder that `mrlm train` wrote (output_dir)"
        )
    return [ViewedStage(path.name, path) for path in stages]


def _number(name: str) -> tuple[int, str]:
    """Folders of stages are called `1-warmup`, `2-together`, ..."""
    number = name.partition("-")[0]
    return (int(number) if number.isdecimal() else 1 << 30), name


def _has_record(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    return (folder / METRICS).is_file() or episode_file(folder) is not None

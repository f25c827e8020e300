"""Sources of rows: lists, files, folders, snapshots, presets and the hub, read row by row, each row
with its location."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from mrlm.core.errors import DataError
from mrlm.core.registry import unknown
from mrlm.core.tiny_model import cache_folder
from mrlm.data.files import FILE_TYPES, NEEDS_EXTRA, Located, items, read_file
from mrlm.data.presets import PRESETS, DatasetPreset

MARKER = "mrlm.json"
"""The file of a prepared folder that names its preset."""
NO_ROWS = {MARKER, "manifest.json", "dataset_infos.json", "dataset_info.json", "state.json"}
"""Files beside the data in prepared folders, snapshots and `save_to_disk` folders."""
SHARD = re.compile(r"^(.+?)-\d{4,}(?:-of-\d{4,})?(?:-[0-9a-f]+)?$")


@dataclass(frozen=True, slots=True)
class DataSource:
    """A located data set.

    Args:
        title: its name in errors.
        rows: `rows(split, streaming)`: its rows with their locations; the split is never `None` if
            a preset names the training split.
        preset: its preset, if it has one.
        note: its location for the log, if not obvious.
    """

    title: str
    rows: Callable[[str | None, bool], Iterator[Located]]
    preset: DatasetPreset | None = None
    note: str = ""


def find(source: Any) -> DataSource:
    """The data set of a user's setting: see `read_rows`. Raises `DataError`: the type is not
    supported, or the file or folder does not exist."""
    if isinstance(source, DataSource):
        return source
    if isinstance(source, str) and not source.strip():
        raise DataError("the name of the data set is empty; give a list, a path or a hub id")
    if isinstance(source, str) and source in PRESETS:
        return preset_source(PRESETS[source])
    if isinstance(source, str | Path):
        return _local(source) or _on_hub(str(source))
    if isinstance(source, Mapping):
        title = "the data set"
        return DataSource(title, lambda split, _: items(_picked(source, split, title), "row"))
    if hasattr(source, "to_dict") and hasattr(source, "iterrows"):  # a pandas.DataFrame
        frame = source.astype(object)
        source = frame.where(frame.notna(), None).to_dict("records")
    column = hasattr(source, "to_frame")  # of pandas
    if column or not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        raise DataError(
            f"a data set must be a list of dictionaries, a Dataset, a path or a hub id, not "
            f"{type(source).__name__}"
        )
    return DataSource("the data set", lambda split, _: items(source, "row"))


def data_folder() -> Path | None:
    """The folder of prepared data sets: `$MRLM_DATA`, else `data` in the cache folder."""
    if configured := os.environ.get("MRLM_DATA"):
        return Path(configured).expanduser()
    cache = cache_folder()
    return None if cache is None else cache / "data"


def preset_source(preset: DatasetPreset) -> DataSource:
    """A preset: in prepared form (a folder of its name in the current or the data folder), else on
    the hub."""
    if (Path(preset.name) / MARKER).is_file():
        return _path(Path(preset.name), preset)
    folder = data_folder()
    for path in [] if folder is None else sorted(folder.glob(f"{preset.name}*")):
        stem = path.name if path.is_dir() else path.stem
        if stem == preset.name and (path.is_dir() or path.suffix.lower() in FILE_TYPES):
            return _path(path, preset)
    return hub_source(preset)


def hub_source(preset: DatasetPreset) -> DataSource:
    """A preset on the hub, or in the cache of the hub's client."""
    title = f"data set {preset.name!r}"
    return DataSource(title, lambda split, lazy: _hub_rows(preset, split, lazy), preset)


def with_preset(source: str | Path, preset: DatasetPreset) -> DataSource:
    """A local path or hub id with rows in the form of a preset. Raises `DataError`: the file or
    folder does not exist."""
    local = _local(source, preset)
    if local is not None:
        return local
    hub, _, config = str(source).partition(":")
    return hub_source(replace(preset, hub=hub, config=config or None, revision=None, files=None))


def _local(source: str | Path, preset: DatasetPreset | None = None) -> DataSource | None:
    """A file or folder; `None` if the name may be a hub id."""
    path = Path(source).expanduser()
    if path.exists():
        return _path(path, preset)
    text = str(source)
    folder, colon, config = text.rpartition(":")
    if colon and (whole := Path(folder).expanduser()).is_dir():
        return _path(whole, preset, config)
    if path.suffix.lower() in FILE_TYPES or text.startswith(("/", ".", "~")):
        raise DataError(
            f"data set {text!r}: file or folder does not exist; give a path relative to the config "
            "file or to the current folder"
        )
    return None


def _path(path: Path, preset: DatasetPreset | None, config: str | None = None) -> DataSource:
    title = f"data set {str(path)!r}"
    prepared = _noted((path if path.is_dir() else path.parent) / MARKER, "preset")
    preset = preset or PRESETS.get(prepared)
    config = config or (preset.config if preset else None)
    note = "" if preset is None else f"read from {path}"
    if path.is_file():
        alone = preset and replace(preset, held_out=None)
        return DataSource(title, lambda split, _: read_file(path), alone, note)
    if any((path / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
        preset = _limited(preset, [*map(str, _noted(path / "dataset_dict.json", "splits") or ())])
        return DataSource(title, lambda split, _: _saved(path, split), preset, note)
    files = split_files(path, config)
    preset = _limited(preset, list(files))
    return DataSource(title, lambda split, _: _folder(path, files, split), preset, note)


def _noted(path: Path, key: str) -> Any:
    """A value in a JSON file of notes; `None` without it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _limited(preset: DatasetPreset | None, split_names: list[str]) -> DatasetPreset | None:
    """A preset limited to the existing splits, possibly under their usual names."""
    if preset is None or not split_names:
        return preset and replace(preset, held_out=None)
    usual = split_names[0] if len(split_names) == 1 else preset.train
    train = next((name for name in (preset.train, "train") if name in split_names), usual)
    names = (preset.held_out, "test", "validation") if preset.held_out else ()
    held = next((name for name in names if name in split_names and name != train), None)
    return replace(preset, train=train, held_out=held)


def _picked(splits: Mapping[str, Any], split: str | None, title: str) -> Any:
    """One of several splits."""
    name = split or "train"
    if name not in splits:
        names = ", ".join(map(str, splits))
        raise DataError(f"{title}: split {name!r} does not exist; use {names}")
    return splits[name]


# -- folders ---------------------------------------------------------------------------------------


def split_files(folder: Path, config: str | None = None) -> dict[str, list[Path]]:
    """Split -> its data files, in a folder with one file per split (`train.jsonl`), possibly in
    parts (`train-00000-of-00002.parquet`), or in a snapshot of a hub repository: according to its
    README, else in the folder of the configuration `config`, in `data/`, or in the folder
    itself."""
    listed = _listed_files(folder, config)
    if listed:
        return listed
    for directory in (*([folder / config] if config else []), folder, folder / "data"):
        files: dict[str, list[Path]] = {}
        deep = directory not in (folder, folder / "data")
        for path in sorted(directory.glob("**/*" if deep else "*")):
            if path.is_file() and path.suffix.lower() in FILE_TYPES and path.name not in NO_ROWS:
                files.setdefault(_split_name(path), []).append(path)
        if files:
            return files
    return {}


def _split_name(path: Path) -> str:
    """`train` of `train.jsonl`, `train-00000-of-00002.parquet` and `train/0000.parquet`."""
    part = SHARD.match(path.stem)
    return part[1] if part else path.parent.name if path.stem.isdecimal() else path.stem


def _listed_files(folder: Path, config: str | None) -> dict[str, list[Path]]:
    """The files that the README of a snapshot lists for a configuration; empty if it lists none."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        head = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, yaml.YAMLError):
        return {}
    listed = head.get("configs") if isinstance(head, Mapping) else None
    sections = [each for each in listed or [] if isinstance(each, Mapping)]
    named = [each for each in sections if each.get("config_name") == (config or "default")]
    if not named and config is None:
        named = [each for each in sections if each.get("default")] or sections[:1]
    files: dict[str, list[Path]] = {}
    for section in named:
        entries = section.get("data_files")
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, Mapping):
                entry = {"split": "train", "path": entry}
            patterns = entry.get("path") or []
            for pattern in [patterns] if isinstance(patterns, str) else patterns:
                if str(pattern).startswith("/") or ".." in str(pattern).split("/"):
                    continue  # it points outside the snapshot
                matches = [p for p in sorted(folder.glob(str(pattern))) if p.is_file()]
                files.setdefault(str(entry.get("split", "train")), []).extend(matches)
    return {split: paths for split, paths in files.items() if paths}


def _folder(folder: Path, files: dict[str, list[Path]], split: str | None) -> Iterator[Located]:
    chosen = split or "train"
    if split is None and chosen not in files and len(files) == 1:
        chosen = next(iter(files))
    paths = files.get(chosen, [])
    if len({path.suffix for path in paths}) != 1:
        names = [path.name for file_list in files.values() for path in file_list]
        raise DataError(
            f"data set folder {str(folder)!r}: expected one file {chosen}.jsonl (or "
            f".json, .csv, .parquet; parts are {chosen}-00000-of-00002.parquet), or a "
            f"save_to_disk folder; found {', '.join(names) or 'no data file'}"
        )
    return (located for path in paths for located in read_file(path))


def _saved(folder: Path, split: str | None) -> Iterator[Located]:
    loaded = _datasets(f"data set {str(folder)!r}").load_from_disk(str(folder))
    if isinstance(loaded, Mapping):
        loaded = _picked(loaded, split, str(folder))
    return ((f"{folder}, row {index}", row) for index, row in enumerate(loaded))


# -- the hub ---------------------------------------------------------------------------------------


def _on_hub(name: str) -> DataSource:
    hub, _, config = name.partition(":")
    bare = DatasetPreset("", hub, "", columns={}, config=config or None)
    return DataSource(f"data set {name!r}", lambda split, lazy: _hub_rows(bare, split, lazy))


def _hub_rows(preset: DatasetPreset, split: str | None, lazy: bool) -> Iterator[Located]:
    """Rows from the hub, or from a previous download."""
    name = preset.hub if preset.config is None else f"{preset.hub}:{preset.config}"
    called = preset.name or name
    datasets = _datasets(f"data set {called!r}")
    split_name = split or preset.train
    options = {"split": split_name, "revision": preset.revision, "data_files": preset.files}
    arguments = {name: value for name, value in options.items() if value}
    config = None if preset.files else preset.config
    load = partial(datasets.load_dataset, preset.hub, config, **arguments)
    try:
        try:
            loaded = load(streaming=True) if lazy else load()
        except ConnectionError:
            if not lazy:
                raise
            loaded = load()  # cached data sets cannot be streamed
    except Exception as error:  # for any error of the client, the user needs the id and the fix
        snapshot = _snapshot(preset.hub)
        files = split_files(snapshot, preset.config) if snapshot is not None else {}
        if snapshot is not None and split_name in files:
            return _folder(snapshot, files, split_name)
        raise DataError(_unreachable(preset, name, error)) from error
    return ((f"{name}, row {index}", row) for index, row in enumerate(loaded))


def _snapshot(hub: str) -> Path | None:
    """The local snapshot of a hub repository."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(hub, repo_type="dataset", local_files_only=True))
    except (ImportError, OSError, ValueError):  # no snapshot, no client, or an invalid name
        return None


def _unreachable(preset: DatasetPreset, name: str, error: Exception) -> str:
    """The error message with the fix without a network."""
    reason = str(error).split("\n")[0] or type(error).__name__
    if not preset.name:
        local = preset.hub.rsplit("/", 1)[-1]
        near = "" if "/" in name else f"; {unknown(name, list(PRESETS), 'presets')}"
        return (
            f"data set {name!r} is not a local path and could not be loaded from the hub "
            f"({reason}); without a network give a local file instead, for example "
            f"{local}.jsonl with one row per line, or a save_to_disk folder{near}"
        )
    folder = data_folder()
    location = f"{preset.name}/" if folder is None else f"{folder / preset.name}/"
    return (
        f"preset {preset.name!r} could not be loaded from the hub ({name}: {reason}). Without a "
        f"network it is read from the folder {location} (or {preset.name}.jsonl or .parquet beside "
        f"it; $MRLM_DATA names another place). To fill it, where there is a network: mrlm data "
        f"{preset.name}; from a snapshot or file of {preset.hub}: mrlm data {preset.name} "
        "--source PATH"
    )


def _datasets(title: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{title} {NEEDS_EXTRA}") from error
    return datasets

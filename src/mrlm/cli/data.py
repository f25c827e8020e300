"""`mrlm data`: lists the data sets that have short names, prepares one for use without a network,
or checks whether the rows of one can be played."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mrlm.cli._options import refuse
from mrlm.core.errors import ConfigError
from mrlm.core.progress import counted
from mrlm.core.registry import unknown

if TYPE_CHECKING:
    from mrlm.data.presets import DatasetPreset
    from mrlm.data.tasks import Row

PLACE = "place_in_data"
"""Column with the place of a row, while rows are checked."""
ROWS = (("dataset", "eval_dataset"), ("tasks", "eval_tasks"), ("topics", "eval_dataset"))
"""Arguments of environments for rows and held-out rows."""

CHECK = "check"


def data(
    preset: str | None = None,
    name: str | None = None,
    out: Path | None = None,
    split: list[str] | None = None,
    limit: int | None = None,
    format: Literal["jsonl", "parquet"] = "jsonl",
    source: str | None = None,
    on_bad_row: Literal["raise", "skip"] = "raise",
    environment: str | None = None,
) -> None:
    """Prepare a data set in a local folder, check whether its rows can be played, or list all."""
    from mrlm.data.presets import PRESETS
    from mrlm.learn.policy.gguf import SHORT_NAMES

    reading = {"format": format != "jsonl", "on_bad_row": on_bad_row != "raise"}
    if preset == CHECK:
        refuse("has no effect: mrlm data check writes nothing; remove it", out=out, **reading)
        _check(name, split or [], limit, source, environment)
        return
    if name is not None or environment is not None:
        raise ConfigError(f"a second name and --environment belong to mrlm data {CHECK}")
    if preset is None:
        why = "has no effect: no data set is given; name one of those that mrlm data lists"
        refuse(why, out=out, split=split, limit=limit, source=source, **reading)
        print(_listed())
        return
    if preset in SHORT_NAMES:
        why = f"has no effect: {preset} is a model: only --source applies to it"
        refuse(why, out=out, split=split, limit=limit, **reading)
        _prepare_model(preset, source)
        return
    if preset not in PRESETS:
        raise ConfigError(unknown(preset, [*PRESETS, *SHORT_NAMES], "data"))
    how = {"source": source, "splits": split or (), "limit": limit, "format": format}
    _prepare(PRESETS[preset], out, **how, on_bad_row=on_bad_row)


def _prepare(preset: DatasetPreset, out: Path | None, **how: Any) -> None:
    """Write the usable rows of a data set to its folder; `how` are arguments of `prepare`."""
    from mrlm.data.prepare import prepare
    from mrlm.data.sources import MARKER, data_folder
    from mrlm.learn.checkpoint import write_folder

    root = data_folder()
    if out is None and root is None:
        raise ConfigError("no home folder exists to keep data in; set MRLM_DATA, or give --out")
    folder = out or (root or Path()) / preset.name
    earlier = folder if (folder / MARKER).is_file() else None
    if earlier is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and was not made by mrlm data; give another --out")
    counts: dict[str, int] = {}

    usable = partial(_usable, preset)

    def fill(target: Path) -> None:
        counts.update(prepare(preset, target, known=earlier, usable=usable, **how))

    try:
        write_folder(folder, fill)  # an earlier one is kept until the new one is complete
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"{preset.name}: {rows} rows in {folder}")
    usual = None if root is None else (root / preset.name).resolve()
    print(f"use it as dataset: {preset.name if folder.resolve() == usual else folder}")


def _check(
    name: str | None,
    splits: Sequence[str],
    limit: int | None,
    source: str | None,
    environment: str | None,
) -> None:
    """Play every row of a data set with the expert of its environment, and print what cannot be
    played. Raises `ConfigError`: the data set or environment does not exist, or no row is
    usable."""
    from mrlm.data.presets import PRESETS
    from mrlm.data.sources import with_preset
    from mrlm.data.tasks import Reading

    if name is None:
        raise ConfigError("mrlm data check needs a data set: a short name, a file or a hub id")
    preset = PRESETS.get(name)
    if source is not None and preset is None:
        raise ConfigError(f"--source {source}: it is read as a short name, which {name!r} is not")
    kind = environment or (preset.environment if preset is not None else None)
    if kind is None:
        raise ConfigError(f"{name}: name the environment that plays its rows with --environment")
    data = name if source is None or preset is None else with_preset(source, preset)
    preset_used = data.preset if not isinstance(data, str) else preset
    playable = 0
    for split in splits or (preset_used.splits if preset_used is not None else [None]):
        reading = Reading(data, split, on_bad_row="skip", max_rows=limit)
        rows = list(reading)
        begin = time.monotonic()
        places, problems, silent = _played(kind, rows)
        problems = [*map(str, reading.bad), *problems]
        title = name if split is None else f"{name} {split}"
        seconds = f"{time.monotonic() - begin:.0f} s"
        total = counted(len(rows) + len(reading.bad), "row")
        print(f"{title}: {total}, {len(places):,} can be played ({kind}, {seconds})")
        if silent:
            print(f"  {silent:,} of these have no answer of their own to prove it with")
        for problem in problems:
            print(f"  {problem}")
        playable += len(places)
    if not playable:
        raise ConfigError(f"{name}: no row can be played")


def _usable(preset: DatasetPreset, split: str, rows: list[Row]) -> list[int]:
    """The places of the rows of a preset that can be played; a split above `SAMPLE` rows is
    written as it is."""
    from mrlm.play.proof import SAMPLE

    if preset.environment is None or len(rows) > SAMPLE:
        return list(range(len(rows)))
    places, problems, _ = _played(preset.environment, rows)
    if problems:
        print(
            f"{preset.name} {split}: {len(problems)} of {len(rows)} rows cannot be played and are "
            f"left out (mrlm data check {preset.name} lists them); the first: {problems[0]}"
        )
    if not places:
        raise ConfigError(f"{preset.name} {split}: no row can be played: {problems[0]}")
    return places


def _played(environment: str, rows: list[Row]) -> tuple[list[int], list[str], int]:
    """The places of the rows that an environment's expert can play, why the others cannot be, and
    the number of those without an expert."""
    from mrlm.core.environment import as_environment
    from mrlm.core.registry import load
    from mrlm.play.proof import Provable, proved

    marked = [row | {PLACE: number} for number, row in enumerate(rows)]
    plugin = load("environments", environment)
    arguments = inspect.signature(plugin).parameters
    pair = next((pair for pair in ROWS if arguments.keys() >= {*pair}), None)
    if pair is None:
        raise ConfigError(f"environment {environment} has no rows; --environment is another one")
    with _without_log():
        env = plugin(**dict.fromkeys(pair, marked), on_bad_row="skip")
        table = env.row_table if isinstance(env, Provable) else None
        if table is None or env.expert_return is None:
            raise ConfigError(
                f"environment {environment} has no expert for rows, so nothing is proved"
            )
        proof = proved(as_environment(env), "train", None)
    places = [table.row(index, "train")[1][PLACE] for index in range(proof.rows)]
    problems = [f"row {places[index]}: {why}" for index, why in proof.problems.items()]
    bad = [str(error) for error in table.bad[: len(table.bad) // 2]]  # both splits are these rows
    usable = [number for index, number in enumerate(places) if index not in proof.problems]
    return usable, [*bad, *problems], proof.silent


@contextmanager
def _without_log() -> Iterator[None]:
    """Log no notes on rows that are printed as results, except with --verbose."""
    log = logging.getLogger("mrlm")
    level = log.level
    log.setLevel(level if level == logging.DEBUG else logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _prepare_model(name: str, source: str | None) -> None:
    """Brings a model with a short name into the cache and prints its folder."""
    from mrlm.learn.policy.short_names import prepare_model

    print(f"{name}: {prepare_model(name, source)}\nuse it as model.model_name_or_path: {name}")


def _listed() -> str:
    from mrlm.data.presets import PRESETS
    from mrlm.data.sources import preset_source
    from mrlm.learn.policy.gguf import SHORT_NAMES, is_complete, prepared_folder

    lines = []
    for name, preset in PRESETS.items():
        location = preset.hub if preset.config is None else f"{preset.hub}:{preset.config}"
        splits = " / ".join(preset.splits)
        lines.append(f"{name:<14} {preset.about}")
        remark = preset_source(preset).note
        lines.append(f"{'':<14} {location}, {splits}{'; ' + remark if remark else ''}")
    for name, model in SHORT_NAMES.items():
        lines.append(f"{name:<14} A model: {model.about}.")
        ready = "; prepared" if is_complete(prepared_folder(name)) else ""
        lines.append(f"{'':<14} {model.hub}, or {model.package} from PyPI{ready}")
    return "\n".join(lines)

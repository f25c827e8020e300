"""Preparation of data sets for use without a network: their rows are checked and written unchanged
into a folder that names the preset."""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from mrlm.core.errors import DataError
from mrlm.data.files import write_jsonl, write_parquet
from mrlm.data.presets import DatasetPreset
from mrlm.data.sources import MARKER, hub_source, with_preset
from mrlm.data.tasks import OnBadRow, Reading, Row

Format = Literal["jsonl", "parquet"]


def prepare(
    preset: DatasetPreset,
    folder: Path,
    *,
    source: str | Path | None = None,
    splits: Sequence[str] = (),
    limit: int | None = None,
    format: Format = "jsonl",
    on_bad_row: OnBadRow = "raise",
    known: Path | None = None,
    usable: Callable[[str, list[Row]], Collection[int]] | None = None,
) -> dict[str, int]:
    """Write one file per split, and a description of the data set.

    Args:
        folder: existing target folder.
        source: a file, a folder, a snapshot or a hub id to read from; when `None`, the preset's own
            hub id.
        splits: splits to write; when empty, the training and held-out splits.
        limit: maximum number of rows per split.
        format: format of the files; parquet is written from memory.
        on_bad_row: `raise`, or `skip` and log the number.
        known: a previously prepared folder, whose other splits are kept.
        usable: called with a split and its converted rows; returns the places of those to write.

    Returns:
        Split -> number of rows.

    Raises:
        DataError: the source cannot be read, a split does not exist, or a row is malformed.
    """
    data_source = hub_source(preset) if source is None else with_preset(source, preset)
    split_names = list(splits or (data_source.preset or preset).splits)
    counts = _kept(known, folder, preset, split_names) if known is not None else {}
    for split in split_names:
        lazy = limit is not None
        reading = Reading(data_source, split, on_bad_row=on_bad_row, max_rows=limit, streaming=lazy)
        rows: Iterable[Row] = (dict(value) for value, _ in reading.pairs())
        if usable is not None:
            pairs = list(reading.pairs())
            rows = [dict(pairs[at][0]) for at in usable(split, [row for _, row in pairs])]
        file = folder / f"{split}.{format}"
        counts[split] = (write_parquet if format == "parquet" else write_jsonl)(file, rows)
    about = {"preset": preset.name, "hub": preset.hub, "source": str(source or preset.hub)}
    text = json.dumps(about | {"rows": counts}, indent=1)
    (folder / MARKER).write_text(f"{text}\n", encoding="utf-8")
    return counts


def _kept(
    previous: Path, folder: Path, preset: DatasetPreset, split_names: Sequence[str]
) -> dict[str, int]:
    """Copy the splits of an earlier preparation that are not rewritten."""
    try:
        about = json.loads((previous / MARKER).read_text(encoding="utf-8"))
        counts = {split: int(count) for split, count in about["rows"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{previous}: it was not prepared by mrlm data ({error})") from error
    if about.get("preset") != preset.name:
        raise DataError(
            f"{previous} contains {about.get('preset')!r}; choose another folder with --out"
        )
    copied = {split: count for split, count in counts.items() if split not in split_names}
    for split in copied:
        for file in previous.glob(f"{split}.*"):
            shutil.copy2(file, folder / file.name)
    return copied

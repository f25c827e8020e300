"""`mrlm data`: lists the data sets that have short names, or prepares one for use without a
network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown


def data(
    preset: str | None = None,
    out: Path | None = None,
    split: list[str] | None = None,
    limit: int | None = None,
    format: Literal["jsonl", "parquet"] = "jsonl",
    source: str | None = None,
    on_bad_row: Literal["raise", "skip"] = "raise",
) -> None:
    """Prepare a data set in a local folder, or list the known ones."""
    from mrlm.data.presets import PRESETS
    from mrlm.data.sources import MARKER, data_folder
    from mrlm.learn.policy.gguf import SHORT_NAMES

    if preset is None:
        if out or split or limit or source:
            raise ConfigError("no data set is given; name one of those that mrlm data lists")
        print(_listed())
        return
    if preset in SHORT_NAMES:
        _prepare_model(preset, source, bool(out or split or limit))
        return
    if preset not in PRESETS:
        raise ConfigError(unknown(preset, [*PRESETS, *SHORT_NAMES], "data"))
    from mrlm.data.prepare import prepare
    from mrlm.learn.checkpoint import write_folder

    root = data_folder()
    if out is None and root is None:
        raise ConfigError("no home folder exists to keep data in; set MRLM_DATA, or give --out")
    folder = out or (root or Path()) / preset
    known = folder if (folder / MARKER).is_file() else None
    if known is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and was not made by mrlm data; give another --out")
    counts: dict[str, int] = {}

    def fill(place: Path) -> None:
        counts.update(
            prepare(
                PRESETS[preset],
                place,
                source=source,
                splits=split or (),
                limit=limit,
                format=format,
                on_bad_row=on_bad_row,
                known=known,
            )
        )

    try:
        write_folder(folder, fill)  # an earlier one is kept until the new one is complete
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    print(f"{preset}: {rows} rows in {folder}")
    found = out is None or (root is not None and folder.resolve() == (root / preset).resolve())
    print(f"use it as dataset: {preset if found else folder}")


def _prepare_model(name: str, source: str | None, others: bool) -> None:
    """Brings a model with a short name into the cache and prints its folder."""
    from mrlm.learn.policy.short_names import prepare_model

    if others:
        raise ConfigError(f"{name} is a model: only --source applies to it")
    print(f"{name}: {prepare_model(name, source)}\nuse it as model.model_name_or_path: {name}")


def _listed() -> str:
    from mrlm.data.presets import PRESETS
    from mrlm.data.sources import preset_source
    from mrlm.learn.policy.gguf import SHORT_NAMES, is_complete, prepared_folder

    lines = []
    for name, preset in PRESETS.items():
        place = preset.hub if preset.config is None else f"{preset.hub}:{preset.config}"
        splits = " / ".join(preset.splits)
        lines.append(f"{name:<14} {preset.about}")
        found = preset_source(preset).note
        lines.append(f"{'':<14} {place}, {splits}{'; ' + found if found else ''}")
    for name, model in SHORT_NAMES.items():
        lines.append(f"{name:<14} A model: {model.about}.")
        ready = "; prepared" if is_complete(prepared_folder(name)) else ""
        lines.append(f"{'':<14} {model.hub}, or {model.package} from PyPI{ready}")
    return "\n".join(lines)

"""The formats of exports, and the one function that writes them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.record.exports import atif, hf_traces, inspect_log, parquet
from mrlm.record.exports.transcripts import Selection
from mrlm.record.filters import check_names, parse_filter
from mrlm.record.reader import read_run


@dataclass(frozen=True, slots=True)
class Format:
    """A format of an export: `write` writes the chosen episodes and returns their number, to
    `output` where no other file or folder is given."""

    write: Callable[[Selection, Path], int]
    output: str


FORMATS: Mapping[str, Format] = {
    "parquet": Format(parquet.write, "run.parquet"),
    "atif": Format(atif.write, "run-atif"),
    "hf-traces": Format(hf_traces.write, "run-traces"),
    "inspect": Format(inspect_log.write, "run.eval"),
}
"""Name -> format."""


def export_record(
    folder: str | os.PathLike[str], output: str | os.PathLike[str], format: str, where: str = ""
) -> int:
    """Writes the episodes of a run for another library.

    Args:
        folder: a run folder, or that of a stage.
        output: the file (`parquet`, `inspect`) or the new folder (`atif`, `hf-traces`) to write.
        format: a name of `FORMATS`.
        where: a filter of episodes, as of `mrlm look`.

    Returns:
        The number of episodes.

    Raises:
        ConfigError: the folder is not a run folder, no episode fits the filter, or the output
            cannot be written.
    """
    if format not in FORMATS:
        raise ConfigError(registry.unknown(format, [*FORMATS], "format"))
    stage = Path(folder).resolve().name
    chosen = Selection(read_run(folder), parse_filter(where, stage))
    check_names(where, chosen.run.rows(), [stage])
    if next(chosen.episodes(), None) is None:
        what = f"no episode fits the filter {where!r}" if where else "no episodes are recorded"
        raise ConfigError(f"{folder}: {what}")
    return FORMATS[format].write(chosen, Path(output).expanduser())

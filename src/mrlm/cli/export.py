"""`mrlm export`: writes runs as one HTML file, or one run in a format of another library, or its
models."""

from pathlib import Path

from mrlm.cli._options import refuse
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.progress import counted

SUFFIXES = {".html": "html", ".htm": "html", ".parquet": "parquet", ".eval": "inspect"}
"""Formats that a file's suffix chooses."""
TEAM_FORMAT = "hf"
"""The format of the policies themselves: Hugging Face folders of a team."""
MAX_MB = 20.0
"""Limit of a page, in MB."""


def export(
    run: list[Path],
    output: Path | None = None,
    format: str | None = None,
    where: str = "",
    max_mb: float | None = None,
    merge: bool = False,
) -> None:
    """Write one or several runs as one HTML file that opens without a server or a network, or one
    run in a format of another library."""
    from mrlm.record.exports.table import FORMATS, export_record
    from mrlm.record.opening import reading
    from mrlm.tracking.console import printable

    if format is None:
        format = _format_of(output, TEAM_FORMAT if merge else "html")
    idle = f"it has no effect on --format {format}"
    refuse(f"is for models; {idle}", merge=merge and format != TEAM_FORMAT)
    if format == "html":
        _page(run, output or Path("run.html"), where, max_mb)
        return
    if format not in (*FORMATS, TEAM_FORMAT):
        formats = ["html", *FORMATS, TEAM_FORMAT]
        raise ConfigError(registry.unknown(format, formats, "--format"))
    refuse(f"limits a page; {idle}", max_mb=max_mb)
    if len(run) > 1:
        raise ConfigError(f"--format {format} is of one run; give one folder, or --format html")
    if format == TEAM_FORMAT:
        refuse(f"chooses episodes; {idle}", where=where or None)
        _team(run[0], output or Path("team"), merge)
        return
    output = output or Path(FORMATS[format].output)
    with reading(run[0]):
        count = export_record(run[0], output, format, where)
    print(printable(f"{output}: {counted(count, 'episode')}"))


def _format_of(output: Path | None, default: str) -> str:
    """The format that the suffix of a file chooses. Raises `ConfigError`: none has this suffix."""
    if output is None or not output.suffix or output.is_dir() or output.suffix in SUFFIXES:
        return default if output is None else SUFFIXES.get(output.suffix, default)
    if default == TEAM_FORMAT:
        return default
    suffixes = ", ".join(SUFFIXES)
    raise ConfigError(
        f"{output}: no format has the suffix {output.suffix!r}; use one of {suffixes}, or --format"
    )


def _team(run: Path, output: Path, merge: bool) -> None:
    from mrlm.learn.policy.loading import run_model
    from mrlm.teams.packing import pack
    from mrlm.tracking.console import printable

    pack(Path(run_model(str(run))), output, merge=merge)
    files = [path for path in output.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(printable(f"{output}: {len(files)} files, {size / 1e6:.1f} MB"))


def _page(run: list[Path], output: Path, where: str, max_mb: float | None) -> None:
    from mrlm.record.opening import reading
    from mrlm.tracking.console import printable
    from mrlm.viewer.export import export_run

    limit = MAX_MB if max_mb is None else max_mb
    if not limit > 0:
        raise ConfigError(f"--max-mb {limit:g}: must be above 0; {MAX_MB:g} is the default")
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder; give a file, as run.html")
    with reading(run[0]):
        made = export_run(run, output, max_mb=limit, where=where)
    shown = "" if made.shown == made.total else f"{made.shown:,} of "
    count = shown + counted(made.total, "episode")
    print(printable(f"{made.path}: {count}, {made.size / 1e6:.1f} MB"))
    if made.sentence:
        print(f"chosen: {made.sentence}; --max-mb {limit:g} is the limit")

"""`mrlm replay`: re-executes a logged episode, token for token."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from mrlm.cli._options import Quiet, write_json


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or that of a stage.")],
    episode: Annotated[str, typer.Option("--episode", "-e", help="Its id in episodes.jsonl.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Its step, if several have the id.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write everything as JSON.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if it differs from the log.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Play an episode of a run again and compare it with the log."""
    from mrlm.replays.replay import replay as play_again
    from mrlm.tracking.console import printable

    if quiet:
        logging.getLogger("mrlm").setLevel(logging.WARNING)
    found = play_again(run, episode, step)
    if out is not None:
        write_json(out, found.record())
    if not quiet:
        print(printable(str(found)))
    elif not found.same:
        print(printable("\n".join(found.differences)))
    if check and not found.same:
        raise typer.Exit(1)

"""`mrlm replay`: re-executes a logged episode, token for token."""

from __future__ import annotations

from pathlib import Path

import typer

from mrlm.cli._options import write_json


def replay(
    run: Path,
    episode: str,
    step: int | None = None,
    out: Path | None = None,
    check: bool = False,
    quiet: bool = False,
) -> None:
    """Play an episode of a run again and compare it with the log."""
    from mrlm.replays.replay import replay as play_again
    from mrlm.tracking.console import printable

    found = play_again(run, episode, step)
    if out is not None:
        write_json(out, found.record())
    if not quiet:
        print(printable(str(found)))
    elif not found.same:
        print(printable("\n".join(found.differences)))
    if check and not found.same:
        raise typer.Exit(1)

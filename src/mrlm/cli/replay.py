"""`mrlm replay`: re-executes a logged episode, token for token, or plays on from a turn of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mrlm.cli._options import check_targets, refuse, write_json
from mrlm.core.errors import ConfigError
from mrlm.core.progress import aligned

if TYPE_CHECKING:
    from mrlm.record.reader import RecordedEpisode


def replay(
    run: Path,
    episode: str,
    step: int | None = None,
    out: Path | None = None,
    check: bool = False,
    columns: bool = False,
    quiet: bool = False,
    from_turn: str | None = None,
    n: int | None = None,
    greedy: bool = False,
    message: str | None = None,
    weights: str | None = None,
    keep_seeds: bool = False,
    as_json: bool = False,
) -> None:
    """Play an episode of a run again and compare it with the log, or play on from a turn."""
    how = {"n": n, "greedy": greedy, "message": message, "weights": weights}
    how |= {"keep_seeds": keep_seeds}
    check_targets(out)
    if from_turn is not None:
        refuse("is for a recorded episode; remove it or --from", columns=columns, check=check)
        how = {name: value for name, value in how.items() if value or value == ""}
        _play_on(run, episode, step, from_turn, how, out, as_json, quiet)
        return
    refuse("is for continuations; add --from AGENT:TURN", **how)
    from mrlm.replays.replay import replay as play_again
    from mrlm.tracking.console import printable

    result = play_again(run, episode, step, columns=columns)
    if out is not None:
        write_json(out, result.record())
    if as_json:
        print(json.dumps(result.played))
    elif not quiet:
        print(printable(str(result)))
        if columns:
            print(printable(_columns(result.recorded)))
    elif not result.same:
        print(printable("\n".join(result.differences)))
    if check and not result.same:
        raise typer.Exit(1)


def _play_on(
    run: Path,
    episode: str,
    step: int | None,
    turn_text: str,
    how: dict[str, Any],
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Plays on from a turn, and prints what follows; `quiet`, only if no file is to have it."""
    from mrlm.replays.session import ForkSession
    from mrlm.tracking.console import printable

    agent, turn = turn_of(turn_text)
    with ForkSession(run, episode, step) as session:
        branches = session.play_from(agent=agent, turn=turn, **how)
        start = session.when((agent, turn))
    if out is not None:
        write_json(out, [branch.record() for branch in branches])
        if quiet:
            return
    for branch in branches:
        if as_json:
            print(json.dumps(branch.record()))
            continue
        row = branch.row
        turns = sorted(branch.episode.turns, key=lambda turn: (turn.step, turn.order))
        lines = [f"{row['id']} ({branch.origin['weights']}): {row['status']}"]
        lines += [
            f"  {turn.agent}: {turn.message.content}"
            for turn in turns
            if (turn.step, turn.order) >= start and turn.message is not None
        ]
        lines += [f"  {row['error']}"] if row["error"] else [f"  reward {branch.reward:g}"]
        print(printable("\n".join(lines)))


def turn_of(text: str) -> tuple[str, int]:
    """`agent:turn` as (agent, turn). Raises `ConfigError`: it has another form."""
    agent, _, turn = text.rpartition(":")
    if not agent or not turn.isdigit():
        raise ConfigError(f"{text!r} is not a turn; write AGENT:TURN, such as solver:0")
    return agent, int(turn)


def _columns(episode: "RecordedEpisode") -> str:
    """Minimum, mean and maximum of every column of every turn."""
    rows: list[Sequence[str]] = [("turn", "column", "min", "mean", "max")]
    for number, turn in enumerate(episode.turns, 1):
        for name, column in turn.columns.items():
            numbers = (f"{value:.4g}" for value in (column.min(), column.mean(), column.max()))
            rows.append((f"{number} {turn.agent}", name, *numbers))
    return aligned(rows)

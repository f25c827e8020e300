"""Branches of an episode for the viewer's tests."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.record.reader import read_run


@dataclass
class Again:
    row: dict[str, Any]


def play_again(
    run: Path, episode: str, *, step: int | None, n: int, weights: str | None, **rest: Any
) -> list[Again]:
    """The episode `n` times, re-executed token for token."""
    from mrlm.replays.replay import replay

    row = replay(run, episode, step).played
    return [Again({**row, "id": f"{episode}~{number}"}) for number in range(n)]


def copied(run: Path, episode: str, *, step: int | None, n: int, **rest: Any) -> list[Again]:
    """The episode `n` times, as it is recorded."""
    row = read_run(run).episode(episode, step).row
    return [Again({**row, "id": f"{episode}~{number}"}) for number in range(n)]


def refused(run: Path, episode: str, *, weights: str | None, **rest: Any) -> list[Again]:
    raise ConfigError(f"<b>{weights}</b> cannot be played here")


def endless(run: Path, episode: str, **rest: Any) -> list[Again]:
    while True:
        time.sleep(1)

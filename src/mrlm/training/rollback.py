"""Going back: after too many steps in a row whose loss was not finite a run takes up its last good
checkpoint and learns more slowly from there. What is decided stands in the run's folder before
anything else changes, so that a run that is killed meanwhile comes to the same."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrlm.core.errors import NonFiniteError
from mrlm.learn.checkpoint import (
    checkpoints,
    read_state,
    remove_folder,
    step_of,
    verify,
    write_json,
)

log: logging.Logger = logging.getLogger("mrlm")

FILE = "rollbacks.json"


@dataclass(frozen=True, slots=True)
class Rollback:
    """One return to a checkpoint.

    Args:
        at: iterations that were done when it became necessary.
        to: iterations that were done when the checkpoint was written.
        count: how often the run had gone back then, this time included.
        why: the error that it would have ended with.
    """

    at: int
    to: int
    count: int
    why: str


def rollbacks(folder: Path) -> list[Rollback]:
    """Those that a run's course goes through, in order; others that were undone by going back
    further are not among them."""
    try:
        rows = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [Rollback(**row) for row in rows]


def count_at(folder: Path, step: int, recorded: int) -> int:
    """How often a run has gone back that continues from a checkpoint of its.

    Args:
        folder: of the run.
        step: of the checkpoint.
        recorded: how often it had when the checkpoint was written; it may have gone back to this
            very one since.
    """
    return max([recorded, *(each.count for each in rollbacks(folder) if each.to == step)])


def go_back(folder: Path, step: int, done: int, allowed: int, error: NonFiniteError) -> Path:
    """Decide where a run goes on whose losses are not finite any more; what it wrote after that is
    removed.

    Args:
        folder: of the run.
        step: iterations done.
        done: how often it has gone back.
        allowed: how often it may.
        error: what it would end with.

    Returns:
        The newest checkpoint that is undamaged, was not written between such steps, and is not the
        one from which the run has just come to the same end.

    Raises:
        NonFiniteError: it may not go back, or there is no such checkpoint.
    """
    if done >= allowed:
        used = f" (it has gone back {done} times, training.rollback={allowed})" if done else ""
        raise NonFiniteError(f"{error}{used}") from error
    known = rollbacks(folder)
    last = known[-1].to if known else None
    for each in checkpoints(folder):
        damage = verify(each)
        if damage is not None:
            log.warning("%s is damaged (%s); an older checkpoint is tried", each, damage)
            continue
        state = read_state(each)
        if step_of(each) <= step and _good(state):
            if step_of(each) != last or _recorded(state) >= done:
                break
            log.warning("going on from %s came to the same; an older checkpoint is tried", each)
    else:
        raise NonFiniteError(
            f"{error}; there is no {'other ' if done else ''}good checkpoint to go back to "
            "(training.save_steps says how often one is written)"
        ) from error
    found = Rollback(step, step_of(each), done + 1, str(error))
    kept = [before for before in known if before.to < found.to]
    write_json(folder / FILE, [asdict(entry) for entry in (*kept, found)])
    _remove_abandoned(folder, found)
    return each


def settle(folder: Path, step: int | None = None) -> None:
    """Bring to its end what a run was doing that was killed while it went back.

    Args:
        folder: of the run, which is about to be continued.
        step: of the checkpoint it is continued from, where that is given: returns to a later one
            are no part of its course any more.
    """
    known = rollbacks(folder)
    if not known:
        return
    if step is not None and known[-1].to > step:
        kept = [asdict(each) for each in known if each.to <= step]
        write_json(folder / FILE, kept)
    else:
        _remove_abandoned(folder, known[-1])


def _remove_abandoned(folder: Path, last: Rollback) -> None:
    """Remove the checkpoints of a course that the run has left."""
    for each in checkpoints(folder):
        if step_of(each) <= last.to:
            continue
        try:
            left = _recorded(read_state(each)) < last.count
        except (OSError, ValueError, KeyError):  # damaged: nobody goes on from it
            left = True
        if left:
            remove_folder(each)


def _good(state: dict[str, Any]) -> bool:
    """Whether nobody was in the middle of steps that were not finite."""
    rows = [*state["learners"].values(), *state["critics"].values()]
    return all(row["nonfinite"] == 0 for row in rows)


def _recorded(state: dict[str, Any]) -> int:
    return state["parts"]["run"].get("rollbacks", 0)

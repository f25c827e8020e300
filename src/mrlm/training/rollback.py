"""Rollbacks: after too many consecutive steps whose loss was not finite a run returns to its last
good checkpoint and continues with a lower learning rate. The decision is written to the run folder
before anything else changes, so that a run that is killed meanwhile repeats it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrlm.core.errors import NonFiniteError
from mrlm.core.log import log
from mrlm.learn.checkpoint import (
    checkpoints,
    read_state,
    remove_folder,
    step_of,
    verify,
    write_json,
)

FILE = "rollbacks.json"


@dataclass(frozen=True, slots=True)
class Rollback:
    """One return to a checkpoint.

    Args:
        at: iterations that were done when it became necessary.
        to: iterations that were done when the checkpoint was written.
        count: rollbacks of the run until then, this one included.
        why: the error that it would have ended with.
    """

    at: int
    to: int
    count: int
    why: str


def rollbacks(folder: Path) -> list[Rollback]:
    """The rollbacks on a run's current course, in order, without those that a later one undid."""
    try:
        rows = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [Rollback(**row) for row in rows]


def count_at(folder: Path, step: int, recorded: int) -> int:
    """Number of rollbacks of a run that continues from one of its checkpoints.

    Args:
        recorded: their number when the checkpoint was written; the run may have returned to this
            very one since.
    """
    return max([recorded, *(each.count for each in rollbacks(folder) if each.to == step)])


def go_back(folder: Path, step: int, done: int, allowed: int, error: NonFiniteError) -> Path:
    """Chooses the checkpoint for a run whose losses are not finite any more, and removes what the
    run wrote after it.

    Args:
        step: iterations done.
        done: rollbacks so far.
        allowed: their maximal number.
        error: the error that it would end with.

    Returns:
        The newest checkpoint that is undamaged, was not written between such steps, and is not the
        one from which the run has just failed again.

    Raises:
        NonFiniteError: no rollback is allowed, or no such checkpoint exists.
    """
    if done >= allowed:
        used = f" (after {done} rollbacks, training.rollback={allowed})" if done else ""
        raise NonFiniteError(f"{error}{used}") from error
    history = rollbacks(folder)
    last = history[-1].to if history else None
    for checkpoint in checkpoints(folder):
        damage = verify(checkpoint)
        if damage is not None:
            log.warning("%s is damaged (%s); trying an older checkpoint", checkpoint, damage)
            continue
        state = read_state(checkpoint)
        rows = [*state["learners"].values(), *state["critics"].values()]
        if step_of(checkpoint) <= step and all(row["nonfinite"] == 0 for row in rows):
            if step_of(checkpoint) != last or _recorded(state) >= done:
                break
            log.warning("continuing from %s failed again; trying an older checkpoint", checkpoint)
    else:
        raise NonFiniteError(
            f"{error}; no {'other ' if done else ''}good checkpoint exists to go back to "
            "(training.save_steps sets how often one is written)"
        ) from error
    rollback = Rollback(step, step_of(checkpoint), done + 1, str(error))
    earlier = [before for before in history if before.to < rollback.to]
    write_json(folder / FILE, [asdict(entry) for entry in (*earlier, rollback)])
    _remove_abandoned(folder, rollback)
    return checkpoint


def settle(folder: Path, step: int | None = None) -> None:
    """Completes the rollback of a run that was killed during it.

    Args:
        folder: of the run, which is about to be continued.
        step: of the checkpoint it is continued from, where that is given: rollbacks to a later one
            are not part of its course any more.
    """
    history = rollbacks(folder)
    if not history:
        return
    if step is not None and history[-1].to > step:
        write_json(folder / FILE, [asdict(entry) for entry in history if entry.to <= step])
    else:
        _remove_abandoned(folder, history[-1])


def _remove_abandoned(folder: Path, last: Rollback) -> None:
    """Removes the checkpoints of a course that the run has left."""
    for checkpoint in checkpoints(folder):
        if step_of(checkpoint) <= last.to:
            continue
        try:
            left = _recorded(read_state(checkpoint)) < last.count
        except (OSError, ValueError, KeyError):  # damaged: never continued from
            left = True
        if left:
            remove_folder(checkpoint)


def _recorded(state: dict[str, Any]) -> int:
    return state["parts"]["run"].get("rollbacks", 0)

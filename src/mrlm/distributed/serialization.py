"""Serialization between the processes of a run: pickles, with the tokens of turns as arrays."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from mrlm.core.errors import TrainingError
from mrlm.core.types import Turn

NAMES = tuple(field.name for field in fields(Turn))
IDS = ("prompt_ids", "completion_ids")


def dumps(value: Any) -> bytes:
    """Pickle a value. Raises `TrainingError`: it contains an object that cannot be pickled."""
    buffer = io.BytesIO()
    try:
        _TurnPickler(buffer, protocol=5).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"the episodes cannot be sent to the other processes: {error}. A task's info "
            "and an episode must hold plain data (or classes of an importable module)"
        ) from error
    return buffer.getvalue()


def loads(data: Any) -> Any:
    """Inverse of `dumps`."""
    return pickle.loads(data)


class _TurnPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Reduce turns by their own rule, and everything else as usual."""
        if type(obj) is not Turn:
            return NotImplemented
        state = {name: getattr(obj, name) for name in NAMES}
        for name in IDS:
            state[name] = np.asarray(state[name], dtype="<i4").tobytes()
        state["logprobs"] = packed_floats(state["logprobs"])
        return Turn, ("", "", [], []), state, None, None, _fill


def packed_floats(numbers: Sequence[float] | None) -> tuple[str, bytes] | None:
    """Numbers in the fewest bits that hold them exactly: 32, or else 64."""
    if numbers is None:
        return None
    wide = np.asarray(numbers, dtype="<f8")
    narrow = wide.astype("<f4")
    exact = np.array_equal(narrow.astype("<f8"), wide, equal_nan=True)
    return ("<f4", narrow.tobytes()) if exact else ("<f8", wide.tobytes())


def _fill(turn: Turn, state: dict[str, Any]) -> None:
    for name in IDS:
        state[name] = np.frombuffer(state[name], dtype="<i4").tolist()
    if state["logprobs"] is not None:
        kind, data = state["logprobs"]
        state["logprobs"] = np.frombuffer(data, dtype=kind).tolist()
    for name, value in state.items():
        setattr(turn, name, value)

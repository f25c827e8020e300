"""Arrays as short strings: `f2:` (float16), `f4:` (float32), `u2:` or `u4:` (unsigned integers),
followed by their little-endian bytes in base64. A constant column is one number."""

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

KINDS = ("f2", "f4", "u2", "u4")
LARGEST_HALF = 65504.0

Packed = float | str | None


def pack_ids(ids: Sequence[int]) -> str:
    """Packs token ids, in two bytes each if all of them fit."""
    return _packed(np.asarray(ids, dtype="<u4"), "u2" if max(ids, default=0) < 1 << 16 else "u4")


def pack_column(column: Any, length: int) -> Packed:
    """Packs a column with one number per token, or one number for all of them (`None` if they are
    not known), of `length` tokens. float16 is used where it holds all the numbers."""
    if column is None:
        return None
    if length and isinstance(column, float) and math.isfinite(column):
        return float(column)
    numbers = np.asarray(column, dtype=np.float64).reshape(-1)
    if length and (numbers == numbers[0]).all():
        constant = float(numbers[0])
        return constant if math.isfinite(constant) else None
    sizes = np.abs(numbers)
    large = (sizes > LARGEST_HALF) & (sizes < math.inf)
    return _packed(numbers, "f4" if large.any() else "f2")


def unpack(packed: Packed, length: int | None = None) -> np.ndarray:
    """Inverse of packing: ids as uint32, numbers as float32; one number needs the `length` in
    tokens. Raises `ValueError`: it is not a packed array."""
    if isinstance(packed, str):
        kind, separator, data = packed.partition(":")
        if kind not in KINDS or not separator:
            raise ValueError(f"not a packed array: {packed[:40]!r}")
        numbers = np.frombuffer(base64.b64decode(data, validate=True), dtype=f"<{kind}")
        return numbers.astype(np.uint32 if kind[0] == "u" else np.float32)
    if packed is None or length is None:
        raise ValueError(f"not a packed array: {packed!r}")
    return np.full(length, packed, np.float32)


def unpack_end(packed: str, count: int) -> list[int]:
    """The last ids, at most `count`, of the result of `pack_ids`. Raises `ValueError`: they are not
    packed ids."""
    if not packed.startswith("u"):
        raise ValueError(f"not packed ids: {packed[:40]!r}")
    return unpack(packed)[-count:].tolist()


def _packed(numbers: np.ndarray, kind: str) -> str:
    data = numbers.astype(f"<{kind}").tobytes()
    return f"{kind}:{base64.b64encode(data).decode()}"

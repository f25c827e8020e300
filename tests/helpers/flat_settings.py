"""Settings by their dotted names."""

from __future__ import annotations

import dataclasses
import re
from typing import Any


def shown(value: Any) -> str:
    """A default as text, without addresses."""
    if callable(value):
        return f"<{getattr(value, '__qualname__', type(value).__name__)}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for field in dataclasses.fields(value):
        each = getattr(value, field.name)
        if dataclasses.is_dataclass(each):
            rows |= flat(each, f"{prefix}{field.name}.")
        else:
            listed = sorted(each) if isinstance(each, frozenset) else each
            rows[prefix + field.name] = shown(listed)
    return rows

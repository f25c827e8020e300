"""Settings by their dotted names, and another value of one, made of its default."""

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


def another(usual: Any) -> Any:
    """A value of the same kind as a default, for arguments without a case; `None`: it needs one."""
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, int | float):
        return usual + 1
    if isinstance(usual, str):
        return f"{usual}x"
    if isinstance(usual, tuple | list) and usual:
        return type(usual)(map(another, usual))
    return None

"""Another value of a setting, made of its default."""

from __future__ import annotations

from typing import Any


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

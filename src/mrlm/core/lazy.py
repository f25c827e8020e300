"""Faces that load what they show when it is first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def face(
    package: str,
    home: Mapping[str, str],
    hint: Callable[[str], str | None] = lambda name: None,
    derived: Callable[[], Mapping[str, Callable[[], Any]]] = dict,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        home: public name -> the module it lives in.
        hint: what to use instead of a name that is not there, for the error.
        derived: further names, each with what makes it; called when `home` does not have a name.
    """

    def get(name: str) -> Any:
        if name == "__all__":
            return sorted({*home, *derived()})
        if name in home:
            value = getattr(importlib.import_module(home[name]), name)
        elif not name.startswith("_") and name in (further := derived()):
            value = further[name]()
        else:
            instead = hint(name)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
                + (f": {instead}" if instead else "")
            )
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home, *derived()})

    return get, names

"""Lazy packages, which load their public names on first use (PEP 562)."""

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
        home: public name -> its module.
        hint: returns the alternative to an unknown name, for the error.
        derived: further names, each with its factory; called for names that are not in `home`.
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

"""What every setting of every algorithm is by default and which values it takes, in one table: a
default that changes is news for users, a bound that is lost lets nonsense in. Where a change is
meant, `python tests/test_algorithm_settings.py` writes the table anew."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrlm.core import registry
from mrlm.core.errors import ConfigError

TABLE = Path(__file__).parent / "fixtures" / "algorithm_settings.yaml"
"""setting -> what it says, or where algorithms differ: what it says -> which of them."""


def classes() -> dict[str, Any]:
    return {name: registry.load("algorithms", name) for name in registry.names("algorithms")}


def bounds(field: Any) -> dict[str, float]:
    """`ge`, `gt`, `le` and `lt` of a setting, as far as it has them."""
    kinds = ("ge", "gt", "le", "lt")
    return {k: getattr(m, k) for m in field.metadata for k in kinds if hasattr(m, k)}


def described(field: Any) -> str:
    limits = "".join(f", {kind} {value:g}" for kind, value in sorted(bounds(field).items()))
    default = field.default if field.default_factory is None else field.default_factory()
    return f"{default}{limits}"


def table() -> dict[str, Any]:
    found: dict[str, dict[str, list[str]]] = {}
    for algorithm, cls in sorted(classes().items()):
        for name, field in cls.__pydantic_fields__.items():
            found.setdefault(name, {}).setdefault(described(field), []).append(algorithm)
    return {
        name: next(iter(rows)) if len(rows) == 1 else rows for name, rows in sorted(found.items())
    }


def test_defaults_and_bounds_are_those_of_the_table() -> None:
    assert table() == yaml.safe_load(TABLE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("algorithm", sorted(registry.names("algorithms")))
def test_values_beyond_the_bounds_are_refused(algorithm: str) -> None:
    cls = classes()[algorithm]
    for name, field in cls.__pydantic_fields__.items():
        for kind, bound in bounds(field).items():
            whole = isinstance(bound, int) and field.annotation is int
            beyond = {
                "ge": bound - 1 if whole else math.nextafter(bound, -math.inf),
                "le": bound + 1 if whole else math.nextafter(bound, math.inf),
                "gt": bound,
                "lt": bound,
            }[kind]
            with pytest.raises((ConfigError, ValueError), match=name):
                cls(**{name: beyond})


if __name__ == "__main__":
    TABLE.write_text(yaml.safe_dump(table(), width=100, default_flow_style=None), encoding="utf-8")

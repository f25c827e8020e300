"""Derived names: every algorithm `X` has an `XTrainer` and an `XConfig`. They are read from the
algorithms' files without importing them."""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mrlm.core import registry


@dataclass(frozen=True, slots=True)
class Face:
    """A public name derived from an algorithm's file.

    Args:
        algorithm: the algorithm's name in the registry.
        kind: the algorithm's class itself, its config class or its trainer.
        config: name of the config class with its defaults.
        defaults: defaults that differ from the algorithm's, for names of other libraries.
        library: the other library whose defaults and counts it has (`mrlm.config.compatible`).
        settings: config path -> value, where that library has no word for it.
        same: setting -> values of that library that describe the behaviour here.
    """

    name: str
    algorithm: str
    kind: Literal["algorithm", "config", "trainer"]
    config: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    library: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    same: Mapping[str, Any] = field(default_factory=dict)


@cache
def faces() -> dict[str, Face]:
    """Public name -> its origin, of every algorithm."""
    return {
        face.name: face
        for algorithm, path in sorted(registry.files("algorithms").items())
        for face in _faces_of(algorithm, path)
    }


_public: list[Callable[[str], Any]] = []


def publish(get: Callable[[str], Any]) -> None:
    """Say how a public name becomes its object; the package itself does."""
    _public[:] = [get]


def attribute(module: str, name: str) -> Any:
    """The derived object `name` of an algorithm's module. Raises `AttributeError`: it is not a
    derived name."""
    face = faces().get(name)
    if face is None or module != f"mrlm.algorithms.{face.algorithm}":
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _public[0](name)


def _faces_of(algorithm: str, path: Path) -> Iterator[Face]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    name = next(
        ast.unparse(node.value) for node in assigned if ast.unparse(node.targets[0]) == "PLUGIN"
    )
    declared: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            declared = {
                statement.target.id: ast.literal_eval(statement.value)
                for statement in node.body
                if isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.target.id in ("face", "also")
                and statement.value is not None
            }
    yield Face(name, algorithm, "algorithm")
    for stem, defaults in {declared.get("face", name): {}, **declared.get("also", {})}.items():
        yield Face(f"{stem}Config", algorithm, "config", f"{stem}Config", defaults)
        yield Face(f"{stem}Trainer", algorithm, "trainer", f"{stem}Config", defaults)

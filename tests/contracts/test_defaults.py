"""Defaults that users rely on, in one table: options of the command line, arguments of the names
that `mrlm` exports, and what every algorithm asks of a run as it comes, with the constants of its
class. Where a change is meant, `python tests/contracts/test_defaults.py` writes the table again."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import pytest
import typer
import yaml

import mrlm
from another_value import flat, shown
from mrlm.cli import command_line
from mrlm.core import registry
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import Spec
from places import FIXTURES

TABLE = FIXTURES / "defaults.yaml"


def options() -> dict[str, Any]:
    """Command -> option -> its default, with its range."""
    found: dict[str, Any] = {}

    def visit(command: Any, path: str) -> None:
        for name, each in getattr(command, "commands", {}).items():
            visit(each, f"{path} {name}")
        found[path] = {
            " ".join(each.opts): _option(each)
            for each in command.params
            if each.name not in ("help", "install_completion", "show_completion")
        }

    visit(typer.main.get_command(command_line()), "mrlm")
    return {path: rows for path, rows in found.items() if rows}


def _option(option: Any) -> str:
    bounds = [getattr(option, each, None) for each in ("min", "max")]
    span = "" if bounds == [None, None] else f" in {bounds[0]}..{bounds[1]}"
    return f"{option.default}{span}{', required' if option.required else ''}"


def arguments() -> dict[str, Any]:
    """Exported name -> argument -> default, of those that have arguments with defaults. Trainers
    and configs are made of algorithms and sections, which have tables of their own."""
    found: dict[str, Any] = {}
    for name in sorted(getattr(mrlm, "__all__")):  # noqa: B009
        if re.search("(Trainer|Config)$", name):
            continue
        value = getattr(mrlm, name)
        if not callable(value) or "mrlm" not in getattr(value, "__module__", ""):
            continue
        if registry_class(value):
            continue
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError:
            continue
        rows = {
            each.name: shown(each.default)
            for each in parameters
            if each.default is not inspect.Parameter.empty
        }
        if rows:
            found[name] = rows
    return found


def registry_class(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("mrlm.algorithms.")


def specs() -> dict[str, Any]:
    """Algorithm -> what of its spec and of its class differs from an algorithm that says nothing;
    and that one."""
    made = {name: registry.load("algorithms", name)() for name in registry.names("algorithms")}
    found = {name: flat(each.spec) | constants(type(each)) for name, each in sorted(made.items())}
    plain = flat(Spec()) | constants(Algorithm)
    return {"": plain} | {
        name: {key: value for key, value in rows.items() if plain.get(key) != value}
        for name, rows in found.items()
    }


def constants(cls: type[Any]) -> dict[str, str]:
    """What a class and its bases say once for all settings (`ClassVar`), but for tables."""
    names = {
        name
        for base in cls.__mro__
        for name, kind in getattr(base, "__annotations__", {}).items()
        if "ClassVar" in str(kind) and not name.startswith("_")
    }
    values = {name: getattr(cls, name) for name in sorted(names) if hasattr(cls, name)}
    return {name: shown(value) for name, value in values.items() if not isinstance(value, Mapping)}


PARTS = {"options": options, "arguments": arguments, "specs": specs}


@pytest.mark.parametrize("part", PARTS)
def test_defaults_are_those_of_the_table(part: str) -> None:
    expected = yaml.safe_load(TABLE.read_text(encoding="utf-8"))[part]
    found = PARTS[part]()
    if part == "specs":  # an algorithm that is not in the table yet is one file and nothing else
        found = {name: rows for name, rows in found.items() if name in expected}
    assert found == expected


if __name__ == "__main__":
    text = yaml.safe_dump({part: made() for part, made in PARTS.items()}, width=100)
    TABLE.write_text(text, encoding="utf-8")

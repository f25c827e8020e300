"""Templates of generated classes, read from `plans.json`. `{k}` is a number that varies; `{a}` to
`{d}` are numbers and `{u}`, `{v}`, `{w}` words sampled for each test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Written:
    """A method of a plan.

    Args:
        name: its name.
        params: source of its parameters.
        asked: its docstring.
        code: body of the reference implementation.
        scripts: statements for tests, joined by `; `; the last is an expression.
        needs: methods that the reference implementation calls.
    """

    name: str
    params: str
    asked: str
    code: str
    scripts: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """A kind of class.

    Args:
        about: its purpose; it mentions `{k}`.
        names: possible names.
        init: its constructor.
        methods: the methods to be written.
        k: possible values of the number.
    """

    about: str
    names: tuple[str, ...]
    init: str
    methods: tuple[Written, ...]
    k: Sequence[int] = range(2, 14)


def _plan(row: Mapping[str, Any]) -> ClassPlan:
    methods = tuple(
        Written(
            **{**each, "scripts": tuple(each["scripts"]), "needs": tuple(each.get("needs", ()))}
        )
        for each in row["methods"]
    )
    numbers = {"k": range(*row["k"])} if "k" in row else {}
    return ClassPlan(row["about"], tuple(row["names"]), row["init"], methods, **numbers)


PLANS: tuple[ClassPlan, ...] = tuple(
    _plan(row)
    for row in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)

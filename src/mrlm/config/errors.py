"""Errors of a config, one line per problem: the dotted key, the given value, the expected value.
Converts pydantic's errors, independently of the section."""

import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from mrlm.config.aliases import WORDS
from mrlm.config.other_libraries import refused_text
from mrlm.core.errors import ConfigError

UNION = re.compile(r"(literal|list|dict|tuple)\[.*\]|bool|int|float|str")
"""A type of a union in the location of an error, as pydantic names it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `key` is the dotted path (empty for the whole file)."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class InvalidConfig(ConfigError):
    """A `ConfigError` with the keys of its problems."""

    def __init__(self, problems: Sequence[Problem], where: str = "") -> None:
        self.problems: list[Problem] = list(problems)
        lines = [str(problem) for problem in self.problems]
        head = f"{where}: " if where else ""
        if len(lines) > 1:
            text = "\n  ".join([f"{head}{len(lines)} problems", *lines])
        else:
            text = head + "".join(lines)
        super().__init__(text)


def show(value: object, most: int = 60) -> str:
    """A short text form of any value, for messages."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= most else text[: most - 3] + "..."


def did_you_mean(key: str, keys: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of known keys."""
    names = sorted(keys)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    near = near or [name for name in names if len(key) > 2 and name.startswith(key)]
    if near:
        return f"; did you mean {near[0]!r}?"
    return f" (known: {', '.join(names)})" if 0 < len(names) <= 60 else ""


def unknown_key(key: str, keys: Iterable[str], prefix: str = "") -> Problem:
    """The problem of an unknown key."""
    path = f"{prefix}.{key}" if prefix else key
    if key in WORDS and prefix:
        setting = WORDS[key].path
        short = setting.removeprefix("algorithm.")
        return Problem(path, f"unknown key; the setting is {short if short in keys else setting}")
    if reason := refused_text(key):
        return Problem(path, reason)
    return Problem(path, f"unknown key{did_you_mean(key, keys)}")


def problems_of(error: ValidationError, model: type[Any], prefix: str = "") -> list[Problem]:
    """Pydantic's errors as problems; those of the types of a union are one."""
    grouped: dict[tuple[Any, ...], list[Any]] = {}
    for entry in error.errors(include_url=False):
        location = tuple(part for part in entry["loc"] if part != "[key]")
        union = len(location) > 1 and UNION.fullmatch(str(location[-1]))
        grouped.setdefault(location[:-1] if union else location, []).append(entry)
    problems = []
    for location, entries in grouped.items():
        several = [_problem({**entry, "loc": location}, model, prefix) for entry in entries]
        end = f", not {show(entries[0]['input'])}"
        texts = [problem.text.removesuffix(end) for problem in several]
        text = " or ".join([texts[0], *(other.removeprefix("must be ") for other in texts[1:])])
        last = several[0].text.removeprefix(texts[0])
        problems.append(Problem(several[0].key, text + last))
    return problems


def _problem(entry: Mapping[str, Any], model: type[Any], prefix: str) -> Problem:
    place = [*filter(None, [prefix]), *map(str, entry["loc"])]
    kind, value, path = entry["type"], entry["input"], ".".join(place)
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown_key(place[-1], _keys_at(model, entry["loc"][:-1]), ".".join(place[:-1]))
    if kind in ("missing", "missing_keyword_only_argument", "missing_argument"):
        return Problem(path, "it is required")
    if kind == "value_error":
        return Problem(path, str(entry["msg"]).removeprefix("Value error, "))
    if kind in ("model_type", "dict_type", "model_attributes_type", "dataclass_type"):
        expected = "a mapping of keys to values"
    elif kind == "literal_error":
        expected = "one of " + entry["ctx"]["expected"].replace("' or '", "', '")
    else:
        expected = str(entry["msg"]).removeprefix("Input should be ").split(", ")[0]
    return Problem(path, f"must be {expected}, not {show(value)}")


def _keys_at(model: type[Any], location: Sequence[Any]) -> list[str]:
    """The keys of the section at a pydantic location."""
    section, inside = model, False
    for part in location:
        if inside:  # a key of a mapping, or an index of a list
            inside = False
            continue
        annotation = _fields(section).get(str(part))
        inner = _section_in(annotation)
        if inner is None:
            return []
        section = inner
        inside = _is_container(annotation)
    return list(_fields(section))


def _fields(model: type[Any]) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in dataclasses.fields(model) if field.init}


def _is_container(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    return origin in (dict, list) or any(map(_is_container, typing.get_args(annotation)))


def _section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, typing.get_args(annotation))), None)

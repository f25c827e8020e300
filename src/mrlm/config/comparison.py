"""Comparison of configs: plain data, dotted keys, and the keys that may change on resumption."""

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from mrlm.config.errors import show
from mrlm.core.registry import source_of

MAY_CHANGE = [
    line
    for line in Path(__file__).with_name("may_change.txt").read_text(encoding="utf-8").split("\n")
    if line and not line.startswith("#")
]
"""Keys (with `*` for any suffix) that may change when a run is resumed."""


def plain(value: object) -> Any:
    """A value as YAML and JSON types: mappings, lists, strings, numbers, booleans, null."""
    if value is None or isinstance(value, bool | float) or type(value) in (int, str):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(inner) for inner in value), key=str)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if inspect.isclass(value) or inspect.isfunction(value):
        return source_of(value)
    return repr(value)


def flatten(data: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; an empty mapping or list is a leaf."""
    if isinstance(data, Mapping) and data:
        inner = data.items()
    elif isinstance(data, list) and data:
        inner = enumerate(data)
    else:
        yield prefix, data
        return
    for key, value in inner:
        yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))


def may_change(key: str) -> bool:
    """Whether a key may change when a run is resumed."""
    return any(fnmatchcase(key, pattern) for pattern in MAY_CHANGE)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` for every leaf that differs and must not."""
    before, after = dict(flatten(old)), dict(flatten(new))
    return [
        f"{key}: {_shown(before, key)} -> {_shown(after, key)}"
        for key in dict.fromkeys([*before, *after])
        if not may_change(key)
        and (key not in before or key not in after or before[key] != after[key])
    ]


def fingerprint(data: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of every leaf that must not change."""
    fixed = {key: value for key, value in flatten(data) if not may_change(key)}
    text = json.dumps(fixed, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return show(leaves[key]) if key in leaves else "(not set)"

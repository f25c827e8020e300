"""Reading and writing YAML so that what was written is what is read: `1e-6` is a number, dates are
text, and no key counts twice. It knows nothing of sections."""

from __future__ import annotations

import re
from typing import Any

import yaml

from mrlm.core.errors import ConfigError

FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""As YAML 1.2 has it; 1.1 asks for a dot and a sign."""
DEEPEST = 64
LARGEST = 1_000_000


class _Loader(yaml.SafeLoader):
    """Safe, and strict about duplicate keys."""


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        try:
            twice = key in seen
        except TypeError as error:
            problem = "a key must be text or a number"
            raise yaml.constructor.ConstructorError(
                None, None, problem, key_node.start_mark
            ) from error
        if twice:
            problem = f"the key {key!r} is there twice (first on line {seen[key].line + 1})"
            raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
        seen[key] = key_node.start_mark
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _class.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read(text: str, where: str) -> Any:
    """The value that a YAML text stands for.

    Args:
        text: one YAML document.
        where: how messages call it.

    Raises:
        ConfigError: a syntax error, with its line; a duplicate key; a value that contains itself.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        _check_size(value, where)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "not valid YAML"
        raise ConfigError(f"{where}{line}: {problem}") from None
    except yaml.reader.ReaderError as error:
        text = f"character {error.position} ({error.reason}) cannot stand in YAML"
        raise ConfigError(f"{where}: {text}") from None
    except RecursionError:
        raise ConfigError(f"{where}: it is nested too deeply") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ConfigError(f"{where}: a value cannot be read: {error}") from error
    return value


def write(value: Any) -> str:
    """Plain data as YAML text."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        default_flow_style=False,
    )


def _check_size(value: Any, where: str) -> None:
    """Refuse what is too deep, or grows too large where aliases are written out."""
    depth, count = _measure(value, {})
    if depth > DEEPEST:
        raise ConfigError(f"{where}: it is nested {depth} levels deep; {DEEPEST} are enough")
    if count > LARGEST:
        raise ConfigError(f"{where}: with its aliases written out it holds {count} values")


def _measure(value: Any, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """(levels, values) of nested data; what is shared is measured once."""
    if not isinstance(value, dict | list):
        return 0, 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value
        sizes = [_measure(each, known) for each in inner]
        levels = 1 + max((depth for depth, _ in sizes), default=0)
        known[id(value)] = levels, 1 + sum(count for _, count in sizes)
    return known[id(value)]

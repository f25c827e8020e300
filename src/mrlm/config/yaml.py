"""Strict reading and writing of YAML: `1e-6` is a number, dates are text, and duplicate keys are
errors."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from mrlm.core.content import DEEPEST, Loader, check_depth
from mrlm.core.errors import ConfigError

Dumper: Any = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper
FLOAT = re.compile(
    r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
    r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
"""Floats of YAML 1.2; 1.1 requires a dot and a sign."""
LARGEST = 1_000_000
MERGED = 10_000
"""Maximum number of entries that `<<` merges into all mappings together."""
TEXT, BOOL, INT = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "int"))
AMBIGUOUS = {BOOL: re.compile("(?i)yes|no|on|off"), INT: re.compile(r"[-+]?0[0-7_]+$")}
"""Text that is a boolean or an octal number in YAML 1.1 only."""
NEVER = re.compile(r"(?!)")
MERGE = "tag:yaml.org,2002:merge"


class _Loader(Loader):
    """A safe loader that rejects duplicate keys."""


class _Dumper(Dumper):
    """A dumper that quotes text which `_Loader` would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, _ in node.value:
        if key_node.tag == MERGE:
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
            problem = f"the key {key!r} is given twice (first on line {seen[key].line + 1})"
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
    """The value of one YAML document; `where` is its name in messages. Raises `ConfigError`: a
    syntax error, with its line; a duplicate key; a value that contains itself."""
    try:
        value = _value(text, where)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "a syntax error"
        raise ConfigError(f"{where}{line}: not valid YAML: {problem}{_fix(problem)}") from None
    except yaml.reader.ReaderError as error:
        text = f"character {error.position} ({error.reason}) is not allowed in YAML"
        raise ConfigError(f"{where}: {text}") from None
    except RecursionError:
        raise ConfigError(f"{where}: it is nested too deeply") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ConfigError(f"{where}: a value cannot be read: {error}") from error
    return value


def _fix(problem: str) -> str:
    """The remedy of two common errors."""
    if "'\\t'" in problem:
        return "; indent with spaces instead of tabs"
    return "; a bracket may be open in a line above" if "expected ',' or" in problem else ""


_Dumper.add_multi_representer(StrEnum, lambda dumper, value: dumper.represent_str(str(value)))


def write(value: object) -> str:
    """Plain data as YAML text."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _value(text: str, where: str) -> Any:
    loader = _Loader(text)
    try:
        check_depth(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError:
        yaml.compose(text, yaml.SafeLoader)  # its errors say more than those of libyaml
        raise
    else:
        if node is None:
            return None
        _check_size(node, where)
        return loader.construct_document(node)
    finally:
        loader.dispose()


@dataclass(slots=True)
class _Sizes:
    """The sizes of nodes with their aliases expanded: depth of lists and mappings, number of
    values, and, in a mapping, number of entries including merged ones. `merged` is the sum over all
    nodes. They are checked before values are constructed, as the expansion of aliases and merges
    grows polynomially with the length of the text."""

    known: dict[int, tuple[int, int, int] | None] = field(default_factory=dict)
    merged: int = 0

    def of(self, node: yaml.Node) -> tuple[int, int, int]:
        """Depth, values and entries; shared nodes are measured once."""
        if not isinstance(node, yaml.CollectionNode):
            _check_octal(node)
            return 0, 1, 0
        if id(node) in self.known:
            size_found = self.known[id(node)]
            if size_found is None:
                problem = "a recursive value: it contains itself"
                raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)
            return size_found
        self.known[id(node)] = None
        entries, parts = 0, list(node.value)
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.tag != MERGE]
            entries, parts = len(pairs), [part for pair in pairs for part in pair]
            for key, _ in pairs:
                _read_as_text(key)
            sources = [value for key, value in node.value if key.tag == MERGE]
            for source in sources:
                many = source.value if isinstance(source, yaml.SequenceNode) else [source]
                brought = sum(self.of(part)[2] for part in many)
                entries, self.merged = entries + brought, self.merged + brought
            parts += sources
        else:
            for part in parts:
                _read_as_text(part)
        sizes = [self.of(part) for part in parts]
        levels = 1 + max((size[0] for size in sizes), default=0)
        size_found = self.known[id(node)] = levels, 1 + sum(size[1] for size in sizes), entries
        return size_found


def _read_as_text(node: yaml.Node) -> None:
    """Make `no` or `010` text: as a key or an item of a list it is a name."""
    if isinstance(node, yaml.ScalarNode) and AMBIGUOUS.get(node.tag, NEVER).match(node.value):
        node.tag = TEXT


def _check_octal(node: yaml.Node) -> None:
    """Reject a number that is octal in YAML 1.1 only."""
    if node.tag == INT and AMBIGUOUS[INT].match(node.value):
        problem = f"{node.value} is octal to some readers; write it without the 0 or quote it"
        raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)


def _check_size(node: yaml.Node, where: str) -> None:
    """Reject a value that is too deep, or too large with its aliases and merges expanded."""
    sizes = _Sizes()
    depth, count, _ = sizes.of(node)
    if depth > DEEPEST:
        raise ConfigError(f"{where}: it is nested more than {DEEPEST} levels deep")
    if count > LARGEST:
        raise ConfigError(f"{where}: with its aliases written out it holds {count} values")
    if sizes.merged > MERGED:
        raise ConfigError(
            f"{where}: its merges (<<) add {sizes.merged} entries to mappings; "
            f"at most {MERGED} are allowed"
        )

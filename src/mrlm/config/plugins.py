"""Conversion of the keys of a section to the arguments of a plug-in's constructor, by its
signature."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from mrlm.config.errors import InvalidConfig, Problem, did_you_mean, show

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def accepted(plugin: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The keyword parameters of a class or function, and whether it accepts any others."""
    parameters = inspect.signature(plugin).parameters
    named = {name: item for name, item in parameters.items() if item.kind in _KEYWORD}
    return named, any(item.kind is item.VAR_KEYWORD for item in parameters.values())


def fitted_arguments(
    plugin: Callable[..., Any], passed: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Keyword arguments as written, checked against the signature of a class or function; `where`
    is the name of the section in messages.

    Names must exist, parameters without a default must be given, and if a parameter has a type its
    value is converted to it (a YAML list becomes a tuple) or rejected.

    Raises:
        ConfigError: one line per problem.
    """
    named, open_ended = accepted(plugin)
    hints = _hints(plugin)
    problems: list[Problem] = []
    arguments: dict[str, Any] = {}
    for name, value in passed.items():
        if name not in named and not open_ended:
            text = f"unknown argument {name!r}{did_you_mean(name, named)}"
            problems.append(Problem(where, text))
            continue
        try:
            arguments[name] = _converted(hints.get(name), value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            expected = str(first["msg"]).removeprefix("Input should be ").split(", ")[0]
            problems.append(Problem(where, f"{name} must be {expected}, not {show(value)}"))
    needed = [name for name, item in named.items() if item.default is item.empty]
    missing = [name for name in needed if name not in passed]
    problems += [Problem(where, f"the argument {name!r} is required") for name in missing]
    if problems:
        raise InvalidConfig(problems)
    return arguments


def _hints(plugin: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters; empty if annotations cannot be resolved in their module. Inherited
    fields of a dataclass are resolved in the module of the class that defines them."""
    fields = dataclasses.is_dataclass(plugin)
    target = plugin if fields else plugin.__init__ if inspect.isclass(plugin) else plugin
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _converted(hint: Any, value: Any) -> Any:
    if hint is None or hint is Any:
        return value
    for config in (ConfigDict(arbitrary_types_allowed=True), None):
        try:
            adapter = TypeAdapter(hint, config=config)
        except (PydanticSchemaGenerationError, PydanticUserError):
            continue
        return adapter.validate_python(value)
    return value

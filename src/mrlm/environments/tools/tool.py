"""The definition of a tool: a typed Python function, its JSON schema, and validation of its
arguments."""

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError, validate_call

from mrlm.core.errors import ConfigError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ARGUMENT = re.compile(r"^\s{2,}(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Example|Examples|Yields):\s*$")


class ToolError(Exception):
    """A tool call failed. The message, one line, is shown to the model."""


@dataclass(frozen=True)
class Kit:
    """A group of tools that share a state per episode.

    Args:
        make: creates the state at the first call of one of its tools in an episode; the state may
            have a method `close`, synchronous or a coroutine function.
        prepare: called when an episode begins, so that errors are raised before the first call.
    """

    name: str
    make: Callable[[], Any]
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Tool:
    """A function that models may call.

    Args:
        description: its description for the model.
        parameters: JSON schema of its arguments, an object.
        function: its implementation; with a kit, the first argument is the kit's state.
        check: raises `ToolError` for invalid arguments, else returns them converted.
        kit: the kit of its state.
        quick: it returns immediately and needs neither a thread nor a deadline.
        deadline: time limit in seconds; `None`: the environment's.
        prepare: called when an episode begins, before its first call.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    check: Callable[[Mapping[str, Any]], dict[str, Any]] = field(repr=False)
    kit: Kit | None = None
    quick: bool = False
    deadline: float | None = None
    prepare: Callable[[], None] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The tool's schema for chat templates and OpenAI-compatible endpoints."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    @property
    def usage(self) -> str:
        """`name(first: type, second: type = default)`."""
        required = self.parameters.get("required", [])
        parts = []
        for name, one in self.parameters.get("properties", {}).items():
            tail = "" if name in required else f" = {json.dumps(one.get('default'))}"
            parts.append(f"{name}: {kind_of(one)}{tail}")
        return f"{self.name}({', '.join(parts)})"

    def arguments(self, named: Mapping[str, Any], positional: Sequence[Any] = ()) -> dict[str, Any]:
        """The arguments of a call by name, checked and converted. Raises `ToolError`: an argument
        is wrong; the message names it and the expected value."""
        names = list(self.parameters.get("properties", {}))
        if len(positional) > len(names):
            raise ToolError(f"{self.name} takes {len(names)} arguments: {self.usage}")
        placed = dict(zip(names, positional, strict=False))
        twice = next((name for name in placed if name in named), None)
        if twice is not None:
            raise ToolError(f"{self.name}: argument {twice!r} is there twice")
        return self.check({**placed, **named})


def tool_of(
    function: Callable[..., Any],
    name: str | None = None,
    description: str | None = None,
    kit: Kit | None = None,
    quick: bool = False,
    deadline: float | None = None,
) -> Tool:
    """A tool from a typed function, sync or async. Its schema comes from its hints, the
    descriptions from its docstring (the first paragraph, and a Google-style `Args:` section).

    Args:
        function: the function; with a kit, a method of the class of the kit's state.
        name, description: instead of the function's.
        kit, quick, deadline: see `Tool`.

    Raises:
        ConfigError: the name is invalid, or a parameter has no type, is positional only, or is
            `*args` or `**kwargs`.
    """
    called = name or getattr(function, "__name__", "")
    if not NAME.fullmatch(called):
        raise ConfigError(
            f"tool {called!r}: a name must be at most 64 letters, digits and _; set it with name="
        )
    signature, hints = _signature(function, called, kit is not None)
    summary, described = _documented(inspect.getdoc(function) or "")

    def received(**arguments: Any) -> dict[str, Any]:
        return arguments

    received.__signature__ = signature  # type: ignore[attr-defined]
    received.__annotations__ = hints
    try:
        validated = validate_call(received)
        schema = TypeAdapter[Any](received).json_schema()  # type: ignore[arg-type]
    except (PydanticUserError, TypeError, NameError) as error:
        reason = str(error).split("\n")[0]
        raise ConfigError(f"tool {called!r}: its types have no JSON schema ({reason})") from error
    parameters = _plain_schema(schema, described)

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return validated(**arguments)
        except ValidationError as error:
            raise ToolError(f"{called}: {_complaint(error, parameters)}") from error

    return Tool(
        called, description or summary or called, parameters, function, check, kit, quick, deadline
    )


def sayable(text: str) -> str:
    """An encodable text: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def as_text(value: Any) -> str:
    """The result of a tool as text for the model."""
    if isinstance(value, str):
        return value
    if value is None:
        return "done"
    if isinstance(value, bool | int | float):
        return json.dumps(value) if isinstance(value, bool) else repr(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def kind_of(schema: Any) -> str:
    """A short name of the type of a JSON schema."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " | ".join(kind_of(one) for one in schema[word])
    kind = schema.get("type", "any")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {kind_of(schema['items'])}"
    return str(kind)


def _signature(
    function: Callable[..., Any], called: str, bound: bool
) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature for the model, with resolved type hints."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {called!r}: its signature cannot be read ({error})") from error
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ConfigError(
                f"tool {called!r}: parameter {one.name!r} must not be positional only, *args or "
                "**kwargs"
            )
        if one.name not in hints:
            raise ConfigError(
                f"tool {called!r}: parameter {one.name!r} needs a type, such as {one.name}: str"
            )
    parameters = [one.replace(annotation=hints[one.name]) for one in parameters]
    types = {one.name: hints[one.name] for one in parameters}
    return inspect.Signature(parameters), types


def _documented(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and the descriptions in its `Args:`."""
    summary = " ".join(docstring.split("\n\n")[0].split())
    described: dict[str, str] = {}
    section = ""
    for line in docstring.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif section in ("Args", "Arguments") and (entry := _ARGUMENT.match(line)):
            described[entry[1]] = entry[2].strip()
    return summary, described


def _plain_schema(schema: dict[str, Any], described: Mapping[str, str]) -> dict[str, Any]:
    """The schema of the arguments without titles, with descriptions."""
    properties = {}
    for name, one in schema.get("properties", {}).items():
        field = {key: value for key, value in one.items() if key != "title"}
        if name in described:
            field["description"] = described[name]
        properties[name] = field
    plain: dict[str, Any] = {"type": "object", "properties": properties}
    plain["required"] = list(schema.get("required", []))
    if "$defs" in schema:
        plain["$defs"] = schema["$defs"]
    return plain


def _complaint(error: ValidationError, parameters: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    properties = parameters["properties"]
    name = path[0] if path else ""
    if first["type"] == "unexpected_keyword_argument":
        return f"there is no argument {name[:40]!r}; it takes {', '.join(properties) or 'none'}"
    kind = kind_of(properties.get(name))
    if first["type"].startswith("missing"):
        return f"argument {name!r} is missing ({kind})"
    got = json.dumps(first["input"], default=str)
    got = got if len(got) <= 40 else got[:40] + "..."
    return f"argument {'.'.join(path)!r} must be {kind}, not {got}"

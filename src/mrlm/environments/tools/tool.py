"""What a tool is: a typed Python function, its JSON schema, and the check of what it is called
with. It knows neither agents nor rewards."""

from __future__ import annotations

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
    """A call that has no result. The message, one line, is what the model is told."""


@dataclass(frozen=True)
class Kit:
    """Tools that share a state which every episode has for itself.

    Args:
        name: of the group.
        make: makes the state when one of its tools is first called in an episode; the state may
            have a method `close`, ordinary or a coroutine.
        prepare: called when an episode begins, so that what cannot work is said before the first
            call.
    """

    name: str
    make: Callable[[], Any]
    prepare: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Tool:
    """A function that models may call.

    Args:
        name: what it is called by.
        description: what it does, for the model.
        parameters: JSON schema of its arguments, an object.
        function: what is run; with a kit, its first argument is the kit's state.
        check: raises `ToolError` for arguments that do not fit, else returns them converted.
        kit: where its state comes from.
        quick: it answers at once and needs neither a thread nor a deadline.
        deadline: seconds it may take; `None` is the world's.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    check: Callable[[Mapping[str, Any]], dict[str, Any]] = field(repr=False)
    kit: Kit | None = None
    quick: bool = False
    deadline: float | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI-compatible endpoints take it."""
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
        """The arguments of a call by name, checked and converted.

        Raises:
            ToolError: which argument is wrong, and what was wanted.
        """
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
        function: the function; with a kit, a method of the kit's state as the class has it.
        name, description: other ones than the function's.
        kit, quick, deadline: see `Tool`.

    Raises:
        ConfigError: the name cannot be called, or a parameter has no type, is positional only, or
            is `*args` or `**kwargs`.
    """
    called = name or getattr(function, "__name__", "")
    if not NAME.fullmatch(called):
        raise ConfigError(
            f"tool {called!r}: a name is letters, digits and _, at most 64; give it with name="
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
    """A text that can be encoded: halves of surrogate pairs are replaced."""
    return text.encode("utf-8", "replace").decode()


def as_text(value: Any) -> str:
    """What a tool returned, as the model reads it."""
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
    """The type of a JSON schema in a word or two."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(kind_of(one) for one in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {kind_of(schema['items'])}"
    return str(kind)


def _signature(
    function: Callable[..., Any], called: str, bound: bool
) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature a model sees, with every hint resolved."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {called!r}: its signature cannot be read ({error})") from error
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ConfigError(f"tool {called!r}: parameter {one.name!r} must be an ordinary one")
        if one.name not in hints:
            raise ConfigError(
                f"tool {called!r}: parameter {one.name!r} needs a type, such as {one.name}: str"
            )
    parameters = [one.replace(annotation=hints[one.name]) for one in parameters]
    kept = {one.name: hints[one.name] for one in parameters}
    return inspect.Signature(parameters), kept


def _documented(docstring: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a docstring, and what its `Args:` says of each argument."""
    summary = " ".join(docstring.split("\n\n")[0].split())
    described: dict[str, str] = {}
    section = ""
    for line in docstring.splitlines():
        if heading := _SECTION.match(line):
            section = heading[1]
        elif section in ("Args", "Arguments") and (found := _ARGUMENT.match(line)):
            described[found[1]] = found[2].strip()
    return summary, described


def _plain_schema(schema: dict[str, Any], described: Mapping[str, str]) -> dict[str, Any]:
    """The schema of the arguments without titles, with descriptions."""
    properties = {}
    for name, one in schema.get("properties", {}).items():
        kept = {key: value for key, value in one.items() if key != "title"}
        if name in described:
            kept["description"] = described[name]
        properties[name] = kept
    plain: dict[str, Any] = {"type": "object", "properties": properties}
    plain["required"] = list(schema.get("required", []))
    if "$defs" in schema:
        plain["$defs"] = schema["$defs"]
    return plain


def _complaint(error: ValidationError, parameters: Mapping[str, Any]) -> str:
    """The first thing that is wrong with arguments, in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"]]
    known = parameters["properties"]
    name = place[0] if place else ""
    if first["type"] == "unexpected_keyword_argument":
        return f"there is no argument {name[:40]!r}; it takes {', '.join(known) or 'none'}"
    wanted = kind_of(known.get(name))
    if first["type"].startswith("missing"):
        return f"argument {name!r} is missing ({wanted})"
    got = json.dumps(first["input"], default=str)
    got = got if len(got) <= 40 else got[:40] + "..."
    return f"argument {'.'.join(place)!r} must be {wanted}, not {got}"

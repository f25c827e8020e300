"""The messages between a remote sandbox and its server, as plain JSON, checked when received."""

import base64
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_args

from mrlm.core.errors import ConfigError
from mrlm.sandbox.types import Limits, SandboxResult, Status, Usage

T = TypeVar("T")

STATUSES: tuple[str, ...] = get_args(Status)


class WireError(Exception):
    """A malformed message; the text names the place."""


def written(message: Any) -> bytes:
    """Encode a message; fails if it is not plain JSON."""
    try:
        return json.dumps(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"not plain JSON: {error}") from None


def read(data: bytes) -> dict[str, Any]:
    """Decode a JSON object; fails if it is something else."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from None
    if type(content) is not dict:
        raise WireError("not a JSON object")
    return content


def field(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A field of a message; fails if it is missing, or not of exactly this type."""
    value = message.get(name)
    if type(value) is not kind:
        raise WireError(f"{name!r} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def seconds(message: Mapping[str, Any], name: str) -> float:
    """A field that holds a positive number of seconds."""
    value: Any = message.get(name)
    if type(value) not in (int, float) or not 0 < value < 1e9:
        raise WireError(f"{name!r} must be a positive number of seconds")
    return float(value)


def identity(message: Mapping[str, Any], name: str = "id") -> str:
    """A field that holds an identifier made by the client."""
    value = field(message, name, str)
    if not (16 <= len(value) <= 64 and value.isascii() and value.isalnum()):
        raise WireError(f"{name!r} must be 16 to 64 letters and digits")
    return value


def files_out(files: Mapping[str, bytes] | None) -> dict[str, str]:
    """Encode files."""
    return {path: base64.b64encode(data).decode() for path, data in (files or {}).items()}


def files_in(message: Mapping[str, Any]) -> dict[str, bytes]:
    """Decode files."""
    files = field(message, "files", dict)
    try:
        return {path: base64.b64decode(data, validate=True) for path, data in files.items()}
    except (TypeError, ValueError):
        raise WireError("files must be base64") from None


def limits_in(message: Mapping[str, Any]) -> Limits | None:
    """Decode limits; `None` if the server's own apply."""
    if message.get("limits") is None:
        return None
    values = field(message, "limits", dict)
    names = {one.name for one in fields(Limits)}
    for name, value in values.items():
        if name not in names:
            raise WireError(f"unknown limit {name!r}")
        if type(value) not in (int, float) and not (name == "cpu" and value is None):
            raise WireError(f"limit {name!r} must be a number")
        if type(value) is float and name not in ("wall", "cpu"):
            raise WireError(f"limit {name!r} must be a whole number")
    try:
        return Limits(**values)
    except (ConfigError, OverflowError) as error:
        raise WireError(str(error)) from None


def result_in(message: Mapping[str, Any]) -> SandboxResult:
    """Decode a result."""
    status, usage = field(message, "status", str), field(message, "usage", dict)
    if status not in STATUSES:
        raise WireError(f"unknown status {status!r}")
    numbers = [usage.get(name) for name in ("wall", "cpu", "memory")]
    code = message.get("exit_code")
    if any(type(n) not in (int, float) for n in numbers) or type(code) not in (int, type(None)):
        raise WireError("'usage' and 'exit_code' must be numbers")
    texts = {name: field(message, name, str) for name in ("stdout", "stderr", "reason")}
    if (status == "ok") != (code == 0):
        raise WireError(f"the status is {status!r}, and the exit code {code}")
    return SandboxResult(status, usage=Usage(*numbers), exit_code=code, **texts)  # type: ignore[arg-type]

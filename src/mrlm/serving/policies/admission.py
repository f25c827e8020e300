"""Admission checks of a server, made before anything is parsed or built. They depend on no protocol
library. What is refused raises `Refusal`."""

import json
from dataclasses import dataclass
from math import isinf
from typing import Any, Literal

from mrlm.core.errors import MRLMError, no_constant
from mrlm.core.sampling import FIELDS, SamplingParams

CHARACTERS_PER_TOKEN = 16
"""Most characters per prompt token, on average; a text longer than that times the context length is
rejected before it is tokenised."""
HIGHEST = {"temperature": 100}
"""Bounds of a server for sampling parameters that have none."""

Kind = Literal[
    "unknown", "bad", "long", "busy", "asleep", "slow", "failed", "forbidden",
    "denied", "browser", "late", "large", "gone",
]  # fmt: skip


class Refusal(MRLMError):
    """A request that is refused.

    Args:
        kind: the reason, translated by each protocol: `unknown` (no such policy), `bad` and `long`
            (the request can never be answered), `busy` and `asleep` (a retry may succeed), `slow`
            (the deadline passed), `forbidden`, `failed` (an error of this server; its log says
            more); over HTTP also `denied` (no token), `browser`, `late`, `large` and `gone`.
        message: text for the client.
        field: the part of the request that is wrong.
    """

    def __init__(self, kind: Kind, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.field: str | None = field


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of one server for requests over HTTP.

    Args:
        body: bytes of one request's body.
        bodies: bytes of all bodies that are held at the same time.
        parts: objects, lists and names in one body.
        head_seconds: time limit for a request's head (or a TLS handshake).
        body_seconds: time limit for a body.
        read_seconds: time limit for a client that reads nothing of its answer.
        connections: open at the same time.
        per_address: open at the same time from one address.
    """

    body: int = 4 << 20
    bodies: int = 64 << 20
    parts: int = 100_000
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    read_seconds: float = 20.0
    connections: int = 512
    per_address: int = 256


def parsed(data: bytes | bytearray, parts: int) -> dict[str, Any]:
    """Parse a body as a JSON object; an empty body gives an empty one. Its objects, lists and names
    are counted before parsing, including brackets and colons within texts. Raises `Refusal`: it is
    not a JSON object, or holds more than `parts`."""
    if not data:
        return {}
    if sum(map(data.count, (b"{", b"[", b":"))) > parts:
        raise Refusal("bad", f"the body holds more than {parts} objects, lists and names")
    try:
        body = json.loads(data.decode(), parse_constant=no_constant)
        if b"\\ud" in data or b"\\uD" in data:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeError:
        raise Refusal(
            "bad", "the body is not JSON: half of a surrogate pair in it, or not UTF-8"
        ) from None
    except (ValueError, RecursionError):
        raise Refusal("bad", "the body is not JSON") from None
    if not isinstance(body, dict):
        raise Refusal("bad", "the body must be a JSON object")
    return body


def check_size(characters: int, max_context: int) -> None:
    """Refuse a text that cannot fit whatever its tokens are. Raises `Refusal`: it is longer than
    `CHARACTERS_PER_TOKEN` for every token of the context."""
    if characters > CHARACTERS_PER_TOKEN * max_context:
        raise Refusal(
            "long",
            f"the maximum context length is {max_context} tokens; a prompt of {characters} "
            "characters does not fit",
        )


def checked_sampling(sampling: SamplingParams) -> SamplingParams:
    """Check sampling parameters for use by an engine. Raises `Refusal`: one is out of range."""
    for name, entry in FIELDS.items():
        value = getattr(sampling, name)
        if entry.kind is tuple:
            good = len(value) <= 16 and all(0 < len(text) <= 1000 for text in value)
            allowed = "at most 16 texts of 1 to 1000 characters"
        else:
            low, high = entry.low, HIGHEST.get(name, entry.high)
            good = (low < value if entry.above else low <= value) and value <= high
            allowed = f"at least {low:g}" if isinf(high) else f"from {low:g} to {high:g}"
            allowed = f"above {low:g} and at most {high:g}" if entry.above else allowed
        if not good:
            raise Refusal("bad", f"{name} must be {allowed}", name)
    return sampling


def count_repeated(data: bytes, field: int, most: int) -> int:
    """Count the occurrences of a field, given by its number, in a protobuf message, up to one above
    `most`, without building objects. A malformed message is counted as far as it can be read."""
    offset = count = 0
    while offset < len(data) and count <= most:
        tag, offset = _varint(data, offset)
        count += tag >> 3 == field
        kind = tag & 7
        if kind == 0:
            _, offset = _varint(data, offset)
        elif kind == 2:
            size, offset = _varint(data, offset)
            offset += size
        elif kind in (1, 5):
            offset += 8 if kind == 1 else 4
        else:
            break
    return count


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A varint of a protobuf message and its end."""
    value = shift = 0
    while offset < len(data) and shift < 70:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, offset

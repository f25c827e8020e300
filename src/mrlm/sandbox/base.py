"""Parts that sandboxes share: the check of their settings, a second try when one fails, and the
requests of a session."""

import json
import secrets
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.core.registry import unknown
from mrlm.core.sync_async import in_thread
from mrlm.sandbox.types import AnswerError, SandboxError, SandboxResult, SessionEnded, Status

MOST_ANSWER = 1 << 20
"""Most bytes of an answer."""


def tried_twice(work: Callable[[], SandboxResult]) -> SandboxResult:
    """The result of a run, which is repeated once if the sandbox fails."""
    reason = ""
    for _ in range(2):
        try:
            return work()
        except SandboxError as error:
            reason = str(error)
    return SandboxResult("infra_error", reason=reason)


def check_words(kind: str, words: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse arguments of a sandbox in a config that it does not have."""
    for word in words:
        if word not in names:
            raise ConfigError(unknown(word, list(names), f"{kind} sandbox"))


def check_positive(kind: str, **values: float) -> None:
    """Refuse settings of a sandbox that are not positive numbers."""
    for word, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise ConfigError(f"{word} of a {kind} sandbox must be positive, not {value!r}")


class FramedSession(ABC):
    """A session whose requests and answers are frames: a length in four bytes, then JSON."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = True
        self._read = bytearray()

    @abstractmethod
    def _exchange(self, data: bytes, wall: float, stop: threading.Event) -> None:
        """Send a frame, and read until none of the answer is `_missing`."""

    @abstractmethod
    def _end(self, cause: Status) -> None:
        """Kill the program."""

    @abstractmethod
    def close_now(self) -> None:
        """`close` for blocking callers."""

    async def close(self) -> None:
        await in_thread(self.close_now)

    def _begin(self, wall: float, stop: threading.Event) -> None:
        """Wait until the program can answer."""
        try:
            self._asked(None, wall, stop)
        except AnswerError as error:
            self._end("error")
            raise SessionEnded("error", str(error)) from error

    def _asked(self, request: Any, wall: float, stop: threading.Event) -> Any:
        with self._lock:
            if not self._open:
                raise SessionEnded("killed", "the session is closed")
            number = secrets.token_hex(8)
            data = json.dumps({"id": number, "request": request}).encode()
            try:
                self._exchange(struct.pack("<I", len(data)) + data, wall, stop)
                reply = self._reply()
                if type(reply) is not dict or reply.get("id") != number:
                    raise SessionEnded("error", "its answer is malformed")
            except (SessionEnded, SandboxError) as error:
                self._end(error.status if isinstance(error, SessionEnded) else "infra_error")
                raise
            if "answer" not in reply:
                message = reply.get("failed")
                message = message[:1000] if isinstance(message, str) else "it failed"
                raise AnswerError(message.encode("utf-8", "replace").decode())
            return reply["answer"]

    def _missing(self) -> int:
        """Bytes that are known to be missing of the answer; below 0 if there are too many."""
        size = 4
        if len(self._read) >= size:
            content = struct.unpack_from("<I", self._read)[0]
            size += content
            if content > MOST_ANSWER:
                raise SessionEnded("output_limit", f"its answer has {content} bytes")
        return size - len(self._read)

    def _reply(self) -> Any:
        whole, data, self._read = not self._missing(), bytes(self._read[4:]), bytearray()
        try:
            return json.loads(data) if whole else None
        except (ValueError, RecursionError) as error:
            raise SessionEnded("error", "its answer is malformed") from error

"""A sandbox on another machine, where `server` runs. Failures of the connection are `infra_error`
or `SandboxError`, never a verdict on the program."""

import asyncio
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from mrlm.core.errors import ConfigError, EngineError
from mrlm.core.retries import Retries
from mrlm.core.sync_async import in_thread, run_async
from mrlm.sandbox.base import check_positive, check_words
from mrlm.sandbox.remote import wire
from mrlm.sandbox.remote.calling import Unanswered, address_of, answer, answer_now, token_in
from mrlm.sandbox.types import (
    AnswerError,
    Limits,
    Sandbox,
    SandboxError,
    SandboxResult,
    SandboxUnavailableError,
    SessionEnded,
)

log: logging.Logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "MRLM_SANDBOX_TOKEN"
"""Environment variable that holds the token if no file is named."""
WORDS = ("url", "token_file", "ca_file", "grace", "patience", "attempts")
"""Its arguments in a config."""
MOST_REPLY = 8 << 20
"""Most bytes of an answer, besides the program's output."""
CODED = 6
"""Most bytes that encode one byte of output: a control code in JSON."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0
"""Shortest and longest pause, in seconds, before an unanswered request is sent again."""
CLOSING = 5.0
"""Seconds allowed for closing a session; otherwise it ends with its lease."""


class RemoteSandbox(Sandbox["RemoteSession"]):
    """A sandbox that runs programs on another machine.

    A request has an id, and the server executes it once, so it is sent again if no answer arrives.
    A busy server is tried again after the time that it requests.

    Args:
        url: `https://host:port`, or `http://` to this machine.
        token: the server's; else it is read from `token_file`, else from the environment variable
            `MRLM_SANDBOX_TOKEN`.
        token_file: a file that no other user may read.
        ca_file: certificates to trust, in place of the system's.
        limits: default limits of programs.
        grace: seconds allowed for an answer besides the program's own time.
        patience: seconds to wait for a busy server.
        attempts: most times that an unanswered request is sent.

    Raises:
        ConfigError: the URL or the token cannot be used.
    """

    name: str = "remote"

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        token_file: str | None = None,
        ca_file: str | None = None,
        limits: Limits | None = None,
        grace: float = 20.0,
        patience: float = 300.0,
        attempts: int = 3,
    ) -> None:
        if token is None:
            token = token_in(token_file) if token_file else os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(
                f"the sandbox {url} requires a token: name a token_file, or set {TOKEN_VARIABLE}"
            )
        check_positive("remote", grace=grace, patience=patience, attempts=attempts)
        super().__init__(limits)
        self.url = url
        self.grace: float = grace
        self.patience: float = patience
        self.attempts: int = attempts
        self._address = address_of(url, token, ca_file)

    async def _run(
        self, program: str, stdin: str, files: Mapping[str, bytes], limits: Limits
    ) -> SandboxResult:
        message = _request(program, files, limits) | {"stdin": stdin}
        try:
            reply = await self.post("/run", message, limits.wall, CODED * limits.output)
            return wire.result_in(reply)
        except (SandboxError, wire.WireError) as error:
            return SandboxResult("infra_error", reason=f"{self.url}: {error}")

    async def _session(
        self, program: str, files: Mapping[str, bytes], limits: Limits
    ) -> "RemoteSession":
        message = _request(program, files, limits)
        _said(await self.post("/session/open", message, limits.wall), "opened")
        return RemoteSession(self, message["id"])

    async def health(self) -> dict[str, Any]:
        """The server's description of itself; fails if it does not answer or accept the token."""
        reply = await answer(self._address, "/health", None, self.grace, MOST_REPLY)
        content = self._content(reply.code, reply.data)
        if not isinstance(content.get("sandbox"), str):
            raise SandboxError("the server at this URL is not a sandbox")
        return content

    def check(self) -> None:
        """Check the server. Raises `SandboxUnavailableError`: no answer, or the token is wrong."""
        try:
            health = run_async(self.health())
        except SandboxError as error:
            raise SandboxUnavailableError(
                f"the sandbox {self.url} cannot be used: {error}; start it there with "
                "python -m mrlm.sandbox.remote.server --token-file FILE, with the same token"
            ) from None
        log.info("sandbox: %s on %s", health.get("sandbox"), self.url)

    def close(self) -> None:
        run_async(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self._sessions)))

    def leave(self, session: str) -> None:
        """Close a session; one that cannot be reached ends with its lease. Blocks."""
        data = wire.written({"session": session})
        try:
            answer_now(self._address, "/session/close", data, CLOSING, MOST_REPLY)
        except Unanswered as error:
            log.debug("a session could not be closed: %s", error)

    async def post(
        self, path: str, message: Mapping[str, Any], wall: float, most: int = 0
    ) -> dict[str, Any]:
        """Send a request, which holds an id or a number so that the server executes it once, until
        an answer arrives; fails with the reason if none does. The program has `wall` seconds, and
        the answer `most` bytes besides the usual ones."""
        try:
            data = wire.written(message)
        except wire.WireError as error:
            raise SandboxError(f"the request cannot be sent: {error}") from None
        busy_until = time.monotonic() + self.patience

        async def answered() -> dict[str, Any]:
            while True:
                seconds = wall + self.grace
                reply = await answer(self._address, path, data, seconds, MOST_REPLY + most)
                if reply.code != 429 or time.monotonic() >= busy_until:
                    return self._content(reply.code, reply.data)
                wait = min(1.0 if reply.retry_after is None else reply.retry_after, 60.0)
                await asyncio.sleep(max(wait, 0.05) * (1 + random.random() / 4))

        try:
            retries = Retries(int(self.attempts) - 1, FIRST_PAUSE, LONGEST_PAUSE)
            return await retries.run(answered, "the server")
        except EngineError as error:
            raise SandboxError(str(error)) from None

    def _content(self, code: int, data: bytes) -> dict[str, Any]:
        """Parse an answer; `Unanswered` if a retry may succeed, else `SandboxError`."""
        try:
            content = wire.read(data)
        except wire.WireError as error:
            content = {"error": str(error)}
            if code == 200:
                raise Unanswered(f"the answer is damaged: {error}") from None
        if code == 200:
            return content
        message = f"the server answers {code}: {ascii(content.get('error', ''))[:300]}"
        raise Unanswered(message) if code in (500, 502, 503, 504) else SandboxError(message)


class RemoteSession:
    """A program on another machine that answers requests, until its lease expires."""

    def __init__(self, sandbox: RemoteSandbox, name: str) -> None:
        self._sandbox, self._name = sandbox, name
        self._number = 0
        self._turn = asyncio.Lock()
        self._open = True

    async def ask(self, request: Any, wall: float) -> Any:
        message = {"session": self._name, "request": request, "wall": wall}
        async with self._turn:
            if not self._open:
                raise SessionEnded("killed", "the session is closed")
            self._number += 1
            message["number"] = self._number
            try:
                return _said(await self._sandbox.post("/session/ask", message, wall), "answer")
            except AnswerError:
                raise
            except BaseException:  # it is over, or in an unknown state
                self._open = False
                threading.Thread(
                    target=self._sandbox.leave, args=(self._name,), daemon=True
                ).start()
                raise

    async def close(self) -> None:
        if self._open:  # a pending request gets its answer first, or its deadline
            self._open = False
            await in_thread(lambda: self._sandbox.leave(self._name))


def _request(program: str, files: Mapping[str, bytes], limits: Limits) -> dict[str, Any]:
    return {
        "id": secrets.token_hex(16),
        "program": program,
        "files": wire.files_out(files),
        "limits": asdict(limits),
    }


def _said(reply: Mapping[str, Any], key: str) -> Any:
    """The answer of a session, or its error as reported by the server."""
    if key in reply:
        return reply[key]
    message = str(reply.get("failed") or reply.get("reason") or reply.get("broken") or "")[:1000]
    if "failed" in reply:
        raise AnswerError(message)
    status = reply.get("ended")
    if isinstance(status, str) and status in wire.STATUSES:
        raise SessionEnded(status, message)  # type: ignore[arg-type]
    raise SandboxError(message or "the server's answer is malformed")


def from_words(words: Mapping[str, Any], limits: Limits | None = None) -> RemoteSandbox:
    """Open the sandbox of a config, whose arguments are `WORDS` (only `url` is required), and check
    its server. Raises `ConfigError`: an argument is missing or unknown; `SandboxUnavailableError`:
    the server does not answer."""
    if "token" in words:
        raise ConfigError(
            "a token does not belong in a config, which is saved with every run: name a "
            f"token_file, or set {TOKEN_VARIABLE}"
        )
    check_words("remote", words, WORDS)
    for word, value in words.items():
        if word.endswith("_file") and not isinstance(value, str):
            raise ConfigError(f"{word} of a remote sandbox must be a path, not {value!r}")
    if not isinstance(words.get("url"), str):
        raise ConfigError("isolation: remote needs the url of a server, https://host:port")
    sandbox = RemoteSandbox(limits=limits, **words)
    sandbox.check()
    return sandbox

"""Tools of an MCP server (Model Context Protocol). One connection, in a thread with its own event
loop, serves all episodes, so that they share the server's state."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.environments.shared.rows import SharedByCopies
from mrlm.environments.tools.registry import ToolRegistry
from mrlm.environments.tools.tool import Tool, ToolError, kind_of

START = 30.0
"""Time limit for starting a server, in seconds."""
TIMEOUT = 20.0
"""Time limit of a call in seconds; exceeding it is an error shown to the model."""
MOST_TOOLS = 1000
MOST_PAGES = 100
"""Maximum numbers of tools and of pages that a server may list."""


class MCPServer(SharedByCopies):
    """A connection to an MCP server.

    Args:
        command: program and arguments of a server over standard input and output; it runs with the
            permissions of this process, so use only one you trust.
        url: URL of an HTTP server, instead.
        env: environment variables of the command, in addition to a minimal set.
        prefix: prefix of the names of its tools.
        timeout: time limit of a call in seconds.

    A server started here ends with this process, even if that is killed, and with `close`.

    Raises:
        ConfigError: neither or both of command and url are given; the package mcp is not installed;
            the server does not answer; or it lists too many tools.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        prefix: str = "",
        timeout: float = TIMEOUT,
    ) -> None:
        if (command is None) == (url is None):
            raise ConfigError("mcp_servers: give either command or url of an MCP server")
        if isinstance(command, str) or (command is not None and not command):
            raise ConfigError("mcp_servers: command must be a list: the program and its arguments")
        self.title: str = url or " ".join(command or ())
        self.prefix = prefix
        self.timeout = timeout
        target = _target(command, url, env)
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._listed: list[Any] = []
        job = threading.Thread(target=lambda: asyncio.run(self._serve(target)), daemon=True)
        self._thread = job
        job.start()
        if not self._ready.wait(START):
            self.close()
            raise ConfigError(f"the MCP server {self.title!r} did not answer within {START:g} s")
        if self._failed is not None:
            if isinstance(first := _innermost(self._failed), ConfigError):
                raise first
            raise ConfigError(
                f"the MCP server {self.title!r} could not be reached: {_first(self._failed)}"
            ) from self._failed
        atexit.register(self.close)

    def tools(self) -> list[Tool]:
        """The tools of the server."""
        return [self._tool(one) for one in self._listed]

    def join(self, registry: ToolRegistry) -> MCPServer:
        """Register its tools; returns itself, to be closed at the end."""
        for tool in self.tools():
            registry.register(tool)
        return self

    def close(self) -> None:
        """End the connection, and the server if it was started here."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(10.0)
        atexit.unregister(self.close)

    def _stop(self) -> None:
        if self._client is not None and self._end is not None:
            self._end.set()
        elif self._task is not None:
            self._task.cancel()

    async def _serve(self, target: Any) -> None:
        """Open, serve and close the connection in one task, as the library requires."""
        from mcp import Client

        self._end, self._task = asyncio.Event(), asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        try:
            async with Client(target, read_timeout_seconds=self.timeout + 10) as client:
                self._listed = await self._pages(client)
                self._client = client
                self._ready.set()
                await self._end.wait()
        except BaseException as error:
            self._failed = error
        finally:
            self._client = None
            self._ready.set()

    async def _pages(self, client: Any) -> list[Any]:
        found: list[Any] = []
        cursor = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor and len(found) <= MOST_TOOLS:
                return found
            if len(found) > MOST_TOOLS:
                break
        raise ConfigError(
            f"the MCP server {self.title!r} lists more than {MOST_TOOLS} tools, or more than "
            f"{MOST_PAGES} pages of them; use a server with fewer"
        )

    def _tool(self, listed: Any) -> Tool:
        name = re.sub(r"\W", "_", self.prefix + listed.name)[:64]
        parameters = dict(listed.input_schema)
        parameters.setdefault("properties", {})
        parameters.setdefault("required", [])

        async def call(**arguments: Any) -> str:
            return await self._called(listed.name, arguments)

        def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
            return _fitting(name, arguments, parameters)

        description = " ".join((listed.description or name).split())
        return Tool(name, description, parameters, call, check, deadline=self.timeout)

    async def _called(self, name: str, arguments: dict[str, Any]) -> str:
        client, loop = self._client, self._loop
        if client is None or loop is None:
            raise EpisodeError(f"the MCP server {self.title!r} has ended")
        job = asyncio.run_coroutine_threadsafe(client.call_tool(name, arguments), loop)
        try:
            result = await asyncio.wrap_future(job)
        except ToolError:
            raise
        except Exception as error:
            raise EpisodeError(f"the MCP server {self.title!r} failed: {_first(error)}") from error
        texts = [part.text for part in result.content if getattr(part, "type", "") == "text"]
        text = "\n".join(texts)
        if result.is_error:
            raise ToolError(" ".join(text.split())[:300] or f"{name} failed")
        return text or "done"


def _target(command: Sequence[str] | None, url: str | None, env: Mapping[str, str] | None) -> Any:
    try:
        from mcp import StdioServerParameters
    except ImportError as error:
        raise ConfigError('MCP servers need the package mcp: pip install "mrlm[mcp]"') from error
    if command is None:
        return url
    program, *arguments = command
    if shutil.which(program) is None:
        raise ConfigError(
            f"the MCP server {' '.join(command)!r} could not be started: program {program!r} does "
            "not exist"
        )
    if sys.platform == "linux":
        keeper = ["-I", "-S", str(Path(__file__).with_name("_keeper.py")), str(os.getpid())]
        program, arguments = sys.executable, [*keeper, *command]
    return StdioServerParameters(command=program, args=arguments, env=dict(env or {}) or None)


def _fitting(
    name: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the names of arguments against the schema; the server checks their values."""
    known = parameters["properties"]
    stray = next((key for key in arguments if key not in known), None)
    if stray is not None and parameters.get("additionalProperties", False) is False:
        raise ToolError(
            f"{name}: there is no argument {stray[:40]!r}; it takes {', '.join(known) or 'none'}"
        )
    missing = next((key for key in parameters["required"] if key not in arguments), None)
    if missing is not None:
        wanted = kind_of(known.get(missing))
        raise ToolError(f"{name}: argument {missing!r} is missing ({wanted})")
    return dict(arguments)


def _first(error: BaseException) -> str:
    """The innermost of a group of errors, in one line."""
    error = _innermost(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error

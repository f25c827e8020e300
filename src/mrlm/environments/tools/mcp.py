"""Tools of an MCP server (Model Context Protocol). One connection, in a thread with its own event
loop, serves all episodes, so that they share the server's state; an episode that begins after it
was lost opens it again."""

import asyncio
import atexit
import itertools
import json
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
from mrlm.environments.tools.tool import NAME, Tool, ToolError, kind_of

START = 30.0
"""Time limit for starting a server, in seconds."""
TIMEOUT = 20.0
"""Time limit of a call in seconds; exceeding it is an error shown to the model."""
INVALID_PARAMS = -32602
"""The code of JSON-RPC for wrong arguments."""
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
        self._target = _target(command, url, env)
        self._opening = threading.Lock()
        self._listed: list[Any] = []
        self._lost = self._closed = False
        self._open()
        atexit.register(self.close)

    def _open(self) -> None:
        """Start the thread of a connection. Raises `ConfigError`: the server does not answer."""
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._lost = False
        job = threading.Thread(target=lambda: asyncio.run(self._serve(self._target)), daemon=True)
        self._thread = job
        job.start()
        if not self._ready.wait(START):
            self._disconnect()
            raise ConfigError(f"the MCP server {self.title!r} did not answer within {START:g} s")
        if self._failed is not None:
            if isinstance(first := _innermost(self._failed), ConfigError):
                raise first
            raise ConfigError(
                f"the MCP server {self.title!r} could not be reached: {_first(self._failed)}"
            ) from self._failed

    def reconnect(self) -> None:
        """Open the connection again if it was lost; called when an episode begins. Raises
        `EpisodeError`: the server does not answer, or was closed here."""
        with self._opening:
            if self._closed or (self._client is not None and not self._lost):
                return
            self._disconnect()
            try:
                self._open()
            except ConfigError as error:
                raise EpisodeError(str(error)) from error

    def tools(self) -> list[Tool]:
        """The tools of the server."""
        names = _names([self.prefix + one.name for one in self._listed])
        return [self._tool(one, name) for one, name in zip(self._listed, names, strict=True)]

    def join(self, registry: ToolRegistry) -> "MCPServer":
        """Register its tools; returns itself, to be closed at the end."""
        for tool in self.tools():
            registry.register(tool)
        return self

    def close(self) -> None:
        """End the connection, and the server if it was started here."""
        self._closed = True
        self._disconnect()
        atexit.unregister(self.close)

    def _disconnect(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(10.0)

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
        all_tools: list[Any] = []
        cursor = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            all_tools += page.tools
            cursor = page.next_cursor
            if not cursor and len(all_tools) <= MOST_TOOLS:
                return all_tools
            if len(all_tools) > MOST_TOOLS:
                break
        raise ConfigError(
            f"the MCP server {self.title!r} lists more than {MOST_TOOLS} tools, or more than "
            f"{MOST_PAGES} pages of them; use a server with fewer"
        )

    def _tool(self, listed: Any, name: str) -> Tool:
        parameters, is_open = resolved(listed.input_schema)

        async def call(**arguments: Any) -> str:
            return await self._called(listed.name, arguments)

        def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
            return _fitting(name, arguments, parameters, is_open)

        description = " ".join((listed.description or name).split())
        return Tool(
            *(name, description, parameters, call, check),
            deadline=self.timeout,
            prepare=self.reconnect,
        )

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
            if getattr(error, "code", None) == INVALID_PARAMS:
                raise ToolError(f"{name}: {' '.join(str(error).split())[:300]}") from error
            self._lost = True
            raise EpisodeError(f"the MCP server {self.title!r} failed: {_first(error)}") from error
        text = result_text(result)
        if result.is_error:
            raise ToolError(" ".join(text.split())[:300] or f"{name} failed")
        return text


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


def result_text(result: Any) -> str:
    """The text of a result: its text blocks, resources and links; the structured content where
    there is no text; `[]` for a result without content."""
    parts = [_block(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not any(block.type == "text" for block in result.content):
        parts.append(json.dumps(structured, ensure_ascii=False))
    return "\n".join(parts) if parts else "[]"


def _block(block: Any) -> str:
    """The text of a content block; media, which a model of text cannot read, are named."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return f"[binary resource {block.resource.uri}]" if text is None else text
    if block.type == "resource_link":
        about = f": {block.description}" if block.description else ""
        return f"[resource {block.name}: {block.uri}{about}]"
    return f"[{block.type} {block.mime_type}]"


def _names(names: Sequence[str]) -> list[str]:
    """Names of tools that models can call: other characters than letters and digits become `_`,
    and where two names would be one, a number follows."""
    unique: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:64]
        plain = plain if NAME.fullmatch(plain) else f"_{plain}"[:64]
        numbered = (f"{plain[:60]}_{number}" for number in itertools.count(2))
        unique.append(next(n for n in itertools.chain([plain], numbered) if n not in unique))
    return unique


def resolved(schema: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema of a tool's arguments with the properties that `$ref` and `allOf` bring along, and
    of all alternatives, of which none is required; and whether others may be accepted, which the
    server judges."""
    properties: dict[str, Any] = {}
    required: dict[str, None] = {}
    is_open = False

    def add(part: Any, sure: bool, seen: frozenset[str]) -> None:
        nonlocal is_open
        if not isinstance(part, Mapping):
            is_open = True
            return
        path = part.get("$ref")
        if isinstance(path, str):
            target = _target_of(schema, path)
            is_open = is_open or target is None or path in seen
            if target is not None and path not in seen:
                add(target, sure, seen | {path})
        for name, value in (part.get("properties") or {}).items():
            properties.setdefault(name, value)
        if sure:
            required.update(dict.fromkeys(part.get("required") or ()))
        for subschema in part.get("allOf") or ():
            add(subschema, sure, seen)
        for word in ("anyOf", "oneOf", "then", "else"):
            alternatives = part.get(word, [])
            for subschema in alternatives if isinstance(alternatives, list) else [alternatives]:
                add(subschema, False, seen)
        more = part.get("additionalProperties", False)
        is_open = is_open or more is not False or bool(part.get("patternProperties"))

    add(schema, True, frozenset())
    parts = {"type": "object", "properties": properties, "required": list(required)}
    is_open = is_open or (not properties and schema.get("additionalProperties") is not False)
    return dict(schema) | parts, is_open


def _target_of(schema: Mapping[str, Any], path: str) -> Any:
    """The part of a schema at a local path such as `#/$defs/Point`; `None` for any other."""
    target: Any = schema
    for word in path.removeprefix("#").strip("/").split("/") if path.startswith("#") else ["", ""]:
        word = word.replace("~1", "/").replace("~0", "~")
        target = target.get(word) if isinstance(target, Mapping) and word else None
    return target


def _fitting(
    name: str, arguments: Mapping[str, Any], parameters: Mapping[str, Any], is_open: bool
) -> dict[str, Any]:
    """Check the names of arguments against the schema; the server checks their values."""
    fields = parameters["properties"]
    stray = next((key for key in arguments if key not in fields), None)
    if stray is not None and not is_open:
        raise ToolError(
            f"{name}: there is no argument {stray[:40]!r}; it takes {', '.join(fields) or 'none'}"
        )
    missing = next((key for key in parameters["required"] if key not in arguments), None)
    if missing is not None:
        raise ToolError(f"{name}: argument {missing!r} is missing ({kind_of(fields.get(missing))})")
    return dict(arguments)


def _first(error: BaseException) -> str:
    """The innermost of a group of errors, in one line."""
    error = _innermost(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error

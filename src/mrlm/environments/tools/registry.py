"""The registry of tools, and the tools of one episode: every call is checked, run under a deadline
and answered with text."""

import asyncio
import difflib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.log import log
from mrlm.core.sync_async import BackgroundJobs, in_thread, run_async
from mrlm.environments.shared.rows import SharedByCopies
from mrlm.environments.tools.tool import Kit, Tool, ToolError, as_text, tool_of

TIMEOUT = 10.0
"""Time limit of one tool call, in seconds."""
MAX_OUTPUT = 4_000
"""Maximum number of characters of a result shown to the model."""
_closing = BackgroundJobs()


class ToolRegistry(SharedByCopies):
    """Tools by name. All episodes share the registry; `open` creates the tools of one episode.

    Args:
        tools: functions with typed parameters, or tools.

    Examples:
        >>> def add(a: int, b: int) -> int:
        ...     "Add two numbers."
        ...     return a + b
        >>> ToolRegistry([add])["add"].usage
        'add(a: integer, b: integer)'
    """

    def __init__(self, tools: Iterable[Callable[..., Any] | Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, function: Any, **options: Any) -> Any:
        """Add a function or a tool, and return it, so that it can be used as a decorator.

        Args:
            **options: options of `tool_of`, for a function: `name`, `description`, `quick`,
                `deadline`.

        Raises:
            ConfigError: the name is taken, or the function cannot be a tool.
        """
        tool = function if isinstance(function, Tool) else tool_of(function, **options)
        if tool.name in self._tools:
            raise ConfigError(f"two tools are called {tool.name!r}; rename one with name=")
        self._tools[tool.name] = tool
        return function

    def register_kit(self, kit: Kit, *functions: Callable[..., Any], **options: Any) -> None:
        """Add tools with a state per episode: methods of the class of `kit.make()`."""
        for function in functions:
            self.register(tool_of(function, kit=kit, **options))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas of all tools, as for chat templates."""
        return [tool.schema for tool in self._tools.values()]

    def get(self, name: str) -> Tool | None:
        """The tool of a name, or `None`."""
        return self._tools.get(name)

    def open(self, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT) -> "Toolbox":
        """The tools of one episode."""
        steps = (step for tool in self for step in (tool.kit and tool.kit.prepare, tool.prepare))
        for prepare in dict.fromkeys(filter(None, steps)):
            prepare()
        return Toolbox(self, timeout, max_output)

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise ConfigError(self.unknown(name))
        return self._tools[name]

    def unknown(self, name: str) -> str:
        """The message about an unknown tool, with the nearest name."""
        near = difflib.get_close_matches(name[:64], self._tools, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"there is no tool {name[:64]!r}{hint} (there are: {', '.join(self._tools)})"

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


class Toolbox:
    """The tools of one episode, with their state.

    Args:
        timeout: time limit of a call in seconds.
        max_output: maximum number of characters of a result.
    """

    def __init__(
        self, registry: ToolRegistry, timeout: float = TIMEOUT, max_output: int = MAX_OUTPUT
    ) -> None:
        self.registry = registry
        self.timeout = timeout
        self.max_output = max_output
        self._states: dict[str, Any] = {}

    def state(self, kit: Kit) -> Any:
        """The state of a kit's tools, created on first use."""
        if kit.name not in self._states:
            self._states[kit.name] = kit.make()
        return self._states[kit.name]

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """Call a tool; returns the text of the result.

        Raises:
            ToolError: the call failed; the message gives the reason in one line.
            MRLMError: a dependency of the tool failed (a sandbox, a server), not the model's call.
        """
        function = tool.function
        if tool.kit is not None:
            function = functools.partial(function, self.state(tool.kit))
        try:
            value = await self._within_deadline(tool, functools.partial(function, **arguments))
        except (MRLMError, ToolError):
            raise
        except Exception as error:
            log.debug("tool %r raised", tool.name, exc_info=error)
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise ToolError(f"{tool.name}: {line[:200]}") from error
        return capped(as_text(value), self.max_output)

    async def _within_deadline(self, tool: Tool, call: Callable[[], Any]) -> Any:
        seconds = tool.deadline or self.timeout
        asynchronous = inspect.iscoroutinefunction(tool.function)
        if tool.quick and not asynchronous:
            return call()
        job = call() if asynchronous else in_thread(call)
        task = asyncio.ensure_future(job)
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()  # has no effect on a finished task
        if not done:
            raise ToolError(f"{tool.name} took longer than {seconds:g} s")
        return task.result()

    async def close(self) -> None:
        """Close all states."""
        for pending in self._closed():
            await pending

    def close_now(self) -> None:
        """Close all states from synchronous code; coroutines are scheduled on the running loop."""
        pending = self._closed()
        if not pending:
            return

        async def rest() -> None:
            for task in pending:
                await task

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            run_async(rest())
            return
        _closing.start(loop.create_task(rest()))

    def _closed(self) -> list[Awaitable[Any]]:
        """Close all states; returns the coroutines of those that close asynchronously."""
        states, self._states = self._states, {}
        answers = [state.close() for state in states.values() if hasattr(state, "close")]
        return [answer for answer in answers if inspect.isawaitable(answer)]


def capped(text: str, most: int) -> str:
    """A text truncated to about `most` characters, with a note on the omitted part."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text) - most} more characters)"

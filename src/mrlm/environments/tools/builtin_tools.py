"""The tools that come with the library: calculator, search, Python and files."""

import threading
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from mrlm.core.errors import ConfigError
from mrlm.environments.tools import atlas
from mrlm.environments.tools.calculator import calculate
from mrlm.environments.tools.files import Quota, Workspace
from mrlm.environments.tools.registry import ToolRegistry
from mrlm.environments.tools.repl import TIMEOUT, PythonREPL
from mrlm.environments.tools.search import LocalIndex, search_tool, source_of
from mrlm.environments.tools.tool import Kit
from mrlm.sandbox.types import Limits, Sandbox

FILES = "files"
"""Name of the kit whose state is the episode's workspace."""
GROUPS = ("calculator", "search", "python", FILES)


def create_default_tool_registry(
    tools: Iterable[str] = GROUPS,
    *,
    search: Any = None,
    sandbox: Sandbox[Any] | None = None,
    isolation: str = "auto",
    timeout: float = TIMEOUT,
    limits: Limits | None = None,
    quota: Quota | None = None,
) -> ToolRegistry:
    """A registry with the built-in tools: `calculate`, `search`, `python`, `read_file`,
    `write_file`, `list_files` and `delete_file`.

    Args:
        tools: groups of tools: `calculator`, `search`, `python`, `files`.
        search: source of the search: a `Search`, documents (a list or a file), or the URL of a
            retrieval server; the built-in atlas when `None`.
        sandbox: sandbox for Python; when `None`, one is opened with `isolation` at the first
            episode.
        isolation: isolation of that sandbox.
        timeout: time limit of one piece of Python code, in seconds.
        limits: resource limits of an interpreter.
        quota: storage limits of an episode's files.

    Raises:
        ConfigError: an unknown group.
    """
    registry = ToolRegistry()
    for group in dict.fromkeys(tools):
        if group == "calculator":
            registry.register(calculate, quick=True)
        elif group == "search":
            source = _atlas_index() if search is None else source_of(search)
            local = isinstance(source, LocalIndex)
            registry.register(search_tool(source), quick=local)
        elif group == "python":
            opened = _opened(sandbox, isolation)
            kit = Kit("python", partial(PythonREPL, opened, timeout, limits), opened)
            registry.register_kit(kit, PythonREPL.python, deadline=timeout + 60.0)
        elif group == FILES:
            kit = Kit(FILES, partial(Workspace, quota=quota))
            content = (Workspace.read_file, Workspace.write_file)
            names = (Workspace.list_files, Workspace.delete_file)
            registry.register_kit(kit, *content, *names, quick=True)
        else:
            raise ConfigError(f"tools: unknown group {group!r}; use {', '.join(GROUPS)}")
    return registry


def _opened(sandbox: Sandbox[Any] | None, isolation: str) -> Callable[[], Sandbox[Any]]:
    """A function that opens a sandbox on first use, once for all episodes."""
    lock, sandboxes = threading.Lock(), [] if sandbox is None else [sandbox]

    def opened() -> Sandbox:
        with lock:
            if not sandboxes:
                from mrlm.sandbox import open_sandbox

                sandboxes.append(open_sandbox(isolation=isolation))
            return sandboxes[0]

    return opened


@cache
def _atlas_index() -> LocalIndex:
    return LocalIndex(atlas.documents())

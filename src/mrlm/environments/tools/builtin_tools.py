"""The tools that come with the library: calculator, search, Python and files."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
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
    sandbox: Sandbox | None = None,
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
            opened = _Opened(sandbox, isolation)
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


class _Opened:
    """A sandbox that is opened on first use, once for all episodes."""

    def __init__(self, sandbox: Sandbox | None, isolation: str) -> None:
        self._sandbox = sandbox
        self._isolation = isolation
        self._lock = threading.Lock()

    def __call__(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                from mrlm.sandbox import open_sandbox

                self._sandbox = open_sandbox(isolation=self._isolation)
            return self._sandbox

    def __deepcopy__(self, memo: dict[int, Any]) -> _Opened:
        return self


_lock = threading.Lock()
_indexed: list[LocalIndex] = []


def _atlas_index() -> LocalIndex:
    with _lock:  # the index is built once
        if not _indexed:
            _indexed.append(LocalIndex(atlas.documents()))
        return _indexed[0]

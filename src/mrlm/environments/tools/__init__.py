"""Tools: questions that are answered by calling tools: a calculator, search, Python, files, or any
typed function.

The world is in `world.py`, its words in `prompts.py`, its tasks in `tasks.py` and `generator.py`. A
tool is defined in `tool.py`, collected in `registry.py`, and called as `calls.py` reads it; the
built-in ones are in `calculator.py`, `search.py` (over `atlas.py` where nothing else is given),
`repl.py` and `files.py`, those of MCP servers in `mcp.py`.
"""

from __future__ import annotations

from mrlm.environments.tools.builtin_tools import create_default_tool_registry
from mrlm.environments.tools.calculator import calculate
from mrlm.environments.tools.files import Quota, Workspace
from mrlm.environments.tools.generator import ToolProblem, ToolTaskGenerator
from mrlm.environments.tools.mcp import MCPServer
from mrlm.environments.tools.registry import ToolRegistry
from mrlm.environments.tools.search import Document, LocalIndex, RetrievalServer, SearxNG
from mrlm.environments.tools.tool import Tool, ToolError
from mrlm.environments.tools.world import ToolUseEnvironment

__all__ = [
    "Document",
    "LocalIndex",
    "MCPServer",
    "Quota",
    "RetrievalServer",
    "SearxNG",
    "Tool",
    "ToolError",
    "ToolProblem",
    "ToolRegistry",
    "ToolTaskGenerator",
    "ToolUseEnvironment",
    "Workspace",
    "calculate",
    "create_default_tool_registry",
]

PLUGIN = ToolUseEnvironment

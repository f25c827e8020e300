"""Tools: questions answered by tool calls: calculator, search, Python, files, or typed functions.

The environment is in `environment.py`, its prompts and tasks in `tasks.py` and `generator.py`.
Tools are defined in `tool.py`, collected in `registry.py`, and their calls parsed in `calls.py`;
the built-in ones are in `calculator.py`, `search.py` (by default over `atlas.py`), `repl.py` and
`files.py`, those of MCP servers in `mcp.py`.
"""

from mrlm.environments.tools.builtin_tools import create_default_tool_registry
from mrlm.environments.tools.calculator import calculate
from mrlm.environments.tools.environment import ToolUseEnvironment
from mrlm.environments.tools.files import Quota, Workspace
from mrlm.environments.tools.generator import ToolProblem, ToolTaskGenerator
from mrlm.environments.tools.mcp import MCPServer
from mrlm.environments.tools.registry import ToolRegistry
from mrlm.environments.tools.search import Document, LocalIndex, RetrievalServer, SearxNG
from mrlm.environments.tools.tool import Tool, ToolError

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

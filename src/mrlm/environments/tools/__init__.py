"""Tools: questions answered by tool calls: calculator, search, Python, files, or typed functions.

The environment is in `environment.py`, its prompts and tasks in `tasks.py` and `generator.py`.
Tools are defined in `tool.py`, collected in `registry.py`, and their calls parsed in `calls.py`;
the built-in ones are in `calculator.py`, `search.py` (by default over `atlas.py`), `repl.py` and
`files.py`, those of MCP servers in `mcp.py`.
"""

from mrlm.environments.tools.builtin_tools import (
    create_default_tool_registry as create_default_tool_registry,
)
from mrlm.environments.tools.calculator import calculate as calculate
from mrlm.environments.tools.environment import ToolUseEnvironment as ToolUseEnvironment
from mrlm.environments.tools.files import Quota as Quota
from mrlm.environments.tools.files import Workspace as Workspace
from mrlm.environments.tools.generator import ToolProblem as ToolProblem
from mrlm.environments.tools.generator import ToolTaskGenerator as ToolTaskGenerator
from mrlm.environments.tools.mcp import MCPServer as MCPServer
from mrlm.environments.tools.registry import ToolRegistry as ToolRegistry
from mrlm.environments.tools.search import Document as Document
from mrlm.environments.tools.search import LocalIndex as LocalIndex
from mrlm.environments.tools.search import RetrievalServer as RetrievalServer
from mrlm.environments.tools.search import SearxNG as SearxNG
from mrlm.environments.tools.tool import Tool as Tool
from mrlm.environments.tools.tool import ToolError as ToolError

PLUGIN = ToolUseEnvironment

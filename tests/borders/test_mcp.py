"""Tools of a server of the `mcp` library: names, schemas, results, and reconnection."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mrlm.core.errors import EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.environments.tools import MCPServer, ToolError, ToolRegistry

pytestmark = pytest.mark.system

mcp = pytest.importorskip("mcp", reason='the package mcp is not installed: pip install "mrlm[mcp]"')

TITLE = "Tools of MCP servers"
JUDGE = "mcp (its own server and client)"
DIFFERENCES = (
    "structured content that repeats a text block is not shown twice, because the text is its form",
    "names get `_` for other characters, because calls are written like Python",
)

SERVER = """
import os
from mcp import types
from mcp.server.lowlevel import Server
import anyio
from mcp.server.stdio import stdio_server

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SCHEMAS = {
    "plain": {"type": "object"},
    "any.of": {"type": "object", "anyOf": [
        {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
        {"properties": {"name": {"type": "string"}}, "required": ["name"]}]},
    "any-of": {"type": "object", "properties": {"other": {"type": "string"}}},
    "all_of": {"type": "object", "allOf": [POINT, {"properties": {"y": {"type": "integer"}}}]},
    "ref": {"$ref": "#/$defs/Point", "type": "object", "$defs": {"Point": POINT}},
    "give": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
}
RESULTS = {
    "structured": ([], {"total": 3}, False),
    "both": ([types.TextContent(type="text", text="3")], {"total": 3}, False),
    "resource": ([types.EmbeddedResource(type="resource", resource=types.TextResourceContents(
        uri="file:///a.txt", text="the text"))], None, False),
    "link": (
        [types.ResourceLink(type="resource_link", name="a", uri="file:///a.txt")], None, False),
    "image": ([types.ImageContent(type="image", data="AA==", mime_type="image/png")], None, False),
    "nothing": ([], None, False),
    "error": ([types.EmbeddedResource(type="resource", resource=types.TextResourceContents(
        uri="file:///e", text="no such city"))], None, True),
    "structured error": ([], {"problem": "no such city"}, True),
}

async def list_tools(context, params):
    tools = [types.Tool(name=n, input_schema=s) for n, s in SCHEMAS.items()]
    return types.ListToolsResult(tools=tools)

async def call_tool(context, params):
    arguments = params.arguments or {}
    if params.name == "give" and arguments.get("what") == "end":
        os._exit(1)
    if params.name == "give":
        content, structured, error = RESULTS[arguments["what"]]
        return types.CallToolResult(content=content, structured_content=structured, is_error=error)
    text = f"{params.name} {sorted(arguments.items())}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

async def main():
    server = Server("s", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())

anyio.run(main)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("mcp") / "server.py"
    file.write_text(SERVER)
    return [sys.executable, str(file)]


@pytest.fixture(scope="module")
def server(command: list[str]) -> Iterator[MCPServer]:
    opened = MCPServer(command, timeout=60.0)
    yield opened
    opened.close()


def call(server: MCPServer, tool_name: str, **arguments: Any) -> str:
    registry = ToolRegistry(server.tools())
    tool = registry[tool_name]
    return run_async(registry.open().call(tool, tool.arguments(arguments)))


RIGHT: list[tuple[str, str, dict[str, Any]]] = [
    ("plain", "plain", {"anything": 1}),
    ("any_of", "any.of", {"id": 3}),
    ("any_of", "any.of", {"name": "ann"}),
    ("any_of_2", "any-of", {"other": "x"}),
    ("all_of", "all_of", {"x": 1, "y": 2}),
    ("ref", "ref", {"x": 4}),
]
GIVEN = ["structured", "both", "resource", "link", "image", "nothing", "error", "structured error"]


@pytest.fixture(scope="module")
def judged(command: list[str]) -> dict[str, Any]:
    """What the library's own client gets: a tool and its arguments -> the result."""
    calls = [(theirs, arguments) for _, theirs, arguments in RIGHT]
    calls += [("give", {"what": what}) for what in GIVEN]

    async def ask() -> dict[str, Any]:
        target = mcp.StdioServerParameters(command=command[0], args=command[1:])
        async with mcp.Client(target) as client:
            return {f"{name} {given}": await client.call_tool(name, given) for name, given in calls}

    return run_async(ask())


def test_names_are_kept_apart(server: MCPServer) -> None:
    names = ToolRegistry(server.tools()).names
    assert names == ("plain", "any_of", "any_of_2", "all_of", "ref", "give")


@pytest.mark.parametrize(("name", "theirs", "arguments"), RIGHT)
def test_a_right_call_arrives(
    server: MCPServer, judged: dict[str, Any], name: str, theirs: str, arguments: dict[str, Any]
) -> None:
    assert call(server, name, **arguments) == judged[f"{theirs} {arguments}"].content[0].text


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("all_of", {"y": 2}, "argument 'x' is missing"),
        ("ref", {}, "argument 'x' is missing"),
        ("ref", {"x": 1, "z": 2}, "no argument 'z'"),
        ("any_of_2", {"mine": "x"}, "no argument 'mine'; it takes other"),
    ],
)
def test_a_wrong_call_is_named(
    server: MCPServer, name: str, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ToolError, match=says):
        call(server, name, **arguments)


@pytest.mark.parametrize("what", GIVEN)
def test_a_result_is_what_the_client_reads(
    server: MCPServer, judged: dict[str, Any], what: str
) -> None:
    given = {"what": what}
    result = judged[f"give {given}"]
    try:
        text, failed = call(server, "give", what=what), False
    except ToolError as error:
        text, failed = str(error), True
    assert failed == bool(result.is_error) and text != "done"
    for block in result.content:
        if block.type == "text":
            assert block.text in text
        elif block.type == "resource":
            assert block.resource.text in text
        elif block.type == "resource_link":
            assert str(block.uri) in text
        else:
            assert block.mime_type in text
    if not result.content:
        assert json.loads(text) == ([] if what == "nothing" else result.structured_content)


def test_a_server_that_ended_is_opened_again(command: list[str]) -> None:
    opened = MCPServer(command, timeout=60.0)
    with pytest.raises(EpisodeError, match="the MCP server"):
        call(opened, "give", what="end")
    assert call(opened, "give", what="both") == "3"
    opened.close()
    with pytest.raises(EpisodeError, match="has ended"):
        call(opened, "give", what="both")

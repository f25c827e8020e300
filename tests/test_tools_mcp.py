"""Tools of a real MCP server, over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp", reason='the package mcp is not installed: pip install "mrlm[mcp]"')

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message
from mrlm.environments.tools import MCPServer, ToolError, ToolRegistry, ToolUseEnvironment

SERVER = '''
import os, time
from mcp.server import MCPServer
server = MCPServer("shop")

@server.tool()
def price(item: str, count: int = 1) -> str:
    """Price of an item."""
    if item == "bug":
        raise ValueError("no such item")
    if item == "end":
        os._exit(1)
    if item == "slow":
        time.sleep(30)
    return f"{item}: {7 * count}"

@server.tool(name="get-flood")
def flood() -> str:
    return "x" * 100_000

server.run()
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    file = tmp_path_factory.mktemp("mcp") / "shop.py"
    file.write_text(SERVER)
    return [sys.executable, str(file)]


@pytest.fixture(scope="module")
def shop(command: list[str]) -> Iterator[MCPServer]:
    server = MCPServer(command, timeout=5.0)
    yield server
    server.close()


def call(server: MCPServer, name: str, **arguments: Any) -> str:
    registry = ToolRegistry(server.tools())
    tool = registry[name]
    return asyncio.run(registry.open().call(tool, tool.arguments(arguments)))


def test_tools_of_a_server_are_tools(shop: MCPServer) -> None:
    registry = ToolRegistry(shop.tools())
    assert registry.names == ("price", "get_flood")
    assert registry["price"].usage == "price(item: string, count: integer = 1)"
    assert registry["price"].description == "Price of an item."
    assert call(shop, "price", item="pen", count=3) == "pen: 21"  # every call has a loop of its own
    assert call(shop, "price", item="pen") == "pen: 7"
    assert len(call(shop, "get_flood")) < 5_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "argument 'item' is missing (string)"),
        ({"item": "pen", "colour": 1}, "no argument 'colour'; it takes item, count"),
        ({"item": "pen", "count": "many"}, "count"),
        ({"item": "bug"}, "Error executing tool price"),
    ],
)
def test_errors_of_calls_are_for_the_model(
    shop: MCPServer, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(ToolError) as caught:
        call(shop, "price", **arguments)
    assert says in str(caught.value) and len(str(caught.value)) < 400


def test_a_world_with_the_tools_of_a_server(command: list[str]) -> None:
    rows = [{"prompt": "What do 3 pens cost?", "answer": "21", "required": ["shop_price"]}]
    world = ToolUseEnvironment(
        tasks=rows, tools=["calculator"], mcp_servers=[{"command": command, "prefix": "shop_"}]
    )
    world.reset(world.task(0))
    words = "shop_price(item='pen', count=3)"
    result = asyncio.run(world.step({"agent": Message(words)}))
    assert result.observations["agent"].messages[0].content == "pen: 21"
    assert result.rewards["agent"].value == 0.3
    world.spawn().close()


def test_a_server_that_dies_or_hangs_is_no_fault_of_the_models(command: list[str]) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    server = MCPServer(command, timeout=1.0)
    started = {child.pid for child in psutil.Process().children(recursive=True)} - before
    with pytest.raises(ToolError, match=r"price took longer than 1 s"):
        call(server, "price", item="slow")
    for item in ("end", "pen"):
        with pytest.raises(EpisodeError, match="the MCP server"):
            call(server, "price", item=item)
    server.close()
    server.close()
    assert started and not any(psutil.pid_exists(pid) for pid in started)
    with pytest.raises(EpisodeError, match="is gone"):
        call(server, "price", item="pen")


def test_what_is_no_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be reached"):
        MCPServer([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ConfigError, match="could not be reached"):
        MCPServer([str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="command is a list"):
        MCPServer("python server.py")  # type: ignore[arg-type]

"""Tools of a real MCP server, over standard input and output."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from waiting import until

pytest.importorskip("mcp", reason='the package mcp is not installed: pip install "mrlm[mcp]"')

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message
from mrlm.environments.tools import MCPServer, ToolError, ToolRegistry, ToolUseEnvironment, mcp

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
    server = MCPServer(command, timeout=60.0)
    yield server
    server.close()


def call(server: MCPServer, name: str, **arguments: Any) -> str:
    registry = ToolRegistry(server.tools())
    tool = registry[name]
    return run_async(registry.open().call(tool, tool.arguments(arguments)))


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
    result = run_async(world.step({"agent": Message(words)}))
    assert result.observations["agent"].messages[0].content == "pen: 21"
    assert result.rewards["agent"].value == 0.3
    world.spawn().close()


def test_a_server_that_dies_or_hangs_is_no_fault_of_the_models(command: list[str]) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    server = MCPServer(command, timeout=1.0)
    started = {child.pid for child in psutil.Process().children(recursive=True)} - before
    with pytest.raises(ToolError, match=r"price took longer than 1 s"):
        call(server, "price", item="slow")
    with pytest.raises(EpisodeError, match="the MCP server"):
        call(server, "price", item="end")
    assert call(server, "price", item="pen") == "pen: 7"  # the next episode opens it again
    server.close()
    server.close()
    assert started and not any(psutil.pid_exists(pid) for pid in started)
    with pytest.raises(EpisodeError, match="has ended"):
        call(server, "price", item="pen")


def test_what_is_no_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be reached"):
        MCPServer([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ConfigError, match="could not be started"):
        MCPServer([str(tmp_path / "none")])
    with pytest.raises(ConfigError, match="command must be a list"):
        MCPServer("python server.py")  # type: ignore[arg-type]


# -- servers that hang, and lists without end ------------------------------------------------------

HANGING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
HUNG = """
import sys
from mrlm.environments.tools import MCPServer
MCPServer([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""
ENDLESS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        about = {"name": "endless", "version": "1"}
        version = asked["params"]["protocolVersion"]
        found = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked.get("method") == "tools/list":
        tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(SIZE)]
        found = {"tools": tools, "nextCursor": "more"}
    elif "id" in asked:
        error = {"code": -32601, "message": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": error}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": found}), flush=True)
"""


def numbers(file: Path) -> list[int]:
    """The processes that a server has written down."""
    until(lambda: file.exists() and len(file.read_text().split()) == 2)
    return [int(word) for word in file.read_text().split()]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_hangs_at_its_start_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "START", 3.0)
    with pytest.raises(ConfigError, match="did not answer within 3 s"):
        MCPServer([sys.executable, "-c", HANGING, str(tmp_path / "pids")])
    pids = numbers(tmp_path / "pids")
    until(lambda: not any(map(runs, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its trainer on Linux only")
def test_a_server_that_hangs_does_not_outlive_its_trainer(tmp_path: Path) -> None:
    """Killed, a trainer cleans nothing up: the server and what it started end all the same."""
    trainer = subprocess.Popen([sys.executable, "-c", HUNG, HANGING, str(tmp_path / "pids")])
    pids = numbers(tmp_path / "pids")
    trainer.kill()
    trainer.wait()
    until(lambda: not any(map(runs, pids)))


@pytest.mark.parametrize("size", [2, 600])
def test_a_list_of_tools_without_end_is_refused(size: int) -> None:
    program = ENDLESS.replace("SIZE", str(size))
    with pytest.raises(ConfigError, match="lists more than 1000 tools, or more than 100 pages"):
        MCPServer([sys.executable, "-c", program])

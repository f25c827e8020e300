"""Text that has no bytes, memory that the host does not give, and places of connections."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forking import Launcher
from mrlm import Message, Role
from mrlm.core.chat import Chat
from mrlm.core.errors import DataError
from mrlm.core.messages import read_message
from mrlm.data.tasks import row_messages
from mrlm.serving.policies.admission import AdmissionLimits
from mrlm.serving.policies.connections import Connections

HALF = "a\ud800b"
CALL = {"type": "function", "function": {"name": "f", "arguments": {"text": HALF}}}
DOORS = {
    "row": lambda chat: read_message({"role": "user", "content": HALF}, "rows.jsonl, row 3"),
    "text of a row": lambda chat: row_messages(HALF, "rows.jsonl, row 3"),
    "parts": lambda chat: read_message({"role": "user", "content": [{"text": HALF}]}, "row 3"),
    "thought": lambda chat: read_message(
        {"role": "assistant", "content": "", "reasoning": HALF}, "row 3"
    ),
    "text": lambda chat: chat.encode_text(HALF),
    "call": lambda chat: chat.prompt(
        [Message("q"), Message("", Role.ASSISTANT, tool_calls=(CALL,)), Message("q")]
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_half_a_surrogate_pair_is_one_error(door: str, tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"half of a surrogate pair \(U\+D800\) at character 1"):
        DOORS[door](Chat(tokenizer))


def test_a_host_without_memory_is_said(launcher: Launcher, tmp_path: Path) -> None:
    program = (
        "import resource, torch, typer\nfrom mrlm.cli import Commands\n"
        "app = typer.Typer(cls=Commands)\n@app.callback()\ndef main(): ...\n"
        "@app.command()\ndef run(): torch.empty(1 << 44)\napp(['run'])"
    )
    (tmp_path / "program.py").write_text(program)
    result = launcher.run([str(tmp_path / "program.py")], tmp_path)
    assert result.code == 1, result.err
    assert "no more memory (it asked for 65536.0 GiB at once)" in result.err
    assert "Traceback" not in result.err


class Link:
    """A connection that is being answered, or waits."""

    def __init__(self, address: str, waits: bool) -> None:
        self.address, self.waits, self.cycle, self.closed = address, waits, None, False
        self.transport = SimpleNamespace(abort=lambda: setattr(self, "closed", True))


@pytest.mark.parametrize("waits", [False, True])
def test_an_address_has_its_share_of_places(waits: bool) -> None:
    """60 clients of one address that never read leave room for those of another."""
    connections = Connections(AdmissionLimits(connections=20, per_address=10))
    greedy = [Link("1.1.1.1", waits) for _ in range(60)]
    admitted = [connections.admit(link, link.address) for link in greedy]
    assert sum(admitted) == (60 if waits else 10)
    assert sum(link.closed for link in greedy) == (50 if waits else 0)
    assert len(connections) == 10
    others = [Link(f"2.2.2.{number}", False) for number in range(10)]
    assert all(connections.admit(link, link.address) for link in others)
    late = connections.admit(Link("3.3.3.3", False), "3.3.3.3")
    assert late is waits  # the oldest idle connection of the greediest makes room

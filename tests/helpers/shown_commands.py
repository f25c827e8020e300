"""The commands that pages show."""

import re
import shlex
from typing import Any

import typer

from mrlm import cli
from places import ROOT


def check_command(words: list[str]) -> None:
    """`mrlm NAME --options`: the command exists, and has the options."""
    commands: Any = typer.main.get_command(cli.command_line())
    assert words[1] in commands.commands, words
    known = {name for each in commands.commands[words[1]].params for name in each.opts}
    known |= {name for each in commands.commands[words[1]].params for name in each.secondary_opts}
    assert {word for word in words[2:] if word.startswith("-")} <= known | {"--help"}, words


def commands_in(text: str) -> list[list[str]]:
    """The commands of code blocks, of spans and of comments."""
    found = re.findall(r"^(?:#\s+|\.venv/bin/)?(mrlm .*)$|`(mrlm [^`]+)`", text, re.MULTILINE)
    return [shlex.split(line or span, comments=True) for line, span in found]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

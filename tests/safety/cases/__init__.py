"""The project's own attacks, as data: programs, solutions, calculations, files, answers.
What each is, what may come of it, and why it is tried. Nothing is run here. Programs and solutions
are YAML files beside this one: name -> fields, where those that have defaults may be left out.

Words in capitals stand for what only the runner knows:

- `HOST_FILE`, `HOST_FOLDER`: a file with a secret, and its folder, both open to everybody;
- `HOST_PORT`, `HOST_SOCKET`: a port and an abstract socket that listen;
- `HOST_PID`: the process that runs the cases;
- `WON`: a statement by which a program says that it did what nothing may do. Never in any output.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ENDED = ("error", "killed", "timeout", "oom", "output_limit")
"""Every end but a good one."""
ANY = ("ok", *ENDED)
"""A program that harms itself alone may end as it likes; `infra_error` is never its doing."""
CUT = ("killed", "timeout")
WON = 'print("ESC" "APED", flush=True)'
"""What `WON` is replaced by; the marker itself is in no source line that a traceback quotes."""
MARKER = "ESCAPED"
SUM = (((1, 2), 3), ((5, 7), 12), ((-4, 4), 0))
"""Calls of a function `add`, and what they give."""

LONG = {
    "long_line": "x = '" + "a" * 900_000 + "'; 1 / 0",
    "deep_syntax": "-" * 100_000 + "1",
    "many_names": "\n".join(" " * i + f"def f{i}():" for i in range(120)) + f"\n{' ' * 121}pass",
}
"""Case -> a source that is too long for a file."""
NO_TEXT = {"BYTE_FF ": "\udcff", "SURROGATE": "\ud800"}
"""Word -> what UTF-8 cannot hold."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program in a sandbox.

    Args:
        name: of the case.
        why: what it tries.
        text: its source.
        ends: how it may end.
        says: what its output must hold.
        never: what its output must not hold, beside the secret and the marker.
        stdin, files: what it gets.
        landlock: how it may end where there are no namespaces, if otherwise.
        says_too: whether what it says is expected there as well.
    """

    name: str
    why: str
    text: str
    ends: tuple[str, ...] = ANY
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    stdin: str = ""
    files: tuple[tuple[str, bytes], ...] = ()
    landlock: tuple[str, ...] = ()
    says_too: bool = True


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution before a grader, which pays it or not.

    Args:
        name, why, text: as of a program.
        paid: whether it is right.
        calls: arguments and value of each call.
        entry: the function.
    """

    name: str
    why: str
    text: str
    paid: bool = False
    calls: tuple[tuple[Any, Any], ...] = SUM
    entry: str = "add"


def read(name: str, kind: type[Any]) -> tuple[Any, ...]:
    """The cases of a file."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    rows = yaml.load(text, yaml.CSafeLoader)
    return tuple(
        kind(name, **{key: _value(name, key, row[key]) for key in row})
        for name, row in rows.items()
    )


def _value(case: str, field: str, value: Any) -> Any:
    if field == "calls":
        return ast.literal_eval(value)
    if field == "files":
        return tuple((_text(name), text.encode()) for name, text in value.items())
    if field in ("ends", "landlock") and isinstance(value, str):
        return {"ENDED": ENDED, "ANY": ANY, "CUT": CUT}[value]
    if isinstance(value, str):
        return LONG[case] if value == "LONG" else _text(value)
    return tuple(value) if isinstance(value, list) else value


def _text(text: str) -> str:
    for word, instead in NO_TEXT.items():
        text = text.replace(word, instead)
    return text


@dataclass(frozen=True, slots=True)
class Calculation:
    """An expression before the calculator; `value` is what it must give, or it is refused."""

    name: str
    text: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class FileUse:
    """What a model does with a path of its workspace.

    Args:
        name: of the case.
        do: `read` or `write`, or a word that is neither.
        path: where.
        content: what is written.
        before: what lies in the workspace: a word that the runner knows.
        ok: whether it may be done; `None` if either is fine.
        says: what comes back.
    """

    name: str
    do: str
    path: str
    content: str = ""
    before: str = ""
    ok: bool | None = False
    says: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question of mathematics; it is paid if it holds one box that is right."""

    name: str
    gold: str
    text: str
    paid: bool = False

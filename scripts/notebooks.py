"""Reads a page as the cells of a notebook: runs them, or writes or executes the notebook.

    python -m scripts.notebooks run docs/tutorials/01_first_run.md [--steps N]
    python -m scripts.notebooks write docs/tutorials/01_first_run.md FOLDER
    python -m scripts.notebooks execute docs/tutorials/01_first_run.md

A block of Python is a cell; a block whose first line is `# name.py` or `# name.yaml` is that file;
a block of `bash` holds commands. Other blocks are text.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))\n")
ITERATIONS = re.compile(r"(num_iterations(?:=|: )|--steps )(\d+)")
TOLERATED = " || true"
"""The end of a command that may fail."""


@dataclass(frozen=True)
class Cell:
    """A part of a page.

    Args:
        kind: `text`, `python`, `bash` or `file`.
        text: its Markdown or source.
        name: the file that it is.
    """

    kind: str
    text: str
    name: str = ""


def cells(page: str) -> list[Cell]:
    """The cells of a page, in its order; text between two blocks is one cell."""
    found: list[Cell] = []
    text, end = "", 0
    for block in BLOCK.finditer(page):
        text += page[end : block.start()]
        end = block.end()
        language, source = block.groups()
        file = FILE.match(source)
        if language not in ("python", "bash") and not file:
            text += block[0]
            continue
        found += [Cell("text", text.strip())] if text.strip() else []
        text = ""
        kind = "file" if file else language
        found.append(Cell(kind, source.strip(), file[1] if file else ""))
    text += page[end:]
    return [*found, *([Cell("text", text.strip())] if text.strip() else [])]


def notebook(page: str) -> dict[str, Any]:
    """A page as a notebook (nbformat 4.5) that needs nothing beside it but `mrlm`."""
    made: list[dict[str, Any]] = []
    for number, cell in enumerate(cells(page)):
        source = cell.text
        if cell.kind == "text":
            source = re.sub(r"\]\(([\w/.-]+)\.md(#[\w-]+)?\)", r"](\1.html\2)", source)
        elif cell.kind == "bash":
            source = f"%%bash\n{source}"
        elif cell.kind == "file":
            source = f"%%writefile {cell.name}\n{source}"
        each: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": source}
        if cell.kind == "text":
            each["cell_type"] = "markdown"
        else:
            each |= {"cell_type": "code", "execution_count": None, "outputs": []}
        made.append(each)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def execute(page: str, folder: Path) -> tuple[list[Any], float, float]:
    """Execute a page as a notebook, in a folder.

    Args:
        page: its text.
        folder: where its cells run.

    Returns:
        The outputs of the code cells, in order; the seconds that passed; the seconds of all
        processes together.
    """
    import nbclient
    import nbformat

    found = nbformat.reads(json.dumps(notebook(page)), as_version=4)
    nbformat.validate(found)
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    client = nbclient.NotebookClient(
        found, timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    ran = client.execute()
    passed, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return [cell["outputs"] for cell in ran["cells"] if cell["cell_type"] == "code"], passed, spent


def shortened(page: str, steps: int) -> str:
    """A page whose runs have at most this many iterations."""
    return ITERATIONS.sub(lambda match: f"{match[1]}{min(steps, int(match[2]))}", page)


def run(page: str) -> None:
    """Run the cells of a page in the current folder, all Python cells with the same names.

    Raises:
        SystemExit: a command failed; names it.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    sys.path.insert(0, "")
    for cell in cells(page):
        if cell.kind == "file":
            Path(cell.name).write_text(cell.text + "\n", encoding="utf-8")
        elif cell.kind == "python":
            exec(compile(cell.text, "<page>", "exec"), names)
        elif cell.kind == "bash":
            for line in cell.text.replace("\\\n", " ").splitlines():
                command = line.partition("  #")[0].strip()
                if command:
                    _run_command(command)


def _run_command(command: str) -> None:
    words = shlex.split(command.removesuffix(TOLERATED))
    own = words[0] == "mrlm"
    code = _mrlm(words[1:]) if own else subprocess.run(words, check=False).returncode
    if code and not command.endswith(TOLERATED):
        raise SystemExit(f"{command}: exit code {code}")


def _mrlm(words: list[str]) -> int:
    """The command line, in this process, which has its libraries imported."""
    from mrlm import cli

    before, sys.argv = sys.argv, ["mrlm", *words]
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.argv = before
    return 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["run", "write", "execute"])
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--steps", type=int, help="iterations of every run, at most")
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    if given.steps:
        page = shortened(page, given.steps)
    if given.action == "run":
        run(page)
    elif given.action == "execute":
        with tempfile.TemporaryDirectory() as folder:
            _, passed, spent = execute(page, Path(folder))
        print(f"{given.page.stem}: {passed:.0f} s, {spent:.0f} s of all processors together")
    else:
        text = json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"
        (given.folder / f"{given.page.stem}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

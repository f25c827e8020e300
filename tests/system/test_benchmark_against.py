"""The comparison of two revisions: real processes, and a repository whose rows cost what a file
says."""

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.against import Comparison, bounds, guard

from places import ROOT

ROWS = """
from pathlib import Path
from benchmarks.rows import Result, Row, Unavailable

def read(name):
    return float(Path(name).read_text())

def growing(bench):
    return Result(lines={"few": [(1, 1.0), (2, 1.5)], "many": [(1, read("cost"))]})

def absent(bench):
    raise Unavailable("no such device")

ROWS = [Row("step", lambda bench: Result(ours=read("cost"))), Row("growth", growing)]
ROWS += [Row("gpu", absent), Row("page", lambda bench: Result(value=read("cost")))]
"""
KINDS = """
from dataclasses import dataclass, field

class Unavailable(Exception): ...

@dataclass
class Bench:
    rounds: int
    threads: int
    quick: bool
    peers: bool

@dataclass
class Row:
    name: str
    measure: object

@dataclass
class Result:
    value: float | None = None
    ours: float | None = None
    lines: dict = field(default_factory=dict)
    reason: str = ""
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, in which every row costs 2."""
    root = tmp_path / "repository"
    for path, text in {
        "src/mrlm/__init__.py": "",
        "benchmarks/__init__.py": "",
        "benchmarks/rows.py": KINDS,
        "benchmarks/table.py": ROWS,
        "cost": "2",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    _git(root, "init", "--quiet")
    _git(root, "add", ".")
    own = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    _git(root, *own, "commit", "--quiet", "--message", "First")
    return root


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True)
    return done.stdout.decode()


def _guarded(root: Path, to: Path, *rows: str) -> tuple[int, dict[str, dict[str, object]]]:
    code = guard("HEAD", rows, to, root=root)
    return code, json.loads(to.read_text())["rows"]


def test_a_row_that_became_slower_ends_with_1(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "cost").write_text("3")
    code, rows = _guarded(repository, tmp_path / "found.json", "step", "growth")
    assert code == 1
    assert rows["step"]["verdict"] == rows["growth many"]["verdict"] == "slower"
    assert rows["step"]["ratio"] == 1.5 and rows["step"]["interval"] == [1.5, 1.5]
    assert rows["growth few"]["verdict"] == "level" and rows["growth few"]["ours"] == [2.5] * 5
    assert "step" in capsys.readouterr().out
    assert _git(repository, "worktree", "list").count("\n") == 1  # nothing is left behind


def test_rows_of_one_side_are_named(repository: Path, tmp_path: Path) -> None:
    table = repository / "benchmarks" / "table.py"
    table.write_text(f'{ROWS}\nROWS += [Row("new", growing)]\n')
    (repository / "cost").write_text("1")
    code, rows = _guarded(repository, tmp_path / "found.json", "new", "gpu", "page")
    assert code == 0
    assert rows["new"]["reason"] == "the commit has no such row"
    assert rows["gpu"]["reason"] == "the working copy: no such device"
    assert rows["page"]["verdict"] == "faster"


def test_an_unknown_commit_ends_with_2(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard("nowhere", ["step"], tmp_path / "found.json", root=repository) == 2
    assert "--against nowhere" in capsys.readouterr().err
    assert not (tmp_path / "found.json").exists()


def test_the_library_of_the_revision_is_measured(repository: Path, tmp_path: Path) -> None:
    """A working copy without the library must not be measured with an installed one."""
    _git(repository, "mv", "src", "elsewhere")
    with pytest.raises(RuntimeError, match="not of the working copy"):
        guard("HEAD", ["step"], tmp_path / "found.json", root=repository)


def test_a_verdict_needs_the_whole_interval() -> None:
    assert bounds([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.0, 5.0)
    assert bounds([float(number) for number in range(8)]) == (1.0, 6.0)
    one = (1.0,) * 5
    assert Comparison("row", (1.2, 1.1, 1.3, 1.2, 1.06), one).verdict == "slower"
    assert Comparison("row", (1.2, 1.1, 1.3, 1.2, 1.04), one).verdict == "level"
    assert Comparison("row", (0.8, 0.9, 0.7, 0.8, 0.9), one).verdict == "faster"
    assert Comparison("row", (9.0,) * 4, one[:4]).verdict == "unknown"


def test_the_quickstart_has_the_stages_that_are_measured() -> None:
    from benchmarks.quickstart import CONFIG, STEPS

    from mrlm.config import load_config

    names = [name for name, _ in load_config(ROOT / CONFIG).stage_configs()]
    assert names == ["warmup", "together"] and len(STEPS) == len(names)

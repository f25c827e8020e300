"""One new file is enough: the plug-ins that CONTRIBUTING.md shows are put into a copy of the
project, and its own tests pass there with nothing else touched."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from mrlm.cli.new import EXAMPLES, Kind
from places import ROOT, file_of

pytestmark = pytest.mark.system

PARTS = ("src", "tests", "docs", "configs", "benchmarks", "examples", "scripts")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")
NAMES = [example.name for example in EXAMPLES.values()]
TABLES = (
    "test_algorithm_files.py::test_papers_of_the_page_are_those_of_the_files",
    "test_algorithm_files.py::test_the_page_has_no_sections_of_what_there_is_not",
    "test_algorithm_settings.py::test_defaults_and_bounds_are_those_of_the_table",
    "test_environments.py::test_the_worlds_that_are_promised_exist",
    "test_grid.py::test_every_world_and_every_workflow_is_in_the_grid",
    "test_grid.py::test_the_fast_part_of_the_grid_has_every_world_and_either_algorithm",
    "test_layout.py",
    "test_own_objects.py",
    "test_pages.py",
    "test_plugin_effects.py::test_every_argument_has_a_case",
    "test_workflow_contract.py",
    "test_workflow_effects.py::test_every_setting_has_a_case",
)
"""Tests of tables and pages, which have to hold whatever plug-ins there are."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with three new files."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns(".*", "outputs")  # what is compiled serves there, too
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, folder / file)
    for kind in get_args(Kind):
        example = EXAMPLES[kind]
        path = folder / "src" / "mrlm" / f"{kind}s" / f"{example.name}.py"
        assert not path.exists()
        path.write_text(example.code, encoding="utf-8")
    return folder


def place(test: str) -> str:
    """The path of a test from the name of its file."""
    file, *rest = test.split("::")
    return "::".join([str(file_of(file).relative_to(ROOT)), *rest])


def passed(copy: Path, files: tuple[str, ...], chosen: str = "") -> int:
    """How many tests passed there; none may fail."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen),
            *("-m", "not slow"),
            *map(place, files),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found else 0


def test_contracts_hold_for_new_plug_ins(copy: Path) -> None:
    assert passed(copy, ("test_contracts.py",), " or ".join(NAMES)) >= 10


def test_pages_and_stubs_are_made_from_them(copy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    for script in ("pages", "faces"):
        words = [sys.executable, "-m", f"scripts.{script}"]
        subprocess.run(words, cwd=copy, env=environment, check=True, capture_output=True)
    algorithm, environment_name, workflow = NAMES
    page = (copy / "docs" / "algorithms.md").read_text()
    assert f"### {algorithm}\n" in page and f"src/mrlm/algorithms/{algorithm}.py" in page
    assert f"| `{environment_name}` |" in (copy / "docs" / "environments.md").read_text()
    assert f"| `{workflow}` |" in (copy / "docs" / "workflows.md").read_text()
    stub = (copy / "src" / "mrlm" / "__init__.pyi").read_text()
    assert f"class {algorithm.capitalize()}Trainer(Trainer)" in stub


@pytest.mark.slow
def test_one_new_file_is_enough(copy: Path) -> None:
    kinds = ("unit", "contracts", "properties", "system")
    files = [path for kind in kinds for path in (copy / "tests" / kind).rglob("test_*.py")]
    everything = tuple(sorted(path.name for path in files))
    assert passed(copy, everything, " or ".join(NAMES)) >= 40
    assert passed(copy, TABLES) >= 40

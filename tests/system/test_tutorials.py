"""The tutorials and how-to pages run as they are written, at full length (`slow`). Two that use
all kinds of blocks between them, and the program of the home page, run with few steps, too."""

import json
from pathlib import Path

import pytest
from scripts import notebooks

from forking import Launcher
from places import ROOT

PAGES = sorted([*(ROOT / "docs/tutorials").glob("[0-9]*.md"), *(ROOT / "docs/how_to").glob("*.md")])
STEPS = 2
"""Iterations of every run in the short form."""
SHORT = ("05", "08")


def rewards(folder: str) -> list[float]:
    rows = map(json.loads, Path("outputs", folder, "metrics.jsonl").read_text().splitlines())
    return [row["reward/mean"] for row in rows if "reward/mean" in row]


def run(page: Path, launcher: Launcher, *more: str) -> str:
    words = ["scripts.notebooks", "run", str(page), *more]
    done = launcher.run(words, Path.cwd(), PYTHONPATH=str(ROOT))
    assert done.code == 0, f"{done.out[-1500:]}\n{done.err[-2500:]}"
    return done.out


def test_the_program_of_the_home_page_runs(launcher: Launcher) -> None:
    cells = notebooks.cells((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    (program,) = [cell.text for cell in cells if cell.kind == "python"]
    Path("program.py").write_text(notebooks.shortened(program, STEPS))
    done = launcher.run([str(Path("program.py").absolute())], Path.cwd())
    assert done.code == 0, done.err[-2000:]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem.startswith(SHORT)], ids=lambda page: page.stem
)
def test_a_page_runs_with_few_steps(page: Path, launcher: Launcher) -> None:
    run(page, launcher, "--steps", str(STEPS))
    assert len(list(Path("outputs").glob("*"))) >= 1


LEARNED = {
    "01_first_run": ("first_run/2-reward", 0.2),
    "03_your_data": ("parity/2-reward", 0.02),
    "04_your_reward": ("digits", 0.1),
    "05_your_environment": ("guessing/2-guess", 0.05),
    "06_two_agents": ("climbing/2-together", 0.05),
    "09_a_run_that_does_not_learn": ("repaired/2-together", 0.05),
}
"""Tutorial -> the run whose reward rises, and by how much at least."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_it_is_written(page: Path, launcher: Launcher) -> None:
    run(page, launcher)
    if page.stem in LEARNED:
        folder, least = LEARNED[page.stem]
        found = rewards(folder)
        late = sum(found[-3:]) / 3
        assert late > found[0] + least, (found[0], late)

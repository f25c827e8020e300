"""The gallery's exported runs: short runs, played while the site is built, each as one page.

python -m scripts.gallery [NAME ...]      write build/gallery/NAME.html, where it is out of date
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "gallery"
MAX_MB = "3"
"""Limit of a page; above it evaluations and three groups of every step are kept."""

EXPORT = ("-m", "mrlm", "export", "--max-mb", MAX_MB, "--output")
TRAIN = ("-m", "mrlm", "train", "--config")
TUTORIAL = ("-m", "scripts.notebooks", "run")
RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "quickstart": (
        ("-m", "mrlm", "quickstart", "--steps", "60", "--output", "quickstart"),
        (*EXPORT, "quickstart.html", "quickstart"),
    ),
    "climbing": ((*TUTORIAL, "docs/tutorials/06_two_agents.md"),),
    "drafts": ((*TUTORIAL, "docs/tutorials/08_roles_and_workflows.md"),),
    "self_play_poker": (
        (*TRAIN, "configs/self_play_poker.yaml", "--output", "poker", "--steps", "20"),
        (*EXPORT, "self_play_poker.html", "poker"),
    ),
}
"""Page -> the arguments of Python that write it into the current folder."""


def make(name: str, folder: Path) -> Path:
    """Play the runs of a page and export it.

    Args:
        name: one of `RUNS`.
        folder: where the page is written.

    Returns:
        The page.

    Raises:
        SystemExit: a command failed; has its last lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for arguments in RUNS[name]:
            files = [str(ROOT / each) if (ROOT / each).is_file() else each for each in arguments]
            done = subprocess.run(
                [sys.executable, *files],
                cwd=work,
                env=_environment(),
                capture_output=True,
                text=True,
            )
            if done.returncode:
                said = (done.stdout + done.stderr)[-2000:]
                raise SystemExit(f"gallery {name}: {' '.join(arguments)} failed\n{said}")
        return Path(shutil.copy(Path(work, f"{name}.html"), folder))


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def is_current(page: Path) -> bool:
    """Whether a page was made after the last change of the library and of this file."""
    sources = [Path(__file__), *(ROOT / "docs" / "tutorials").glob("*.md")]
    sources += [
        path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".js", ".yaml")
    ]
    newest = max(path.stat().st_mtime for path in sources)
    return page.is_file() and page.stat().st_mtime > newest


def main(names: list[str]) -> None:
    """Make the pages that are out of date.

    Args:
        names: those to make; all of them if it is empty.
    """
    for name in names or RUNS:
        page = FOLDER / f"{name}.html"
        if not is_current(page):
            begun = time.monotonic()
            size = make(name, FOLDER).stat().st_size
            print(f"{page}: {size:,} bytes, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

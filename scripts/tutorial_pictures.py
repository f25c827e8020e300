"""Draws the picture at the end of each tutorial: runs the tutorial and takes a part of the page
that it exports.

python -m scripts.tutorial_pictures [01_first_run ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from scripts.screenshot import ROOT, browser, encoded, shot

FOLDER = ROOT / "docs" / "images" / "tutorials"
WIDTH = 840


@dataclass(frozen=True)
class Part:
    """A part of a page.

    Args:
        file: the page that the tutorial exports.
        first, last: selectors of what it begins and ends with; all that match `last` are in it.
        place: kind of page: the run, or the group or the episode that `CHOOSE` finds.
    """

    file: str
    first: str
    last: str
    place: str = "run"


FIRST_WIDE = "figure.wide:not(figure.wide ~ figure.wide)"
PARTS = {
    "01_first_run": Part("first_run.html", "figure.main", "figure.main"),
    "02_read_a_run": Part("relay.html", "main", "main > *", "group"),
    "03_your_data": Part("parity.html", "figure.main", "figure.main"),
    "04_your_reward": Part("digits.html", FIRST_WIDE, FIRST_WIDE),
    "05_your_environment": Part("guessing.html", "main", "main > *", "episode"),
    "06_two_agents": Part("climbing.html", "figure.main", "figure:nth-of-type(5)"),
    "07_agent_behind_an_api": Part("with_friend.html", "main", "main > *", "episode"),
    "08_roles_and_workflows": Part("drafts.html", "main", "main > *", "episode"),
    "09_a_run_that_does_not_learn": Part("flat.html", "figure.main", "figure.alarms"),
    "10_scale_out": Part("profiled.html", "figure.wide:last-of-type", "figure.wide:last-of-type"),
}
CHOOSE = """import("viewer/data.js").then(({ list, FLAGS }) => {
  const c = list.columns, groups = new Map()
  for (let i = 0; i < list.length; i++) {
    const found = groups.get(c.group[i]) ?? []
    groups.set(c.group[i], [...found, i])
  }
  const spread = each => new Set(each.map(i => c.reward[i])).size
  const fits = i => c.flags[i] & FLAGS.tokens && !(c.flags[i] & FLAGS.eval)
  const shown = [...groups].filter(([, each]) => each.every(fits))
  const mixed = shown.filter(([, each]) => spread(each) > 1)
  const [group, some] = [...shown, ...mixed].at(-1)
  const all = mixed.length ? some : shown.flatMap(([, each]) => each)
  const best = all.reduce((a, b) =>
    c.turns[b] > c.turns[a] || (c.turns[b] === c.turns[a] && c.reward[b] > c.reward[a]) ? b : a)
  return KIND === "group" ? `/group/${group}` : `/episode/${best}`
})"""
"""The last group whose siblings have tokens and different rewards, or its longest, best episode; of
episodes without siblings, the longest and best of all."""
EDGE = "Math.SIDE(...[...document.querySelectorAll(%r)].map(e => e.getBoundingClientRect().EDGE))"


def draw(stem: str, folder: Path) -> bytes:
    """The picture of a tutorial that was run in a folder, as PNG."""
    part = PARTS[stem]
    top = EDGE.replace("SIDE", "min").replace("EDGE", "top") % part.first
    bottom = EDGE.replace("SIDE", "max").replace("EDGE", "bottom") % part.last
    page = folder / part.file
    with browser(WIDTH) as window:
        place = "/"
        if part.place != "run":
            window.open(page)
            place = window.js(CHOOSE.replace("KIND", repr(part.place)))
        return encoded(shot(window, page, place, f"{top} - 6", f"{bottom} + 6"))


def main() -> None:
    """The command."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for stem in sys.argv[1:] or PARTS:
        page = ROOT / "docs" / "tutorials" / f"{stem}.md"
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            subprocess.run(
                [sys.executable, "-m", "scripts.notebooks", "run", str(page)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": paths},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            seconds = time.monotonic() - begun
            data = draw(stem, Path(folder))
        (FOLDER / f"{stem}.png").write_bytes(data)
        print(f"{stem}: {seconds:.0f} s, {len(data):,} bytes")


if __name__ == "__main__":
    main()

"""Real runs for tests of the viewer's pages, and what every page must be."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import mrlm
from chromium import MISSING, Browser, chromium
from mrlm import experiment

needs_browser = pytest.mark.skipif(chromium() is None, reason=MISSING)

RELAY: dict[str, Any] = {
    "experiment_name": "viewed",
    "environments": [{"env_type": "relay"}],
    "policies": {"first": {}, "second": {"trainable": False}},
    "training": {
        "algorithm": "magrpo",
        "num_iterations": 3,
        "batch_size": 2,
        "learning_rate": 1e-4,
        "report_to": "none",
    },
    "magrpo": {"group_size": 3},
    "generation": {"max_new_tokens": 3},
    "evaluation": {"episodes": 2, "every": 2},
    "record": {"tokens": "all"},
}
"""A team of two agents, of which one is frozen."""
PWNED = "document.documentElement.dataset.pwned=1"
HOSTILE = [
    f"<script>{PWNED}</script>",
    f"</script><script>{PWNED}</script>",
    f'<img src=x onerror="{PWNED}">',
    "<!--<script>",
    f"--><svg onload={PWNED}>",
    f"javascript:{PWNED}",
    f"`+({PWNED})+`${{{PWNED}}}",
    "<style>*{display:none}</style>",
    "<base href=http://example.invalid/>",
    "<meta http-equiv=refresh content='0;url=http://example.invalid/'>",
    "<link rel=stylesheet href=http://example.invalid/x.css>",
    "\u202etxet desrever\u202c",
    "a\u0000b \u001b[31mred \u2028\u2029\u200b\u2066x\u2069",
    "\ud800 alone",
    "__proto__",
    "constructor",
    "e\u0301" * 50,
    "W" * 3000,
]
"""Texts of models that a page must show as text."""

MATRIX: dict[str, Any] = {"env_type": "matrix", "game": "climbing", "normalized": True}


def trained_players(folder: Path, **stage: Any) -> Path:
    """A finished run of two players of a matrix game who know how moves look."""
    game = MATRIX | {"rounds": stage.pop("rounds", 1)}
    words = {
        **{
            "name": "words",
            "environments": [MATRIX | {"teaches": "any"}],
            "sft": {"teacher": "expert"},
        },
        **{"policies": {"base": {}}, "workflow": {"name": "turns"}},
        "training": {
            "algorithm": "sft",
            "num_iterations": 12,
            "batch_size": 16,
            "learning_rate": 4e-3,
        },
    }
    policies: dict[str, Any] = {"row": {}, "column": {}}
    basis = {"num_iterations": 2, "batch_size": 2, "learning_rate": 1e-3}
    play = {"name": "play", "environments": [game], "policies": policies} | stage
    play["training"] = basis | play["training"]
    return trained_run(folder, stages=[words, play]) / "2-play"


def trained_run(folder: Path, *overrides: str, **config: Any) -> Path:
    """A finished run with the embedded model."""
    config["training"] = {"report_to": "none"} | config.get("training", {})
    config = {"record": {"tokens": "all"}, "generation": {"max_new_tokens": 1}} | config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "in.yaml").write_text(yaml.safe_dump(config))
    made = mrlm.load_config(folder / "in.yaml", [f"output_dir={folder / 'run'}", *overrides])
    experiment.run_experiment(made)
    return folder / "run"


COLOURS = """(() => {
  const parts = text => {
    const srgb = text.match(/srgb ([^ ]+) ([^ ]+) ([^ )]+)(?: . ([^ )]+))?/)
    if (srgb) return [+srgb[1], +srgb[2], +srgb[3], +(srgb[4] ?? 1)]
    const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number)
    return [r / 255, g / 255, b / 255, a ?? 1]
  }
  const light = colour => colour.slice(0, 3)
    .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, k) => sum + x * [0.2126, 0.7152, 0.0722][k], 0)
"""
"""Start of a program: a colour's red, green, blue and opacity, and its luminance (WCAG 2.2)."""
WRONG = """
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = []
  while (texts.nextNode())
    if (/^(null|undefined|NaN|false|\\[object .*)$/.test(texts.currentNode.data.trim()))
      found.push(texts.currentNode.data)
  let below = -Infinity
  for (const part of document.querySelector('main').children) {
    const { top, bottom, height } = part.getBoundingClientRect()
    if (!height) continue
    if (top < below - 1) found.push(`${part.tagName}.${part.className} lies over what is above it`)
    below = Math.max(below, bottom)
  }
  const over = (above, below) => below.map((x, k) => above[k] * above[3] + x * (1 - above[3]))
  const painted = (node, name) => parts(getComputedStyle(node)[name])
  const behind = new Map()
  const ground = node => {
    if (!node) return [1, 1, 1, 1]
    if (!behind.has(node))
      behind.set(node, over(painted(node, 'backgroundColor'), ground(node.parentElement)))
    return behind.get(node)
  }
  const faint = new Map(), all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (all.nextNode()) {
    const node = all.currentNode.parentElement, below = ground(node)
    if (!all.currentNode.data.trim() || node.closest('svg, :disabled')) continue
    if (!node.checkVisibility()) continue
    const [a, b] = [light(over(painted(node, 'color'), below)), light(below)]
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
    if (ratio < 4.5)
      faint.set(`${node.tagName}.${node.className} has a contrast of ${ratio.toFixed(1)}`, 1)
  }
  for (const table of document.querySelectorAll('table')) {
    if (![...table.rows].every(row => row.children.length === row.cells.length))
      found.push(`${table.className} table has a row with something else than cells`)
    const widths = [...table.rows].map(row => [...row.cells].reduce((n, c) => n + c.colSpan, 0))
    if (new Set(widths).size > 1) found.push(`${table.className} table has rows of ${widths} cells`)
  }
  return [...found, ...faint.keys()]
})()"""
"""Values that were written as text, parts of a page that lie over each other, text that is hard to
read on what is behind it (WCAG 2.2, 1.4.3), and tables whose rows have different widths."""


def check_clean(browser: Browser) -> None:
    """No message in the console, no request, nothing wider than the window, no part over another,
    and no value such as `null` as text."""
    assert browser.problems() == []
    assert browser.requests() == []
    assert browser.js("document.documentElement.dataset.pwned") is None
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    assert browser.js(COLOURS + WRONG) == []


def check_fits(browser: Browser, page: Path, *places: str) -> None:
    """Places of a page are clean at both widths and in both themes."""
    for dark in (False, True):
        browser.theme(dark)
        for width in (400, 1280):
            browser.size(width)
            browser.open(page)
            for place in places:
                browser.go(place)
                check_clean(browser)
    browser.theme(False)


def texts(browser: Browser, selector: str) -> list[str]:
    """The texts of all elements that a selector finds."""
    return browser.js(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")


def tab_to(browser: Browser, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(60):
        browser.key("Tab", 9)
        if browser.js(f"document.activeElement.matches({json.dumps(selector)})"):
            return
    raise AssertionError(f"Tab does not reach {selector}")

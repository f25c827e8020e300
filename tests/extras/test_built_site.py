"""The site is built, requests nothing from other hosts, and its search works from disk; the
tutorials run as notebooks. Needs the extra `docs`: `make docs-test`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import gallery, notebooks

from chromium import MISSING, Browser, chromium

ROOT = Path(__file__).parents[2]
needs_browser = pytest.mark.skipif(chromium() is None, reason=MISSING)
FIELD = 'document.querySelector("[style*=fixed]")?.shadowRoot'
"""The search is in a shadow tree."""
PAGES = (
    *(
        "index", "tutorials/01_first_run", "api/runs", "coming_from", "coming_from/rllib",
        "protocol",
    ),
    *("troubleshooting", "gallery"),
)  # fmt: skip


@pytest.fixture(scope="module")
def built() -> Path:
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.site"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return ROOT / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    window = Browser()
    yield window
    window.close()


def opened(window: Browser, page: Path) -> None:
    window.send("Page.navigate", url="about:blank")
    window.events.clear()
    window.send("Page.navigate", url=page.as_uri())
    window.wait("document.readyState === 'complete' && location.protocol === 'file:'")


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_pages_request_nothing_and_fit(
    built: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.size(width)
    browser.theme(dark)
    for page in PAGES:
        opened(browser, built / f"{page}.html")
        assert browser.requests() == [] and browser.problems() == []
        assert browser.js("document.documentElement.scrollWidth") <= width
        scheme = browser.js("document.body.getAttribute('data-md-color-scheme')")
        assert scheme == ("slate" if dark else "default")
        assert browser.js("[...document.images].every(i => i.complete && i.naturalWidth)")


@needs_browser
@pytest.mark.parametrize("name", gallery.RUNS)
def test_a_run_of_the_gallery_opens(built: Path, browser: Browser, name: str) -> None:
    browser.size(1280)
    opened(browser, built / "gallery" / f"{name}.html")
    browser.wait("!!document.querySelector('figure.main')")
    assert browser.requests() == [] and browser.problems() == []
    assert f'href="gallery/{name}.html"' in (built / "gallery.html").read_text(encoding="utf-8")


@needs_browser
def test_the_search_works_from_disk(built: Path, browser: Browser) -> None:
    browser.size(1280)
    opened(browser, built / "how_to" / "gsm8k_magrpo.html")
    browser.js('document.querySelector("button.md-search__button").click()')
    browser.wait(f"!!{FIELD}?.querySelector('input')")
    browser.js(f"{FIELD}.querySelector('input').focus()")
    end = time.monotonic() + 20
    browser.send("Input.insertText", text="rollback")
    while "recovery.html" not in (found := browser.js(f"{FIELD}.innerHTML")):
        assert time.monotonic() < end, found[:500]
        time.sleep(0.1)
    assert browser.requests() == []


def test_the_reference_has_arguments_and_every_algorithm(built: Path) -> None:
    runs = (built / "api" / "runs.html").read_text(encoding="utf-8")
    assert "num_agents" in runs and "ConfigError" in runs
    algorithms = (built / "api" / "algorithms.html").read_text(encoding="utf-8")
    assert 'id="magrpo"' in algorithms and "clip_range_high" in algorithms
    assert "::: " not in runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/tutorials").glob("[0-9]*.md")), ids=lambda page: page.stem
)
def test_a_tutorial_runs_as_a_notebook(page: Path, tmp_path: Path) -> None:
    for needed in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(needed)
    outputs, passed, spent = notebooks.execute(page.read_text(encoding="utf-8"), tmp_path)
    kinds = [each["output_type"] for cell in outputs for each in cell]
    assert kinds and "error" not in kinds
    assert passed > 0 and spent > 0

"""Live runs, servers of the viewer, and pages that are open in a browser meanwhile."""

import gzip
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from chromium import Browser
from mrlm.record.reader import read_run
from mrlm.tracking.run_log import RunLog
from mrlm.viewer.server import ViewServer
from places import IMPORTS
from played_again import copied
from record_maker import PIECES, RunMaker
from waiting import until


class LiveRun:
    """A run that is written step by step, as training writes it."""

    def __init__(self, folder: Path, maker: RunMaker | None = None) -> None:
        self.folder, self.maker = folder, maker or RunMaker(turns=1)
        self.open(None)

    def begin(self) -> None:
        """The settings and the vocabulary, which are written first."""
        names = dict.fromkeys(self.maker.agents, 0)
        table = {"policies": names, "pieces": [[piece.decode() for piece in PIECES]]}
        data = gzip.compress(json.dumps(table).encode())
        (self.folder / "vocabulary.json.gz").write_bytes(data)
        config = {"training": {"algorithm": "magrpo", "num_iterations": 40}}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(config))

    def open(self, resume: int | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = RunLog(self.folder, "live", {}, 40, resume_step=resume)

    def step(self, step: int, tasks: int = 2) -> None:
        made = [
            self.maker.row(step, f"train/sums/{step * tasks + group}/{k}", group, "t", 0.5)
            for group in range(tasks)
            for k in range(3)
        ]
        self.log._episodes.append(step, made)
        self.log.log(step, {"reward/mean": float(step), "grad_norm": 1.0})

    def resume(self, first: int) -> None:
        """Continue with an earlier step; what follows it is written again."""
        self.log.close()
        self.open(first)

    def ids(self) -> list[tuple[str, float]]:
        rows = read_run(self.folder).rows()
        return [(row["id"], row["reward"]) for row in rows]


@contextmanager
def command(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mrlm view` as a process, and its address."""
    words = [sys.executable, "-m", "mrlm", "view", *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": IMPORTS + os.pathsep + os.environ.get("PYTHONPATH", "")}
    environ |= environment
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert "(Ctrl-C ends)" in line, process.stderr.read()
        yield process, line.split()[-3]
    finally:
        process.kill()
        process.communicate()


@contextmanager
def server(folder: Path, **options: Any) -> Iterator[ViewServer]:
    """A server in this process."""
    made = ViewServer(folder, options.pop("play", copied), **options)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join()
        assert not thread.is_alive()


def visit(browser: Browser, url: str, place: str = "") -> None:
    browser.send("Page.navigate", url="about:blank")
    browser.events.clear()
    browser.send("Page.navigate", url=url + ("#" + place if place else ""))
    browser.wait("document.documentElement?.dataset.ready")


def clean(browser: Browser, url: str) -> None:
    """Nothing was complained about, and nothing requested from elsewhere."""
    assert browser.problems() == []
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    assert [each for each in browser.requests() if not each.startswith(origin)] == []
    assert browser.js("document.documentElement.dataset.pwned") is None


LISTED = (
    "import('viewer/data.js').then(({list}) => list.columns.id.map((id, i) => "
    "[id, list.columns.reward[i]]))"
)


def wait_for(browser: Browser, expression: str, wanted: Any) -> None:
    until(lambda: browser.js(expression) == wanted)


def shows(browser: Browser, run: LiveRun) -> None:
    """The page has exactly the record, in its order."""
    wait_for(browser, LISTED, [list(each) for each in run.ids()])


def ask(
    url: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    found = urlsplit(url)
    assert found.hostname is not None
    line = http.client.HTTPConnection(found.hostname, found.port)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    line.request(method, path, body, given)
    answer = line.getresponse()
    text = answer.read().decode() if answer.headers["Content-Type"] else ""
    line.close()
    return answer.status, answer.headers, text


def small_run(tmp_path: Path) -> Path:
    """A run beside a file that is not of it."""
    (tmp_path / "secret.txt").write_text("secret")
    return RunMaker().write(tmp_path / "run", steps=2, tasks=1, siblings=2)

"""`mrlm view`: real servers, a real browser, and runs that grow, stop and are resumed meanwhile."""

import gzip
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from chromium import Browser
from mrlm.record.files import EpisodeFile, Part
from mrlm.record.reader import read_run
from mrlm.viewer.following import RunFollower, Thinning, thinning
from record_maker import PIECES, RunMaker
from viewed import RELAY, needs_browser
from watched import LISTED, LiveRun, clean, command, server, shows, visit, wait_for


@pytest.fixture
def live(tmp_path: Path) -> LiveRun:
    made = LiveRun(tmp_path / "live")
    made.begin()
    return made


# -- a run that grows ------------------------------------------------------------------------------


@needs_browser
def test_a_page_follows_a_run(browser: Browser, live: LiveRun) -> None:
    for step in range(12):
        live.step(step)
    with command(live.folder) as (_, url):
        visit(browser, url)
        shows(browser, live)
        browser.js(
            "(() => { const i = document.querySelector('input[type=search]');"
            " i.value = 'train step:1-99'; i.dispatchEvent(new Event('input')) })()"
        )
        browser.wait("document.querySelector('.tools .dim').textContent.startsWith('66 of 72')")
        browser.js("document.querySelector('.table').scrollTop = 520")
        browser.js("document.querySelector('.overview details').open = true")
        browser.wait("document.querySelectorAll('.overview details figure').length === 2")
        browser.js("document.querySelector('.tools').scrollIntoView()")
        browser.js("window.still = 1")
        top = browser.js("scrollY")
        assert top > 0
        for step in (12, 13):
            live.step(step)
        shows(browser, live)
        browser.wait("document.querySelector('.tools .dim').textContent.startsWith('78 of 84')")
        browser.wait("document.querySelector('.facts').textContent.includes('13 of 40')")
        browser.wait("document.querySelector('.chart .key b').textContent === '13'")
        assert browser.js("document.querySelector('.table').scrollTop") == 520
        assert browser.js("document.querySelector('input').value") == "train step:1-99"
        assert browser.js("document.querySelector('.overview details').open") is True
        assert browser.js("[scrollY, window.still]") == [top, 1]
        browser.go("/episode/80")
        words = browser.js("document.querySelector('.tokens').textContent")
        assert set(words.replace("↵\n", "").replace("\n", "")) <= set(
            "".join(map(bytes.decode, PIECES))
        )
        assert browser.js("document.querySelectorAll('.tokens .t').length") > 4
        browser.go("/group/3")
        clean(browser, url)


@needs_browser
def test_links_to_compare_come_with_the_evaluations(browser: Browser, live: LiveRun) -> None:
    def evaluate(step: int) -> None:
        rows = [live.maker.row(step, f"eval/sums/{step}/{k}", k, str(k), step) for k in range(2)]
        live.log._episodes.append(step, rows)

    links = "document.querySelector('.links.compare').textContent"
    live.step(0)
    with server(live.folder) as viewer:
        visit(browser, viewer.url)
        shows(browser, live)
        assert browser.js(links) == ""
        evaluate(1)
        shows(browser, live)
        assert browser.js(links) == ""  # one alone
        evaluate(2)
        browser.wait(links + " === 'Comparefirst and last evaluation'")
        browser.js("document.querySelector('.links.compare a').click()")
        browser.wait("document.querySelector('h1').textContent === 'Compare'")
        address = browser.js("location.hash.slice(1)")
        visit(browser, viewer.url, address)  # before anything is loaded
        browser.wait("document.querySelector('h1')?.textContent === 'Compare'")
        assert "2 tasks" in browser.js("document.querySelector('main').innerText")
        clean(browser, viewer.url)


@needs_browser
def test_a_run_that_is_not_written_yet(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with command(tmp_path / "live") as (_, url):
        visit(browser, url)
        assert "Nothing is written yet" in browser.js("document.body.innerText")
        live = LiveRun(tmp_path / "live")
        live.begin()
        browser.wait("document.body.innerText.includes('magrpo')")
        assert "no metrics yet" in browser.js("document.body.innerText")
        live.step(0)
        shows(browser, live)
        browser.wait("!!document.querySelector('.chart')")
        browser.wait("document.querySelectorAll('.body .row').length === 6")
        clean(browser, url)


@needs_browser
def test_a_run_that_is_killed_while_writing_and_resumed(browser: Browser, live: LiveRun) -> None:
    for step in range(4):
        live.step(step)
    with command(live.folder) as (_, url):
        visit(browser, url)
        shows(browser, live)
        before = live.ids()
        member = gzip.compress(b'{"step": 4, "id": "train/x/0/0", "agents": {}}\n')
        with (live.folder / "episodes.jsonl.gz").open("ab") as file:
            file.write(member[:-9])
        with (live.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward/mean": 7')
        time.sleep(1.5)
        assert live.ids() == before
        shows(browser, live)
        # the run continues before what was written last: other rows take the place of these
        live.resume(2)
        for step in range(2, 6):
            live.step(step)
        assert live.ids()[:12] == before[:12] and live.ids()[12:24] != before[12:]
        shows(browser, live)
        browser.wait("document.querySelector('.facts').textContent.includes('5 of 40')")
        steps = "import('viewer/data.js').then(d => d.meta.stages[0].metrics.get('step'))"
        assert browser.js(steps) == [0, 1, 2, 3, 4, 5]
        clean(browser, url)


@needs_browser
def test_a_page_continues_after_its_connection_was_lost(browser: Browser, live: LiveRun) -> None:
    for step in range(3):
        live.step(step)
    with command(live.folder) as (process, url):
        visit(browser, url)
        shows(browser, live)
        browser.js("import('viewer/data.js').then(({list}) => { list.mine = 1 })")
        process.send_signal(signal.SIGKILL)
        process.wait()
        browser.wait("document.querySelector('.right').textContent.includes('connection lost')")
    live.step(3)
    with command(live.folder, "--port", urlsplit(url).port):
        shows(browser, live)
        browser.wait("document.querySelector('.right').textContent.includes('following')")
        assert browser.js("import('viewer/data.js').then(({list}) => list.mine)") == 1  # no reset


@needs_browser
def test_a_record_that_is_thinned_while_it_is_followed(browser: Browser, live: LiveRun) -> None:
    for step in range(8):
        live.step(step)
    file = live.log._episodes
    with command(live.folder) as (_, url):
        visit(browser, url)
        shows(browser, live)
        file.max_bytes = file.size
        live.step(8)
        assert file.every > 1
        file.max_bytes = None
        shows(browser, live)
        live.step(8 + file.every)
        shows(browser, live)
        clean(browser, url)


@needs_browser
@pytest.mark.parametrize("index", [True, False], ids=["index", "scan"])
def test_a_plain_record_with_and_without_its_index(
    browser: Browser, tmp_path: Path, index: bool
) -> None:
    run = RunMaker().write(tmp_path / "run", steps=3, tasks=2, siblings=2)
    file = EpisodeFile(run, 3)
    if not index:
        file.index.unlink()
    with command(run) as (_, url):
        visit(browser, url)
        wanted = [[row["id"], row["reward"]] for row in read_run(run).rows()]
        wait_for(browser, LISTED, wanted)
        browser.go("/episode/9")
        clean(browser, url)


@needs_browser
@pytest.mark.slow
def test_a_real_training_run_is_followed_to_its_end(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(yaml.safe_dump({**RELAY, "output_dir": str(tmp_path / "r")}))
    (tmp_path / "r").mkdir()
    words = [sys.executable, "-m", "mrlm", "train", "--config", str(tmp_path / "in.yaml")]
    with server(tmp_path / "r") as view:
        visit(browser, view.url)
        train = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        text, _ = train.communicate()
        assert train.returncode == 0, text
        assert f"mrlm view {tmp_path / 'r'}" in text
        rows = [[row["id"], row["reward"]] for row in read_run(tmp_path / "r").rows()]
        wait_for(browser, LISTED, rows)
        browser.wait("document.querySelectorAll('.body .row').length")
        clean(browser, view.url)


# -- several runs ----------------------------------------------------------------------------------


@needs_browser
def test_a_folder_of_runs_lists_them_and_each_opens(browser: Browser, tmp_path: Path) -> None:
    RunMaker().write(tmp_path / "a <b> &%2f run", steps=2, tasks=1, siblings=2)
    for stage in ("1-words", "2-play", "10-more"):
        RunMaker().write(tmp_path / "pipeline" / stage, steps=2, tasks=1, siblings=2)
    (tmp_path / "notes").mkdir()
    with command(tmp_path) as (_, url):
        visit(browser, url)
        links = browser.js("[...document.querySelectorAll('.runs a')].map(a => a.textContent)")
        assert sorted(links) == ["a <b> &%2f run", "pipeline"]
        for name, wanted in (("a <b>", 8), ("pipeline", 24)):
            visit(browser, url)
            address = browser.js(
                f"[...document.querySelectorAll('.runs a')].find(a => "
                f"a.textContent.startsWith({name!r})).href"
            )
            visit(browser, address)
            wait_for(browser, f"{LISTED}.then(found => found.length)", wanted)
            browser.go("/episode/3")
            clean(browser, url)
        stages = "import('viewer/data.js').then(({meta}) => meta.stages.map(s => s.name))"
        assert browser.js(stages) == ["1-words", "2-play", "10-more"]


# -- large records ---------------------------------------------------------------------------------


def parts(steps: int, size: int = 100, every: int = 10) -> list[Part]:
    found: list[Part] = []
    for step in range(steps):
        for evaluation in (True, False) if step % every == 0 else (False,):
            found.append(
                Part(step, evaluation, sum(p.size for p in found[-1:]) and found[-1].end, size, 4)
            )
    return found


@pytest.mark.parametrize("limit", [100, 500, 2000, 5000, 10_900, 11_000, 50_000])
def test_what_is_listed_of_a_large_record(limit: int) -> None:
    known = parts(100)
    rule = thinning(known, limit)
    kept = rule.of(known)
    assert kept[-1] == known[-1]
    assert sum(part.size for part in kept) <= max(limit, 300)
    whole = limit >= sum(part.size for part in known)
    assert (kept == known) == whole == (rule == Thinning()) == (rule.sentence(known) == "")
    more = [*known, Part(100, False, known[-1].end, 100, 4)]
    assert rule.of(more) == [*kept, more[-1]]  # what is written later is listed


def test_a_rule_is_stated() -> None:
    rule = thinning(parts(100), 5000)
    assert rule.sentence(parts(100)) == (
        "everything from step 77 on; before it all evaluations and every 8th training step"
    )


def followed(follower: RunFollower) -> list[str]:
    """The ids of a stream."""
    found: list[str] = []
    for kind, piece in follower.pieces():
        assert kind == "piece"
        found += piece["list"]["columns"]["id"] if "list" in piece else []
    return found


@pytest.mark.parametrize("share", [0.3, 1.0], ids=["thinned", "whole"])
def test_a_stream_continues_where_another_ended(
    live: LiveRun, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(30):
        live.step(step)
    size = live.log._episodes.size
    limit = int(share * size)
    monkeypatch.setattr("mrlm.viewer.following.PIECE", size // 10)
    whole = followed(RunFollower(live.folder, live.folder, "", limit))
    assert (len(whole) == 180) == (share == 1)
    follower, found = RunFollower(live.folder, live.folder, "", limit), []
    while len(found) < len(whole):  # each stream is lost after its first piece of episodes
        for _, piece in follower.pieces():
            if "list" in piece:
                found += piece["list"]["columns"]["id"]
                break
        follower = RunFollower(live.folder, live.folder, follower.position(), limit)
    assert found == whole
    live.step(30)
    assert followed(follower) == [f"train/sums/{60 + g}/{k}" for g in range(2) for k in range(3)]


@pytest.mark.parametrize("index", [True, False], ids=["index", "scan"])
def test_a_page_of_a_growing_record_starts_again_when_it_has_twice_its_limit(
    live: LiveRun, index: bool
) -> None:
    live.step(0)
    follower = RunFollower(live.folder, live.folder, "", 5 * live.log._episodes.size)
    resets, listed, steps = 0, 0, list[int]()
    for step in range(1, 60):
        live.step(step)
        if not index:
            live.log._episodes.index.unlink()
        for _ in range(2):  # what follows a reset comes with the second
            for kind, piece in follower.pieces():
                if kind == "reset":
                    resets, listed, steps = resets + 1, 0, []
                for stage in piece.get("stages", ()):
                    steps += dict(stage.get("metrics", ())).get("step", ())
                listed += len(piece["list"]["columns"]["id"]) if "list" in piece else 0
    assert 2 <= resets < 12 and 0 < listed < 180
    assert steps == list(range(60))


@pytest.mark.parametrize(
    "garbage", ["[]", "{", '{"": {"metrics": [0, ""], "rule": [0, 1, 1]}}', "7"]
)
def test_a_position_that_is_no_position_is_the_beginning(live: LiveRun, garbage: str) -> None:
    live.step(0)
    assert len(followed(RunFollower(live.folder, live.folder, garbage))) == 6

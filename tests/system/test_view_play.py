"""The page of a live run plays on from a turn; a file shows the command that does."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from mrlm.record.reader import read_run
from mrlm.viewer.export import export_run
from mrlm.viewer.server import ViewServer
from played_again import copied, endless, play_again, refused
from record_maker import RunMaker
from viewed import RELAY, needs_browser, trained_run
from waiting import until
from watched import ask, clean, server, small_run, visit


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_run(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    training = {**RELAY["training"], "num_iterations": 2, "save_steps": 1}
    return trained_run(tmp_path_factory.mktemp("played"), **RELAY | {"training": training})


def bar(browser: Browser, number: int) -> None:
    """Open the bar of a turn of the page."""
    browser.js(f"document.querySelectorAll('.bar')[{number}].open = true")
    browser.wait(f"!!document.querySelectorAll('.bar')[{number}].querySelector('.command')")


FORM = "document.querySelector('.bar[open] form')"


@needs_browser
@pytest.mark.parametrize("play", [copied, pytest.param(play_again, marks=pytest.mark.slow)])
def test_a_page_plays_from_a_turn(
    browser: Browser, trained: Path, play: Callable[..., Any]
) -> None:
    rows = list(read_run(trained).rows())
    number = next(k for k, row in enumerate(rows) if row["step"] == 2 and "train/" in row["id"])
    row = rows[number]
    with server(trained, play=play) as view:
        visit(browser, view.url, f"/episode/{number}")
        bar(browser, 1)
        names = "[...document.querySelectorAll('.bar[open] option')].map(o => o.textContent)"
        assert browser.js(names) == ["as played", "final", "checkpoint-2", "checkpoint-1"]
        browser.js(f"{FORM}.querySelector('[type=number]').value = 2")
        browser.js(f"{FORM}.requestSubmit()")
        assert "playing, 0 s" in browser.js(f"{FORM}.textContent")  # the page answers meanwhile
        browser.wait(f"{FORM}.querySelectorAll('.branches tr').length === 4")
        cells = f"[...{FORM}.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.innerText))"
        shown = browser.js(cells)
        agent = row["agents"]["second"]
        text = agent["messages"][agent["turns"][0]["message"]]["content"]
        assert [each[0] for each in shown[1:]] == ["original", "branch 1", "branch 2"]
        assert len({each[1] for each in shown[1:]}) == 1 and shown[2][2] == "0"
        assert text.strip() in shown[2][3]
        browser.js(f"{FORM}.querySelector('.branches a').click()")
        browser.wait("document.querySelector('h1').textContent.endsWith('~0')")
        assert browser.js("document.querySelectorAll('.tokens .t').length") > 1
        assert browser.js("document.body.innerText.includes('2 siblings')")
        browser.go("/?q=played")
        browser.wait("document.querySelectorAll('.body .row').length === 2")
        clean(browser, view.url)


@needs_browser
def test_an_error_is_shown_as_text(browser: Browser, trained: Path) -> None:
    with server(trained, play=refused) as view:
        visit(browser, view.url, "/episode/0")
        bar(browser, 0)
        browser.js(f"{FORM}.querySelector('select').value = 'checkpoint-1'")
        browser.js(f"{FORM}.requestSubmit()")
        browser.wait(f"!!{FORM}.querySelector('.error')")
        text = browser.js(f"{FORM}.querySelector('.error').textContent")
        assert "<b>checkpoint-1</b> cannot be played here" in text
        clean(browser, view.url)


def request_of(trained: Path, **changes: Any) -> str:
    row = next(iter(read_run(trained).rows()))
    known = {"stage": "", "id": row["id"], "step": row["step"], "agent": "first", "turn": 0}
    return json.dumps(known | changes)


def form_of(view: ViewServer) -> dict[str, str]:
    return {"Origin": view.url.rstrip("/"), "X_MRLM_Form": view.view.access.form}


def test_one_is_played_at_a_time_and_a_page_that_is_left_ends_it(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.viewer.playing.BEAT", 0.1)
    with server(trained, play=endless) as view:
        first = socket.create_connection(("127.0.0.1", view.port))
        body = request_of(trained)
        first.sendall(
            f"POST /play HTTP/1.1\r\nHost: 127.0.0.1:{view.port}\r\nOrigin: {view.url[:-1]}\r\n"
            f"X-MRLM-Form: {view.view.access.form}\r\nContent-Length: {len(body)}\r\n\r\n"
            f"{body}".encode()
        )
        assert first.recv(20).startswith(b"HTTP/1.1 200")
        until(view.view.player._free.locked)  # the answer begins before the episode does

        def answer() -> str:
            return ask(view.url, "/play", "POST", body, **form_of(view))[2]

        assert "another episode is being played" in answer()
        first.close()
        view.view.player._play = copied
        while "another" in (text := answer()):
            time.sleep(0.2)
        assert json.loads(text)["rows"]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"Origin": "http://evil.example"}, 403, "only the page itself can play"),
        ({"Origin": ""}, 403, "only the page itself can play"),
        ({"X_MRLM_Form": "guess"}, 403, "only the page itself can play"),
        ({"Content_Length": "99999999"}, 413, "at most"),
        ({"Host": "evil.example"}, 403, "does not answer to the name"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "other sites"),
    ],
)
def test_only_the_page_plays(
    small: Path, changes: dict[str, str], status: int, message: str
) -> None:
    with server(small) as view:
        found, _, text = ask(
            view.url, "/play", "POST", request_of(small), **form_of(view) | changes
        )
        assert found == status and message in text


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"n": 0}, "n"), ({"n": True}, "n"), ({"n": 1000}, "n"), ({"turn": "0"}, "turn"),
        ({"step": -1}, "step"), ({"greedy": 1}, "greedy"), ({"weights": "../../other"}, "weights"),
        ({"message": 3}, "message"), ({"id": None}, "id"), ({"command": "x"}, "command"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(small: Path, changes: dict[str, Any], name: str) -> None:
    with server(small) as view:
        body = request_of(small, **changes)
        _, _, text = ask(view.url, "/play", "POST", body, **form_of(view))
        assert json.loads(text) == {"error": f"the request is wrong in: {name}"}


@needs_browser
def test_a_file_shows_the_command(browser: Browser, tmp_path: Path) -> None:
    run = RunMaker().write(tmp_path / "a run", steps=1, tasks=1, siblings=2)
    browser.open(export_run(run, tmp_path / "x.html").path, "/episode/5")
    bar(browser, 1)
    assert not browser.js(f"{FORM}.querySelector('button')")
    browser.js(f"{FORM}.querySelectorAll('[type=checkbox]')[1].click()")
    browser.js(
        f"(() => {{ const t = {FORM}.querySelector('textarea'); t.value = \"it's\";"
        " t.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )
    line = browser.js(f"{FORM}.querySelector('.command').textContent")
    assert line == (
        f"mrlm replay '{run}' --episode train/sums/0/1 --step 0 --from critic:0 --n 4 "
        "--message 'it'\\''s'"
    )

"""The board on the page of an episode, in a real browser: it follows the joint steps, and what a
record has becomes text and known elements only."""

from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from mrlm.record.reader import read_run
from mrlm.viewer.export import export_run
from record_maker import RunMaker
from viewed import HOSTILE, PWNED, check_clean, needs_browser, trained_run

pytestmark = needs_browser

CONFIG: dict[str, Any] = {
    "environments": [{"env_type": "tic_tac_toe"}, {"env_type": "negotiation"}],
    "training": {
        "algorithm": "sft",
        "num_iterations": 1,
        "batch_size": 3,
        "learning_rate": 1e-4,
        "report_to": "none",
    },
    "sft": {"teacher": "expert"},
    "generation": {"max_new_tokens": 3},
    "record": {},
}
PICTURE = "document.querySelector('.picture').innerText"
STATUS = "document.querySelector('.board [role=status]').innerText"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose episodes are games between experts."""
    folder = tmp_path_factory.mktemp("boards")
    trained_run(folder, **CONFIG)
    export_run(folder / "run", folder / "run.html")
    return folder


def test_the_record_has_boards_where_it_has_tokens(folder: Path) -> None:
    rows = [episode.row for episode in read_run(folder / "run").episodes()]
    assert len(rows) == 3
    for row in rows:
        with_tokens = any("ids" in turn for a in row["agents"].values() for turn in a["turns"])
        assert ("boards" in row) is with_tokens
    game = rows[0]
    steps = [board["step"] for board in game["boards"]]
    assert steps == list(range(len(game["step_rewards"]) + 1))


def test_the_board_follows_the_joint_steps(browser: Browser, folder: Path) -> None:
    browser.theme(False)
    browser.size(1280)
    browser.open(folder / "run.html", "/episode/0")
    last = len(read_run(folder / "run").episode("train/tic_tac_toe/0/0").row["step_rewards"])
    cells = "document.querySelectorAll('.picture td:is(.player0, .player1)').length"
    assert browser.js(STATUS) == f"after joint step {last} of {last}"
    assert browser.js(cells) == last
    browser.js("document.querySelector('.board input').focus()")
    browser.key("Home", 36)
    assert browser.js(cells) == 0 and browser.js(STATUS).startswith("before")
    for step in (1, 2):
        browser.key("ArrowRight", 39)
        assert browser.js(cells) == step
        assert browser.js("document.querySelectorAll('.picture .move').length") == 1
        drawn = browser.js(
            "[...document.querySelectorAll('.turn.drawn')].map(t => t.getAttribute('aria-label'))"
        )
        assert drawn == [f"turn of {'xo'[step - 1]}"]
    browser.js("document.querySelector('.board button[title=\"step back\"]').click()")
    assert browser.js(cells) == 1
    browser.js("document.querySelectorAll('.turn')[4].click()")
    assert browser.js(cells) == 5, "a click on a turn shows the board after it"
    browser.go("/episode/1")
    assert "value for opener" in browser.js(PICTURE)
    check_clean(browser)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_boards_fit_the_page(browser: Browser, folder: Path, width: int, dark: bool) -> None:
    browser.theme(dark)
    browser.size(width)
    browser.open(folder / "run.html")
    for number in (0, 1):
        browser.go(f"/episode/{number}")
        assert browser.js("document.documentElement.scrollWidth <= innerWidth")
        height = browser.js("document.querySelector('.board').getBoundingClientRect().height")
        assert 60 < height < 0.6 * 900, "turns stay visible below it"
    check_clean(browser)


def test_an_episode_without_boards_has_no_panel(browser: Browser, folder: Path) -> None:
    browser.open(folder / "run.html", "/episode/2")
    assert browser.js("document.querySelector('.board')") is None
    check_clean(browser)


def boards() -> list[dict[str, Any]]:
    """Boards that no recorder writes, and texts that models may."""
    trees: list[Any] = [
        *(["div", text, ["td.win", text], [text, text]] for text in HOSTILE),
        ["script", PWNED],
        ["div", ["iframe.x", "a"], ["svg onload=" + PWNED, "b"], ["style", "*{display:none}"]],
        ["a.win", ["img", ["__proto__", "c"]], ["constructor", "d"], ["td.evil.app.turn.win", "e"]],
        ["div", None, 7, {"tag": "script"}, [], [["script"], "f"]],
        "only text",
    ]
    deep: Any = "end"
    for _ in range(60):
        deep = ["b", deep]
    found = [{"tree": tree} for tree in [*trees, deep]] + [{"text": text} for text in HOSTILE]
    return [{"step": step} | board for step, board in enumerate([*found, {}])]


def test_boards_stay_text_and_known_elements(browser: Browser, tmp_path: Path) -> None:
    class Maker(RunMaker):
        def row(self, *given: Any) -> dict[str, Any]:
            return super().row(*given) | {"boards": boards()}

    run = Maker().write(tmp_path / "run", steps=1, tasks=1, siblings=1)
    browser.size(1280)
    browser.open(export_run(run, tmp_path / "x.html").path, "/episode/0")
    slider = "document.querySelector('.board input')"
    seen = ""
    for step in range(len(boards())):
        browser.js(f"{slider}.value = {step}; {slider}.dispatchEvent(new Event('input'))")
        tags = browser.js(
            "[...document.querySelectorAll('.picture *')].map(n => n.localName + ' ' + "
            "[...n.attributes].map(a => a.name + '=' + a.value))"
        )
        for tag in tags:
            assert tag in ("div ", "td ", "td class=win", "b ", "pre "), tag
        seen += browser.js(PICTURE)
    assert HOSTILE[0] in seen and "\u27e8202e\u27e9txet desrever" in seen
    assert not {"\u202e", "\u2066", "\u001b", "\u200b", "\ud800"} & set(seen)
    assert {"a", "b", "c", "d", "e", "f"} <= set(seen)
    check_clean(browser)

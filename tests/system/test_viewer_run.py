"""The page of a run: parts that add up, ratings, alarms, and histograms that write the filter."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from mrlm.record.reader import read_run
from mrlm.viewer.choice import Candidate, choose
from mrlm.viewer.export import export_run
from mrlm.viewer.source import ViewedStage
from record_maker import RunMaker
from viewed import check_clean, check_fits, needs_browser, texts, trained_run

STEPS = 6
SMALL = {f"small{k}": {"": 0.05} for k in range(8)}
PHASES = {
    "sampling": {"solver": 0.5, "critic": 0.25},
    "update": {"": 0.5},
    "sync": {"": 0.125},
} | SMALL
HOSTILE = '<img src=x onerror="document.documentElement.dataset.pwned=1"> \u202etxet'
ALARMS: list[dict[str, Any]] = [
    {
        **{"schema": 1, "rule": "zero variance", "step": 3, "since": 1, "agent": "solver"},
        **{"policy": None, "because": "equal rewards in 0.9 of the groups", "do": "harder tasks"},
        "evidence": [
            {"id": "train/sums/9/0", "step": 3},
            {"id": "train/sums/9/1", "step": 3},
            {"id": "train/sums/999/0", "step": 3},
        ],
    },
    {
        **{"schema": 1, "rule": HOSTILE, "step": 5, "since": 5, "agent": None, "policy": "critic"},
        **{"because": HOSTILE, "do": HOSTILE, "evidence": [{"id": "eval/sums/1/0", "step": 5}]},
    },
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose solver's reward is `correct + late`, and has a fact beside it."""
    folder = RunMaker().write(tmp_path_factory.mktemp("made") / "run", STEPS, 3, siblings=4)
    rows = read_run(folder).metrics
    for k, row in enumerate(rows):
        row |= {"reward/solver/correct": 0.5 + k / 8, "reward/solver/turns": 3.0}
        row |= {"reward/solver/late": -k / 16} if k else {}
        row["reward/solver/mean"] = 0.5 + k / 16
        row |= {"reward/critic/helpful": 0.25, "reward/critic/calm": 0.5}
        row |= {"frac_zero_variance": k / 8, "lag/mean": 0.5, "lag/max": 1.0}
        row |= {"lag/tokens/0": 0.5, "lag/tokens/1": 0.5}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    profile = [{"step": k, "seconds": PHASES, "tokens": {}} for k in range(STEPS)]
    lines = "".join(json.dumps(row) + "\n" for row in profile)
    (folder / "profile.jsonl").write_text(lines + '{"step": 6, "sec')
    (folder / "alarms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ALARMS))
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return export_run(run, run.parent / "run.html").path


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of self-play with past players, all of whom know how moves look."""
    asked = [card + said + "?" for card in "JQK" for said in ("", "p", "b")]
    rows = [{"prompt": text, "completion": move} for text in asked for move in "pb"]
    basis = {"num_iterations": 15, "batch_size": 18, "learning_rate": 3e-3}
    words = {
        **{"name": "words", "policies": {"base": {}}, "data": {"dataset": rows}},
        "training": {"algorithm": "sft"} | basis,
    }
    play = {
        **{"name": "play", "environments": [{"env_type": "kuhn_poker", "style": "short"}]},
        **{"policies": {"player": {}}, "evaluation": {"every": 1, "episodes": 2, "greedy": False}},
        "opponents": {"every": 1, "games": 8, "tasks_per_game": 1},
        "training": basis
        | {"algorithm": "spiral", "num_iterations": 2, "batch_size": 4, "profile": True},
    }
    return trained_run(tmp_path_factory.mktemp("rated") / "made", stages=[words, play]) / "2-play"


def parts(browser: Browser, title: str) -> dict[str, Any]:
    """Of a chart: its keys with their last values, and the areas and lines that are drawn."""
    return browser.js(
        "(figure => figure && ({keys: Object.fromEntries([...figure.querySelectorAll('.key')]"
        ".map(key => [key.firstChild.nextSibling.textContent,"
        " key.querySelector('b').textContent])),"
        " areas: figure.querySelectorAll('.area').length,"
        " lines: figure.querySelectorAll('path.line').length}))([...document.querySelectorAll("
        f"'.chart')].find(f => f.querySelector('.name')?.textContent === {title!r}))"
    )


def stacks(browser: Browser, whole: list[float | None], **series: list[float | None]) -> Any:
    named = [{"name": name, "y": y} for name, y in series.items()]
    return browser.js(
        "import('viewer/stacked.js').then(({summands}) => "
        f"summands({json.dumps(named)}, {json.dumps(whole)})?.map(p => p.name) ?? null)"
    )


# -- parts that add up -----------------------------------------------------------------------------


@needs_browser
def test_components_are_stacked_where_they_add_up_to_the_reward(
    browser: Browser, page: Path
) -> None:
    browser.size(1280)
    browser.open(page)
    browser.wait("document.querySelectorAll('.area').length > 4")
    solver = parts(browser, "Reward components of solver")
    assert solver == {
        "keys": {"correct": "1.13", "late": "\u22120.313"}, "areas": 2, "lines": 0
    }  # fmt: skip
    critic = parts(browser, "Reward components of critic")
    assert critic == {"keys": {"calm": "0.5", "helpful": "0.25"}, "areas": 0, "lines": 2}
    assert parts(browser, "Zero-variance groups")["keys"] == {"all": "0.625"}
    assert parts(browser, "Lag")["keys"] == {"all": "0.5"}
    assert parts(browser, "Tokens by lag")["areas"] == 2


@needs_browser
def test_seconds_of_a_step_are_those_of_the_profile(
    browser: Browser, run: Path, page: Path
) -> None:
    assert ViewedStage("", run).phases["steps"] == [1, 2, 3, 4, 5]  # 0 is before the first step
    browser.open(page)
    browser.wait("document.querySelectorAll('.area').length > 4")
    shown = parts(browser, "Seconds of a step")
    wanted = {name: sum(by.values()) for name, by in PHASES.items()}
    keys = {name: float(value) for name, value in shown["keys"].items()}
    assert shown["areas"] == len(keys) == 8 and keys.pop("4 others") == 0.2
    assert keys.items() <= wanted.items() and {*PHASES} - {*SMALL} <= keys.keys()
    lefts = browser.js(
        "[...[...document.querySelectorAll('.chart')].find(f => f.querySelector('.name')"
        "?.textContent === 'Seconds of a step').querySelectorAll('.area')].map(p => p.getBBox().x)"
    )
    assert len(set(lefts)) == 1 and lefts[0] > 100  # no phase has seconds before the first step
    heights = browser.js(
        "import('viewer/stacked.js').then(({areas}) => areas([{name: 'a', y: [1, -2, null]},"
        " {name: 'b', y: [2, -1, 5]}, {name: 'c', y: [0, 4, 0]}], 3).map(s => [s.low, s.high]))"
    )
    assert heights == [
        [[0, -2, None], [1, 0, None]],
        [[1, -3, 0], [3, -2, 5]],
        [[3, 0, 5], [3, 4, 5]],
    ]


@needs_browser
def test_agents_with_the_same_components_have_one_chart(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    rows = read_run(run).metrics
    for row in rows:
        own = {name: value for name, value in row.items() if name.startswith("reward/solver/")}
        kept = {name: value for name, value in row.items() if not name.startswith("reward/critic")}
        row.clear()
        row |= kept | {name.replace("solver", "critic"): value for name, value in own.items()}
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(lines)
    (tmp_path / "episodes.jsonl").write_bytes((run / "episodes.jsonl").read_bytes())
    browser.open(export_run(tmp_path, tmp_path / "x.html").path)
    browser.wait("document.querySelectorAll('.area').length > 1")
    titles = [name for name in texts(browser, ".chart .name") if "component" in name]
    assert titles == ["Reward components"]
    assert parts(browser, "Reward components")["areas"] == 2
    # without a profile
    assert parts(browser, "Seconds of a step") is None


@needs_browser
def test_a_fact_beside_the_reward_is_no_part_of_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    whole = [1.0, 0.5, None]
    assert stacks(browser, whole, a=[1.5, 1.0, 9.0], b=[-0.5, -0.5, 9.0]) == ["a", "b"]
    assert stacks(browser, whole, a=[1.0, 0.5, 2.0], b=[3.0, 3.0, 3.0]) == ["a"]
    apart = {"b": [3.0, 3.0, 3.0], "c": [-3.0, -3.0, -3.0]}
    assert stacks(browser, whole, a=[1.0, 0.5, 2.0], **apart) == ["a"]
    assert stacks(browser, whole, a=[1.0, 0.4, 2.0], b=[3.0, 3.0, 3.0]) is None
    many = {f"c{k}": [0.0625, 0.03125, None] for k in range(16)}
    assert stacks(browser, whole, **many) == list(many)


# -- populations -----------------------------------------------------------------------------------


@needs_browser
def test_ratings_and_pay_offs_are_those_of_the_population(browser: Browser, rated: Path) -> None:
    page = export_run(rated, rated.parent / "run.html").path
    known = json.loads((rated / "ratings.json").read_text())
    players = [player["name"] for player in known["players"]]
    browser.size(1280)
    browser.open(page)
    browser.wait("document.querySelectorAll('.band').length")
    last = read_run(rated).metrics[-1]["rating/player"]
    shown = parts(browser, "Rating")["keys"]["player"].replace(",", "")
    assert float(shown) == pytest.approx(last, rel=5e-3)
    assert "opponents" in parts(browser, "Seconds of a step")["keys"]
    cells = browser.js(
        "[...document.querySelectorAll('.heat tbody tr')].map(tr => [...tr.cells].map(td =>"
        " [td.firstChild.textContent, td.className[0] ?? '']))"
    )
    assert [line[0][0] for line in cells] == players and len(players) > 2
    games = 0
    for payoff in known["payoffs"]:
        i, j = players.index(payoff["player"]), players.index(payoff["other"])
        for value, (text, paint) in (
            (payoff["score"], cells[i][j + 1]),
            (1 - payoff["score"], cells[j][i + 1]),
        ):
            assert float(text) == pytest.approx(value, abs=6e-3)
            assert paint == ("p" if value > 0.5 else "n" if value < 0.5 else "")
            games += 1
    dashes = sum(text == "\u2013" for line in cells for text, _ in line[1:])
    assert {paint for line in cells for _, paint in line} >= {"p", "n"}
    assert games + dashes == len(players) ** 2 and dashes >= len(players)
    check_fits(browser, page, "/")


# -- alarms ----------------------------------------------------------------------------------------


@needs_browser
def test_an_alarm_lists_its_evidence(browser: Browser, run: Path, page: Path) -> None:
    assert ViewedStage("", run).alarms == ALARMS
    rows = list(read_run(run).rows())
    browser.size(1280)
    browser.open(page)
    browser.wait("document.querySelectorAll('.alarm').length === 2")
    assert texts(browser, ".alarms .name") == ["2 alarms"]
    browser.js("document.querySelector('.alarm').focus()")
    browser.key("Enter", 13)
    browser.wait("document.querySelectorAll('.body .row').length === 2")
    shown = browser.js("[...document.querySelectorAll('.body .row')].map(r => +r.id.slice(7))")
    assert [(rows[i]["id"], rows[i]["step"]) for i in shown] == [
        (each["id"], each["step"]) for each in ALARMS[0]["evidence"][:2]
    ]
    (story,) = texts(browser, ".alarms .note")
    for text in ("zero variance at step 3, since step 1, solver", ALARMS[0]["because"]):
        assert text in story
    assert "Do: harder tasks" in story and "1 more not in this file" in story
    links = browser.js("[...document.querySelectorAll('.alarms a')].map(a => a.hash)")
    assert links == [f"#/episode/{i}" for i in shown]
    browser.js("document.querySelectorAll('.alarm')[1].dispatchEvent(new MouseEvent('click'))")
    browser.wait("document.querySelectorAll('.body .row').length === 1")
    (story,) = texts(browser, ".alarms .note")
    (row,) = browser.js("[...document.querySelectorAll('.body .row')].map(r => +r.id.slice(7))")
    assert (rows[row]["id"], rows[row]["step"]) == ("eval/sums/1/0", 5)  # also one of step 0
    assert browser.js("document.querySelector('.alarms a').hash") == f"#/episode/{row}"
    assert "<img src=x" in story and "\u202e" not in story
    check_clean(browser)


def test_a_page_over_its_limit_has_what_alarms_cite(run: Path, tmp_path: Path) -> None:
    whole = export_run(run, tmp_path / "whole.html")
    part = export_run(run, tmp_path / "part.html", max_mb=whole.size / 1.4e6)
    assert part.shown < part.total
    assert part.sentence.endswith("the episodes that alarms cite or `mrlm why` explained")
    cited = [Candidate(k, "", 9, f"g{k}", False, 0.5, 10, cited=True) for k in (70, 71)]
    plain = [Candidate(k, "", k // 10, f"g{k}", k % 10 == 0, k, 10) for k in range(70)]
    for limit in (20, 90, 300):
        found = choose([*plain, *cited], limit).numbers
        assert found >= {70, 71} and len(found) <= limit / 10


@needs_browser
def test_an_alarm_is_at_its_steps(browser: Browser, page: Path) -> None:
    browser.size(1280)
    browser.open(page)
    browser.wait("document.querySelectorAll('.main .cursor, .alarm').length === 3")
    moved = (
        "import('viewer/dom.js').then(() => { const mark = document.querySelector('.alarm');"
        " mark.dispatchEvent(new PointerEvent('pointerenter'));"
        " const at = n => +n.getAttribute('x1');"
        " return [at(document.querySelector('.main .cursor')),"
        " at(document.querySelector('.alarms .cursor')),"
        " +mark.querySelector('circle').getAttribute('cx'),"
        " document.querySelector('.main').getBoundingClientRect().left"
        " - document.querySelector('.alarms').getBoundingClientRect().left] })"
    )
    chart, lane, dot, shift = browser.js(moved)
    assert chart == pytest.approx(lane) == pytest.approx(dot) and shift == 0
    check_fits(browser, page, "/")


# -- histograms ------------------------------------------------------------------------------------


def point(browser: Browser, kind: str, x: float, y: float) -> None:
    browser.send(
        "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
    )


def bar(browser: Browser, name: str, k: int) -> tuple[float, float]:
    return browser.js(
        "(([box]) => { const r = box.querySelectorAll('.bars i')[" + str(k) + "]"
        ".getBoundingClientRect(); return [r.left + r.width / 2, r.bottom - 2] })"
        "([...document.querySelectorAll('.brush')].filter(b => b.querySelector('b').textContent"
        f" === {name!r}))"
    )


def listed(browser: Browser) -> int:
    return int(texts(browser, ".tools [role=status]")[0].split()[0])


@needs_browser
def test_a_histogram_is_brushed_with_the_pointer(browser: Browser, run: Path, page: Path) -> None:
    rewards = [row["reward"] for row in read_run(run).rows()]
    browser.size(1280, 2400)
    browser.open(page)
    browser.wait("document.querySelectorAll('.bars i').length > 10")
    assert listed(browser) == len(rewards)
    point(browser, "mousePressed", *bar(browser, "reward", 7))
    point(browser, "mouseMoved", *bar(browser, "reward", 5))
    point(browser, "mouseReleased", *bar(browser, "reward", 5))
    query = browser.js("document.querySelector('input').value")
    low, high = (float(text) for text in query.removeprefix("reward>=").split(" reward<"))
    wanted = sum(low <= reward < high for reward in rewards)
    assert 0 < listed(browser) == wanted < len(rewards)
    assert texts(browser, ".bars .in") == [""] * 3
    everything = browser.js("document.querySelectorAll('.bars')[0].children.length")
    point(browser, "mousePressed", *bar(browser, "tokens", 3))
    point(browser, "mouseReleased", *bar(browser, "tokens", 3))
    assert browser.js("document.querySelector('input').value").startswith(query + " tokens>=")
    assert browser.js("document.querySelectorAll('.bars')[0].children.length") <= everything
    point(browser, "mousePressed", *bar(browser, "tokens", 3))
    point(browser, "mouseReleased", *bar(browser, "tokens", 3))
    assert browser.js("document.querySelector('input').value") == query
    assert "reward" in browser.js("decodeURIComponent(location.hash)")
    check_clean(browser)


@needs_browser
def test_a_histogram_is_brushed_with_the_keyboard(browser: Browser, page: Path) -> None:
    browser.size(1280)
    browser.open(page, "/?q=cut+or+eval")
    browser.wait("document.querySelectorAll('.bars i').length > 5")
    total = listed(browser)
    browser.js("document.querySelector('.brush').focus()")

    def press(key: str, shift: bool = False) -> tuple[str, int]:
        same = {"key": key, "code": key, "modifiers": 8 * shift}
        browser.send("Input.dispatchKeyEvent", type="keyDown", **same)
        browser.send("Input.dispatchKeyEvent", type="keyUp", **same)
        return browser.js("document.querySelector('input').value"), listed(browser)

    first, some = press("ArrowRight")
    assert first.startswith("(cut or eval) reward>=") and 0 < some < total
    wider, more = press("ArrowRight", shift=True)
    assert wider.split(" reward<")[0] == first.split(" reward<")[0] and some <= more < total
    for _ in range(30):
        query, count = press("ArrowRight", shift=True)
    assert count == total and query.count("reward") == 2
    assert press("Escape") == ("(cut or eval)", total)
    assert browser.js("document.activeElement.matches('.brush')")


@needs_browser
def test_a_bar_has_exactly_the_values_that_its_filter_finds(browser: Browser, page: Path) -> None:
    browser.open(page)
    rng = random.Random(0)
    cases = [
        [rng.choice([0.1 * rng.randrange(-9, 12), rng.gauss(0, 3), 1 / 3]) for _ in range(300)],
        [float(rng.randrange(1, 60)) for _ in range(300)],
        [1e-7 * rng.random() for _ in range(99)],
        [1e6 + rng.random() for _ in range(99)],
        [1e12, 1e12 + 1, -1e12],
        [0.0, 1.0],
        [-0.9, 1.5, *(math.nextafter(k / 10, -9) for k in range(-8, 15))],
        [0.0, 2.4, *(math.nextafter(k / 10, side) for k in range(1, 24) for side in (-9, 9))],
        [-0.3, 0.3, 0.1 + 0.2],
        [5.0],
    ]
    for values in cases:
        whole = all(value.is_integer() for value in values)
        counts, marks, queries = browser.js(
            "import('viewer/brush.js').then(({bins, edges, rangeOf, withRange}) => {"
            f" const values = {json.dumps(values)}, marks = edges(Math.min(...values),"
            f" Math.max(...values), {json.dumps(whole)});"
            " return [bins(values, marks), marks, marks.slice(1).map((high, k) =>"
            " rangeOf(withRange('cut', 'reward', [marks[k], high]), 'reward'))] })"
        )
        assert sum(counts) == len(values) and len(counts) <= 26
        assert counts == [sum(a <= v < b for v in values) for a, b in queries]
        assert [list(pair) for pair in pairwise(marks)] == queries


@needs_browser
def test_a_stage_limits_a_filter_with_or(browser: Browser, run: Path) -> None:
    both = run.parent / "both"
    for number in (1, 2):
        (both / f"{number}-same").mkdir(parents=True)
        for name in ("episodes.jsonl", "metrics.jsonl", "config.yaml"):
            (both / f"{number}-same" / name).write_bytes((run / name).read_bytes())
    page = export_run(both, run.parent / "both.html").path
    browser.open(page, "/?stage=2-same&q=step:1+or+step:2")
    browser.wait("document.documentElement.dataset.listed")
    wanted = sum(row["step"] in (1, 2) for row in read_run(run).rows())
    assert listed(browser) == wanted

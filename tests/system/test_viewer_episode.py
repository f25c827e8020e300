"""The page of an episode: what the loss clipped, who read whom, what the environment said."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from adders import adding_run, culprits
from chromium import Browser
from mrlm import ForkSession
from mrlm.core.errors import ConfigError
from mrlm.learn import ops
from mrlm.record.reader import RecordedEpisode, read_run
from mrlm.replays.why import Why, explain
from mrlm.viewer.export import export_run
from record_maker import RunMaker
from viewed import check_clean, check_fits, needs_browser, texts, trained_players

pytestmark = needs_browser
LOW, HIGH = 0.02, 0.04


@pytest.fixture(scope="module")
def clipping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which several passes move ratios out of a narrow range; one player is frozen."""
    return trained_players(
        tmp_path_factory.mktemp("clipping") / "made",
        rounds=2,
        policies={"row": {}, "column": {"trainable": False}},
        workflow={"name": "turns"},
        training={"algorithm": "magrpo", "batch_size": 3},
        magrpo={
            **{"group_size": 3, "update_epochs": 3, "clip_range": LOW, "clip_range_high": HIGH},
            "loss_type": "ppo",
        },
        evaluation={"every": 2, "episodes": 1},
    )


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agents read one another; some turns are stale, some are without advantage."""
    run = RunMaker().write(
        tmp_path_factory.mktemp("spoken") / "run", 1, tasks=1, siblings=2, tests=0
    )
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    for row in rows:
        row["step_rewards"] = [0.25, -0.5]
        solver, critic = row["agents"]["solver"], row["agents"]["critic"]
        solver["turns"][1] |= {"lag": 2, "advantage": 0.0, "finish_reason": "length"}
        critic["messages"].append({"role": "tool", "content": "the total is 41", "agent": None})
        echo = {"role": "user", "content": solver["messages"][1]["content"], "agent": None}
        solver["messages"].insert(2, echo)  # its own words are those of the environment here
        solver["turns"][1]["message"] += 1
        quoted = critic["messages"][2]
        assert quoted["agent"] == "solver"
        quoted["content"] = "solver wrote: " + quoted["content"]
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["policies"]["critic"]["trainable"] = False
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def spoken_page(spoken: Path) -> Path:
    return export_run(spoken, spoken.parent / "run.html").path


def clipped_tokens(episode: RecordedEpisode) -> list[list[int]]:
    """Places of the tokens of each turn whose gradient the clipped surrogate removes."""
    found = []
    for turn in episode.turns:
        columns = {name: torch.tensor(values) for name, values in turn.columns.items()}
        if episode.evaluation or not turn.trained or "last_logprobs" not in columns:
            found.append([])
            continue
        before = columns.get("old_logprobs", columns["logprobs"])
        ratio = (columns["last_logprobs"] - before).exp()
        marks = ops.clipped(ratio, columns["advantages"], LOW, HIGH)
        found.append(marks.nonzero().flatten().tolist())
    return found


def test_clipped_tokens_are_those_that_the_loss_clips(browser: Browser, clipping: Path) -> None:
    page = export_run(clipping, clipping.parent / "run.html").path
    browser.size(1280)
    browser.open(page)
    marked = whole = 0
    for place, episode in enumerate(read_run(clipping).episodes()):
        browser.go(f"/episode/{place}")
        shown = browser.js(
            "[...document.querySelectorAll('.turn .tokens')].map(box =>"
            " [...box.children].filter(t => t.classList.contains('k')).map(t => t.at))"
        )
        wanted = clipped_tokens(episode)
        assert shown == wanted
        sizes = [turn.row["tokens"] for turn in episode.turns]
        badges = [
            f"clipped {len(some)} of {size}"
            for some, size in zip(wanted, sizes, strict=True)
            if some
        ]
        assert [b for b in texts(browser, ".turn .badge") if b.startswith("clipped")] == badges
        marked, whole = marked + sum(map(len, wanted)), whole + sum(sizes)
        frozen = texts(browser, ".turn .badge").count("frozen")
        assert frozen == sum(turn.agent == "column" for turn in episode.turns) > 0
        if any(wanted):
            browser.js(
                "document.querySelector('.tokens .k').dispatchEvent("
                "new PointerEvent('pointerover', {bubbles: true}))"
            )
            (numbers,) = texts(browser, ".reader")
            assert "clipped ratio" in numbers
    assert 0 < marked < whole / 2
    check_fits(browser, page, f"/episode/{place}")


def clipped_of(browser: Browser, config: dict[str, Any], **turn: Any) -> list[str]:
    made = {"length": 3, "ids": [1, 2, 3], "hatched": False, "sampling": {}, "lag": 0} | turn
    return browser.js(
        "import('viewer/badges.js').then(({boundsOf, clippedOf}) => "
        f"clippedOf({json.dumps(made)}, boundsOf({json.dumps(config)})))"
    )


def settings(**own: Any) -> dict[str, Any]:
    basis = {"loss_type": "ppo", "clip_range": 0.2, "clip_range_high": None, "importance": "none"}
    return {"training": {"algorithm": "grpo"}, "grpo": basis | own}


def test_the_bounds_are_those_of_the_settings(browser: Browser, spoken: Path) -> None:
    browser.open(spoken_page(spoken))
    columns = {"logprobs": [0.0] * 3, "last_logprobs": [0.5, 0.0, -0.5], "advantages": [1.0] * 3}
    shown = clipped_of(browser, settings(), columns=columns)
    assert shown == ["ratio 1.649 above 1.2", "", ""]
    losing = columns | {"advantages": [-1.0] * 3}
    shown = clipped_of(browser, settings(), columns=losing)
    assert shown == ["", "", "ratio 0.607 below 0.8"]
    for wide in (
        settings(clip_range_high=0.7),
        settings(loss_type="gspo"),
        settings(loss_type="reinforce"),
        {"training": {"algorithm": "sft"}, "sft": {}},
    ):
        assert clipped_of(browser, wide, columns=columns) == ["", "", ""]
    assert clipped_of(browser, settings(), columns=columns, hatched=True) == ["", "", ""]
    capped = settings(loss_type="cispo", cispo_cap_mode="absolute", cispo_cap=1.5)
    assert clipped_of(browser, capped, columns=losing) == ["ratio 1.649 above 1.5", "", ""]
    turned = settings(loss_type="turn")
    rising = columns | {"last_logprobs": [0.1, 0.1, 0.1]}
    assert clipped_of(browser, turned, columns=rising) == ["ratio 1.35 above 1.2"] * 3
    plugin = {"training": {"algorithm": "ranked:Ranked"}, "algorithm": settings()["grpo"]}
    assert clipped_of(browser, plugin, columns=columns)[0] == "ratio 1.649 above 1.2"


def test_truncated_importance_weights_are_marked(browser: Browser, spoken: Path) -> None:
    browser.open(spoken_page(spoken))
    columns = {"logprobs": [-1.0] * 3, "old_logprobs": [0.0, -1.0, -2.0], "advantages": [1.0] * 3}
    above, below = "importance weight 2.718 above 2", "importance weight 0.368 below 0.5"
    bounds = {"importance_cap": 2.0, "importance_floor": 0.5}
    for kind, wanted in (
        ("token", [above, "", ""]),
        ("icepop", [above, "", below]),
        ("auto", ["", "", ""]),
        ("none", ["", "", ""]),
    ):
        shown = clipped_of(browser, settings(importance=kind, **bounds), columns=columns)
        assert shown == wanted, kind
    auto = settings(importance="auto", **bounds)
    assert clipped_of(browser, auto, columns=columns, lag=1) == [above, "", ""]
    assert clipped_of(browser, auto, columns=columns, sampling={"top_p": 0.9}) == [above, "", ""]


ARROWS = """(() => {
  const zero = document.querySelector('.lanes .curves').getBoundingClientRect()
  const boxes = [...document.querySelectorAll('.lanes .turn')]
  return [...document.querySelectorAll('.lanes .curve')].map(line => {
    const [x1, y1, , , , , x2, y2] = line.getAttribute('d').match(/-?[\\d.]+/g).map(Number)
    const at = (x, y) => boxes.findIndex(box => {
      const r = box.getBoundingClientRect()
      return Math.min(Math.abs(r.left - zero.left - x), Math.abs(r.right - zero.left - x)) < 1
        && y >= r.top - zero.top && y <= r.bottom - zero.top
    })
    return [at(x1, y1), at(x2, y2), line.textContent]
  })
})()"""


def test_arrows_go_from_what_was_read_to_who_read_it(browser: Browser, spoken: Path) -> None:
    page = spoken_page(spoken)
    browser.size(1280)
    browser.open(page, "/episode/0")
    browser.wait("document.querySelectorAll('.lanes .curve').length === 3")
    assert texts(browser, ".heard") == [
        "read solver, turn 1",
        "read critic, turn 1",
        "read solver, turn 2",
    ]
    assert browser.js(ARROWS) == [
        [0, 1, "critic, turn 1, read solver, turn 1"],
        [1, 2, "solver, turn 2, read critic, turn 1"],
        [2, 3, "critic, turn 2, read solver, turn 2"],
    ]
    browser.js("document.querySelector('.turn summary').click()")  # the boxes below move
    browser.wait("document.querySelector('.turn details .message') !== null")
    browser.wait(f"{ARROWS}.map(pair => pair.slice(0, 2)).join(';') === '0,1;1,2;2,3'")
    browser.js("document.querySelector('.paints button').click()")
    browser.wait("document.querySelectorAll('.lanes .curve').length === 0")
    browser.js("document.querySelector('.paints button').click()")
    browser.wait("document.querySelectorAll('.lanes .curve').length === 3")
    browser.size(400)
    browser.wait("document.querySelectorAll('.lanes .curve').length === 0")
    check_clean(browser)


def test_the_environment_has_a_lane(browser: Browser, spoken: Path) -> None:
    browser.size(1280)
    browser.open(spoken_page(spoken), "/episode/0")
    own = next(read_run(spoken).episodes()).row["agents"]["solver"]["messages"][1]["content"]
    assert [text.replace("\n", "") for text in texts(browser, ".lanes .said")] == [
        "to solver What is 5 + 7 + 29?",
        f"step 1: team reward 0.25to solver {own}".replace("\n", ""),
        "step 2: team reward \u22120.5tool to critic the total is 41",
    ]
    heads, lanes = browser.js(
        "[[...document.querySelectorAll('.lane > b')].map(b => b.textContent),"
        " [...document.querySelectorAll('.lane')].map(l => l.getBoundingClientRect().left)]"
    )
    assert heads == ["environment", "solver", "critic"] and lanes == sorted(lanes)
    # a quotation is shown with its source, an exact copy only by its source
    reads = texts(browser, ".turn .read")
    assert "solver wrote: " in reads[0] + reads[1] + reads[2]
    tops = browser.js(
        "['.said', '.turn'].map(s => document.querySelector(s).getBoundingClientRect().top)"
    )
    assert abs(tops[0] - tops[1]) < 2
    check_fits(browser, spoken_page(spoken), "/episode/0", "/episode/1")


def test_turns_have_badges(browser: Browser, spoken: Path) -> None:
    browser.size(1280)
    browser.open(spoken_page(spoken), "/episode/1")
    shown = browser.js(
        "[...document.querySelectorAll('.turn')].map(t =>"
        " [...t.querySelectorAll('.badge')].map(b => b.textContent))"
    )
    wanted = {1: ["frozen"], 2: ["cut", "zero advantage", "stale, lag 2"], 3: ["frozen"]}
    for place, badges in wanted.items():
        assert [b for b in shown[place] if not b.startswith("clipped")][-len(badges) :] == badges
    browser.go("/episode/0")
    assert "not trained" in texts(browser, ".turn .badge")  # a single turn that is context


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Why]:
    """A run, and what `mrlm why` saved about an episode in which the second agent erred."""
    run = adding_run(tmp_path_factory.mktemp("explained"))
    row = culprits(run)["second"][0]
    with ForkSession(run, row["id"], row["step"]) as session:
        found = explain(session, n=6)
    found.save()
    return run, found


def test_effects_of_turns_and_agents(browser: Browser, explained: tuple[Path, Why]) -> None:
    run, found = explained
    rows = list(read_run(run).rows())
    place = [row["id"] for row in rows].index(found.episode)
    page = export_run(run, run.parent / "run.html").path
    browser.size(1280)
    browser.open(page, f"/episode/{place}")
    turns = texts(browser, ".turn .effect")
    assert len(turns) == 2
    for each, shown in zip(found.turns, turns, strict=True):
        mean, low, high = (
            f"{end:.3f}".rstrip("0").rstrip(".")
            for end in (each.mean.value, each.mean.low, each.mean.high)
            if end is not None
        )
        assert f"if different: reward {mean} ({low} to {high})" in shown, shown
        assert ("influence second" in shown) == bool(each.influence)
    marked = browser.js(
        "[...document.querySelectorAll('.turn')].map(t => t.textContent.includes('decisive'))"
    )
    assert marked == [False, True] and found.decisive == ("second", 0)
    cells = texts(browser, ".whys tbody td")
    assert cells[::4] == ["first", "second"] and cells[6].startswith("−")
    (about,) = texts(browser, ".whys p.dim")
    assert f"6 times each, and the episode was played on: {found.played} episodes" in about
    assert browser.js("document.querySelectorAll('.whys .hurt circle').length") >= 1
    other = next(k for k, row in enumerate(rows) if row["id"] != found.episode)
    browser.go(f"/episode/{other}")
    assert texts(browser, ".effect, .whys") == []
    check_fits(browser, page, f"/episode/{place}")


def test_a_page_that_is_too_small_keeps_explained_episodes(explained: tuple[Path, Why]) -> None:
    run, found = explained
    small = export_run(run, run.parent / "small.html", max_mb=0.2)
    assert 0 < small.shown < small.total
    chosen = [row for row in read_run(run).rows() if row["id"] == found.episode]
    assert len(chosen) == 1 and "mrlm why" in small.sentence


def test_a_broken_result_is_named(explained: tuple[Path, Why], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(explained[0], run)
    (run / "why" / "broken.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"broken.json: not a result of `mrlm why --save`"):
        export_run(run, tmp_path / "run.html")

"""The page of a group of real runs: a tree of answers, and combinations of answers."""

from pathlib import Path
from typing import Any

import pytest

from chromium import Browser
from mrlm.learn.credit.returns import by_state
from mrlm.record.reader import read_run
from mrlm.viewer.export import export_run
from viewed import check_clean, check_fits, needs_browser, texts, trained_players

pytestmark = needs_browser


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose groups are trees, of which only the best answers are continued."""
    return trained_players(
        tmp_path_factory.mktemp("branched") / "made",
        rounds=3,
        workflow={"name": "tree", "select": "best", "branches": 3},
        training={"algorithm": "at_grpo"},
        at_grpo={"group_size": 3},
    )


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose groups are all combinations of the agents' answers."""
    return trained_players(
        tmp_path_factory.mktemp("crossed") / "made",
        training={"algorithm": "magrpo"},
        magrpo={"group_size": 3, "joint_mode": "cross"},
    )


def groups(run: Path) -> list[list[tuple[int, dict[str, Any]]]]:
    """The groups of training, in order, with the places of their episodes."""
    found: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for place, row in enumerate(read_run(run).rows()):
        found.setdefault((row["step"], row["group"]), []).append((place, row))
    return list(found.values())


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def test_a_tree_has_a_node_for_each_answer(browser: Browser, branched: Path) -> None:
    page = export_run(branched, branched.parent / "run.html").path
    browser.size(1280)
    browser.open(page)
    for at, group in enumerate(groups(branched)):
        browser.go(f"/group/{at}")
        browser.wait("document.querySelectorAll('.tree .curve').length")
        rows = [row for _, row in group]
        nodes = {
            tuple(row["path"][: step + 1]): row["step_rewards"][step]
            for row in rows
            for step in range(len(row["path"]))
        }
        assert len(by_state(list(nodes))) > 1
        shown = texts(browser, ".tree .node-box")
        assert len(shown) == len(nodes) and sum("pruned" in text for text in shown) == sum(
            bool(row.get("pruned")) for row in rows
        )
        rewards = [number(text.split("reward ")[1].split("mean")[0].split("episode")[0])
                   for text in shown]  # fmt: skip
        assert sorted(rewards) == pytest.approx(sorted(nodes.values()), abs=1e-3)
        edges = browser.js("document.querySelectorAll('.tree .curve').length")
        assert edges == sum(len(node) > 1 for node in nodes)
        leaves = browser.js(
            "[...document.querySelectorAll('.tree .node-box a')].map(a => +a.hash.split('/').pop())"
        )
        assert sorted(leaves) == [place for place, _ in group]
        advantages = {
            round(turn["advantage"], 2)
            for row in rows
            for agent in row["agents"].values()
            for turn in agent["turns"]
            if turn["trained"]
        }
        found = {number(text) for text in texts(browser, ".tree .answer .num")}
        assert found == advantages and len(found) > 1
    check_fits(browser, page, "/group/0")


def test_the_mean_below_an_answer_is_that_of_its_episodes(browser: Browser, branched: Path) -> None:
    page = export_run(branched, branched.parent / "run.html").path
    browser.open(page, "/group/0")
    group = [row for _, row in groups(branched)[0]]
    best = max(row["path"] for row in group if len(row["path"]) == 3)[0]
    below = [row["reward"] for row in group if row["path"][0] == best]
    wanted = f"mean of {len(below)} below "
    (shown,) = (text for text in texts(browser, ".tree .sums") if wanted in text)
    assert number(shown.split(wanted)[1]) == pytest.approx(sum(below) / len(below), abs=1e-3)


def test_combinations_of_answers_are_a_matrix(browser: Browser, crossed: Path) -> None:
    page = export_run(crossed, crossed.parent / "run.html").path
    browser.size(1280)
    browser.open(page)
    for at, group in enumerate(groups(crossed)):
        browser.go(f"/group/{at}")
        cells = browser.js(
            "[...document.querySelectorAll('.heat tbody tr')].map(tr => [...tr.cells].slice(1)"
            ".map(td => [+td.querySelector('a').hash.split('/').pop(),"
            " td.querySelector('a').textContent, td.textContent.includes('\\u25c6')]))"
        )
        assert len(group) == 9 and [len(line) for line in cells] == [3, 3, 3]
        rows = dict(group)
        one, two = group[0][1]["answers"]
        for i, line in enumerate(cells):
            for j, (place, reward, mark) in enumerate(line):
                assert rows[place]["answers"] == {one: i, two: j}
                assert number(reward) == pytest.approx(rows[place]["reward"], abs=1e-3)
                assert mark == (i == j)  # the turns of these are trained on
        assert len({row["reward"] for _, row in group}) > 1
        heads = texts(browser, ".heat .answer")
        for agent, own in ((one, heads[3:]), (two, heads[:3])):
            for k, text in enumerate(own):
                (turn,) = rows[cells[k][k][0]]["agents"][agent]["turns"]
                assert text.startswith(f"{agent} #{k}")
                shown = browser.js(
                    f"[...document.querySelectorAll('.heat .answer')].find(e => e.textContent"
                    f".startsWith('{agent} #{k}')).querySelector('.num').textContent"
                )
                assert number(shown) == pytest.approx(turn["advantage"], abs=1e-3)
    check_fits(browser, page, "/group/0")


def test_plain_siblings_have_neither_tree_nor_matrix(browser: Browser, tmp_path: Path) -> None:
    from record_maker import RunMaker

    run = RunMaker().write(tmp_path / "run", steps=1, tasks=1, siblings=3)
    browser.open(export_run(run, tmp_path / "x.html").path, "/group/4")
    assert browser.js("document.querySelectorAll('.siblings').length") == 1
    assert browser.js("document.querySelectorAll('.tree, .heat').length") == 0
    check_clean(browser)

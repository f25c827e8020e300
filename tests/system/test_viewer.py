"""The page of a run in a real browser: what it shows is what the record has, and nothing of what a
model wrote is more than text."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chromium import Browser
from commands import Mrlm
from mrlm.record.filters import parse_filter
from mrlm.record.reader import RecordedEpisode, read_run
from mrlm.viewer.choice import Candidate, choose
from mrlm.viewer.export import STATIC, export_run
from record_maker import PIECES, RunMaker
from viewed import COLOURS, HOSTILE, RELAY, check_clean, needs_browser, tab_to, trained_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two agents, of which one is frozen."""
    return trained_run(tmp_path_factory.mktemp("viewed"), **RELAY)


@pytest.fixture(scope="module")
def page(trained: Path) -> Path:
    return export_run(trained, trained.parent / "run.html").path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a larger run, made up."""
    folder = tmp_path_factory.mktemp("made")
    run = RunMaker().write(folder / "run", steps=10, tasks=3, siblings=4)
    pieces = {"solver": PIECES, "critic": PIECES}
    return export_run(run, folder / "run.html", pieces=pieces).path


def episodes(trained: Path) -> list[RecordedEpisode]:
    return list(read_run(trained).episodes())


def of_list(browser: Browser, expression: str) -> Any:
    """A value of the page's own list of episodes."""
    return browser.js(f"import('viewer/data.js').then(({{list, FLAGS}}) => {expression})")


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("of", ["page", "made"])
def test_every_page_is_clean_and_fits(
    browser: Browser, request: pytest.FixtureRequest, of: str, width: int, dark: bool
) -> None:
    browser.theme(dark)
    browser.size(width)
    browser.open(request.getfixturevalue(of))
    for place in ("/", "/group/0", "/group/2", "/episode/0", "/episode/5", "/episode/x", "/?q=cut"):
        browser.go(place)
        assert browser.js("document.documentElement.scrollWidth <= innerWidth"), place
        assert len(browser.js("document.querySelector('main').innerText")) > 20, place
    backgrounds = browser.js("getComputedStyle(document.body).backgroundColor")
    assert (backgrounds == "rgb(255, 255, 255)") is not dark
    check_clean(browser)


CONTRAST = """
  const page = parts(getComputedStyle(document.body).backgroundColor)
  const names = ["p10", "n10", "p5", "n5", "dim", "c", "badge warn", "note", "gone", "come"]
  return Object.fromEntries(names.map(name => {
    const node = document.createElement(["gone", "come"].includes(name) ? "mark" : "span")
    node.className = name
    document.querySelector("main").append(node)
    const { color, backgroundColor } = getComputedStyle(node), below = parts(backgroundColor)
    const mixed = page.map((x, k) => below[k] * below[3] + x * (1 - below[3]))
    const [a, b] = [light(parts(color)), light(mixed)].sort()
    node.remove()
    return [name, (b + 0.05) / (a + 0.05)]
  }))
})()"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_contrast_on_every_paint(browser: Browser, made: Path, dark: bool) -> None:
    browser.theme(dark)
    browser.open(made)
    ratios = browser.js(COLOURS + CONTRAST).items()
    assert {name: ratio for name, ratio in ratios if ratio < 4.5} == {}
    browser.theme(False)


@needs_browser
def test_text_of_models_stays_text(browser: Browser, tmp_path: Path) -> None:
    agents = ("<b>one", "__proto__")
    run = tmp_path / "<img src=x onerror=alert(1)>"
    RunMaker(agents, HOSTILE).write(run, steps=2, tasks=2, siblings=5)
    browser.size(1280)
    browser.open(export_run(run, tmp_path / "x.html").path)
    total, seen = of_list(browser, "list.length"), ""
    for place in ["/", "/group/0", "/group/5", *(f"/episode/{k}" for k in range(0, total, 2))]:
        browser.go(place)
        found = browser.js(
            "document.querySelectorAll('#app :is(script, img, iframe, base, meta, link, style)')"
            ".length"
        )
        assert found == 0, place
        shown = browser.js("document.body.innerText + document.title")
        seen += shown
        assert not {"\u202e", "\u2066", "\u001b", "\u200b", "\ud800"} & set(shown)
    assert "\u27e8202e\u27e9txet desrever" in seen and HOSTILE[0] in seen
    browser.go("/?" + "q=txet")
    browser.wait("document.querySelectorAll('.body .row').length")
    check_clean(browser)


@needs_browser
@pytest.mark.parametrize("of", ["trained", "made"])
def test_tokens_that_are_not_trained_are_hatched_and_sums_are_those_of_the_record(
    browser: Browser, request: pytest.FixtureRequest, trained: Path, made: Path, of: str
) -> None:
    folder = trained if of == "trained" else made.parent / "run"
    file = trained.parent / "run.html" if of == "trained" else made
    if of == "trained":
        request.getfixturevalue("page")
    rows, kinds = episodes(folder), set()
    browser.size(1280)
    browser.open(file)
    for number in [*range(0, 24, 3), len(rows) - 1]:
        browser.go(f"/episode/{number}")
        episode = rows[number]
        shown = browser.js(
            "[...document.querySelectorAll('.tokens')].map(box => ({agent: box.turn.agent, place:"
            " box.turn.place, all: box.children.length, hatched: box.querySelectorAll('.x').length,"
            " sum: [...box.children].filter(t => !t.classList.contains('x'))"
            ".reduce((sum, t) => sum + (t.value ?? 0), 0)}))"
        )
        assert [each["agent"] for each in shown] == [turn.agent for turn in episode.turns]
        for each, turn in zip(shown, episode.turns, strict=True):
            trained_here = turn.trained and not episode.evaluation
            kinds.add((episode.evaluation, turn.trained))
            assert each["all"] == turn.row["tokens"] > 0
            assert each["hatched"] == (0 if trained_here else each["all"])
            columns = turn.columns
            used = columns.get("advantages", np.zeros(1)) * columns["mask"]
            assert each["sum"] == pytest.approx(used.sum() if trained_here else 0, abs=1e-3)
    assert {(False, True), (False, False)} <= kinds and any(test for test, _ in kinds)
    check_clean(browser)


@needs_browser
def test_the_keyboard_reaches_everything(browser: Browser, made: Path) -> None:
    browser.size(1280)
    browser.open(made)
    browser.wait("document.querySelectorAll('.body .row').length > 5")

    tab_to(browser, ".plot")
    browser.key("ArrowLeft", 37)
    browser.key("Enter", 13)
    browser.wait("document.querySelector('input').value === 'step:9'")
    browser.wait("[...document.querySelectorAll('.row .c-task')].length > 2")
    tab_to(browser, ".table")
    browser.key("ArrowDown", 40)
    browser.key("j")
    third = browser.js("document.querySelector('.row.on').id.slice(7)")
    browser.key("Enter", 13)
    browser.wait(f"document.documentElement.dataset.page === '#/episode/{third}'")
    tab_to(browser, ".tokens")
    browser.key("ArrowRight", 39)
    assert "place 2 of" in browser.js("document.querySelector('.reader').innerText")
    tab_to(browser, "summary")
    browser.key("Enter", 13)
    browser.wait("document.querySelector('.fresh')?.textContent.length")
    check_clean(browser)


COMMON = [
    "",
    "reward<0",
    "reward<0 and agent:solver and cut and step:2-6",
    "not cut and eval",
    "task:task-1 critic.reward>=0.5",
    "solver/correct=1 train",
    "policy:critic tokens>=90 turns!=3",
    "env:sums status:done not greedy",
    "id:eval/sums/1/0",
    '"check carry"',
    "CARRY; reward>0",
    "agent:nowhere",
    "failed",
    "trained not lag OR pruned OR tokens",
    "kind:eval environment:sums",
    'reward:0-0.7 env:"sums"',
    "replayed or error",
]
"""Queries of the language that `mrlm look` has, too."""


@needs_browser
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        *((query, parse_filter(query)) for query in COMMON),
        ("eval or step:3", lambda row: row["id"].startswith("eval/") or row["step"] == 3),
        ("not (cut or eval)", parse_filter("not cut and not eval")),
    ],
)
def test_a_filter_finds_what_it_means(
    browser: Browser, made: Path, query: str, wanted: Any
) -> None:
    rows = [episode.row for episode in episodes(made.parent / "run")]
    if not browser.js("location.href").startswith(made.as_uri()):
        browser.open(made)
    found = browser.js(
        f"import('viewer/filter.js').then(({{search}}) => search({json.dumps(query)}).found)"
    )
    assert found == [number for number, row in enumerate(rows) if wanted(row)]


@needs_browser
@pytest.mark.parametrize(
    ("query", "notes"),
    [
        ("agent:slover", ["No agent is called slover; did you mean solver?"]),
        ("policy:nowhere", ["No policy is called nowhere."]),
        ("rewrd<1", ["No number is called rewrd; did you mean reward? It was searched as text."]),
        ("agnt:solver", ["No field is called agnt; did you mean agent? It was searched as text."]),
        ("not (agent:critic or policy:critic) note:this", []),
    ],
)
def test_a_name_that_no_episode_has_is_noted(
    browser: Browser, made: Path, query: str, notes: list[str]
) -> None:
    if not browser.js("location.href").startswith(made.as_uri()):
        browser.open(made)
    found = f"import('viewer/filter.js').then(({{search}}) => search({json.dumps(query)}).notes)"
    assert browser.js(found) == notes


@needs_browser
def test_siblings_part_at_the_first_token_that_differs(browser: Browser, tmp_path: Path) -> None:
    texts = ["one two three", "x", "one two four", "x", "one two", "x"]
    maker = RunMaker(("a", "b"), texts, turns=1)
    maker.write(tmp_path / "run", steps=1, tasks=1, siblings=3, tests=0)
    browser.size(1280)
    browser.open(export_run(tmp_path / "run", tmp_path / "x.html").path, "/group/0")
    assert browser.js("[...document.querySelectorAll('mark')].map(m => m.textContent)") == [
        " three",
        " four",
    ]
    spans = browser.js("[...document.querySelectorAll('.span')].map(s => s.textContent)")
    assert "the first 2 words are the same: one two" in spans[0]
    assert "all siblings are the same: x" in spans[1]


@needs_browser
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
def test_a_run_that_was_killed_while_writing_opens(
    browser: Browser, tmp_path: Path, compressed: bool
) -> None:
    run = RunMaker().write(tmp_path / "run", steps=2, tasks=2, siblings=3)
    data = (run / "episodes.jsonl").read_bytes()
    if compressed:
        (run / "episodes.jsonl").unlink()
        half = data[: data.rindex(b"\n", 0, len(data) // 2) + 1]
        members = gzip.compress(half), gzip.compress(data[len(half) :])
        (run / "episodes.jsonl.gz").write_bytes(b"".join(members)[:-30])
    else:
        (run / "episodes.jsonl").write_bytes(data[:-30])
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(metrics[:-30])
    shown = export_run(run, tmp_path / "x.html").shown
    assert 0 < shown < data.count(b"\n")
    browser.open(tmp_path / "x.html")
    assert of_list(browser, "list.length") == shown
    browser.go(f"/episode/{shown - 1}")
    check_clean(browser)


@needs_browser
@pytest.mark.parametrize("left", ["metrics.jsonl", "episodes.jsonl"])
def test_a_run_with_one_file_opens(browser: Browser, tmp_path: Path, left: str) -> None:
    run = RunMaker().write(tmp_path / "run", steps=2, tasks=1, siblings=2)
    for path in list(run.iterdir()):
        if path.name != left:
            path.unlink()
    browser.open(export_run(run, tmp_path / "x.html").path)
    browser.wait("document.documentElement.dataset.listed")
    for place in ("/episode/0", "/group/0", "/"):
        browser.go(place)
        assert len(browser.js("document.querySelector('main').innerText")) > 20
    check_clean(browser)


@needs_browser
def test_characters_of_several_tokens_and_unknown_tokens(browser: Browser, tmp_path: Path) -> None:
    run = RunMaker(turns=1, length=400).write(tmp_path / "run", 1, tasks=1, siblings=1, tests=0)
    pieces = [*PIECES[:20], *(bytes([byte]) for byte in "\U0001f600".encode())][:23]
    browser.open(export_run(run, tmp_path / "x.html", pieces={"solver": pieces}).path)
    shown = browser.js(
        "import('viewer/data.js').then(({meta, texts}) => { meta.pieces.get('solver')"
        ".set(90, '\\u00f0\\u009f').set(91, '\\u0098\\u0080').set(92, '<|end|>');"
        " return texts('solver', [0, 90, 91, 92, 99]) })"
    )
    assert shown == ["the", "", "\U0001f600", "<|end|>", "\u27e899\u27e9"]
    browser.go("/episode/0")
    check_clean(browser)


@needs_browser
def test_a_large_page_is_quick(browser: Browser, tmp_path: Path) -> None:
    run = RunMaker(length=12, turns=1).write(tmp_path / "run", steps=25, tasks=25, siblings=8)
    made = export_run(run, tmp_path / "x.html")
    assert made.shown > 5000
    browser.size(1280)
    browser.open(made.path)
    browser.wait("document.documentElement.dataset.listed")
    assert float(browser.js("document.documentElement.dataset.listed")) < 1000
    browser.go("/episode/4000")
    assert float(browser.js("document.documentElement.dataset.opened")) < 500
    assert browser.js("document.querySelectorAll('.row').length") < 100


# -- the file ------------------------------------------------------------------------------------


def test_the_command_writes_a_page(run: Mrlm, trained: Path, tmp_path: Path) -> None:
    done = run("export", trained, "-o", tmp_path / "deep" / "x.html")
    assert done.code == 0 and "episodes, " in done.out, done.err
    text = (tmp_path / "deep" / "x.html").read_text()
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text and "trusted-types 'none'" in text


def test_a_pipeline_is_one_page(trained: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("words", "play")):
        shutil.copytree(trained, tmp_path / "run" / f"{number + 1}-{name}")
    one = export_run(trained, tmp_path / "one.html")
    both = export_run(tmp_path / "run", tmp_path / "both.html")
    assert both.shown == 2 * one.shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: folder does not exist; give a run folder"),
        (["."], "not a run folder: neither metrics.jsonl nor episodes.jsonl exists"),
        (["RUN", "-o", "."], "is a folder; give a file"),
        (["RUN", "--max-mb", "0"], "must be above 0"),
    ],
)
def test_mistakes_are_explained(
    run: Mrlm, trained: Path, arguments: list[str], message: str
) -> None:
    done = run("export", *(trained if each == "RUN" else each for each in arguments))
    assert done.code == 2 and message in done.err


def test_a_page_over_its_limit_states_its_choice(tmp_path: Path) -> None:
    run = RunMaker().write(tmp_path / "run", steps=20, tasks=8, siblings=4)
    whole = export_run(run, tmp_path / "whole.html")
    assert whole.shown == whole.total and whole.sentence == ""
    third = export_run(run, tmp_path / "third.html", max_mb=whole.size / 3e6)
    assert third.size <= whole.size / 3 and third.shown < third.total
    assert third.sentence.startswith("all evaluations; of every")


def candidates(evaluations: int = 4, groups: int = 5, steps: int = 8) -> list[Candidate]:
    found: list[Candidate] = []
    for step in range(steps):
        for k in range(evaluations):
            found.append(Candidate(len(found), "", step, f"e{step}/{k}", True, 0.0, 10))
        for k in range(groups):
            found += [
                Candidate(len(found) + n, "", step, f"t{step}/{k}", False, float(k), 10)
                for n in range(3)
            ]
    return found


@pytest.mark.parametrize("limit", [10, 100, 320, 500, 1000, 1040, 1500, 10_000])
def test_a_choice_keeps_its_limit_and_evaluations_come_first(limit: int) -> None:
    known = candidates()
    chosen = choose(known, limit)
    assert 0 < 10 * len(chosen.numbers) <= limit
    tests = [each for each in known if each.evaluation]
    others = [each for each in known if each.number in chosen.numbers and not each.evaluation]
    if others:
        assert all(each.number in chosen.numbers for each in tests)
    if limit == 1040:  # three groups of each step
        assert {each.reward for each in others} == {0.0, 2.0, 4.0}
    assert (chosen.sentence == "") == (len(chosen.numbers) == len(known))


def test_modules_do_not_parse_markup() -> None:
    for path in STATIC.glob("*.js"):
        text = path.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "fetch(",
            "document.write",
        ):
            # only the module that a page of `mrlm view` has instead of its own data requests any
            if word != "fetch(" or path.name != "served.js":
                assert word not in text, f"{path.name}: {word}"

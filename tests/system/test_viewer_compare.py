"""The page that compares two evaluations: it finds exactly the tasks that a doctored checkpoint
flips, and shows what differs."""

import gzip
import json
import math
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mrlm
from chromium import Browser
from mrlm import SimulatedEnvironment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward
from mrlm.record.packing import unpack
from mrlm.record.reader import RecordedEpisode, read_run
from mrlm.viewer.export import export_run
from mrlm.viewer.source import run_names
from record_maker import WORDS, RunMaker
from viewed import HOSTILE, check_clean, needs_browser, tab_to, trained_run

pytestmark = needs_browser


class Parity(SimulatedEnvironment):
    """Whether an answer is right depends on every letter of it."""

    def reset(self, *, seed: int | None = None) -> Observation:
        self.question = f"{(seed or 0) % 97}+{(seed or 0) % 89}="
        return Observation([Message(self.question)])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        right = zlib.crc32((self.question + action.content).encode()) % 2
        return Observation(done=True), Reward(right - 0.25, components={"correct": right})


CONFIG: dict[str, Any] = {
    "experiment_name": "compared",
    "environments": [{"env_type": f"{__name__}:Parity"}],
    "training": {
        "algorithm": "grpo",
        "num_iterations": 1,
        "batch_size": 1,
        "learning_rate": 1e-12,
        "report_to": "none",
    },
    "grpo": {"group_size": 2},
    "generation": {"max_new_tokens": 12},
    "evaluation": {"episodes": 24, "every": 1},
    "record": {},
}


def changed(source: Path, folder: Path, scale: float, seed: int) -> Path:
    """A copy of a model with noise on its matrices, relative to their spread."""
    shutil.copytree(source, folder)
    (weights,) = folder.glob("*.safetensors")
    tensors, generator = load_file(weights), torch.Generator().manual_seed(seed)
    for tensor in tensors.values():
        if tensor.dim() == 2:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor += scale * tensor.std() * noise
    save_file(tensors, weights, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run, and one that begins with its checkpoint after the weights were changed a little."""
    folder = tmp_path_factory.mktemp("compared")
    begin = changed(Path(mrlm.default_model()), folder / "begin", 3.0, 1)
    first = trained_run(folder / "plain", f"model.model_name_or_path={begin}", **CONFIG)
    doctored = changed(first / "final", folder / "changed", 0.05, 2)
    changes = (f"model.model_name_or_path={doctored}", "training.batch_size=2")
    second = trained_run(folder / "doctored", *changes, **CONFIG)
    return [first, second]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> Path:
    return export_run(runs, runs[0].parent.parent / "both.html").path


def evaluated(run: Path, step: int) -> dict[str, RecordedEpisode]:
    """Task -> its episode in an evaluation."""
    found = read_run(run).episodes([step])
    return {each.row["task_id"]: each for each in found if each.evaluation}


def address(**query: object) -> str:
    return "/compare?" + "&".join(f"{name}={value}" for name, value in query.items())


def facts(browser: Browser) -> dict[str, str]:
    return browser.js(
        "Object.fromEntries([...document.querySelectorAll('.verdict > div')]"
        ".map(d => [d.children[0].innerText, d.children[1].innerText]))"
    )


def listed(browser: Browser, kind: str = "") -> set[str]:
    return set(
        browser.js(
            f"[...document.querySelectorAll('.flips tbody tr{kind}')]"
            ".map(r => r.querySelector('a').innerText)"
        )
    )


def sign_test(up: int, down: int) -> float:
    n = up + down
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(min(up, down) + 1)) / 2**n)


def test_the_page_finds_exactly_the_flips_of_a_doctored_checkpoint(
    browser: Browser, runs: list[Path], page: Path
) -> None:
    first, second = evaluated(runs[0], 1), evaluated(runs[1], 0)
    right = [
        {task: each.row["metrics"]["agent/correct"] for task, each in some.items()}
        for some in (first, second)
    ]
    up = {task for task in first if right[0][task] < right[1][task]}
    down = {task for task in first if right[0][task] > right[1][task]}
    assert len(first) == len(second) == 24 and up and down
    browser.open(page, address(a="plain/run@1", b="doctored/run@0"))
    assert listed(browser, ".up") == up and listed(browser, ".down") == down
    assert listed(browser) == up | down
    found = facts(browser)
    assert found["In both"] == "24 tasks"
    assert found["Passed in B only"] == str(len(up))
    assert found["Passed in A only"] == str(len(down))
    passed = int(sum(right[1].values()))
    assert found["Passed in B"] == f"{passed} of 24 ({100 * passed / 24:.0f} %)"
    shown = float(found["Sign test"].removeprefix("p = "))
    assert shown == pytest.approx(sign_test(len(up), len(down)), abs=1e-3)
    differ = browser.js(
        "[...document.querySelectorAll('.settings tbody th')].map(t => t.innerText)"
    )
    assert set(differ) == {"training.batch_size", "output_dir", "model.model_name_or_path"}
    browser.go(address(a="plain/run@0", b="plain/run@1"))  # nothing was changed between these
    assert listed(browser) == set() and facts(browser)["Sign test"] == "p = 1"
    browser.go(address(a="plain/run@1", b="doctored/run@0", by="change"))
    assert listed(browser, ".up") == up and listed(browser, ".down") == down
    browser.go(address(a="plain/run@1", b="doctored/run@0", by="reward>=0.8"))
    assert listed(browser) == set()
    check_clean(browser)


def longest(a: list[int], b: list[int]) -> int:
    """Length of the longest common subsequence."""
    before = [0] * (len(b) + 1)
    for x in a:
        now = [0]
        for k, y in enumerate(b):
            now.append(before[k] + 1 if x == y else max(before[k + 1], now[k]))
        before = now
    return before[-1]


def test_an_opened_task_shows_what_differs(browser: Browser, runs: list[Path], page: Path) -> None:
    first, second = evaluated(runs[0], 1), evaluated(runs[1], 0)
    browser.size(1280)
    browser.open(page)
    differing = [task for task in first if first[task].turns[0].text != second[task].turns[0].text]
    assert len(differing) > 2
    for task in (*differing, next(iter(set(first) - set(differing)))):
        browser.go(address(a="plain/run@1", b="doctored/run@0", env="parity", task=task))
        shown = browser.js(
            "[...document.querySelectorAll('.sides .diff')].map(box =>"
            " [...box.children].map(n => [n.tagName === 'MARK', n.textContent]))"
        )
        whole = browser.js(
            "import('viewer/data.js').then(async d => Promise.all(['a', 'b'].map(async (_, k) => {"
            " const link = document.querySelectorAll('.opened .links a')[k];"
            " const row = await d.episode(Number(link.hash.split('/').pop()));"
            " return [row.task_id, d.turnsOf(row, true)[0].words.join('')] })))"
        )
        plain = "import('viewer/dom.js').then(d => d.plain(%s))"
        for parts, (found, text), episode in zip(
            shown, whole, (first[task], second[task]), strict=True
        ):
            assert found == task
            joined = "".join(text for _, text in parts).replace("\u21b5\n", "\n")
            assert joined == browser.js(plain % json.dumps(text))
            assert episode.reward is not None
        ids = [unpack(each[task].turns[0].row["ids"]).tolist() for each in (first, second)]
        told = browser.js("[...document.querySelectorAll('.sides header')].map(h => h.innerText)")
        for text, own in zip(told, ids, strict=True):
            assert f"{longest(*ids)} of {len(own)} tokens are the same" in text
        assert any(mark for parts in shown for mark, _ in parts) == (task in differing)
        cells = browser.js(
            "[...document.querySelector('.numbers tbody tr').cells].map(c => c.innerText)"
        )
        rewards = [f"{each[task].reward:g}".replace("-", "\u2212") for each in (first, second)]
        assert cells[:3] == ["reward", *rewards]
    check_clean(browser)


DIFF = """import('viewer/diff.js').then(({diff}) => {
  let seed = 1, wrong = 0
  const below = n => (seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff) % n
  const sequence = (n, k) => Array.from({length: n}, () => (below(8000) >> 3) % k)
  const longest = (a, b) => {
    let before = new Array(b.length + 1).fill(0)
    for (const x of a) {
      const now = [0]
      b.forEach((y, j) => now.push(x === y ? before[j] + 1 : Math.max(before[j + 1], now[j])))
      before = now
    }
    return before.at(-1)
  }
  for (let k = 0; k < 3000; k++) {
    const kinds = 1 + below(6), a = sequence(below(25), kinds), b = sequence(below(25), kinds)
    const [gone, come] = diff(a, b)
    const left = a.filter((_, i) => !gone[i]), right = b.filter((_, i) => !come[i])
    if (left.join() !== right.join() || left.length !== longest(a, b)) wrong++
  }
  const began = performance.now()
  const a = Array.from({length: 2000}, (_, i) => i), b = a.map(i => -1 - i)
  const [gone, come] = diff(a, b)
  return {wrong, all: gone.every(Boolean) && come.every(Boolean), ms: performance.now() - began}
})"""


def test_the_difference_is_a_shortest_one(browser: Browser, page: Path) -> None:
    browser.open(page)
    found = browser.js(DIFF)
    assert found["wrong"] == 0 and found["all"]
    assert found["ms"] < 2000


def test_the_sign_test_is_exact(browser: Browser, page: Path) -> None:
    browser.open(page)
    cases = [(0, 0), (1, 0), (0, 5), (7, 2), (10, 10), (40, 15), (300, 350), (900, 1100)]
    found = browser.js(
        f"import('viewer/matching.js').then(m => {json.dumps(cases)}.map(c => m.signTest(...c)))"
    )
    assert found == pytest.approx([sign_test(*case) for case in cases], rel=1e-9)


def rows_of(*rewards: tuple[str, int, float | None]) -> list[dict[str, Any]]:
    """Evaluation rows of (task, step, reward)."""
    maker = RunMaker(("one",), ["x"], turns=1)
    rows = []
    for k, (task, step, reward) in enumerate(rewards):
        row = maker.row(step, f"eval/sums/{k}/0", k, task, 0.5)
        rows.append(row | {"reward": reward, "metrics": {}})
    return rows


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_repeats_of_a_task_count_together_and_what_cannot_be_judged_is_left_out(
    browser: Browser, tmp_path: Path
) -> None:
    before = [("t1", 0, 0.0), ("t1", 0, 1.0), ("t1", 0, 0.0), ("t2", 0, 1.0), ("t2", 0, 0.0)]
    after = [("t1", 5, 1.0), ("t1", 5, 0.0), ("t1", 5, 1.0), ("t2", 5, 0.0), ("t2", 5, 0.0)]
    before += [("t3", 0, None), ("t4", 0, 1.0), ("t5", 0, 0.5)]
    after += [("t3", 5, 1.0), ("t6", 5, 1.0), ("t5", 5, 0.5)]
    run = write(tmp_path / "run", rows_of(*before, *after))
    browser.size(1280)
    browser.open(export_run(run, tmp_path / "x.html").path, address(a=0, b=5))
    assert listed(browser, ".up") == {"t1 #0", "t1 #2"}
    assert listed(browser, ".down") == {"t1 #1", "t2 #0"}
    text = browser.js("document.querySelector('main').innerText")
    assert "tasks (1 better, 1 worse)" in text and "1 left out" in text
    assert "Only in A: 1; only in B: 1." in text
    browser.go("/episode/1")
    link = "[...document.querySelectorAll('a')].find(a => /other checkpoint/.test(a.innerText))"
    browser.js(link + ".click()")
    browser.wait("document.querySelector('.opened h2')?.innerText === 'Task t1 #1'")
    check_clean(browser)


@pytest.mark.parametrize("same", [True, False], ids=["one vocabulary", "two vocabularies"])
def test_runs_are_compared_by_ids_only_if_these_mean_the_same(
    browser: Browser, tmp_path: Path, same: bool
) -> None:
    runs = [RunMaker(("one",), seed=k).write(tmp_path / f"run{k}", 1, 1, 2) for k in range(2)]
    for k, run in enumerate(runs):
        pieces = [f" {'a' if same else 'ab'[k]}{n}" for n in range(len(WORDS))]
        data = json.dumps({"policies": {"one": 0}, "pieces": [pieces]}).encode()
        (run / "vocabulary.json.gz").write_bytes(gzip.compress(data))
    made = export_run(runs, tmp_path / "x.html").path
    browser.open(made, address(a="run0@0", b="run1@0", env="sums", task="test-0"))
    told = browser.js("document.querySelector('.sides header').innerText")
    assert ("tokens are the same" in told) == same and ("words are the same" in told) != same
    for k in (0, 1):  # policies of one name keep their own tokens
        link = f"document.querySelectorAll('.opened .links a')[{k}].hash.slice(1)"
        browser.open(made, browser.js(link))
        shown = browser.js("document.querySelector('.tokens').innerText")
        assert shown.strip()[0] == ("a" if same else "ab"[k])
        browser.open(made, address(a="run0@0", b="run1@0", env="sums", task="test-0"))
    check_clean(browser)


def test_text_of_models_stays_text(browser: Browser, tmp_path: Path) -> None:
    agents, runs = ("<b>one", "__proto__"), []
    for k in range(2):
        run = tmp_path / f"<img src=x onerror=alert({k})>"
        RunMaker(agents, HOSTILE, seed=k).write(run, steps=1, tasks=1, siblings=2, tests=5)
        rows = [json.loads(line) for line in (run / "episodes.jsonl").open()]
        for row in rows:
            row["task_id"] = HOSTILE[int(row["task_id"][-1])]
        (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.append(run)
    browser.open(export_run(runs, tmp_path / "x.html").path)
    browser.wait("!!document.querySelector('.compare a')")
    browser.js("document.querySelector('.compare a').click()")
    browser.wait("document.querySelectorAll('h1').length && location.hash.includes('compare')")
    browser.wait("!!document.querySelector('.choose')")
    browser.go(browser.js("location.hash.slice(1) + '&all=1'"))
    for k in range(5):
        browser.go(browser.js(f"document.querySelectorAll('.flips a')[{k}].hash.slice(1)"))
        assert browser.js("document.querySelectorAll('.sides .diff').length") == 8
        found = (
            "document.querySelectorAll('#app :is(script, img, iframe, base, meta, link, style)')"
        )
        assert browser.js(found + ".length") == 0
    assert browser.js("document.documentElement.dataset.pwned") is None
    check_clean(browser)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_and_is_clean(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.theme(dark)
    browser.size(width)
    browser.open(page)
    task = {"env": "parity", "task": "eval-1090057335"}
    both = {"a": "plain/run@1", "b": "doctored/run@0"}
    for place in (
        "/",
        address(**both),
        address(**both, **task),
        address(**both, all=1),
        address(a="plain/run", b="plain/run@0"),
        address(a="nowhere", b="plain/run@0"),
        address(**both, task="none"),
    ):
        browser.go(place)
        assert browser.js("document.documentElement.scrollWidth <= innerWidth"), place
        assert len(browser.js("document.querySelector('main').innerText")) > 20, place
    browser.theme(False)
    check_clean(browser)


def test_the_keyboard_compares(browser: Browser, page: Path) -> None:
    browser.size(1280)
    browser.open(page)
    browser.wait("!!document.querySelector('.compare a')")

    tab_to(browser, ".compare a:last-of-type")
    browser.key("Enter", 13)
    browser.wait("!!document.querySelector('.flips a')")
    tab_to(browser, "[aria-label='Evaluation A']")
    browser.key("ArrowUp", 38)
    browser.wait("location.hash.includes('doctored%2Frun%400')")
    browser.wait("document.activeElement.ariaLabel === 'Evaluation A'")  # the focus stays
    tab_to(browser, ".flips a")
    task = browser.js("document.activeElement.innerText")
    browser.key("Enter", 13)
    browser.wait(f"document.querySelector('.opened h2')?.innerText === 'Task {task}'")
    check_clean(browser)


def test_a_step_of_a_curve_leads_to_its_comparison(browser: Browser, page: Path) -> None:
    browser.open(page, "/?stage=plain/run")
    browser.wait("document.querySelectorAll('.plot svg').length")
    browser.js("document.querySelector('.plot').focus()")
    browser.key("ArrowLeft", 37)
    browser.key("Enter", 13)
    browser.wait("document.querySelector('input').value === 'step:1'")
    last = "document.querySelector('.compare a:last-of-type')"
    assert browser.js(last + ".innerText") == "step 0 with step 1"
    browser.go(browser.js(last + ".hash.slice(1)"))
    assert facts(browser)["In both"] == "24 tasks"
    check_clean(browser)


def test_runs_have_short_names_that_differ(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a/x/run", "b/x/run", "c/other")]
    assert run_names(folders) == ["a/x/run", "b/x/run", "other"]
    with pytest.raises(ConfigError, match="is given 2 times; name each run once"):
        run_names([tmp_path / "a", tmp_path / "b" / ".." / "a"])

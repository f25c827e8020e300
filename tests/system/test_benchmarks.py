"""The benchmarks run and tell the truth about what they did; how fast anything is, is not asked."""

import importlib
import json
import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from benchmarks import gpu, long_run, report, steps, worlds_throughput
from benchmarks.models import SHAPES, make_model, make_tokenizer
from benchmarks.ours import playing, reading
from benchmarks.rows import Bench, Result, Row, Unavailable
from benchmarks.table import ROWS
from benchmarks.timing import Stepwise, alternate
from benchmarks.work import Counts, Work
from benchmarks.worlds import AnswerTree, FixedWorld
from benchmarks.worlds_throughput import MARKS, WARM, Stage, measured, soaked

from chromium import MISSING, chromium
from every_environment import ALL as WORLDS
from grids import quick
from mrlm import check_environment, read_run
from places import ROOT

SMALL = Work("tiny", prompts=2, group=2, read=5, written=4, agents=2)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`python -m benchmarks` in this process: its exit status and what it said."""
    verbosity = transformers.logging.get_verbosity()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def call(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *options])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("benchmarks", run_name="__main__")
        transformers.logging.set_verbosity(verbosity)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return call


def test_a_row_without_its_peer_says_so_and_times_our_side(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--quick", "--no-peers", "--rows", "grpo-15m", "--output", str(tmp_path))
    assert code == 0, err[-2000:]
    assert "grpo-15m: skipped: trl is left out (--no-peers)" in out
    row = json.loads((tmp_path / report.RESULTS).read_text())["rows"]["grpo-15m"]
    assert row["value"] is None and row["ours"] > 0 and 0 < row["limit"] < 1 and row["quick"]


PAGES = ["page-list", "page-episode", "page-search"]


@pytest.mark.parametrize(
    "name",
    [
        *quick(
            ("long-tail", "decode", "turns", "long-talks", "adapters", "group", "long-run"),
            ("turns", "adapters", "long-run"),
        ),
        *(
            pytest.param(name, marks=pytest.mark.skipif(chromium() is None, reason=MISSING))
            for name in PAGES
        ),
    ],
)
def test_a_row_that_needs_no_other_library_has_a_value(name: str) -> None:
    (row,) = [row for row in ROWS if row.name == name]
    result = row.measure(Bench(rounds=1, quick=True))
    assert result.value is not None and math.isfinite(result.value)
    assert all(y > 0 for points in result.lines.values() for _, y in points)


def test_the_run_for_a_gpu_says_that_there_is_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = run("--gpu", "--output", str(tmp_path))
    assert code == gpu.NO_DEVICE and not out and not list(tmp_path.iterdir())
    assert err.count("\n") == 1 and "no CUDA device" in err and "--gpu --quick" in err


ON_GPU = [row for row in ROWS if row.name.startswith("gpu-")]


@pytest.mark.parametrize("row", quick(ON_GPU, 3), ids=lambda row: row.name)
def test_a_row_for_a_gpu_runs_on_a_cpu_and_says_so(row: Row, tmp_path: Path) -> None:
    bench = Bench(rounds=1, quick=True, peers=row.name == "gpu-rollouts", dry=True)
    assert not report.measure([row], bench, tmp_path)
    result = report.load(tmp_path)[row.name]
    if row.name == "gpu-vllm":  # it would be `gpu-rollouts` again
        assert result.reason.startswith("skipped: vllm") and result.ours is result.value is None
        return
    assert "not measured on a GPU" in result.note and result.quick
    assert result.ours or result.value
    alone = ("gpu-rollouts", "gpu-train", "gpu-memory", "gpu-adapters", "gpu-qlora")
    assert (result.value is not None) == (row.name in alone)


def test_rows_of_a_gpu_are_skipped_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for row in ON_GPU:
        with pytest.raises(Unavailable, match="no CUDA device"):
            row.measure(Bench(rounds=1, quick=True))


def test_a_longer_log_is_that_of_a_longer_run(tmp_path: Path) -> None:
    ours = playing(SMALL, "magrpo")
    ours.step()
    ours.run.log.close()
    folder = ours.run.folder
    steps = long_run.lengthen(folder, 10_000)
    read = read_run(folder)
    assert list(read.steps) == list(range(1, steps + 1)) and steps > 1
    (first, last) = (len(list(read.episodes([step]))) for step in (1, steps))
    assert first == last == SMALL.prompts * SMALL.group
    assert {row["step"] for row in read.rows([steps])} == {steps}, "a run continues from there"
    assert long_run.lengthen(folder, 1) == steps  # it is long enough
    ours.close()


def test_vllm_samples_as_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        def __init__(self, model: str, **settings: Any) -> None:
            assert (Path(model) / "model.safetensors").is_file() and settings["max_model_len"] == 9

        def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> list[Any]:
            assert [len(prompt["prompt_token_ids"]) for prompt in prompts] == [5, 5]
            rows = [SimpleNamespace(token_ids=[7] * each.max_tokens) for each in sampling]
            return [SimpleNamespace(outputs=[row]) for row in rows]

    fake = SimpleNamespace(LLM=Engine, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", fake)  # type: ignore[arg-type]
    peer = importlib.import_module("benchmarks.vllm_peer").generate("tiny", 5, [2, 4], rows=2)
    peer.play(1, Bench().clock(), lambda: None)
    assert peer.counts() == Counts(10, 6, 0)
    monkeypatch.delitem(sys.modules, "benchmarks.vllm_peer")


def late(words: list[str], **settings: Any) -> None:
    assert 0 < settings["timeout"] <= gpu.BUDGET
    raise subprocess.TimeoutExpired(words, settings["timeout"])


def test_tests_come_first_and_a_late_row_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ON_GPU[0]
    monkeypatch.setattr(gpu, "_tests", lambda folder: 1)
    assert gpu.everything([row], tmp_path, 1, quick=True) == 1 and not list(tmp_path.iterdir())
    assert "the equality tests failed" in capsys.readouterr().err
    monkeypatch.setattr(gpu, "_tests", lambda folder: 0)
    monkeypatch.setattr(subprocess, "run", late)
    assert gpu.everything([row], tmp_path, 1, quick=True) == 1
    assert "time of --gpu was over" in report.load(tmp_path)[row.name].reason


@pytest.mark.slow
def test_a_late_row_is_measured_again_and_time_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole program on the CPU; then one row without time."""
    rows = {row.name: row for row in ON_GPU}
    row, other = rows["gpu-memory"], rows["gpu-adapters"]
    monkeypatch.setattr(gpu, "_tests", lambda folder: 0)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", late)
        assert gpu.everything([row], tmp_path, 1, quick=True) == 1
    monkeypatch.setattr(gpu, "_tests", lambda folder: 1)  # they passed, and are not repeated
    assert gpu.everything([row], tmp_path, 1, quick=True) == 0, "a late row is measured again"
    assert report.load(tmp_path)[row.name].value and row.name in capsys.readouterr().out
    assert gpu.everything([row, other], tmp_path, 1, quick=True, seconds=0.5) == 1
    assert "not reached; the next call measures it" in capsys.readouterr().err
    assert other.name not in report.load(tmp_path), "and what is there was not measured again"


@pytest.mark.parametrize("status", ["pass", "fail"])
def test_the_tests_with_the_mark_are_run(status: str, tmp_path: Path) -> None:
    body = "import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    assert " + str(status == "pass")
    (tmp_path / "test_marked.py").write_text(f"{body}\n")
    (tmp_path / "test_other.py").write_text("raise RuntimeError('not collected')\n")
    assert bool(gpu._tests(tmp_path)) == (status == "fail")


def test_an_unknown_row_is_named(run: Run, tmp_path: Path) -> None:
    code, _, err = run("--rows", "grpo", "--output", str(tmp_path))
    assert code == 2 and "no row 'grpo'" in err and "grpo-15m" in err


@pytest.mark.parametrize("weights", quick(["shared", "own", "lora"], ["lora"]))
def test_our_side_does_exactly_the_work(weights: str) -> None:
    work = Work("tiny", prompts=2, group=2, read=5, written=4, agents=2, weights=weights)  # type: ignore[arg-type]
    ours = playing(work, "magrpo")
    ours.step()
    assert ours.counts() == work.counts == Counts(2 * 2 * 2 * 5, 2 * 2 * 2 * 4, 2 * 2 * 2 * 4)
    assert len(ours.run.learners) == (1 if weights == "shared" else 2)
    ours.close()


def test_a_tree_is_counted_once() -> None:
    work = Work("tiny", prompts=1, group=2, read=5, written=4, agents=2, turns=3, tree=True)
    assert work.completions == 2 * (2 + 4 + 8)
    ours = playing(work, "magrpo", workflow=AnswerTree(2))
    ours.step()
    assert ours.counts() == work.counts
    ours.close()


@pytest.mark.parametrize(("algorithm", "columns"), [("sft", 1), ("dpo", 2)])
def test_written_rows_are_as_long_as_they_should_be(algorithm: str, columns: int) -> None:
    work = Work("tiny", prompts=3, group=columns, read=5, written=4)
    rows = steps.written_rows(work, ("completion",) if columns == 1 else ("chosen", "rejected"))
    ours = reading(work, algorithm, rows)
    ours.step()
    assert ours.counts() == Counts(3 * columns * 5, 0, 3 * columns * 4)
    ours.close()


def test_a_peer_that_does_less_is_not_compared() -> None:
    class Lazy:
        def step(self) -> None: ...

        def counts(self) -> Counts:
            return Counts(1, 1, 1)

    ours = playing(SMALL, "magrpo")
    with pytest.raises(AssertionError, match="the peer"):
        alternate(ours, Stepwise(Lazy()), 1, Bench().clock(), SMALL.counts)
    ours.close()


def test_the_end_token_cannot_be_drawn() -> None:
    tokenizer, model = make_tokenizer("tiny"), make_model("tiny")
    size = model.get_output_embeddings().weight.shape[0]
    assert size == SHAPES["tiny"].vocab == tokenizer.eos_token_id == len(tokenizer) - 1
    parameters = sum(weight.numel() for weight in model.parameters())
    assert 0 <= parameters - SHAPES["tiny"].weights < 0.02 * parameters  # norms and biases


def test_the_world_keeps_the_contract() -> None:
    check_environment(FixedWorld("tiny", ("a", "b"), 5, turns=3))


def test_the_page_has_a_place_for_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    found = {row.name: Result(reason="skipped: not today") for row in ROWS}
    for _ in range(2):
        report.write_page(page, report.markdown(ROWS, found, "a machine"))
    assert page.read_text().count("Measured on a machine.") == 1
    assert all(f"| {row.name} |" in page.read_text() for row in ROWS)


def test_bounds_are_judged_in_their_direction() -> None:
    more = Row("more", "", lambda bench: Result(), must=2, goal=4)
    less = Row("less", "", lambda bench: Result(), must=1.3, goal=1.1, less=True)
    assert [more.verdict(Result(value)) for value in (1, 2, 4, None)] == [
        "missed",
        "must",
        "goal",
        "",
    ]
    assert [less.verdict(Result(value)) for value in (1.4, 1.2, 1.0)] == ["missed", "must", "goal"]
    assert more.verdict(Result(9, quick=True)) == ""


def test_worlds_are_played_with_the_words_of_their_experts(tmp_path: Path, tokenizer: Any) -> None:
    stage = Stage("relay", 5, tokenizer)
    stage.learn()
    for _ in range(2):  # the same tasks again
        groups = stage.play()
        assert [episode.reward for group in groups for episode in group] == [1.0] * 5
    assert len(stage.engine.batches) == 2
    mute = Stage("reward", 2, tokenizer)  # a world without an expert
    mute.learn()
    assert [turn.message.content for group in mute.play() for turn in group.episodes[0].turns] == [
        "yes",
        "yes",
    ]
    row = measured("length", 4, 1, tokenizer)
    assert row.rate > 0 and row.turns == 2.0 and not row.failed
    soak = soaked("length", 20, 2, tokenizer)
    assert len(soak.resident) == WARM + 2 and min(soak.resident) > 0 and not soak.failed
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"))
    report.write_page(page, worlds_throughput.markdown([row], soak, "a machine"), MARKS)
    assert (
        "| length | 4 | 2.0 |" in page.read_text() and "20 episodes of `length`" in page.read_text()
    )


def test_every_world_without_another_library_is_measured(tokenizer: Any) -> None:
    for name in WORLDS:
        assert Stage(name, 1, tokenizer).world.agents

"""Evaluations and collections write the record of a run: the reader, the page, the terminal and a
replay open it."""

import json
from pathlib import Path
from typing import Any

import pytest

import mrlm
from commands import Mrlm
from mrlm.config import ExperimentConfig
from mrlm.core.errors import ConfigError
from mrlm.runs import collect_trajectories, evaluate_model
from mrlm.viewer.export import export_run

SETTINGS: dict[str, Any] = {
    "environments": [{"env_type": "relay", "max_number": 3}],
    "training": {"algorithm": "grpo", "num_iterations": 2, "batch_size": 2, "report_to": "none"},
    "grpo": {"group_size": 2},
    "generation": {"max_new_tokens": 4},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    mrlm.run_experiment(ExperimentConfig(**SETTINGS, output_dir=str(folder)))
    return folder


def test_an_evaluation_is_recorded_and_its_agents_can_be_joined(
    trained: Path, run: Mrlm, tmp_path: Path
) -> None:
    done = run(
        *("eval", "--model", trained, "-n", 3, "--samples", 2, "--record", "kept", "-o", "e.json")
    )
    assert done.code == 0 and "recorded in kept: mrlm look kept" in done.out, done.err
    found = {episode.id: episode for episode in mrlm.read_run("kept").episodes()}
    assert sorted(found) == [
        f"eval/relay/{task}/{number}" for task in range(3) for number in (0, 1)
    ]
    rows = json.loads(Path("e.json").read_text())["episodes"]
    assert [row["id"] for row in rows] == list(found)
    for row in rows:
        turns = {turn.agent: turn for turn in found[row["id"]].turns}
        assert set(turns) == set(row["messages"]) == {"first", "second"}
        for agent, turn in turns.items():
            assert turn.text == row["messages"][agent][-1]["content"] != ""
            assert turn.row["components"] == row["components"][agent] and turn.ids is not None
            pieces = mrlm.read_run("kept").vocabulary[turn.policy]
            shown = b"".join(pieces[i] for i in turn.ids.tolist()).decode(errors="replace")
            assert turn.text == shown or turn.row["finish_reason"] == "stop"
    (metrics,) = mrlm.read_run("kept").metrics
    assert metrics["step"] == 0 and metrics["eval/episodes/count"] == 6
    name = "eval/relay/2/1"
    assert name in run("look", "kept", "--where", "eval and agent:second").out
    assert export_run("kept", "page.html").shown == 6
    again = run("replay", "kept", "--episode", name, "--check", "--columns", "--json")
    assert again.code == 0 and json.loads(again.out) == found[name].row, again.err


def test_a_collection_is_recorded(trained: Path, run: Mrlm, tmp_path: Path) -> None:
    done = run("collect", "--model", trained, "-n", 3, "-o", "rows.json", "--record", "kept")
    assert done.code == 0 and "recorded in kept" in done.out, done.err
    rows = json.loads(Path("rows.json").read_text())
    for episode in mrlm.read_run("kept").episodes():
        mine = {row["agent"]: row for row in rows if row["episode"] == episode.id}
        assert set(mine) == {"first", "second"}
        for turn in episode.turns:
            assert turn.ids is not None, "all tokens, also where a run samples them"
            assert mine[turn.agent]["components"] == turn.row["components"]
    again = run("replay", "kept", "--episode", rows[0]["episode"])
    assert again.code == 2 and "was collected" in again.err
    before = Path("kept/episodes.jsonl.gz").read_bytes()
    refused = run("collect", "--model", trained, "-n", 1, "-o", "more.json", "--record", "kept")
    assert refused.code == 2 and "record kept: it exists already" in refused.err
    assert not Path("more.json").exists()
    assert Path("kept/episodes.jsonl.gz").read_bytes() == before


def test_the_python_doors_record_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {f: {"model": str(trained / "final" / f)} for f in ("first", "second")}
    config = ExperimentConfig(**SETTINGS, policies=models, record={"tokens": "none"})
    evaluate_model(config, 2, 1, True, tmp_path / "a")
    collect_trajectories(config, 2, tmp_path / "b")
    for name, kind in (("a", "eval"), ("b", "train")):
        read = mrlm.read_run(tmp_path / name)
        (one, two) = read.episodes()
        assert one.id.startswith(kind) and one.turns[0].ids is None and two.turns[0].text
    trainer = mrlm.GRPOTrainer(
        config=ExperimentConfig(**SETTINGS, output_dir=str(tmp_path / "run"))
    )
    trainer.train()
    result = trainer.evaluate(3, 1, True, record=tmp_path / "c")
    read = mrlm.read_run(tmp_path / "c")
    assert [e.id for e in read.episodes()] == [e.id for e in result.episodes] and read.steps == [2]
    assert read.vocabulary == mrlm.read_run(tmp_path / "run").vocabulary
    with pytest.raises(ConfigError, match="it exists already"):
        mrlm.evaluate(trainer.run, 1, record=tmp_path / "c")


def test_secrets_reach_neither_the_file_nor_the_record(
    run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "open-sesame")
    agents = {"first": {"system_prompt": "the word is open-sesame"}, "second": {}}
    ExperimentConfig(**SETTINGS, agents=agents).save("c.yaml")
    for words in (("eval", "-n", 1), ("collect", "-n", 1)):
        folder = f"kept-{words[0]}"
        assert run(*words, "--config", "c.yaml", "-o", "o.json", "--record", folder).code == 0
        (episode,) = mrlm.read_run(folder).episodes()
        for text in (Path("o.json").read_text(), json.dumps(episode.row)):
            assert "the word is [secret]" in text and "open-sesame" not in text
        assert all(turn.ids is None for turn in episode.turns)

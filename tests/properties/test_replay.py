"""Any episode of the past is played again, token for token, or it is said what is different."""

import json
from pathlib import Path
from typing import Any

import pytest

from chat_server import completion, serving
from commands import Mrlm
from logged_rows import state_of
from mrlm import replay, run_experiment
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core.errors import ConfigError
from mrlm.record.packing import pack_ids, unpack
from mrlm.record.rows import digest
from mrlm.replays.differences import differing
from recorded import episodes as recorded
from recorded import played, write

pytestmark = pytest.mark.system


def config(folder: Path, **changes: Any) -> ExperimentConfig:
    data = {
        "experiment_name": "again",
        "output_dir": str(folder),
        "environments": [{"env_type": "relay"}],
        "training": {
            "algorithm": "grpo",
            "num_iterations": 4,
            "batch_size": 2,
            "learning_rate": 1e-2,
            "save_steps": 2,
            "report_to": "none",
        },
        "grpo": {"group_size": 2},
        "generation": {"max_new_tokens": 4},
        **changes,
    }
    data = {key: value for key, value in data.items() if value is not None}
    return parse_config(data, [], "the test")


def lines(folder: Path, step: int | None = None) -> list[dict[str, Any]]:
    rows = recorded(folder)
    return [row for row in rows if step in (None, row["step"])]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies, one an adapter with dropout; evaluated twice and at the start."""
    folder = tmp_path_factory.mktemp("team") / "run"
    policies = {"first": {}, "second": {"lora": {"r": 4, "dropout": 0.1}}}
    run_experiment(config(folder, policies=policies, evaluation={"episodes": 2, "every": 2}))
    return folder


@pytest.mark.parametrize(("step", "kind"), [(1, "train"), (3, "train"), (4, "train"), (4, "eval")])
def test_an_episode_is_played_again(step: int, kind: str, team: Path) -> None:
    """From the beginning, from a checkpoint as it is, and after more training; nothing of the run
    is touched."""
    before = state_of(team)
    line = [row for row in lines(team, step) if row["id"].startswith(kind)][-1]
    found = replay(team, line["id"], step)
    assert found.same and not found.notes, str(found)
    ids = [turn.completion_ids for turn in found.episode.turns]
    assert ids == [
        unpack(turn["ids"]).tolist() for each in line["agents"].values() for turn in each["turns"]
    ]
    assert all(ids) and found.logged == line and played(found.played) == played(line)
    origin = {1: "0 steps: the initial weights", 3: "2 steps: checkpoint-2"}
    origin[4] = "4 steps: checkpoint-4"
    if (step, kind) == (4, "train"):
        origin[4] = "3 steps: checkpoint-2, then 1 steps of training again"
    assert found.origin.endswith(origin[step])
    assert state_of(team) == before


def test_the_command_prints_writes_and_checks(team: Path, run: Mrlm, tmp_path: Path) -> None:
    line = lines(team, 3)[0]
    done = run("replay", team, "--episode", line["id"], "--check", "--out", "again.json")
    assert done.code == 0 and "equal to the log: 2 turns" in done.out
    assert "-- second (policy second) --" in done.out and "  first 0, correct 0" in done.out
    written = json.loads((tmp_path / "again.json").read_text())
    assert written["same"] and played(written["episode"]) == played(line)
    shown = [run("replay", team, "--episode", line["id"], *more) for more in ((), ("--quiet",))]
    assert [each.code for each in shown] == [0, 0] and shown[1].out == shown[1].err == ""
    again = run("replay", team, "--episode", "eval/relay/0/0")
    assert again.code == 2 and "is logged in steps 0, 2, 4; choose one with --step" in again.err
    assert run("replay", team, "--episode", "eval/relay/0/0", "--step", 3).code == 2
    none = run("replay", team, "--episode", "train/none/0")
    assert none.code == 2 and "ids there look like 'eval/relay/0/0'" in none.err
    assert run("replay", tmp_path, "--episode", "x").code == 2


def test_a_log_that_says_something_else_is_found_out(team: Path, run: Mrlm, tmp_path: Path) -> None:
    """As if other hardware had computed other bits."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.yaml").write_text((team / "config.yaml").read_text())
    line = lines(team, 1)[0]
    turn = line["agents"]["second"]["turns"][0]
    ids = unpack(turn["ids"])
    ids[2] += 1
    turn["ids"], turn["digest"] = pack_ids(ids.tolist()), digest(ids.tolist())
    write(copy, [line])
    (copy / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 9.0}) + "\n")
    done = run("replay", copy, "--episode", line["id"], "--check", "--quiet")
    assert done.code == 1 and "agent 'second', turn 1: token 3 is" in done.out
    assert run("replay", copy, "--episode", line["id"], "--quiet").code == 0


def test_a_run_of_live_objects_asks_for_them(team: Path, tmp_path: Path) -> None:
    config(tmp_path, environments=None).save(tmp_path / "config.yaml")
    write(tmp_path, recorded(team))
    with pytest.raises(ConfigError, match="live objects of a program"):
        replay(tmp_path, lines(team, 1)[0]["id"])


def test_training_again_that_departs_from_the_log_is_noted(team: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        (copy / name).write_text((team / name).read_text())
    write(copy, recorded(team))
    rows = [json.loads(line) for line in (copy / "metrics.jsonl").open()]
    rows[1]["grad_norm"] += 1e-9
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = replay(copy, lines(team, 2)[0]["id"])
    (note,) = found.notes
    assert found.same and "step 1 of the training did not come out as it is logged (grad_n" in note


def test_what_is_compared() -> None:
    def line(ids: list[int], reward: float = 1.0, hidden: bool = False) -> dict[str, Any]:
        turn = {"ids": None if hidden else ids, "digest": digest(ids), "version": 1}
        agent = {"policy": "p", "reward": reward, "messages": [], "turns": [turn]}
        whole = {"status": "done", "reward": reward, "error": None, "environment": "e"}
        return {**whole, "task_id": "t", "agents": {"a": agent}}

    assert not list(differing(line([1, 2]), line([1, 2])))
    assert not list(differing(line([1, 2], hidden=True), line([1, 2])))
    assert next(differing(line([1, 2]), line([1, 3]))) == (
        "agent 'a', turn 1: token 2 is 3, logged 2"
    )
    assert next(differing(line([1, 2]), line([1]))).endswith("1 tokens, logged 2")
    assert "hold a secret" in next(differing(line([1], hidden=True), line([2])))
    assert list(differing(line([1]), line([1], 2.0))) == [
        "agent 'a': reward 2.0, logged 1.0",
        "reward 2.0, logged 1.0",
    ]


def test_forks_and_the_stages_of_a_pipeline(tmp_path: Path) -> None:
    """The second stage begins with what the first one trained, and grows trees."""
    folder = tmp_path / "run"
    stages = [
        {"name": "imitate", "training": {"algorithm": "sft", "num_iterations": 1}},
        {
            "name": "search",
            "workflow": {"name": "tree", "branches": 2},
            "training": {"algorithm": "magrpo", "num_iterations": 2, "learning_rate": 1e-2},
        },
    ]
    training = {"batch_size": 2, "report_to": "none"}
    run_experiment(config(folder, stages=stages, training=training, grpo=None))
    place = folder / "2-search"
    forked = [row for row in lines(place, 2) if row["id"].count("/") > 3]
    assert forked, "nothing was forked"
    found = replay(folder, forked[-1]["id"])
    assert found.same, str(found)
    shared = lines(folder / "1-imitate", 1)[0]["id"]
    assert replay(folder / "1-imitate", shared).same
    with pytest.raises(ConfigError, match="several stages have an episode"):
        replay(folder, shared)


def test_a_player_of_the_past_is_met_again_and_named(tmp_path: Path) -> None:
    game = [{"env_type": "tic_tac_toe"}]
    agents = {"x": {"policy": "player"}, "o": {"policy": "player"}}
    run_experiment(
        config(
            tmp_path / "run",
            environments=game,
            agents=agents,
            opponents={"every": 1, "self": 0.0, "keep": 3},
            evaluation={"episodes": 1, "every": 2},
            training=config(tmp_path).training.model_dump() | {"num_iterations": 3},
        )
    )
    rows = lines(tmp_path / "run", 3)
    named = {each["policy"] for row in rows for each in row["agents"].values()}
    assert any(name.startswith("player@") for name in named), named
    for row in rows[:2]:
        found = replay(tmp_path / "run", row["id"])
        assert found.same and played(found.played) == played(row), str(found)


def test_rows_come_again_in_every_epoch(tmp_path: Path) -> None:
    data = {"dataset": [{"prompt": f"{n}?", "completion": str(n)} for n in range(3)]}
    training = {"algorithm": "sft", "num_iterations": 4, "batch_size": 2, "report_to": "none"}
    run_experiment(
        config(tmp_path / "run", environments=[], data=data, training=training, grpo=None)
    )
    row = lines(tmp_path / "run", 1)[0]
    with pytest.raises(ConfigError, match=r"is logged in steps 1, .*choose one with --step"):
        replay(tmp_path / "run", row["id"])
    assert replay(tmp_path / "run", row["id"], 1).same


def test_recorded_words_stand_for_a_policy_behind_an_api(tmp_path: Path) -> None:
    with serving(lambda body, number: completion(f"{number} it is", body)) as served:
        endpoint = {"base_url": served.url, "model": "judge"}
        policies = {"first": {}, "second": {"endpoint": endpoint}}
        run_experiment(
            config(tmp_path / "run", policies=policies, evaluation={"episodes": 2, "every": 2})
        )
        asked = len(served.bodies)
        for kind, step in (("train", 4), ("eval", 2)):
            row = next(x for x in lines(tmp_path / "run", step) if x["id"].startswith(kind))
            assert row["agents"]["second"]["turns"][0]["text"]
            found = replay(tmp_path / "run", row["id"], step)
            assert found.same and "the recorded completions were used" in found.notes[0]
        assert len(served.bodies) == asked

"""A replay with columns computes, bit for bit, the row that a run with `record.tokens: all` holds,
also of episodes whose tokens the run did not record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Mrlm
from grids import quick
from mrlm import read_run, replay, run_experiment
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core.errors import ConfigError
from recorded import episodes

pytestmark = pytest.mark.system

TEAM: dict[str, Any] = {
    "policies": {"team": {}},
    "agents": {"a": {"policy": "team"}, "b": {"policy": "team"}},
}
OWN: dict[str, Any] = {"policies": {"a": {}, "b": {}}}
TREE = {"workflow": {"name": "tree", "branches": 2}}
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "grpo": (OWN | {"grpo": {"group_size": 2}}, set()),
    "grpo with a reference": (TEAM | {"grpo": {"group_size": 2, "kl_coef": 0.1}}, {"ref_logprobs"}),
    "ppo": (TEAM | {"ppo": {"kl_coef": 0.05}}, {"values", "returns", "ref_logprobs"}),
    "magrpo": (TEAM | {"magrpo": {"group_size": 2}}, {"returns"}),
    "magrpo tree": (TEAM | TREE | {"magrpo": {}}, {"returns"}),
    "happo": (OWN | {"happo": {}}, {"values", "returns", "old_logprobs"}),
    "grpo ahead": (OWN | {"grpo": {"group_size": 2}, "training": {"max_lag": 1}}, {"old_logprobs"}),
}
"""Name, which begins with that of the algorithm -> changes of the config, and columns that its
tokens have besides the usual ones."""
USUAL = {"logprobs", "advantages", "last_logprobs", "entropies"}


def config(folder: Path, name: str, tokens: str, **more: Any) -> ExperimentConfig:
    changes = CASES[name][0] if name in CASES else {}
    data = {
        "experiment_name": "columns",
        "output_dir": str(folder),
        "environments": [{"env_type": "small_environments:Rounds", "rounds": 2, "num_agents": 2}],
        "generation": {"max_new_tokens": 3},
        "record": {"tokens": tokens},
        **changes,
        **more,
    }
    data["training"] = {
        "algorithm": name.partition(" ")[0],
        "num_iterations": 4,
        "batch_size": 3,
        "learning_rate": 1e-3,
        "save_steps": 2,
        "report_to": "none",
        "threads": 1,
        **changes.get("training", {}),
    }
    return parse_config(data, [], "the test")


def last_of(folder: Path, step: int, kind: str = "train") -> dict[str, Any]:
    """The last episode of a step: of a group that is not sampled."""
    return [r for r in episodes(folder) if r["step"] == step and r["id"].startswith(kind)][-1]


def turns(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [turn for agent in row["agents"].values() for turn in agent["turns"]]


@pytest.mark.parametrize("name", quick(CASES, 3))
def test_columns_are_those_of_a_run_that_records_all(name: str, tmp_path: Path) -> None:
    whole, sampled = tmp_path / "whole", tmp_path / "sampled"
    run_experiment(config(whole, name, "all"))
    run_experiment(config(sampled, name, "sample"))
    step = 4
    expected, known = last_of(whole, step), last_of(sampled, step)
    assert expected["id"] == known["id"] and expected["group"] == 2
    assert not any("ids" in turn or "columns" in turn for turn in turns(known))
    found = replay(sampled, known["id"], step, columns=True)
    assert found.same and not found.notes, str(found)
    assert json.dumps(found.played) == json.dumps(expected), "the same bits and the same order"
    assert found.logged == known and found.origin.endswith("then 1 steps of training again")
    trained = [turn for turn in turns(found.played) if turn["trained"]]
    assert trained and all(turn["why"] for turn in trained)
    present = [set(turn["columns"]) for turn in trained]
    assert all(CASES[name][1] <= each for each in present), present
    assert USUAL in [USUAL & each for each in present], present
    ratio = [turn.columns for turn in found.recorded.turns if "last_logprobs" in turn.columns]
    assert all(np.isfinite(each["entropies"]).all() for each in ratio)


def test_an_evaluation_and_a_run_that_records_no_tokens(tmp_path: Path) -> None:
    watched = {"evaluation": {"episodes": 2, "every": 2}}
    for tokens in ("all", "none"):
        run_experiment(config(tmp_path / tokens, "grpo", tokens, **watched))
    for step, kind in ((2, "eval"), (4, "eval"), (1, "train"), (2, "train")):
        expected = last_of(tmp_path / "all", step, kind)
        found = replay(tmp_path / "none", expected["id"], step, columns=True)
        assert json.dumps(found.played) == json.dumps(expected) and found.same


def test_rows_that_are_trained_on_in_several_steps_have_columns_of_each(tmp_path: Path) -> None:
    data = {"dataset": [{"prompt": f"{n}?", "completion": str(n)} for n in range(3)]}
    run_experiment(config(tmp_path / "run", "sft", "all", data=data, environments=[]))
    rows = [row for row in episodes(tmp_path / "run") if row["step"] in (1, 4)]
    known = {row["step"]: row for row in rows if row["id"] == rows[0]["id"]}
    assert turns(known[1]) != turns(known[4])
    with pytest.raises(ConfigError, match="choose one with --step"):
        replay(tmp_path / "run", rows[0]["id"], columns=True)
    for step, row in known.items():
        again = replay(tmp_path / "run", rows[0]["id"], step, columns=True)
        assert json.dumps(again.played) == json.dumps(row)


def test_the_command_prints_columns_and_the_row(run: Mrlm, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_experiment(config(folder, "grpo with a reference", "all"))
    expected = last_of(folder, 3)
    where = ("replay", folder, "--episode", expected["id"])
    shown = run(*where, "--columns")
    assert shown.code == 0 and "equal to the log: 4 turns" in shown.out, shown.err
    heads = [line.split()[:3] for line in shown.out.splitlines()]
    assert ["1", "a", "ref_logprobs"] in heads and ["4", "b", "mask"] in heads
    row = json.loads(run(*where, "--columns", "--json").out)
    assert row == expected == read_run(folder).episode(expected["id"]).row
    bare = turns(json.loads(run(*where, "--json").out))
    assert not any("last_logprobs" in turn["columns"] for turn in bare), "there is no update"

"""Play goes on from any turn of the past: with nothing changed as in the record, whatever the
workflow, and with a change only after it."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from grids import quick
from logged_rows import state_of
from mrlm import ForkSession, play_from, read_run, run_experiment
from mrlm.config import parse_config
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.record.files import rows_of
from mrlm.record.filters import parse_filter
from mrlm.record.packing import unpack
from mrlm.replays.differences import differing

pytestmark = pytest.mark.system

SPECS = {name: registry.load("workflows", name).spec for name in registry.names("workflows")}
TEAM = ("ann", "ben", "cy")
WORLD: dict[str, dict[str, Any]] = {
    "cross": {"env_type": "matrix", "game": "xor"},
    "tree": {"env_type": "matrix", "game": "xor", "rounds": 2},
    "self_play": {"env_type": "kuhn_poker", "style": "short"},
}
"""Workflow -> an environment that it plays; others play numbers or sums."""
MORE: dict[str, dict[str, Any]] = {
    "tree": {"workflow": {"name": "tree", "branches": 2}},
    "pioneer_observer": {"agents": {"pioneer": {}, "observer": {}}},
    "cross": {"magrpo": {"group_size": 2, "joint_mode": "cross"}},
}


def trained(folder: Path, **changes: Any) -> Path:
    data: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "environments": [{"env_type": "relay"}],
        "training": {
            "algorithm": "magrpo",
            "num_iterations": 3,
            "batch_size": 1,
            "learning_rate": 1e-2,
            "save_steps": 1,
            "report_to": "none",
        },
        "magrpo": {"group_size": 2},
        "generation": {"max_new_tokens": 3},
        "evaluation": {"episodes": 1, "every": 1},
        **changes,
    }
    given = {key: value for key, value in data.items() if value is not None}
    run_experiment(parse_config(given, [], "the test"))
    return folder / "run"


def apart(row: dict[str, Any], branch: dict[str, Any]) -> list[str]:
    """The differences of a branch to the record, but for its id."""
    kept = ("status", "path", "step_rewards", "metrics", "greedy", "answers")
    found = [f"{key} {branch.get(key)}" for key in kept if row.get(key) != branch.get(key)]
    return [*found, *differing(row, {**branch, "id": row["id"]})]


QUICK = {"tree", "malt", "propose_solve"}
"""One workflow of each kind of order, forks and repetitions; the others are alike."""


@pytest.mark.parametrize(
    "workflow",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in SPECS],
)
def test_with_nothing_changed_it_goes_on_as_recorded(workflow: str, tmp_path: Path) -> None:
    """Of training, with forks and combinations, and of evaluations; from the first turn and the
    last, sampled again with the run's own random numbers."""
    single = SPECS[workflow].single_agent
    world = {"env_type": "math", "difficulty_range": [1, 1]} if single else {"env_type": "length"}
    agents = {name: {} for name in TEAM} if single else None
    changes = {"workflow": {"name": workflow}, "agents": agents} | MORE.get(workflow, {})
    training = {"algorithm": "magrpo", "num_iterations": 1, "batch_size": 1, "report_to": "none"}
    folder = trained(
        tmp_path, environments=[WORLD.get(workflow, world)], training=training, **changes
    )
    rows = list(rows_of(folder))
    for step in {row["step"] for row in rows}:
        ids = [row["id"] for row in rows if row["step"] == step]
        assert len(ids) == len(set(ids)), ids
    chosen = [rows[-1], *(row for row in rows if row["id"].startswith("train"))]
    for row in (chosen[0], chosen[1], chosen[-1]):
        with ForkSession(folder, row["id"], row["step"]) as session:
            for agent, turn in {session.turns[0], session.turns[-1]}:
                (branch,) = session.play_from(agent=agent, turn=turn, keep_seeds=True)
                assert apart(row, branch.row) == [], (row["id"], agent, turn)


def test_every_text_is_recorded_and_found(tmp_path: Path, tokenizer: Any) -> None:
    """Also the text of turns that are not in an agent's last conversation."""
    folder = trained(
        tmp_path,
        environments=[{"env_type": "math", "difficulty_range": [1, 1]}],
        workflow={"name": "propose_solve"},
        agents={name: {} for name in TEAM},
        record={"tokens": "all"},
        evaluation=None,
    )
    outside = 0
    for episode in read_run(folder).episodes():
        for turn in episode.turns:
            assert turn.ids is not None
            assert turn.text == tokenizer.decode(turn.ids.tolist(), skip_special_tokens=True)
            if turn.row["message"] is None and turn.text and '"' not in turn.text:
                outside += 1
                assert parse_filter(f'"{turn.text}"')(episode.row)
    assert outside > 3


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("relay"), policies={"first": {}, "second": {"lora": {"r": 2}}}
    )


def row_of(folder: Path, kind: str, step: int) -> dict[str, Any]:
    return [r for r in rows_of(folder) if r["step"] == step and r["id"].startswith(kind)][-1]


def ids_of(row: dict[str, Any], agent: str) -> list[list[int]]:
    return [unpack(turn["ids"]).tolist() for turn in row["agents"][agent]["turns"]]


@pytest.mark.parametrize(("kind", "step"), [("train", 3), ("eval", 2)])
def test_a_turn_is_sampled_again_and_those_before_are_kept(
    kind: str, step: int, relay: Path
) -> None:
    before, row = state_of(relay), row_of(relay, kind, step)
    with ForkSession(relay, row["id"], step) as session:
        found = session.play_from(agent="second", turn=0, n=6)
        again = session.play_from(agent="second", turn=0, n=6)
        early = session.play_from(agent="first", turn=0, n=6)
    assert [each.row for each in found] == [each.row for each in again]
    assert {tuple(ids_of(each.row, "first")[0]) for each in found} == {
        tuple(ids_of(row, "first")[0])
    }
    assert len({tuple(ids_of(each.row, "second")[0]) for each in found}) > 2
    assert len({tuple(ids_of(each.row, "first")[0]) for each in early}) > 2
    assert [each.row["id"] for each in found] == [f"{row['id']}@second:0.{k}" for k in range(6)]
    assert found[5].origin["number"] == 5 and found[5].origin["change"] == "resample"
    assert all(each.row["schema"] == 2 and each.reward == each.row["reward"] for each in found)
    assert state_of(relay) == before


def test_a_message_is_replaced_and_the_next_agent_reads_it(relay: Path) -> None:
    row = row_of(relay, "train", 2)
    (branch,) = play_from(relay, row["id"], agent="first", turn=0, message="12")
    task = row["task"]["info"]
    heard = branch.row["agents"]["second"]["messages"][0]["content"]
    assert heard == f"12+{task['c']}="
    (kept,) = play_from(
        relay,
        row["id"],
        agent="first",
        turn=0,
        message=row["agents"]["first"]["messages"][-1]["content"],
        keep_seeds=True,
    )
    assert apart(row, kept.row) == []


@pytest.mark.parametrize("greedy", quick([True, False], [False]))
def test_weights_of_another_step(greedy: bool, tmp_path: Path) -> None:
    """An evaluation with the weights of a later one is the later one, since both use the same
    random numbers; its own weights are found by training again."""
    folder = trained(
        tmp_path,
        environments=[{"env_type": "tiny_runs:Letters"}],
        evaluation={"episodes": 1, "every": 1, "greedy": greedy},
        magrpo={"group_size": 4},
        policies={"a": {}, "b": {"lora": {"r": 2}}},
    )
    first, last = row_of(folder, "eval", 1), row_of(folder, "eval", 3)
    assert first["id"] == last["id"] and apart(first, last)
    with ForkSession(folder, first["id"], 1) as session:
        agent, turn = session.turns[0]
        for weights in ("checkpoint-3", "checkpoint:3", "final", folder / "checkpoint-3", folder):
            (branch,) = session.play_from(agent=agent, turn=turn, weights=weights, keep_seeds=True)
            assert apart(last, branch.row) == [] and branch.origin["weights"] == str(weights)
        (own,) = session.play_from(agent=agent, turn=turn, keep_seeds=True)
        assert apart(first, own.row) == []
    with ForkSession(folder, last["id"], 3) as session:
        calm = session.play_from(agent=agent, turn=turn, greedy=True, n=2, keep_seeds=True)
        assert calm[0].row["agents"] == calm[1].row["agents"]
        assert (apart(last, calm[0].row) == []) or not greedy


def test_what_does_not_exist_is_named(relay: Path, tmp_path: Path) -> None:
    row = row_of(relay, "eval", 2)
    with ForkSession(relay, row["id"], 2) as session:
        with pytest.raises(ConfigError, match=r"has checkpoint-\d.*final"):
            session.play_from(agent="first", turn=0, weights="checkpoint-9")
        with pytest.raises(ConfigError, match="its turns are first:0, second:0"):
            session.play_from(agent="first", turn=1)
        with pytest.raises(ConfigError, match="no weights of the trained policies"):
            session.play_from(agent="first", turn=0, weights=tmp_path)


def test_what_has_no_tokens_is_sampled_again_first(tmp_path: Path) -> None:
    folder = trained(tmp_path, record={"tokens": "none"})
    row = row_of(folder, "train", 2)
    (branch,) = play_from(folder, row["id"], agent="second", turn=0, keep_seeds=True)
    assert apart(row, branch.row) == []


def test_branches_are_sampled_in_one_batch(relay: Path) -> None:
    row = row_of(relay, "train", 1)
    with ForkSession(relay, row["id"]) as session:
        session.reach()
        batches: list[int] = []
        engine = session.run.engines["first"]
        generate = engine.generate

        async def counted(requests: Any) -> Any:
            batches.append(len(requests))
            return await generate(requests)

        engine.generate = counted  # type: ignore[method-assign]
        session.play_from(agent="first", turn=0, n=5)
    assert batches == [5, 5]


def test_the_command_plays_on(relay: Path, run: Mrlm) -> None:
    row = row_of(relay, "train", 2)
    asked = ("replay", relay, "--episode", row["id"])
    done = run(*asked, "--from", "second:0", "--n", 3, "--json")
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [each["origin"]["number"] for each in found] == [0, 1, 2]
    assert found[0]["episode"]["agents"]["first"] == {
        **found[0]["episode"]["agents"]["first"],
        "messages": row["agents"]["first"]["messages"],
    }
    done = run(*asked, "--from", "first:0", "--message", "7", "--weights", "final")
    assert done.code == 0 and "first: 7" in done.out and "reward" in done.out
    assert run(*asked, "--from", "first").code == 2
    assert "--from" in run(*asked, "--n", 3).err
    assert run(*asked, "--from", "first:0", "--greedy", "--message", "x").code == 2

"""Replays that are played in training: what is fixed, what is sampled again, what is trained on,
and where they are refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adders import adding_run
from mrlm.config import parse_config
from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward
from mrlm.experiment import dry_run
from mrlm.record.files import rows_of
from mrlm.replays.session import ForkSession


def run(folder: Path, algorithm: str, group_size: int = 2, **settings: Any) -> list[dict[str, Any]]:
    """The episodes of an iteration of the relay game: `first` adds two numbers, and `second` adds a
    third to what it was told."""
    training = {
        "algorithm": algorithm,
        "num_iterations": 1,
        "batch_size": 2,
        "report_to": "none",
        "checks": "off",
    }
    own = {algorithm: {"group_size": group_size, **settings}}
    return list(rows_of(adding_run(folder, training=training, **own)))


def turns(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Agent -> its turn, with its text."""
    found = row["agents"].items()
    return {a: each["turns"][0] | {"said": each["messages"][-1]["content"]} for a, each in found}


def replays(rows: list[dict[str, Any]]) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Mark, replay and episode."""
    by = {row["id"]: row for row in rows}
    assert len(by) == len(rows)
    for row in rows:
        if "replayed" in row:
            yield row["replayed"], row, by[row["replayed"]["of"]]


def test_an_alternative_is_another_answer_to_the_same_prompt(tmp_path: Path) -> None:
    rows = run(tmp_path, "c3", alternatives=2)
    assert len(rows) == 2 * 2 * (1 + 2 * 2)
    others = 0
    for mark, row, episode in replays(rows):
        assert mark["kind"] == "alternatives" and mark["index"] == 0
        (agent,), now, before = mark["agents"], turns(row), turns(episode)
        assert now[agent]["trained"] and now[agent]["advantage"] is not None
        assert row["agents"][agent]["messages"][:-1] == episode["agents"][agent]["messages"][:-1]
        if agent == "second":  # what the other said before is as it was, and context
            assert now["first"]["said"] == before["first"]["said"]
        else:  # what follows is sampled again
            others += now["second"]["said"] != before["second"]["said"]
        (other,) = now.keys() - {agent}
        assert not now[other]["trained"] and now[other]["advantage"] is None
    assert others
    trained = [turn for row in rows for turn in turns(row).values() if turn["trained"]]
    assert len(trained) == 2 * 2 * 2 * 3  # every answer once


def test_silent_agents_say_nothing(tmp_path: Path) -> None:
    rows = run(tmp_path, "sharp")
    marks = [tuple(mark["agents"]) for mark, _, _ in replays(rows)]
    assert sorted(set(marks)) == [("first",), ("first", "second"), ("second",)]
    assert len(marks) == 2 * 2 * 3
    for mark, row, episode in replays(rows):
        now = turns(row)
        assert mark["kind"] == "coalitions" and "index" in mark and mark["index"] is None
        assert {a for a, turn in now.items() if not turn["said"]} >= set(mark["agents"])
        assert not any(turn["trained"] for turn in now.values())
        if mark["agents"] == ["second"]:
            assert now["first"]["said"] == turns(episode)["first"]["said"]


def test_a_few_decisions_of_an_episode(tmp_path: Path) -> None:
    rows = run(tmp_path, "c3", group_size=1, alternatives=1, decisions=1)
    assert len(rows) == 2 * (1 + 1)
    for mark, row, episode in replays(rows):
        (agent,) = mark["agents"]
        found = {a: turn["advantage"] for a, turn in turns(episode).items()}
        assert [a for a, value in found.items() if value is not None] == [agent]
        gap = 2 * (episode["reward"] - row["reward"])  # times two turns per replayed one
        assert found[agent] == pytest.approx(gap) and "x 2 turns" in turns(episode)[agent]["why"]


def test_the_same_seed_plays_the_same_replays(tmp_path: Path) -> None:
    one, two = (run(tmp_path / name, "c3", alternatives=1) for name in "ab")
    assert one == two


def test_metrics_and_evaluations_know_no_replays(tmp_path: Path) -> None:
    plain, again = (run(tmp_path / name, name) for name in ("magrpo", "ccpo"))
    own = [row for row in again if "replayed" not in row]
    assert [(row["id"], row["reward"]) for row in own] == [(r["id"], r["reward"]) for r in plain]
    with pytest.raises(ConfigError, match=r"is itself a replay.*choose 'train/relay/0/0'"):
        ForkSession(tmp_path / "ccpo" / "run", "train/relay/0/0~0")


class Unseeded(SimulatedEnvironment):
    """An environment that begins differently every time."""

    def reset(self) -> Observation:
        return Observation([Message("?")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation(done=True), Reward(0.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workflow": {"name": "tree"}}, "workflow.name='tree' makes the episodes.*'turns'"),
        ({"environments": [{"env_type": "test_replays:Unseeded"}]}, "takes neither seed nor task"),
        ({"training": {"max_lag": 1}}, "training.max_lag.*remove"),
        ({"asynchrony": {"oversample": 1.5}}, "asynchrony.oversample.*remove"),
        ({"generation": {"temperature": 0}}, "nothing to compare"),
        (
            {
                "agents": {"first": {"policy": "far"}, "second": {"policy": "near"}},
                "policies": {
                    "near": {},
                    "far": {
                        "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"},
                        "trainable": False,
                    },
                },
            },
            "policies.far is behind an API",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", ["c3", "ccpo"])
def test_what_cannot_be_played_again_is_refused(
    algorithm: str, changes: dict[str, Any], said: str
) -> None:
    data: dict[str, Any] = {"environments": [{"env_type": "relay"}], "output_dir": "outputs/x"}
    training = {"algorithm": algorithm, "batch_size": 2} | changes.get("training", {})
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        _, problems = dry_run(parse_config(data | changes | {"training": training}))
        raise ConfigError("; ".join(map(str, problems)))


def test_a_plan_counts_replays() -> None:
    data = {
        "environments": [{"env_type": "relay"}],
        "workflow": {"name": "turns", "max_turns": 2},
        "training": {"algorithm": "c3", "batch_size": 2},
        "c3": {"alternatives": 2, "group_size": 3},
    }
    text, problems = dry_run(parse_config(data))
    assert not problems and "at most 48 replays, with a turn that is trained on" in text

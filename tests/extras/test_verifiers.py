"""Tasksets of verifiers, with the library itself (`make test-extras`)."""

from pathlib import Path
from typing import Any

import pytest
from worlds import HOSTILE, keeps_the_contract, trains

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.types import Message, Role
from mrlm.environments.connectors.verifiers import VerifiersEnvironment
from other_sources import assert_parts_are_named

pytest.importorskip("verifiers", reason="needs the extra verifiers: make test-extras")


def paid(world: Any, text: str, seed: int = 3, split: Any = "train") -> Any:
    world = world.spawn()
    world.reset(world.task(seed, split))
    result = world.step({"agent": Message(text)})
    assert result.done
    return result.rewards["agent"]


def make(**settings: Any) -> VerifiersEnvironment:
    return VerifiersEnvironment("sums_taskset", **{"answer": "answer", **settings})


def test_contract() -> None:
    keeps_the_contract(make)
    for words in HOSTILE:
        reward = paid(make(), words)
        assert reward.value <= 0.25
    one, two = make().spawn(), make().spawn()
    first = repr(one.reset(one.task(0)))
    two.reset(two.task(1))
    assert (
        repr(one.reset(one.task(0))) == first
        and one.state() == "Add.\n" + one.task(0).prompt[1].content
    )


def test_the_tasks_own_rewards_are_paid_by_name() -> None:
    world = make()
    task = world.task(3)
    assert [message.role for message in task.prompt] == [Role.SYSTEM, Role.USER]
    right = paid(world, task.answer)
    assert right.value == 1.0
    assert right.components == {
        "malformed": 0.0,
        "right": 1.0,
        "brief": 1.0,
        "metric/characters": float(len(task.answer)),
    }
    assert paid(world, "99").value == 0.25 and paid(world, "a long answer").value == 0.0
    assert paid(world, f" {task.answer}\n").value == 1.0  # the library strips replies
    for silent in ("", " \n"):
        assert paid(world, silent).value == -0.1


def test_the_expert_says_the_answer_and_a_lazy_one_does_not() -> None:
    world = make().spawn()
    for seed in range(20):
        for split in ("train", "eval"):
            world.reset(world.task(seed, split))
            text = world.expert("agent", [])
            assert text is not None and paid(world, text, seed, split).value == 1.0
    assert sum(paid(world, "9", seed).value for seed in range(20)) < 12
    assert make(answer=None).expert("agent", []) is None


def test_held_out_tasks_are_not_trained_on() -> None:
    world = make()
    shown = {
        split: {world.task(i, split).prompt[1].content for i in range(world.num_tasks(split))}
        for split in ("train", "eval")
    }
    assert not shown["train"] & shown["eval"] and len(shown["eval"]) >= 3
    assert len(shown["train"]) + len(shown["eval"]) == 100
    other = make(eval_taskset="sums_taskset", config={"largest": 3})
    assert other.num_tasks("train") == 16 == other.num_tasks("eval")


def test_a_taskset_may_be_named_in_three_ways() -> None:
    from sums_taskset import Sums, SumsConfig

    for taskset in ("sums_taskset", "sums_taskset:Sums", Sums, Sums(SumsConfig(id="sums"))):
        world = VerifiersEnvironment(taskset, max_tasks=50)
        assert (world.num_tasks("train") or 0) + (world.num_tasks("eval") or 0) == 50


def test_a_reward_function_that_fails_is_no_reward() -> None:
    with pytest.raises(EpisodeError, match="this function is broken"):
        paid(make(), "break")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"taskset": "no_such_taskset"}, "no_such_taskset"),
        ({"taskset": "sums_taskset", "config": {"largest": "x"}}, "largest"),
        ({"taskset": "sums_taskset", "config": {"larges": 1}}, "larges"),
        ({"taskset": "sums_taskset:InBoxes"}, "need a container"),
        ({"taskset": "sums_taskset:Empty"}, "is empty"),
        ({"taskset": "sums_taskset", "answer": "gold"}, "no field answer='gold'"),
    ],
)
def test_what_cannot_be_played_says_so(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        VerifiersEnvironment(**arguments)


def test_two_steps_of_training_from_yaml(tmp_path: Path) -> None:
    trains(tmp_path, {"env_type": "verifiers", "taskset": "sums_taskset", "answer": "answer"})


def test_the_page_for_its_users_names_its_parts() -> None:
    assert_parts_are_named("verifiers_v1")

"""What travels between a world's server and its client arrives as it was sent, or is refused by
name."""

import inspect
from typing import Any

import numpy as np
import pytest

from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment
from mrlm.core.errors import EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Role, StepResult, Task
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.protocol import codec
from served_worlds import WORLDS


def lists(value: Any) -> Any:
    """A value as JSON tells it: without tuples."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, list | tuple) else value


def settled(answer: Any) -> Any:
    return run_async(answer) if inspect.isawaitable(answer) else answer


def test_worlds_without_arguments_are_found() -> None:
    assert len(WORLDS) >= 15


@pytest.mark.parametrize("name", WORLDS)
def test_tasks_and_results_of_every_world_arrive_as_they_were_sent(name: str) -> None:
    template: Environment = as_environment(registry.load("environments", name)())
    for split in ("train", "eval"):
        task = template.task(3, split)
        wire = codec.to_task(task).SerializeToString()
        arrived = codec.task_of(pb.Task.FromString(wire))
        assert arrived.prompt == task.prompt
        assert (arrived.id, arrived.seed) == (task.id, task.seed)
        assert [arrived.answer, arrived.info] == [lists(task.answer), lists(task.info)]
        world = template.spawn()
        result = settled(world.reset(arrived, arrived.seed))
        for _ in range(3):
            wire = codec.to_result(result).SerializeToString()
            assert codec.result_of(pb.StepResult.FromString(wire)) == result
            if result.done or not result.observations:
                break
            said = {
                agent: Message("yes", Role.ASSISTANT, agent=agent) for agent in result.observations
            }
            result = settled(world.step(said))
        world.close()


def test_everything_a_message_holds_arrives() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": [1, 2.5, None]}}}
    messages = [
        Message(""),
        Message("héllo\n\x00 \U0001f600", Role.TOOL, agent=""),
        Message("x", Role.ASSISTANT, agent="a", tool_calls=(call, call), metadata={"k": {"é": []}}),
    ]
    for message in messages:
        wire = codec.to_message(message).SerializeToString()
        assert codec.message_of(pb.Message.FromString(wire)) == message


def test_numbers_of_numpy_arrive_as_plain_ones_and_orders_are_kept() -> None:
    info: Any = {"n": np.int64(3), "x": np.float32(0.5), "flag": True}
    rewards = {"b": Reward(1.0, {"z": 1.0, "a": 0.25}, info), "a": Reward(-0.0)}
    seen = {"z": Observation([Message("1")]), "a": Observation([], done=True, info={"k": 1})}
    arrived = codec.result_of(codec.to_result(StepResult(seen, rewards, truncated=True)))
    assert arrived == StepResult(seen, rewards, truncated=True)
    assert (list(arrived.observations), list(arrived.rewards)) == (["z", "a"], ["b", "a"])
    assert [type(value) for value in arrived.rewards["b"].info.values()] == [int, float, bool]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"b": [1, {2}]}}, r"info\.a\.b\[1\] is a set"),
        ({"a": float("nan")}, r"info\.a is nan"),
        ({"a": [float("-inf")]}, r"info\.a\[0\] is -inf"),
        ({"a": {1: 2}}, r"info\.a has the key 1"),
        ({"a": b"x"}, r"info\.a is a bytes"),
        ({"a": 10**5000}, "cannot be sent"),
    ],
)
def test_what_is_no_json_is_refused_by_its_key(value: Any, words: str) -> None:
    with pytest.raises(EpisodeError, match=words):
        codec.to_task(Task("t", info=value))


def test_values_that_hold_themselves_are_refused() -> None:
    value: dict[str, Any] = {}
    value["me"] = value
    with pytest.raises(EpisodeError, match="levels deep"):
        codec.to_message(Message("x", metadata=value))


@pytest.mark.parametrize(
    "task",
    [Task("t", seed=-1), Task("t", "a\ud800b"), Task(7)],  # type: ignore[arg-type]
)
def test_what_the_protocol_cannot_hold_is_refused_by_name(task: Task) -> None:
    with pytest.raises(EpisodeError, match="cannot be sent"):
        codec.to_task(task)


@pytest.mark.parametrize(
    "record",
    [
        pb.Message(role="king"),
        pb.Message(role="user", metadata_json="[1]"),
        pb.Message(role="user", metadata_json='{"a": NaN}'),
        pb.Message(role="user", metadata_json="[" * 100_000),
        pb.Message(role="user", tool_calls_json="[1]"),
        pb.Message(role="user", tool_calls_json="{"),
    ],
)
def test_malformed_messages_are_refused(record: pb.Message) -> None:
    with pytest.raises(EpisodeError):
        codec.message_of(record)


def test_a_result_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(EpisodeError, match="two entries for 'a'"):
        codec.result_of(pb.StepResult(speakers=["a"]))

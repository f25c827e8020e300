"""A call of a reward function that fails is repeated, left out, or ends the run with what is saved;
functions have weights."""

import json
import time

import pytest

import mrlm
from mrlm import GRPOTrainer
from mrlm.config import parse_config
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.registry import load
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message

ROWS = [{"prompt": f"Say {n}."} for n in range(2)]


class Failing:
    """A reward function of which some calls fail.

    Args:
        times: numbers of the calls that do.
        slow: they take long, instead of raising an error.
    """

    __name__ = "failing"

    def __init__(self, times: tuple[int, ...], slow: bool = False) -> None:
        self.times, self.slow, self.calls = times, slow, 0

    def __call__(self, completions: list[str], **columns: object) -> list[float]:
        self.calls += 1
        if self.calls in self.times:
            if self.slow:
                time.sleep(1.0)
            else:
                raise OSError("the judge does not answer")
        return [float(len(text)) for text in completions]


def train(tmp_path, function, **more):
    trainer = GRPOTrainer(
        mrlm.default_model(),
        train_dataset=ROWS,
        reward_func=function,
        output_dir=str(tmp_path / "run"),
        num_generations=2,
        per_device_train_batch_size=4,
        num_iterations=2,
        max_new_tokens=2,
        report_to="none",
        **more,
    )
    trainer.train()
    return trainer


def test_the_run_ends_saved_by_default(tmp_path):
    with pytest.raises(MRLMError, match="the judge does not answer"):
        train(tmp_path, Failing((2,)))
    assert (tmp_path / "run" / "checkpoint-1").is_dir()


@pytest.mark.parametrize("slow", [False, True])
def test_a_call_is_repeated(tmp_path, slow):
    function = Failing((1, 3), slow)
    timeout = {"timeout": 0.2} if slow else {}
    trainer = train(tmp_path, function, rewards={"retries": 1, **timeout})
    assert trainer.run.step == 2 and function.calls == 4


def test_a_call_of_a_wrapper_is_repeated_too():
    inner = load("environments", "math")(difficulty_range=(1, 1))
    function = Failing((1,))
    env = load("environments", "rescored")(inner, function, rewards={"retries": 1})
    run_async(env.reset(seed=0))
    (reward,) = run_async(env.step({env.agents[0]: Message("abc")})).rewards.values()
    assert (reward.value, function.calls) == (3.0, 2)


def test_an_episode_is_left_out(tmp_path):
    function = Failing((1, 3))  # the batch, then the second of its four samples
    trainer = train(tmp_path, function, rewards={"on_error": "skip"})
    rows = [json.loads(line) for line in (trainer.run.folder / "metrics.jsonl").open()]
    assert [row["episodes/failed"] for row in rows] == [0.25, 0.0]  # a share


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        ({"retries": -1}, "rewards.retries"),
        ({"timeout": 0}, "rewards.timeout"),
        ({"on_error": "ignore"}, "on_error='ignore'.*'fail' or 'skip'"),
        ({"tries": 2}, "rewards.tries: unknown key"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, rewards, text):
    with pytest.raises(ConfigError, match=text):
        train(tmp_path, Failing(()), rewards=rewards)


def longer(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def constant(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def test_functions_have_weights(tmp_path):
    trainer = train(tmp_path, [longer, constant], reward_weights=[0.5, 10])
    rows = [json.loads(line) for line in (trainer.run.folder / "metrics.jsonl").open()]
    for row in rows:
        assert row["reward/agent/constant"] == 1.0  # as it is, without its weight
        assert row["reward/mean"] == pytest.approx(0.5 * row["reward/agent/longer"] + 10)
    with pytest.raises(ConfigError, match="3 numbers for 2 reward functions"):
        train(tmp_path, [longer, constant], reward_weights=[1, 2, 3])


def test_weights_of_a_file_belong_to_its_environment():
    with pytest.raises(ConfigError, match=r"reward_weights.*belong to the environment"):
        parse_config({"reward_weights": [1.0, 0.5]})
    parse_config({"environments": [{"env_type": "reward", "reward_weights": [1, 0.5]}]})

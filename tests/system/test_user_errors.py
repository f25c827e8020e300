"""Errors of the user's own code name the user's file and line, in the terminal and in what a run
writes down; `--verbose` shows everything."""

import importlib
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Mrlm
from mrlm import GRPOTrainer, SimulatedEnvironment, check_environment, check_workflow
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.user_errors import MOST_FRAMES, explain, user_frames
from recorded import episodes as recorded

MINE = """\
import asyncio
import random
from mrlm import Environment, Message, Observation, Reward, SimulatedEnvironment, StepResult
from mrlm.algorithms.grpo import GRPO


class Good(SimulatedEnvironment):
    def reset(self, seed=0):
        return Observation([Message("Spell cat.")])

    def step(self, action):
        return Observation(done=True), Reward(float(len(action.content)))


class BadReset(Good):
    def reset(self, seed=0):
        return Observation([Message({}["question"])])  # here: BadReset


class BadStep(Good):
    def step(self, action):
        return helper(action)


def helper(action):
    raise ValueError("helper is broken")  # here: BadStep


class BadInit(Good):
    def __init__(self):
        self.words = {}["question"]  # here: BadInit


async def bad_workflow(task, agents, env):
    opening = (await env.reset()).observations["agent"].messages
    await agents.nobody.act(opening)  # here: bad_workflow


async def grouped(task, agents, env):
    async with asyncio.TaskGroup() as group:
        group.create_task(later())


async def later():
    raise ValueError("later is broken")  # here: grouped


def bad_reward(texts):
    return [1 / 0]  # here: bad_reward


def bad_formatter(row):
    return row["nope"]  # here: bad_formatter


class TextReset(Good):
    def reset(self, seed=0):
        return "Spell cat."


class NumberStep(Good):
    def step(self, action):
        return 1.0


class TextJoint(Environment):
    def reset(self, task=None, seed=None):
        return "Spell cat."


class TextSeen(Environment):
    def reset(self, task=None, seed=None):
        return StepResult({"agent": Observation(["Spell cat."])})


class Strangers(Environment):
    def reset(self, task=None, seed=None):
        return StepResult({"stranger": Observation([Message("Spell cat.")])})


class Over(Good):
    def reset(self, seed=0):
        return Observation([Message("Spell cat.")], done=True)


async def silent(task, agents, env):
    await env.reset()


async def unpaid(task, agents, env):
    await agents.agent.act((await env.reset()).observations["agent"].messages)


async def random_words(task, agents, env):
    opening = (await env.reset()).observations["agent"].messages
    words = [*opening, Message(str(random.random()))]
    await env.finish({"agent": await agents.agent.act(words)})


async def right(task, agents, env):
    opening = (await env.reset()).observations["agent"].messages
    await env.finish({"agent": await agents.agent.act(opening)})


def not_awaited(task, agents, env):
    return None


class Credit(GRPO):
    def credit_group(self, group):
        return {}["advantages"]  # here: Credit
"""
CONFIG: dict[str, Any] = {
    "experiment_name": "mine",
    "output_dir": "run",
    "model": {"model_name_or_path": "mrlm/tiny"},
    "environments": [{"env_type": "mine_errors:Good"}],
    "training": {"num_iterations": 1, "batch_size": 2, "report_to": "none"},
    "generation": {"max_new_tokens": 2},
}
ROWS = {"env_type": "reward", "dataset": "rows.jsonl"}
REWARD = {**ROWS, "reward_func": "mine_errors:bad_reward"}
FORMATTER = {**REWARD, "formatters": "mine_errors:bad_formatter"}

CASES: dict[str, tuple[list[str], str]] = {
    "BadReset": (["environments.0.env_type=mine_errors:BadReset"], "KeyError: 'question'"),
    "BadStep": (["environments.0.env_type=mine_errors:BadStep"], "ValueError: helper is broken"),
    "BadInit": (["environments.0.env_type=mine_errors:BadInit"], "KeyError: 'question'"),
    "bad_workflow": (["workflow.name=mine_errors:bad_workflow"], "agent 'nobody' does not exist"),
    "grouped": (["workflow.name=mine_errors:grouped"], "ValueError: later is broken"),
    "bad_reward": ([f"environments=[{json.dumps(REWARD)}]"], "ZeroDivisionError"),
    "bad_formatter": ([f"environments=[{json.dumps(FORMATTER)}]"], "KeyError('nope')"),
    "Credit": (["training.algorithm=mine_errors:Credit"], "KeyError: 'advantages'"),
}
EPISODES = ("BadReset", "BadStep", "bad_workflow", "grouped")
"""What fails episodes; the others end the run."""


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine_errors.py").write_text(MINE)
    Path("rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    Path("config.yaml").write_text(yaml.safe_dump(CONFIG))
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(__import__("sys").modules, "mine_errors", raising=False)


def place(case: str) -> str:
    """The line of a traceback that shows where a case goes wrong."""
    lines = MINE.splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# here: {case}")]
    return f'mine_errors.py", line {number}, in '


@pytest.mark.parametrize("case", CASES)
def test_the_terminal_shows_the_users_lines_and_no_others(case: str, run: Mrlm) -> None:
    overrides, said = CASES[case]
    done = run("train", "--config", "config.yaml", *overrides)
    assert done.code in (1, 2) and "Traceback" not in done.err
    message = done.err[done.err.index("error: ") :]
    assert said in message and place(case) in message
    files = {line.split('"')[1] for line in message.splitlines() if line.startswith('  File "')}
    assert files == {str(Path("mine_errors.py").absolute())}


def test_verbose_shows_the_whole_traceback(run: Mrlm) -> None:
    overrides, _ = CASES["BadReset"]
    for command in (["--verbose", "train"], ["train", "--verbose"]):
        done = run(*command, "--config", "config.yaml", *overrides)
        assert done.code == 1 and "Traceback (most recent call last)" in done.err
        assert "sources/play.py" in done.err and place("BadReset") in done.err
        assert "(--verbose shows" not in done.err
    done = run("train", "--config", "config.yaml", *overrides)
    assert done.err.rstrip().endswith("(--verbose shows the whole traceback)")
    done = run("train", "--config", "no_such.yaml")
    assert done.code == 2 and "--verbose" not in done.err


def test_a_failure_is_shown_once_however_many_episodes_it_ends(run: Mrlm) -> None:
    overrides, _ = CASES["BadStep"]
    done = run("train", "--config", "config.yaml", *overrides)
    assert done.err.count("warning: episode") == 1


def test_a_trainer_raises_with_the_original_error_as_its_cause() -> None:
    class Broken(SimulatedEnvironment):
        def reset(self, seed: int = 0) -> Any:
            raise LookupError("no words")

    trainer = GRPOTrainer(
        environment=Broken, num_generations=2, max_new_tokens=2, output_dir="trained"
    )
    with pytest.raises(EpisodeError, match=r"test_user_errors\.py") as caught:
        trainer.train(num_iterations=1)
    assert isinstance(caught.value.__cause__, LookupError)
    last = traceback.extract_tb(caught.value.__cause__.__traceback__)[-1]
    assert last.name == "reset" and last.filename == __file__


# -- the contract of environments and workflows, in a run and before one ---------------------------

CONTRACT = {
    "TextReset": "TextReset.reset returned a str; it must return an Observation: `return Obs",
    "NumberStep": "NumberStep.step returned a float; it must return an (Observation, Reward): ",
    "TextJoint": "TextJoint.reset returned a str; it must return a StepResult: `return StepResult(",
    "TextSeen": "TextSeen.reset: the observation of 'agent' must be an Observation of Messages",
    "Strangers": "Strangers.reset: observation for 'stranger', which is not in agents=('agent',)",
    "BadReset": "KeyError: 'question'",
    "BadStep": "ValueError: helper is broken",
}


def part(name: str) -> Any:
    return getattr(importlib.import_module("mine_errors"), name)


@pytest.mark.parametrize("name", CONTRACT)
def test_a_wrong_environment_is_named_in_a_run_and_before(name: str, run: Mrlm) -> None:
    done = run("train", "--config", "config.yaml", f"environments.0.env_type=mine_errors:{name}")
    assert done.code == 1 and CONTRACT[name] in done.err
    with pytest.raises(ConfigError) as caught:
        check_environment(part(name))
    assert CONTRACT[name] in str(caught.value)
    if name.startswith("Bad"):
        assert place(name) in str(caught.value) and caught.value.__cause__ is not None
    with pytest.raises(ConfigError) as caught:
        check_workflow(part("right"), part(name))
    assert CONTRACT[name] in str(caught.value)


WORKFLOWS = {
    "silent": "workflow 'silent' ended and no agent had spoken",
    "bad_workflow": "agent 'nobody' does not exist",
    "unpaid": "workflow 'unpaid' ended without a step of the environment",
    "random_words": "workflow 'random_words': two plays with seed 0 differ",
    "not_awaited": "async def my_workflow",
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_check_workflow_says_what_is_wrong(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_workflow(part(name), part("Good"))
    assert WORKFLOWS[name] in str(caught.value)
    check_workflow(part("right"), part("Good"))
    check_workflow("turns", part("Good")(), answers={"agent": "cat"})


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("workflow.name=mine_errors:silent", "'silent' ended and no agent had spoken"),
        ("environments.0.env_type=mine_errors:Over", "is done after its reset"),
    ],
)
def test_a_run_in_which_no_agent_speaks_is_an_error(setting: str, said: str, run: Mrlm) -> None:
    done = run("train", "--config", "config.yaml", setting)
    assert done.code == 1 and said in done.err


# -- what a failed run leaves ----------------------------------------------------------------------


@pytest.mark.parametrize("case", EPISODES)
def test_the_folder_of_a_failed_run_says_why(case: str, run: Mrlm) -> None:
    run("train", "--config", "config.yaml", *CASES[case][0])
    records = recorded("run")
    assert len(records) > 1 and {record["status"] for record in records} == {"error"}
    assert all(place(case) in record["error"] for record in records)
    text = Path("run/run.log").read_text()
    assert text.count(" warning: episode ") == 1 and " error: all " in text
    assert place(case) in text and "Traceback" not in text


def test_run_log_has_what_ended_the_run_and_no_secret(
    run: Mrlm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "advantages")
    run("train", "--config", "config.yaml", "training.algorithm=mine_errors:Credit")
    text = Path("run/run.log").read_text()
    assert "error: KeyError: '[secret]'" in text and place("Credit") in text


def test_verbose_writes_whole_tracebacks_to_run_log_too(run: Mrlm) -> None:
    run("train", "--config", "config.yaml", "--verbose", *CASES["BadReset"][0])
    assert "sources/play.py" in Path("run/run.log").read_text()


def test_a_deep_recursion_is_shown_by_its_ends() -> None:
    def deeper(depth: int) -> None:
        if depth == 0:
            raise RuntimeError("deep" * 10_000)
        deeper(depth - 1)

    with pytest.raises(RuntimeError) as caught:
        deeper(200)
    assert len(user_frames(caught.value.__traceback__)) > 200
    text = explain(caught.value)
    assert 2 <= text.count("  File ") <= MOST_FRAMES and " more ..." in text
    assert len(text) < 4000 and f"({len('RuntimeError: ') + 40_000} characters)" in text

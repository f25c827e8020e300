"""Where the user's code begins: whatever an environment, a workflow or a reward function raises or
returns ends its own episode, is counted and named with the user's lines; where all fail the run
ends with an error; and a Ctrl-C is still one."""

import asyncio
import logging
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Mrlm
from forking import Launcher
from mrlm import Environment, GRPOTrainer
from mrlm.core.errors import EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.training.metrics import episode_metrics
from scripted_play import play


class Mine(BaseException):
    """Of nobody's family."""


ENDING: dict[str, Any] = {
    "exit": lambda: SystemExit(0), "exit with text": lambda: SystemExit("bye"),
    "interrupt": KeyboardInterrupt, "cancelled": asyncio.CancelledError, "closed": GeneratorExit,
    "own": Mine, "ordinary": lambda: ValueError("broken"),
}  # fmt: skip


class Half(Environment):
    """Raises where it is told to, in the second episode of a group and every other after."""

    agents = ("a",)

    def __init__(self, place: str, error: Any, calls: list[int]) -> None:
        self.place, self.error, self.calls = place, error, calls

    def __deepcopy__(self, memo: Any) -> "Half":
        return type(self)(self.place, self.error, self.calls)

    def fails(self, place: str) -> None:
        if place == self.place:
            self.calls.append(1)
            if len(self.calls) % 2 == 0:
                raise self.error()

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.fails("reset")
        return StepResult({"a": Observation([Message("go")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.fails("step")
        return StepResult({}, {"a": Reward(1.0)}, done=True)


class Quick(Half):
    """In the thread of the event loop."""

    blocking = False


class Later(Half):
    """In coroutines, which a deadline makes tasks of."""

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        await asyncio.sleep(0)
        return super().reset(task, seed)

    async def step(self, actions: dict[str, Message]) -> StepResult:
        await asyncio.sleep(0)
        return super().step(actions)


class NoText(Half):
    """Says half of a surrogate pair where others raise."""

    def says(self, place: str) -> dict[str, Observation]:
        try:
            self.fails(place)
        except ValueError:
            return {"a": Observation([Message("a\ud83d")])}
        return {"a": Observation([Message("go")])}

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult(self.says("reset"))

    def step(self, actions: dict[str, Message]) -> StepResult:
        return StepResult(self.says("step"), {"a": Reward(1.0)}, done=True)


@pytest.mark.parametrize("place", ["reset", "step"])
def test_a_message_that_is_no_text_ends_its_own_episode(tokenizer: Any, place: str) -> None:
    world = NoText(place, ENDING["ordinary"], [])
    source, _ = play(tokenizer, world, ["x"], ("a",), group_size=4)
    (group,) = run_async(source.take(1))
    failed = [episode.error or "" for episode in group if episode.failed]
    assert len(failed) == 2
    assert all("agent 'a'" in text and "(U+D83D) at character 1" in text for text in failed)


@pytest.mark.parametrize("place", ["reset", "step"])
@pytest.mark.parametrize("kind", [Half, Quick, Later])
@pytest.mark.parametrize("name", ENDING)
def test_what_an_environment_raises_ends_its_own_episode(
    tokenizer: Any, name: str, kind: type[Half], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = kind(place, ENDING[name], [])
    source, _ = play(tokenizer, world, ["x"], ("a",), group_size=4)
    with caplog.at_level(logging.WARNING, "mrlm"):
        (group,) = run_async(source.take(1))
    assert sorted(episode.status for episode in group) == ["done", "done", "error", "error"]
    assert episode_metrics([group])["episodes/failed"] == 0.5
    failed = [episode.error or "" for episode in group if episode.failed]
    assert all('test_boundary.py", line' in text and "in fails" in text for text in failed)
    assert [r.message.count("failed") for r in caplog.records] == [1], "named once"


@pytest.mark.parametrize("inside", ["directly", "in a task", "in a group of tasks"])
@pytest.mark.parametrize("name", ENDING)
def test_what_a_workflow_raises_ends_its_own_episode(
    tokenizer: Any, name: str, inside: str
) -> None:
    count = iter(range(100))

    async def broken() -> None:
        await asyncio.sleep(0)
        raise ENDING[name]()

    async def workflow(task: Task, agents: Any, env: Any) -> None:
        seen = (await env.reset()).observations["a"].messages
        said = await agents.a.act(seen)
        if next(count) % 2:
            if inside == "directly":
                raise ENDING[name]()
            if inside == "in a task":
                await asyncio.gather(broken(), asyncio.sleep(0))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(broken())
                tasks.create_task(asyncio.sleep(0.01))
            raise RuntimeError("a cancelled task ends its group in silence")
        await env.finish({"a": said})

    world = Half("nowhere", ENDING[name], [])
    source, _ = play(tokenizer, world, ["x"], ("a",), workflow, group_size=4)
    (group,) = run_async(source.take(1))
    assert sorted(episode.status for episode in group) == ["done", "done", "error", "error"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1"])
def test_a_reward_that_is_no_finite_number_fails_its_own_episode(
    tokenizer: Any, value: Any
) -> None:
    class Paying(Half):
        def step(self, actions: dict[str, Message]) -> StepResult:
            self.calls.append(1)
            wrong = len(self.calls) % 2 == 0
            return StepResult({}, {"a": Reward(value if wrong else 1.0)}, done=True)

    world = Paying("nowhere", ValueError, [])
    source, _ = play(tokenizer, world, ["x"], ("a",), group_size=4)
    (group,) = run_async(source.take(1))
    assert sorted(episode.status for episode in group) == ["done", "done", "error", "error"]
    (text, _) = [episode.error or "" for episode in group if episode.failed]
    assert "environment 'world'" in text and "agent 'a'" in text and repr(value) in text
    assert [e.reward for e in group.valid] == [1.0, 1.0]


class Flood(Environment):
    """Shows ten million characters, first or after an answer."""

    agents = ("a",)
    first = True

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return self.shown("x" * 10_000_000 if self.first else "go")

    def step(self, actions: dict[str, Message]) -> StepResult:
        return self.shown("x" * 10_000_000)

    def shown(self, text: str) -> StepResult:
        return StepResult({"a": Observation([Message(text)])}, {"a": Reward(0.0)})


class LateFlood(Flood):
    first = False


class LastFlood(LateFlood):
    def step(self, actions: dict[str, Message]) -> StepResult:
        result = super().step(actions)
        result.done = True
        return result


def test_a_flood_is_cut_short_before_it_is_tokenised(tokenizer: Any) -> None:
    source, _ = play(tokenizer, LateFlood(), ["x"], ("a",))
    tracemalloc.start()
    (group,) = run_async(source.take(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {episode.status for episode in group} == {"truncated"}
    assert all(episode.metrics["prompt_too_long"] == 1.0 for episode in group)
    assert "10000" in (group.episodes[0].error or "") and peak < 200 << 20
    source, _ = play(tokenizer, LastFlood(), ["x"], ("a",))
    (group,) = run_async(source.take(1))
    assert {episode.status for episode in group} == {"done"}


def test_a_run_in_which_no_first_prompt_fits_ends(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Flood(), ["x"], ("a",))
    with pytest.raises(EpisodeError, match=r"all 2 episodes failed.*max_prompt_tokens"):
        run_async(source.take(1))


def test_a_prompt_of_long_tokens_is_counted_in_tokens() -> None:
    from mrlm.core.chat import Chat
    from templates import family

    tokenizer = family("llama3")
    chat = Chat(tokenizer)
    for text in ("assistant " * 300, "x" * 3000, " " * 3000, "🙂" * 300):
        ids = chat.encode_text(text)
        assert len(text) <= chat.longest_token * len(ids)


# -- a run ----------------------------------------------------------------------------------------

MINE = """\
import os, signal, sys
from mrlm import Message, Observation, Reward, SimulatedEnvironment

class Exits(SimulatedEnvironment):
    def reset(self, seed=0):
        sys.exit(0)  # here

    def step(self, action):
        return Observation(done=True), Reward(1.0)

class Builds(Exits):
    def __init__(self):
        raise SystemExit(0)

class Interrupted(Exits):
    def reset(self, seed=0):
        return Observation([Message("go")])

    def step(self, action):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        import time
        time.sleep(20)
        return Observation(done=True), Reward(1.0)
"""


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boundary_worlds.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "boundary_worlds", raising=False)
    file = tmp_path / "config.yaml"
    settings = {
        "experiment_name": "mine",
        "output_dir": "run",
        "model": {"model_name_or_path": "mrlm/tiny"},
        "environments": [{"env_type": "boundary_worlds:Exits"}],
        "training": {"num_iterations": 2, "batch_size": 2, "report_to": "none"},
        "generation": {"max_new_tokens": 2},
    }
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.mark.parametrize("world", ["Exits", "Builds"])
def test_sys_exit_in_an_environment_is_no_success(config: Path, run: Mrlm, world: str) -> None:
    done = run("train", "--config", config, f"environments.0.env_type=boundary_worlds:{world}")
    assert done.code == 1 and "SystemExit: 0" in done.err
    assert 'boundary_worlds.py", line' in done.err


def test_a_ctrl_c_still_interrupts(config: Path, launcher: Launcher) -> None:
    world = "environments.0.env_type=boundary_worlds:Interrupted"
    done = launcher.run(["mrlm", "train", "--config", str(config), world], config.parent)
    assert done.code == 130 and "interrupted" in done.err


def test_a_reward_function_that_fails_now_and_then_costs_those_episodes(tmp_path: Path) -> None:
    calls = []

    def reward(texts: list[str]) -> list[float]:
        calls.append(1)
        return [float("nan") if len(calls) % 3 == 0 else 1.0 for _ in texts]

    trainer = GRPOTrainer(
        train_dataset=[{"prompt": "a"}] * 2,
        reward_func=reward,
        num_generations=4,
        max_new_tokens=2,
        output_dir=str(tmp_path / "out"),
    )
    result = trainer.train(num_iterations=1)
    failed = result.history[-1]["episodes/failed"]
    assert 0 < failed < 1 and os.path.isdir(tmp_path / "out")

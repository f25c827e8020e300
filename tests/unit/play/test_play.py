"""Episodes as they are played: one batch for whatever waits, tokens born once, failures as data."""

import asyncio
import copy
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forking import Launcher
from mrlm import MAGRPOTrainer
from mrlm.build.policies import LiveObjects
from mrlm.build.run import plan_of
from mrlm.config import ExperimentConfig
from mrlm.core.chat import Chat
from mrlm.core.environment import Environment, SimulatedEnvironment, as_environment
from mrlm.core.errors import ConfigError, EngineError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Role, SamplingParams, StepResult, Task
from mrlm.engines.scripted import ScriptedEngine
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.relay import RelayEnvironment
from mrlm.experiment import run_experiment
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play
from mrlm.play.sources.task_sampler import EnvironmentSpec, count_tasks
from mrlm.workflows.single_turn import SingleTurn
from mrlm.workflows.turns import Turns
from scripted_play import Echo, play, seats


def test_a_batch_waits_for_slow_worlds_too(tokenizer: Any) -> None:
    class Slow(Echo):
        def step(self, actions: dict[str, Message]) -> StepResult:
            time.sleep(0.02 * (hash(actions["a"].content) % 2))
            return super().step(actions)

    words = iter(range(10**6))
    source, engine = play(tokenizer, Slow(), lambda request: f"w{next(words)}", ("a", "b"))
    run_async(source.take(4))
    assert [len(batch) for batch in engine.batches] == [16, 16, 16]


def test_sampled_tokens_are_never_tokenised_again(tokenizer: Any) -> None:
    """The next prompt begins with the last prompt and the sampled ids, whatever they decode to."""

    class Odd(ScriptedEngine):
        def _answer(self, request: Any) -> Any:
            completion = super()._answer(request)
            completion.token_ids = [5, 200, 201, completion.token_ids[-1]]  # no valid UTF-8
            completion.logprobs = [-1.0] * 4
            completion.text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            return completion

    source, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
    source.batcher.engines = {"policy": Odd(["x"], tokenizer)}
    (group,) = run_async(source.take(1))
    for rollout in group.episodes[0].rollouts.values():
        first, second, third = rollout.turns
        assert (
            second.prompt_ids[: len(first.prompt_ids) + 4]
            == first.prompt_ids + first.completion_ids
        )
        assert (
            third.prompt_ids[: len(second.prompt_ids) + 4]
            == second.prompt_ids + second.completion_ids
        )


def test_a_reply_that_was_cut_is_closed_by_context_not_by_the_policy(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Echo(), ["a very long reply that is cut"], ("a", "b"))
    (group,) = run_async(source.take(1))
    first, second, _ = group.episodes[0].rollouts["a"].turns
    assert first.finish_reason == "length" and len(first) == 16
    assert first.completion_ids[-1] != tokenizer.eos_token_id
    after = second.prompt_ids[len(first.prompt_ids) + 16 :]
    assert after[0] == tokenizer.eos_token_id


def test_rewards_go_to_their_turns_and_to_the_team(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Echo(), ["abc"], ("a", "b"))
    (group,) = run_async(source.take(1))
    episode = group.episodes[0]
    assert [turn.reward for turn in episode.rollouts["a"].turns] == [3.0, 3.0, 3.0]
    assert [turn.step for turn in episode.rollouts["b"].turns] == [0, 1, 2]
    assert episode.step_rewards == [3.0, 3.0, 3.0] and episode.reward == 9.0
    assert episode.status == "done"


def test_max_turns_truncates(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Echo(5), ["abc"], ("a", "b"), Turns(max_turns=2))
    (group,) = run_async(source.take(1))
    assert group.episodes[0].status == "truncated" and len(group.episodes[0].step_rewards) == 2


def test_the_same_seed_plays_the_same_tasks_and_siblings_share_theirs(tokenizer: Any) -> None:
    def openings() -> list[list[str]]:
        source, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
        groups = run_async(source.take(3))
        return [[e.rollouts["a"].messages[0].content for e in group] for group in groups]

    first = openings()
    assert first == openings()
    assert all(len(set(group)) == 1 for group in first)
    assert len({group[0] for group in first}) == 3


def test_a_source_continues_where_its_state_was_saved(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
    run_async(source.take(2))
    state = source.state_dict()
    expected = [group.task_id for group in run_async(source.take(2))]
    other, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
    other.load_state_dict(state)
    assert [group.task_id for group in run_async(other.take(2))] == expected


def test_an_episode_that_fails_is_data(tokenizer: Any) -> None:
    class Fragile(Echo):
        def step(self, actions: dict[str, Message]) -> StepResult:
            if "bad" in actions["a"].content:
                raise ValueError("broken world")
            return super().step(actions)

    def script(request: Any) -> str:
        return "bad" if request.key[4] == 0 else "good"

    source, _ = play(tokenizer, Fragile(), script, ("a", "b"))
    (group,) = run_async(source.take(1))
    assert [episode.status for episode in group] == ["error", "done"]
    assert "broken world" in (group.episodes[0].error or "")
    assert group.valid == [group.episodes[1]]


def test_a_world_that_hangs_fails_at_its_deadline_and_is_tried_again(tokenizer: Any) -> None:
    calls: list[int] = []
    over = threading.Event()

    class Hanging(Echo):
        def spawn(self) -> Environment:
            return Hanging()

        def step(self, actions: dict[str, Message]) -> StepResult:
            calls.append(1)
            if len(calls) == 1:
                over.wait()
            return super().step(actions)

    source, _ = play(tokenizer, Hanging(1), ["x"], ("a", "b"), group_size=2, timeout=2.0, retries=1)
    try:
        (group,) = run_async(source.take(1))
    finally:
        over.set()
    assert [episode.status for episode in group] == ["done", "done"]


@pytest.mark.parametrize("kind", [RuntimeError, TimeoutError])
def test_if_everything_fails_the_run_says_why(kind: type[Exception], tokenizer: Any) -> None:
    class Broken(Echo):
        def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
            raise kind("no such file")

    source, _ = play(tokenizer, Broken(), ["x"], ("a", "b"))
    with pytest.raises(EpisodeError, match=r"all 2 episodes failed.*no such file"):
        run_async(source.take(1))


def test_an_engine_that_fails_or_hangs_is_named(tokenizer: Any) -> None:
    class Dead(ScriptedEngine):
        async def generate(self, requests: Any) -> Any:
            await asyncio.sleep(30)

    source, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
    source.batcher.engines = {"policy": Dead(["x"], tokenizer)}
    source.batcher.timeout = 0.1
    with pytest.raises(EpisodeError, match=r"policy 'policy' took longer than engine.timeout"):
        run_async(source.take(1))
    assert issubclass(EngineError, Exception)


def test_an_engine_that_computes_may_take_longer_than_its_limit(tokenizer: Any) -> None:
    """Only the time without a forward pass counts: a slow processor is no failure."""

    class Computing(ScriptedEngine):
        progress, passes = 0, 5

        async def generate(self, requests: Any) -> Any:
            for _ in range(self.passes):
                await asyncio.sleep(0.15)
                self.progress += 1
            if self.passes < 5:
                await asyncio.Event().wait()
            return await super().generate(requests)

    source, _ = play(tokenizer, Echo(), ["x"], ("a", "b"))
    source.batcher.timeout = 0.3
    source.batcher.engines = {"policy": (engine := Computing(["x"], tokenizer))}
    (group,) = run_async(source.take(1))
    assert [episode.status for episode in group] == ["done"] * len(group.episodes)
    engine.passes = 1
    with pytest.raises(EpisodeError, match=r"made no progress for engine.timeout=0.3 s"):
        run_async(source.take(1))


def test_a_prompt_that_is_too_long_truncates_the_episode(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Echo(), ["x" * 15], ("a", "b"))
    short = {
        n: AgentSettings(n, "policy", Chat(tokenizer), SamplingParams(16), 60) for n in ("a", "b")
    }
    source.settings_of = short
    (group,) = run_async(source.take(1))
    assert {episode.status for episode in group} == {"truncated"}
    assert group.episodes[0].metrics["prompt_too_long"] == 1.0


def test_a_world_without_seed_gives_siblings_copies_of_one_reset(tokenizer: Any) -> None:
    count = iter(range(1000))

    class Unseeded(SimulatedEnvironment):
        def reset(self) -> Observation:
            self.number = next(count)
            return Observation([Message(f"number {self.number}")])

        def step(self, action: Message) -> tuple[Observation, Reward]:
            return Observation(done=True), Reward(float(self.number))

    source, _ = play(tokenizer, Unseeded(), ["x"], ("agent",), group_size=3)
    groups = run_async(source.take(2))
    assert [{e.reward for e in group} for group in groups] == [{0.0}, {1.0}]


def test_reset_takes_options_as_gymnasium_does() -> None:
    seen: dict[str, Any] = {}

    class Gym(SimulatedEnvironment):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Observation:
            seen.update(seed=seed, options=options)
            return Observation([Message("go")])

    task = Task("t", "prompt")
    as_environment(Gym()).reset(task, 7)
    assert seen == {"seed": 7, "options": {"task": task}}


def test_a_workflow_of_several_agents_over_a_world_with_one_seat(tokenizer: Any) -> None:
    """Two drafts keep their order; the reviewer's answer counts and the team is paid."""

    class Question(SimulatedEnvironment):
        def reset(self, seed: int = 0) -> Observation:
            return Observation([Message("2+3?")])

        def step(self, action: Message) -> tuple[Observation, Reward]:
            return Observation([Message("ok")], done=True), Reward(float("5" in action.content))

    async def review(task: Task, agents: Any, env: Any) -> Any:
        drafts = await asyncio.gather(*(agents.writer.act([Message("draft")]) for _ in range(2)))
        seen = [Message(d.content, agent="writer") for d in drafts]
        final = await agents.reviewer.act(seen)
        return await env.finish({"reviewer": final}, share="team")

    source, engine = play(tokenizer, Question(), lambda r: "5", ("writer", "reviewer"), review, 1)
    (group,) = run_async(source.take(1))
    episode = group.episodes[0]
    assert [turn.index for turn in episode.rollouts["writer"].turns] == [0, 1]
    assert episode.rollouts["writer"].turns[-1].reward == 1.0
    assert episode.rollouts["reviewer"].reward == 1.0 and episode.reward == 1.0
    assert [len(batch) for batch in engine.batches] == [2, 1]


def test_messages_of_others_are_read_as_a_users(tokenizer: Any) -> None:
    prompts: list[str] = []

    async def chain(task: Task, agents: Any, env: Any) -> None:
        first = await agents.a.act([Message("go")])
        second = await agents.b.act([Message("go"), first])
        await env.reset()
        await env.finish({"a": first, "b": second})

    def script(request: Any) -> str:
        prompts.append(tokenizer.decode(request.prompt_ids))
        return "words"

    source, _ = play(tokenizer, Echo(1), script, ("a", "b"), chain, 1)
    run_async(source.take(1))
    assert prompts[1].count("<|im_start|>user") == 2 and prompts[1].endswith("assistant\n")


def test_single_turn_pays_every_seat_once(tokenizer: Any) -> None:
    source, engine = play(tokenizer, Echo(), ["abcd"], ("a", "b"), SingleTurn())
    (group,) = run_async(source.take(1))
    assert [len(batch) for batch in engine.batches] == [4]
    assert group.episodes[0].reward == 4.0


def test_what_was_shown_after_the_last_turn_is_kept_as_context(tokenizer: Any) -> None:
    class Feedback(SimulatedEnvironment):
        def reset(self, seed: int = 0) -> Observation:
            return Observation([Message("2+3?")])

        def step(self, action: Message) -> tuple[Observation, Reward]:
            return Observation([Message("wrong!", Role.ENVIRONMENT)], done=True), Reward(0.0)

    source, _ = play(tokenizer, Feedback(), ["6"], ("agent",), group_size=1)
    (group,) = run_async(source.take(1))
    rollout = group.episodes[0].rollouts["agent"]
    assert "wrong!" in tokenizer.decode(rollout.tail_ids)


def test_a_world_that_never_returns_does_not_keep_the_process(
    tmp_path: Path, launcher: Launcher
) -> None:
    """The thread that is given up is a daemon: the program ends."""
    (tmp_path / "stuck.py").write_text(
        """
import threading
from mrlm import GRPOTrainer, Message, Observation, Reward, SimulatedEnvironment, load_config
from mrlm.config import parse_config

class Stuck(SimulatedEnvironment):
    def reset(self, seed=0):
        return Observation([Message("go")])
    def step(self, action):
        threading.Event().wait()

if __name__ == "__main__":
    from mrlm.experiment import run_experiment
    run_experiment(parse_config({
        "environments": [{"env_type": "stuck:Stuck", "timeout": 0.5}],
        "training": {"num_iterations": 1, "batch_size": 1, "report_to": "none"},
        "grpo": {"group_size": 2}, "generation": {"max_new_tokens": 2},
    }, (), "test"))
"""
    )
    started = launcher.start([str(tmp_path / "stuck.py")], tmp_path)
    assert started.wait() == 1
    said = started.err.read_text()
    assert "all 2 episodes failed" in said and "took longer than 0.5 s" in said


# -- worlds that are only evaluated ----------------------------------------------------------------


def test_a_world_of_weight_0_is_evaluated_and_never_trained_on(tokenizer: Any) -> None:
    engine = ScriptedEngine(lambda request: "hello", tokenizer)
    worlds = [
        EnvironmentSpec(name, RelayEnvironment(), RelayEnvironment, Turns(), weight)
        for name, weight in (("taught", 1.0), ("watched", 0.0), ("also", 0.5))
    ]
    source = Play(worlds, seats(tokenizer, "first", "second"), {"policy": engine}, 1, seed=0)
    taken = [group.episodes[0].environment for group in run_async(source.take(9))]
    assert taken.count("taught") == 6 and taken.count("also") == 3
    evaluated = [group.episodes[0].environment for group in run_async(source.evaluate(6))]
    assert sorted(set(evaluated)) == ["also", "taught", "watched"]


@pytest.mark.parametrize("episodes", range(1, 9))
def test_an_evaluation_has_as_many_episodes_as_it_is_told(episodes: int, tokenizer: Any) -> None:
    """Whether or not the worlds divide them: the first have one more; samples multiply them."""
    engine = ScriptedEngine(lambda request: "hello", tokenizer)
    worlds = [
        EnvironmentSpec(name, RelayEnvironment(), RelayEnvironment, Turns()) for name in "abc"
    ]
    source = Play(worlds, seats(tokenizer, "first", "second"), {"policy": engine}, 1, seed=0)
    groups = run_async(source.evaluate(episodes, samples=2))
    assert len(groups) == episodes and {len(group) for group in groups} == {2}
    played = [group.episodes[0].environment for group in groups]
    assert [played.count(name) for name in "abc"] == [(episodes + 2 - i) // 3 for i in range(3)]
    tasks = {(group.episodes[0].environment, group.task_id) for group in groups}
    assert len(tasks) == episodes, "no task comes twice"


def build_plan(**data: Any) -> Any:
    world = {"env_type": "relay"}
    return plan_of(ExperimentConfig(**{"environments": [world], **data}), LiveObjects())


def test_worlds_of_the_evaluation_are_named_weighted_and_never_learned_from() -> None:
    more = [{"env_type": "relay", "name": "wide", "max_number": 30, "weight": 3}]
    worlds = build_plan(evaluation={"episodes": 4, "environments": more}).environments
    assert [(world.name, world.trained) for world in worlds] == [("relay", True), ("wide", False)]
    assert count_tasks(worlds) is None
    rows = [{"question": str(i), "answer": str(i)} for i in range(30)]
    tested = {"environments": [{"env_type": "qa", "dataset": rows}], "evaluation": {}}
    tested["evaluation"] = {"environments": [{"env_type": "qa", "dataset": rows[:20]}]}
    assert count_tasks(build_plan(**tested).environments) == 28  # of 30
    with pytest.raises(ConfigError, match="weight above 0"):
        build_plan(environments=[{"env_type": "relay", "weight": 0}])
    with pytest.raises(ConfigError, match="weight above 0"):
        build_plan(environments=[], evaluation={"environments": more})
    with pytest.raises(ConfigError, match="called 'wide'"):
        build_plan(environments=more, evaluation={"environments": more})
    other = [{"env_type": "relay", "agents": ["x", "y"]}]
    with pytest.raises(ConfigError, match=r"policies\.x: x only plays in environments"):
        build_plan(evaluation={"environments": other})


def test_a_trainer_does_not_train_on_eval_envs() -> None:
    beside = MAGRPOTrainer(
        "mrlm/tiny",
        environment=RelayEnvironment(),
        eval_envs=[MatrixEnvironment("xor", agents=["first", "second"])],
    )
    worlds = plan_of(beside.config, beside._parts).environments
    assert [world.trained for world in worlds] == [True, False]
    alone = MAGRPOTrainer("mrlm/tiny", eval_envs=[RelayEnvironment()])
    assert [world.trained for world in plan_of(alone.config, alone._parts).environments] == [True]


def test_a_prompt_without_tokens_is_named(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    silent = copy.deepcopy(tokenizer)
    silent.chat_template = "{{ '' }}"
    model.save_pretrained(tmp_path / "model")
    silent.save_pretrained(tmp_path / "model")
    config = ExperimentConfig(
        model={"model_name_or_path": str(tmp_path / "model")},
        environments=[{"env_type": "relay"}],
        training={"algorithm": "grpo", "num_iterations": 1, "report_to": "none"},
    )
    with pytest.raises(EpisodeError, match="'first': its prompt is empty"):
        run_experiment(config)

"""CORY: two copies of a model, of which one reads what the other answered; both earn the sum."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.worlds import reward_of

from grids import quick
from mrlm import CORYTrainer, ExperimentConfig, default_model
from mrlm.algorithms.cory import CORY
from mrlm.algorithms.ppo import PPO
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build, plan_of
from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, Rollout, Task, Turn
from mrlm.environments.math import MathReasoningEnvironment
from mrlm.learn.data.batch import Totals, merge, pack
from mrlm.learn.policy.lora import add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.runs import run_to_end
from mrlm.workflows.pioneer_observer import PioneerObserver
from scripted_play import play
from watched_runs import watched

PLAIN: dict[str, Any] = {"score_scaling": False, "swap_freq": None, "kl_coef": 0.0}


def group(rewards: dict[str, float], length: int = 2, policies: str = "AB") -> Group:
    """Each agent says one thing and is paid for it."""
    parts = {}
    for (name, reward), policy in zip(rewards.items(), policies, strict=False):
        turn = Turn(name, policy, [1], list(range(length)), [-1.0] * length, reward=reward)
        turn.values, turn.ref_logprobs = [0.3] * length, [-1.5] * length
        parts[name] = Rollout(name, policy, "t", [turn])
    total = sum(rewards.values())
    return Group([Episode("e", Task("t"), parts, total, [total], "done")], "t")


def columns(played: list[Group], name: str) -> list[Any]:
    return [getattr(turn, name) for each in played for e in each for turn in e.turns]


# -- who earns what --------------------------------------------------------------------------------


def test_both_earn_the_sum() -> None:
    played = group({"pioneer": 0.6, "observer": 0.3})
    algorithm, (episode,) = CORY(**PLAIN), played.episodes
    for rollout in episode.rollouts.values():
        assert algorithm.turn_rewards(episode, rollout) == pytest.approx([0.9])


def test_what_others_earn_comes_after_the_last_turn() -> None:
    played = group({"pioneer": 0.6, "observer": 0.3})
    (episode,) = played.episodes
    more = Turn("pioneer", "A", [1, 2], [3], [-1.0], reward=0.1, values=[0.3])
    episode.rollouts["pioneer"].turns.append(more)
    found = CORY(**PLAIN).turn_rewards(episode, episode.rollouts["pioneer"])
    assert found == pytest.approx([0.6, 0.4])


def test_alone_without_scaling_it_is_ppo() -> None:
    found = []
    for algorithm in (PPO(kl_coef=0.1), CORY(**PLAIN | {"kl_coef": 0.1, "kl_target": None})):
        played = [group({"pioneer": reward}) for reward in (0.2, 0.9, 0.4)]
        algorithm.credit(played)
        found.append(columns(played, "advantages"))
    np.testing.assert_array_equal(found[0], found[1])


def test_it_is_two_ppos_whose_rewards_were_added() -> None:
    scores = [(0.6, 0.3), (0.1, 0.8), (0.5, 0.5)]
    pair = [group({"pioneer": one, "observer": two}) for one, two in scores]
    CORY(**PLAIN).credit(pair)
    found = columns(pair, "advantages")
    for place, name in enumerate(("pioneer", "observer")):
        alone = [group({name: one + two}) for one, two in scores]
        PPO().credit(alone)
        np.testing.assert_allclose(found[place::2], columns(alone, "advantages"), atol=1e-12)


# -- scores ----------------------------------------------------------------------------------------


def test_scores_are_scaled_and_centred_by_running_statistics() -> None:
    algorithm = CORY(swap_freq=None, kl_coef=0.0)
    seen: list[float] = []
    for batch in ([0.2, 0.8, 0.5], [4.0, 2.0]):
        played = [group({"pioneer": reward}) for reward in batch]
        algorithm.credit(played)
        seen += batch
        for each, reward in zip(played, batch, strict=True):
            (episode,) = each.episodes
            found = algorithm.turn_rewards(episode, episode.rollouts["pioneer"])
            expected = (reward - np.mean(seen)) / np.std(seen, ddof=1)
            assert found == pytest.approx([expected])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"score_norm": False}, 0.8 / np.std([0.2, 0.8], ddof=1)), ({"score_scaling": False}, 0.8)],
)
def test_how_scores_are_scaled(fields: dict[str, Any], expected: float) -> None:
    algorithm = CORY(swap_freq=None, kl_coef=0.0, **fields)
    played = [group({"pioneer": reward}) for reward in (0.2, 0.8)]
    algorithm.credit(played)
    (episode,) = played[1].episodes
    assert algorithm.turn_rewards(episode, episode.rollouts["pioneer"]) == pytest.approx([expected])


def test_equal_scores_are_not_divided_by_nothing() -> None:
    algorithm = CORY(swap_freq=None, kl_coef=0.0)
    played = [group({"pioneer": 0.7})] * 1
    algorithm.credit(played)
    (episode,) = played[0].episodes
    assert algorithm.turn_rewards(episode, episode.rollouts["pioneer"]) == [0.0]


def test_statistics_and_coefficients_follow_the_policy_and_are_saved() -> None:
    """Two policies of which one strayed further; then they exchange their roles."""
    algorithm = CORY(swap_freq=1)
    played = [group({"pioneer": 0.6, "observer": 0.3 * i}) for i in range(1, 4)]
    for each in played:
        each.episodes[0].rollouts["observer"].turns[0].ref_logprobs = [-30.0, -30.0]
    algorithm.credit(played)
    assert algorithm.metrics["kl/A"] == pytest.approx(1.0)
    assert algorithm.metrics["kl/B"] == pytest.approx(58.0)
    low, high = algorithm.kl_coefs["A"], algorithm.kl_coefs["B"]
    assert low == pytest.approx(0.4 * (1 - 0.2 * 3 / 1e4))
    assert high == pytest.approx(0.4 * (1 + 0.2 * 3 / 1e4))
    again = CORY(swap_freq=1)
    again.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    swapped = [[group({"pioneer": 2.0, "observer": 1.0}, policies="BA")] for _ in range(2)]
    for each, one in zip((algorithm, again), swapped, strict=True):
        each.credit(one)
        assert each.metrics["kl_coef/A"] == low and each.metrics["kl_coef/B"] == high
        assert each.scores["A"].count == each.scores["B"].count == 4
    np.testing.assert_array_equal(*(columns(one, "advantages") for one in swapped))


def test_without_a_reference_nothing_is_adapted() -> None:
    assert CORY(kl_coef=0.0).spec.columns == {"values"}
    assert CORY().spec.columns == {"values", "ref_logprobs"}
    assert CORY(kl_penalty="full").spec.columns == {"values", "full_kl"}


# -- the divergence over the whole vocabulary ------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_the_full_divergence_is_the_sum_over_the_vocabulary(
    lean: bool, lora: bool, model: Any, tokenizer: Any
) -> None:
    adapter = None
    if lora:
        settings = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
        model, adapter = add_adapter(model, "one", settings), "one"
    policy = Policy("p", model, tokenizer, adapter=adapter, lean=lean)
    policy.keep_reference()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in policy.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
    turns = [
        Turn("a", "p", [5, 6, 7], [8, 9], [-1.0] * 2),
        Turn("a", "p", [5], [11] * 3, [-1.0] * 3),
    ]
    turns[1].sampling = turns[1].sampling.__class__(temperature=0.5)
    batch = pack([sample for turn in turns for sample in merge([turn])])
    with policy.scoring():
        found = policy.full_kl(batch)
        sampled = policy.forward(batch).logprobs - policy.reference_logprobs(batch)
    expected = []
    for turn in turns:
        every = list(range(model.config.vocab_size))
        for place in range(len(turn)):
            prompt = [*turn.prompt_ids, *turn.completion_ids[:place]]
            rows = [
                Turn("a", "p", prompt, [token], [-1.0], sampling=turn.sampling) for token in every
            ]
            table = pack([sample for row in rows for sample in merge([row])], Totals())
            with policy.scoring():
                p, q = policy.forward(table).logprobs, policy.reference_logprobs(table)
            expected.append(float((p.exp() * (p - q)).sum()))
    torch.testing.assert_close(found, torch.tensor(expected), atol=2e-5, rtol=1e-3)
    assert (found > 0).all() and not torch.allclose(found, sampled)


def test_the_full_divergence_goes_into_the_reward() -> None:
    found = []
    for kind in ("k1", "full"):
        played = [group({"pioneer": reward}) for reward in (0.2, 0.9)]
        for turn in (turn for each in played for e in each for turn in e.turns):
            turn.full_kl = [0.5, 0.5]
        algorithm = CORY(kl_penalty=kind, whiten_advantages=False, swap_freq=None)
        algorithm.credit(played)
        found.append(columns(played, "advantages"))
    np.testing.assert_array_equal(*found)  # here k1 is .5 too
    assert algorithm.metrics["kl/A"] == pytest.approx(1.0)


# -- the workflow ----------------------------------------------------------------------------------


class Question(SimulatedEnvironment):
    """One question, a number of attempts, paid by the length of the answer."""

    attempts = 1

    def reset(self, seed: int = 0) -> Observation:
        self.left = self.attempts
        return Observation([Message(f"question {seed}")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        self.left -= 1
        done = self.left == 0
        return Observation([Message("again")], done=done), Reward(float(len(action.content)))


class Riddle(Question):
    """Every answer is worth something else."""

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation(done=True), Reward(reward_of(action.content))


class Patient(Question):
    attempts = 2


def test_the_observer_reads_the_question_and_the_answer(tokenizer: Any) -> None:
    prompts: list[str] = []

    def answer(request: Any) -> str:
        prompts.append(tokenizer.decode(request.prompt_ids))
        return "four" if len(prompts) == 1 else "fourteen"

    workflow = PioneerObserver(template="They said: {answer}.")
    source, _ = play(tokenizer, Question(), answer, ("pioneer", "observer"), workflow, 1)
    (found,) = run_async(source.take(1))
    (episode,) = found.episodes
    seed = episode.task.seed
    assert f"question {seed}" in prompts[0] and "They said" not in prompts[0]
    assert f"question {seed}" in prompts[1] and "They said: four." in prompts[1]
    paid = {agent: rollout.reward for agent, rollout in episode.rollouts.items()}
    assert paid == {"pioneer": 4.0, "observer": 8.0}
    assert (episode.step_rewards, episode.reward, episode.status) == ([4.0, 8.0], 12.0, "done")


def test_worlds_with_several_attempts_are_played_to_their_end_twice(tokenizer: Any) -> None:
    for limit, turns in ((None, 2), (1, 1)):
        workflow = PioneerObserver(max_turns=limit)
        source, _ = play(tokenizer, Patient(), lambda r: "hm", ("pioneer", "observer"), workflow, 1)
        (found,) = run_async(source.take(1))
        (episode,) = found.episodes
        assert [len(rollout.turns) for rollout in episode.rollouts.values()] == [turns] * 2
        assert [turn.step for turn in episode.turns] == list(range(2 * turns))
        assert episode.status == ("done" if limit is None else "truncated")


def config(**changes: Any) -> ExperimentConfig:
    base: dict[str, Any] = {
        "environments": [{"env_type": "test_cory:Riddle"}],
        "workflow": "pioneer_observer",
        "training": {
            "algorithm": "cory",
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "report_to": "none",
        },
        "cory": {"swap_freq": 1, "update_epochs": 1},
        "generation": {"max_new_tokens": 3},
    }
    return ExperimentConfig(**base).merged(changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workflow": {"template": "hm"}}, r"put \{answer\} into it"),
        ({"workflow": {"observer": "pioneer"}}, "name two agents"),
        ({"agents": {"a": {}, "b": {}}}, "uses only the agents pioneer, observer"),
        ({"environments": [{"env_type": "relay"}]}, "needs environments with one agent.*'turns'"),
        ({"training.schedule.swap_every": 3}, "the algorithm already swaps every 1 iteration"),
    ],
)
def test_what_cannot_be_played_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        plan_of(config(**changes), LiveObjects())
    assert "\n" not in str(caught.value)


def test_a_world_that_cannot_ask_the_same_twice_is_refused() -> None:
    class Unseeded(Question):
        def reset(self) -> Observation:  # type: ignore[override]
            return Observation([Message("anything")])

    with pytest.raises(ConfigError, match="takes neither task nor seed"):
        plan_of(config(environments=[]), LiveObjects(environments=[Unseeded()]))


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "binding", ["shared", pytest.param("separate", marks=pytest.mark.slow), "lora"]
)
@pytest.mark.parametrize("penalty", quick(["k1", "full"], ["full"]))
def test_it_trains(binding: str, penalty: str, tmp_path: Path) -> None:
    names = ("pioneer", "observer")
    policies: dict[str, Any] = {
        "shared": {"both": {}},
        "separate": {name: {} for name in names},
        "lora": {name: {"lora": {"r": 2}} for name in names},
    }[binding]
    changes = {"policies": policies, "cory.kl_penalty": penalty}
    watch, history = watched(config(**changes, output_dir=str(tmp_path / "run")))
    assert watch.moved == [set(policies)] * 2
    swapped = binding != "shared"
    assert (watch.spoke[0] != watch.spoke[1]) == swapped
    assert all(math.isfinite(row["loss"]) for row in history)


def test_the_reference_reads_what_the_observer_read(tmp_path: Path) -> None:
    """The base's log-probs of the observer's answer, given the question and the pioneer's answer;
    before the first update that is the policy itself."""
    run = build(config(output_dir=str(tmp_path / "run")))
    run.assign_policies(0)
    groups = run_async(run.source.take(2))
    for learner in run.learners:
        run_async(learner.annotate(groups, {"ref_logprobs", "old_logprobs"}))
    turns = [turn for each in groups for e in each for turn in e.rollouts["observer"].turns]
    policy = run.learners[1].weights_of
    for turn in turns:
        assert "Another answer:" in policy.tokenizer.decode(turn.prompt_ids)
        with policy.scoring():
            alone = policy.forward(pack(merge([turn]))).logprobs
        np.testing.assert_allclose(turn.ref_logprobs, alone, atol=1e-5)
        np.testing.assert_allclose(turn.ref_logprobs, turn.old_logprobs, atol=1e-5)


def test_without_swap_and_with_the_observer_off_it_is_ppo(tmp_path: Path) -> None:
    """A run of one agent, weight by weight."""
    found = []
    for name in ("cory", "ppo"):
        base = config(output_dir=str(tmp_path / name)).given()
        own = {**PLAIN, "update_epochs": 2} if name == "cory" else {"update_epochs": 2}
        training = {**base["training"], "algorithm": name}
        kept = {k: v for k, v in base.items() if k not in ("cory", "workflow")}
        run = build(ExperimentConfig(**{**kept, "training": training, name: own}))
        run_to_end(run)
        found.append([weight.detach().clone() for weight in run.learners[0].parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_trainer_in_one_call(tmp_path: Path) -> None:
    trainer = CORYTrainer(
        model=default_model(),
        environment=MathReasoningEnvironment(max_attempts=1),
        workflow="pioneer_observer",
        batch_size=2,
        max_new_tokens=2,
        report_to="none",
        output_dir=str(tmp_path / "run"),
    )
    result = trainer.train(num_iterations=1)
    assert {learner.policy for learner in trainer.run.learners} == {"pioneer", "observer"}
    assert result.metrics["kl_coef/pioneer"] == 0.4

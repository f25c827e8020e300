"""Who estimates values, what it reads, and that nothing else learns from it."""

import copy
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from critics import columns, episode, policies, spoken, valued
from mrlm import Learner, MAPPOTrainer, Message
from mrlm.algorithms.happo import HAPPO
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.ppo import PPO
from mrlm.core.chat import Chat
from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, TrainingError
from mrlm.core.process_group import Peers
from mrlm.core.sync_async import run_async
from mrlm.core.types import Observation, Reward, StepResult, Task, Turn
from mrlm.core.types import Rollout as SubmittedCode
from mrlm.environments.relay import RelayEnvironment
from mrlm.learn.credit.joint_steps import joint_steps, joint_texts
from mrlm.learn.critics.critic import CentralCritic, Critic
from mrlm.learn.data import data_parallel
from mrlm.learn.data.batch import Batch, Sample, merge, pack
from mrlm.learn.data.samples import minibatches, rounds, samples_of
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.copies import beside
from mrlm.learn.policy.policy import Policy

FAST = LearnerSettings(learning_rate=1e-3)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    named = policy.named_parameters().items()
    return {name: weight.detach().clone() for name, weight in named}


def moved(policy: Policy, before: dict[str, torch.Tensor]) -> bool:
    now = policy.named_parameters()
    return any(not torch.equal(now[name], weight) for name, weight in before.items())


# -- what a joint state says -----------------------------------------------------------------------


def plain(turn: Turn, ids: Any) -> str:
    return "".join(map(str, ids))


def test_a_joint_state_holds_what_everybody_read_and_said_before(tokenizer: Any) -> None:
    found = joint_texts(
        episode({"a": tokenizer, "b": tokenizer}), lambda turn, ids: tokenizer.decode(ids)
    )
    assert [text for _, text in found] == [
        "state: dawn\na reads: go a. \nb reads: go b. \n",
        "a says: a one\nb says: b one\na reads:  more \nb reads:  more \n",
    ]


def test_a_joint_state_does_not_depend_on_who_answered_first(tokenizer: Any) -> None:
    one = episode({"a": tokenizer, "b": tokenizer})
    other = episode({"b": tokenizer, "a": tokenizer})
    assert list(one.rollouts) != list(other.rollouts)
    texts = [[text for _, text in joint_texts(each, plain)] for each in (one, other)]
    assert texts[0] == texts[1]


def test_nothing_said_in_a_step_is_part_of_its_state() -> None:
    """A writer speaks, and an editor reads it before the world moves on: both acted in one joint
    step, and the state is the one that the writer saw."""
    writer = [Turn("w", "p", [1], [2], step=0, index=0), Turn("w", "p", [1], [3], step=0, index=1)]
    editor = Turn("e", "p", [1, 2, 3], [4], step=0, opening=False)
    after = Turn("e", "p", [1, 2, 3, 4, 5], [6], step=1, index=1)
    parts = {
        "w": SubmittedCode("w", "p", "t", writer),
        "e": SubmittedCode("e", "p", "t", [editor, after]),
    }
    found = joint_texts(Episode("e", Task("t"), parts), plain)
    assert [text for _, text in found] == [
        "w reads: 1\n",
        "e reads: 123\ne says: 4\nw says: 2\nw says: 3\ne reads: 5\n",
    ]
    assert [len(step.turns) for step, _ in found] == [3, 1]


def test_a_prompt_that_does_not_continue_is_read_whole() -> None:
    turns = [Turn("a", "p", [1, 2], [3], step=0), Turn("a", "p", [7, 8], [9], step=1)]
    found = joint_texts(Episode("e", Task("t"), {"a": SubmittedCode("a", "p", "t", turns)}), plain)
    assert found[1][1] == "a says: 3\na reads: 78\n"


def test_rewards_of_steps_in_which_nobody_spoke_belong_to_the_step_before() -> None:
    turns = [Turn("a", "p", [1], [3], step=0), Turn("a", "p", [1, 3], [9], step=2)]
    rewards = [1.0, 10.0, 100.0, 1000.0]
    found = Episode("e", Task("t"), {"a": SubmittedCode("a", "p", "t", turns)}, 1111.0, rewards)
    assert [(step.reward, step.discount) for step in joint_steps(found, 0.5)] == [
        (1.0 + 0.5 * 10.0, 0.25),
        (100.0 + 0.5 * 1000.0, 0.25),
    ]


class Noted(Environment):
    """Two seats, two steps, and a state that counts them."""

    agents = ("a", "b")
    blocking = False
    count = 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({"a": Observation([Message("first")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.count += 1
        seen = {"b": Observation([Message("second")])} if self.count < 2 else {}
        return StepResult(seen, {name: Reward(1.0) for name in actions}, done=self.count == 2)

    def state(self) -> str:
        return f"after {self.count}"


def test_the_state_of_the_world_is_noted_where_it_is_asked_for(tokenizer: Any) -> None:
    from scripted_play import play

    source, _ = play(tokenizer, Noted(), lambda request: "hm", ("a", "b"))
    (group,) = run_async(source.take(1))
    assert group.episodes[0].states == []
    source.watched = True
    (group,) = run_async(source.take(1))
    assert group.episodes[0].states == ["after 0", "after 1"]
    assert "state: after 1" in joint_texts(group.episodes[0], plain)[1][1]


def test_a_turn_knows_whether_somebody_had_spoken_in_its_step(tokenizer: Any) -> None:
    from scripted_play import play

    async def editing(task: Task, agents: Any, env: Any) -> None:
        await env.reset()
        draft = await agents.b.act([Message("draft")])
        final = await agents.a.act([Message("edit"), draft])
        await env.step({"a": final})
        await env.finish({"b": await agents.b.act([Message("last")])})

    source, _ = play(tokenizer, Noted(), lambda request: "hm", ("a", "b"), editing)
    (group,) = run_async(source.take(1))
    turns = {(turn.agent, turn.step): turn.opening for turn in group.episodes[0].turns}
    assert turns == {("b", 0): True, ("a", 0): False, ("b", 1): True}


# -- who earned what -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MAPPO, HAPPO])
@pytest.mark.parametrize(
    ("whiten", "expected"), [(False, [0.432, 0.56, 0.8]), (True, [-0.884992, -0.199837, 1.084829])]
)
def test_every_agent_of_a_joint_step_gets_the_same_advantage(kind, whiten, expected) -> None:
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
    kind(whiten_advantages=whiten).credit([group])
    for agent in "ab":
        assert columns(group, "advantages")[agent] == pytest.approx(expected, abs=1e-5)
        assert columns(group, "returns")[agent] == pytest.approx([0.932, 0.96, 1.0])


def test_a_frozen_agents_step_is_valued_but_not_trained_and_not_whitened_over() -> None:
    group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0], agents="a")
    judge = group.episodes[0].rollouts["a"].turns[1]
    judge.agent, judge.trained = "judge", False
    algorithm = MAPPO()
    algorithm.credit([group])
    advantages = columns(group, "advantages")["a"]
    assert advantages[1] is None and columns(group, "returns")["a"][1] == pytest.approx(0.96)
    assert advantages[0] == pytest.approx(-advantages[2])


def test_a_team_of_one_is_ppo_with_a_value_per_turn() -> None:
    rng = np.random.default_rng(0)
    for whiten in (True, False):
        joint, own = [], []
        for _ in range(4):
            values, rewards = rng.random(3).tolist(), rng.random(3).tolist()
            joint.append(valued(values, rewards, "a"))
            own.append(valued(values, rewards, "a"))
            for turn, reward in zip(own[-1].episodes[0].turns, rewards, strict=True):
                turn.reward = reward
        MAPPO(gamma=0.9, whiten_advantages=whiten).credit(joint)
        PPO(gamma=0.9, level="turn", whiten_advantages=whiten).credit(own)
        for one, other in zip(joint, own, strict=True):
            for name in ("advantages", "returns"):
                expected = [column[0] for column in columns(other, name)["a"]]
                assert columns(one, name)["a"] == pytest.approx(expected)


def test_ippo_runs_each_agents_own_row_and_may_pay_it_the_teams_rewards() -> None:
    def interleaved() -> Group:
        group = valued([0.5, 0.4, 0.2], [0.0, 0.0, 1.0])
        for at, rollout in enumerate(group.episodes[0].rollouts.values()):
            for turn in rollout.turns:
                turn.step = 2 * turn.step + at
        group.episodes[0].step_rewards = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        group.episodes[0].rollouts["b"].turns[-1].reward = 1.0
        return group

    settings: dict[str, Any] = {"level": "turn", "whiten_advantages": False}
    own, team = interleaved(), interleaved()
    IPPO(**settings).credit([own])
    IPPO(rewards="team", **settings).credit([team])
    gae = [0.432, 0.56, 0.8]
    assert [x[0] for x in columns(own, "advantages")["b"]] == pytest.approx(gae)
    assert columns(own, "advantages")["a"][-1][0] == pytest.approx(-0.2)
    for agent in "ab":
        assert [x[0] for x in columns(team, "advantages")[agent]] == pytest.approx(gae)
    alone = PPO(**settings)
    other = interleaved()
    alone.credit([other])
    assert (
        columns(other, "advantages")["b"][0].tolist() == columns(own, "advantages")["b"][0].tolist()
    )


def test_only_what_was_cut_short_goes_on_with_its_last_value() -> None:
    played = [valued([0.5, 0.2], [0.0, 1.0]) for _ in range(2)]
    played[0].episodes[0].status = "truncated"
    MAPPO(bootstrap_on_truncation=True, gamma=0.5, gae_lambda=1.0).credit(played)
    returns = [columns(group, "returns")["a"] for group in played]
    assert returns == [pytest.approx([0.5 * 1.1, 1.0 + 0.5 * 0.2]), pytest.approx([0.5, 1.0])]


def test_an_episode_in_which_nobody_spoke_is_left_out() -> None:
    """Its world was over before anybody was asked."""
    group, silent = valued([0.5, 0.2], [0.0, 1.0]), valued([], [2.0])
    assert joint_steps(silent.episodes[0]) == []
    MAPPO(gae_lambda=1.0).credit([group, silent])
    assert columns(group, "returns")["a"] == pytest.approx([1.0, 1.0])


def test_an_episode_with_a_reward_that_is_no_number_is_left_out() -> None:
    played = [valued([0.5, 0.2], [0.0, 1.0]) for _ in range(2)]
    played[1].episodes[0].step_rewards[0] = math.nan
    MAPPO(gae_lambda=1.0).credit(played)
    assert columns(played[0], "returns")["a"] == pytest.approx([1.0, 1.0])
    assert columns(played[1], "returns")["a"] == columns(played[1], "advantages")["a"] == [None] * 2


def test_mappo_says_that_nobody_valued_the_states() -> None:
    group = valued([0.5], [1.0])
    for turn in group.episodes[0].turns:
        turn.values = None
    with pytest.raises(TrainingError, match="values"):
        MAPPO().credit([group])


# -- networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [False, True])
def test_a_critic_starts_where_the_policy_stands_and_shares_no_weight_with_it(
    lora: bool, model: Any, tokenizer: Any
) -> None:
    policy, _ = policies(model, tokenizer, lora)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.manual_seed(1)), alpha=0.01)
    drawn = torch.random.get_rng_state()
    body = beside(policy)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    ours, theirs = policy.named_parameters(), body.named_parameters()
    assert len(ours) == len(theirs) > 0
    for mine, other in zip(ours.values(), theirs.values(), strict=True):
        assert mine is not other and torch.equal(mine, other)
    if lora:
        assert body.model is policy.model and body.adapter != policy.adapter
    assert all(weight.requires_grad for weight in body.parameters())
    twice = beside(policy)
    assert not lora or len({policy.adapter, body.adapter, twice.adapter}) == 3


@pytest.mark.parametrize("lean", [False, True])
def test_its_values_are_read_where_the_policys_head_would_read_them(
    lean: bool, model: Any, tokenizer: Any
) -> None:
    policy = Policy("a", model, tokenizer, lean=lean)
    critic = Critic("a", beside(policy), FAST)
    assert critic.body.packed == policy.packed == lean
    policy.add_value_head()
    assert policy.value_head is not None and critic.body.value_head is not None
    torch.nn.init.normal_(policy.value_head.linear.weight)
    critic.body.value_head.load_state_dict(policy.value_head.state_dict())
    group = Group([episode({"a": tokenizer, "b": tokenizer})])
    batch = pack(samples_of([group], "a", credited=False))
    with torch.no_grad():
        expected = policy.forward(batch).values
        assert expected is not None
        torch.testing.assert_close(critic.body.values(batch), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("central", [False, True])
def test_critic_and_policies_learn_apart(
    lora: bool, central: bool, model: Any, tokenizer: Any
) -> None:
    """The critic's step moves no policy and leaves no gradient in one, and the other way round."""
    one, two = policies(model, tokenizer, lora)
    algorithm: Any = MAPPO() if central else PPO(critic="separate", whiten_advantages=False)
    learner = Learner(one, None, algorithm, settings=FAST)
    Learner(two, None, algorithm)
    critic = learner.critic
    if central:
        critic = CentralCritic(beside(one), FAST, {"a": one.chat, "b": two.chat})
        assert learner.critic is None
    assert critic is not None and one.value_head is None
    groups = [Group([episode({"a": tokenizer, "b": tokenizer}, (0.0, r)) for r in (0.0, 1.0)])]
    for each in groups[0]:
        each.rollouts["a"].turns[-1].reward = each.reward
    critic.annotate(groups)
    run_async(learner.annotate(groups, algorithm.spec.columns))
    if not central:
        for group in groups:
            for each in group:
                del each.rollouts["b"]
    algorithm.credit(groups)

    before = weights(one), weights(two), weights(critic.body)
    metrics = critic.update(groups, algorithm, 0, 0)
    assert metrics["value_loss"] > 0 and metrics["critic_grad_norm"] > 0
    assert not moved(one, before[0]) and not moved(two, before[1])
    assert moved(critic.body, before[2])
    assert all(weight.grad is None for weight in [*one.parameters(), *two.parameters()])

    before = weights(one), weights(two), weights(critic.body)
    run_async(learner.update(samples_of(groups, "a"), algorithm, 0, 0))
    assert moved(one, before[0])
    assert not moved(two, before[1]) and not moved(critic.body, before[2])
    assert all(weight.grad is None for weight in critic.body.parameters())


@pytest.mark.system
@pytest.mark.parametrize("lora", [False, True])
def test_a_central_critic_learns_what_joint_states_are_worth(
    lora: bool, model: Any, tokenizer: Any
) -> None:
    one, two = policies(model, tokenizer, lora)
    settings = LearnerSettings(learning_rate=1e-3, critic_learning_rate=3e-3)
    critic = CentralCritic(beside(one), settings, {"a": one.chat, "b": two.chat})
    groups = []
    for number in range(8):
        played = episode({"a": tokenizer, "b": tokenizer}, (0.0, float(number % 2)))
        played.states = ["a bad day" if number % 2 == 0 else "a good day", None]
        groups.append(Group([played]))
    algorithm, explained = MAPPO(value_clip_range=None), []
    for step in range(12):
        critic.annotate(groups)
        algorithm.credit(groups)
        explained.append(algorithm.metrics["explained_variance"])
        critic.update(groups, algorithm, step, step)
    assert explained[0] == pytest.approx(0.0, abs=1e-6) and explained[-1] > 0.9


def test_an_episode_is_one_sequence_and_its_values_do_not_depend_on_that(
    model: Any, tokenizer: Any
) -> None:
    one, two = policies(model, tokenizer, lora=False)
    critic = CentralCritic(beside(one), FAST, {"a": one.chat, "b": two.chat})
    assert critic.body.value_head is not None
    torch.nn.init.normal_(critic.body.value_head.linear.weight)
    groups = [Group([episode({"a": tokenizer, "b": tokenizer})])]
    (sample,) = critic.samples(groups, credited=False)
    assert len(sample.turns) == 2
    critic.annotate(groups)
    together = [turn.values for turn in groups[0].episodes[0].rollouts["a"].turns]
    assert together == [turn.values for turn in groups[0].episodes[0].rollouts["b"].turns]
    for state, expected in zip(critic.states(groups[0].episodes[0]), together, strict=True):
        (alone,) = merge([state])
        assert critic.body.values(pack([alone])).item() == pytest.approx(expected, abs=1e-4)
    assert together[0] != together[1]


def test_agents_of_different_tokenizers_have_one_critic(
    model: Any, tokenizer: Any, gpt2_path: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    other = AutoTokenizer.from_pretrained(gpt2_path)
    policy = Policy("a", AutoModelForCausalLM.from_pretrained(gpt2_path), other)
    chats = {"a": policy.chat, "b": Chat(tokenizer)}
    for body in (beside(policy), Policy("critic", model, tokenizer)):
        critic = CentralCritic(body, FAST, chats)
        played = episode({"a": other, "b": tokenizer})
        text = body.tokenizer.decode(critic.states(played)[1].prompt_ids, skip_special_tokens=True)
        for said in ("state: dawn", "go a.", "go b.", "a says: a one", "b says: b one"):
            assert said in text
        algorithm, groups = MAPPO(), [Group([played])]
        critic.annotate(groups)
        algorithm.credit(groups)
        assert critic.update(groups, algorithm, 0, 0)["value_loss"] > 0


def test_what_outgrows_the_critic_is_read_from_its_end_and_said_once(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = policies(model, tokenizer, lora=False)
    critic = CentralCritic(beside(one), FAST, {"a": one.chat, "b": two.chat})
    critic.body.model.config.max_position_embeddings = 80
    played = episode({"a": tokenizer, "b": tokenizer})
    groups = [Group([played, copy.deepcopy(played)])]
    critic.annotate(groups)
    states = critic.states(played)
    assert [len(state.prompt_ids) for state in states][1] == 79
    assert tokenizer.decode(states[1].prompt_ids).endswith("b reads:  more \n")
    assert len(critic.samples(groups, credited=False)) == 4
    assert len([r for r in caplog.records if "joint states exceed" in r.message]) == 1


def test_models_of_two_families_train_with_a_critic_from_a_third_place(
    tiny_path: str, gpt2_path: str
) -> None:
    trainer = MAPPOTrainer(
        agents={"first": tiny_path, "second": gpt2_path},
        environment=RelayEnvironment(max_number=3),
        critic_model=gpt2_path,
        batch_size=2,
        max_new_tokens=3,
        report_to="none",
    )
    (critic,) = trainer.run.critics
    assert critic.body.model.config.model_type == "gpt2"
    assert trainer.run.learners[1].weights_of.model is not critic.body.model
    result = trainer.train(num_iterations=2)
    assert [row["step"] for row in result.history] == [1, 2]
    assert all(math.isfinite(row["value_loss"]) for row in result.history)
    saved = result.run_folder / "checkpoint-2" / "critics" / "team"
    assert (saved / "value_head.safetensors").is_file()


# -- what a step is --------------------------------------------------------------------------------


def learned(tokenizer: Any, returns: tuple[float, ...] = (1.0, -2.0, 0.5)) -> list[Group]:
    """Episodes of an agent alone, with credit: uneven turns, each of whose tokens has a return."""
    groups = []
    for number, paid in enumerate(returns):
        made = episode({"a": tokenizer})
        for turn in made.turns:
            turn.prompt_ids = [5 + number, *turn.prompt_ids]
            turn.completion_ids = turn.completion_ids[: 1 + number + turn.index]
            turn.values = np.full(len(turn), 0.1 * number)
            turn.returns = np.linspace(paid, 2 * paid, len(turn))
            turn.advantages = 0.0
        groups.append(Group([made], "t"))
    return groups


class Regression(PPO):
    """A value loss that is easily written out: half the mean squared error."""

    def value_loss(self, batch: Batch, values: torch.Tensor) -> torch.Tensor:
        return (values - batch.returns).square().sum() / 2 / batch.totals.tokens


def regression(**settings: Any) -> Regression:
    return Regression(critic="separate", level="token", **{"num_minibatches": 2, **settings})


@pytest.mark.parametrize("max_tokens", [16384, 30])
@pytest.mark.parametrize(("epochs", "own", "passes"), [(2, None, 2), (1, 3, 3)])
def test_an_update_is_so_many_steps_on_mini_batches(
    epochs: int, own: int | None, passes: int, max_tokens: int, model: Any, tokenizer: Any
) -> None:
    """The same steps written out, however mini-batches are cut to fit."""
    policy = Policy("a", model, tokenizer)
    settings = LearnerSettings(
        learning_rate=1e-4,
        critic_learning_rate=4e-3,
        max_tokens=max_tokens,
        schedule="linear",
        total_steps=4,
    )
    critic, twin = Critic("a", beside(policy), settings), beside(policy)
    twin.add_value_head()
    groups = learned(tokenizer)
    samples = samples_of(groups, "a")
    optimizer = torch.optim.AdamW(twin.parameters(), 4e-3 * 0.75, weight_decay=0.0)
    rng, losses, norms = random.Random(7), [], []
    for _ in range(passes):
        for part in minibatches(samples, 2, rng):
            batch = pack(part)
            error = (twin.values(batch) - batch.returns).square().sum() / 2 / len(batch)
            optimizer.zero_grad()
            error.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)))
            losses.append(float(error.detach()))
            optimizer.step()
    metrics = critic.update(groups, regression(update_epochs=epochs, critic_epochs=own), 1, 7)
    assert metrics == pytest.approx(
        {
            "value_loss": np.mean(losses),
            "critic_grad_norm": np.mean(norms),
            "critic_learning_rate": 3e-3,
        },
        rel=1e-3,
    )
    batch = pack(samples)
    with torch.no_grad():
        torch.testing.assert_close(critic.body.values(batch), twin.values(batch), atol=2e-3, rtol=0)
        assert critic.body.values(batch).abs().max() > 0.05
    assert critic.update([], regression(), 1, 7) == {}


@pytest.mark.parametrize("own", [None, 3])
def test_losses_one_by_one_are_those_of_an_update(
    own: int | None, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of one's own that steps between them learns what `update` does."""
    policy, groups = Policy("a", model, tokenizer), learned(tokenizer)
    critic, other = (Critic("a", beside(policy), FAST) for _ in range(2))
    algorithm = regression(update_epochs=2, critic_epochs=own)
    seen = []
    for loss in critic.losses(groups, algorithm, random.Random(7)):
        critic.stepper.clear()
        loss.backward()
        critic.stepper.norm()
        critic.stepper.step(apply=True)
        seen.append(float(loss.detach()))
    assert len(seen) == 2 * (own or 2)
    metrics = other.update(groups, algorithm, 0, 7)
    assert metrics["value_loss"] == pytest.approx(np.mean(seen), rel=1e-3)
    groups[1].episodes[0].rollouts["a"].turns[0].advantages = None  # not to be learned from
    whole = other.loss(groups, algorithm)
    batch = pack(samples_of(groups, "a"))
    with torch.no_grad():
        error = (other.body.values(batch) - batch.returns).square().mean() / 2
    assert float(whole.detach()) == pytest.approx(float(error), rel=1e-4)
    read: list[Turn] = []

    def one(samples: list[Sample], *_: Any) -> list[list[Sample]]:
        read.extend(turn for sample in samples for turn in sample.turns)
        return [samples]

    monkeypatch.setattr("mrlm.learn.critics.critic.minibatches", one)
    list(critic.losses(groups, algorithm, random.Random(7)))
    other.update(groups, algorithm, 0, 7)
    assert len(read) == 2 * (own or 2) * 5
    assert all(turn.advantages is not None for turn in read)


def test_values_are_written_turn_by_turn_however_samples_are_cut(
    model: Any, tokenizer: Any
) -> None:
    critic = Critic("a", beside(Policy("a", model, tokenizer)), replace(FAST, max_tokens=40))
    head = critic.body.value_head
    assert head is not None
    torch.nn.init.normal_(head.linear.weight)
    groups = learned(tokenizer)
    groups[1].episodes[0].rollouts["a"].turns[0].advantages = None  # valued, and not learned from
    critic.annotate(groups)
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    for turn in turns:
        with torch.no_grad():
            alone = critic.body.values(pack(merge([turn])))
        np.testing.assert_allclose(turn.values, alone, atol=1e-4)  # pyright: ignore
    assert [len(sample.turns) for sample in critic.samples(groups, credited=False)] == [2, 2, 2]
    assert [len(sample.turns) for sample in critic.samples(groups, credited=True)] == [2, 1, 2]


@pytest.mark.parametrize(("bos", "eos"), [(None, 3), (7, 3), (7, None), (None, None)])
def test_states_end_in_a_mark_and_begin_as_the_tokenizer_wants(
    bos: int | None, eos: int | None, model: Any, tokenizer: Any
) -> None:
    policy = Policy("a", model, tokenizer)
    body = beside(policy)
    body.tokenizer = copy.deepcopy(tokenizer)
    pad = body.pad_id
    for name, number in (("bos", bos), ("eos", eos)):
        token = None if number is None else tokenizer.convert_ids_to_tokens(number)
        setattr(body.tokenizer, f"{name}_token", token)
    assert body.tokenizer.bos_token_id == bos and body.tokenizer.eos_token_id == eos
    critic = CentralCritic(body, FAST, {"a": policy.chat, "b": policy.chat})
    played = episode({"a": tokenizer, "b": tokenizer})
    for turn in played.turns:
        turn.values, turn.returns = float(turn.step), 10.0 + turn.step
    first, second = critic.states(played)
    texts = [text for _, text in joint_texts(played, lambda turn, ids: tokenizer.decode(ids))]
    begins = [] if bos is None else [bos]
    mark = pad if eos is None else eos
    one, two = (body.chat.encode_text(text) for text in texts)
    assert first.prompt_ids == [*begins, *one] and first.completion_ids == [mark]
    assert second.prompt_ids == [*begins, *one, mark, *two] and second.completion_ids == [mark]
    assert [(s.values, s.returns) for s in (first, second)] == [(0.0, 10.0), (1.0, 11.0)]
    assert [len(state.taken) for state in (first, second)] == [2, 2]
    failed = copy.deepcopy(played)
    failed.status = "error"
    half = copy.deepcopy(played)
    for turn in half.turns:
        turn.returns = None if turn.step else 1.0
    del half.rollouts["b"]
    groups = [Group([played, failed]), Group([half])]
    every, some = (critic.samples(groups, credited) for credited in (False, True))
    assert [len(sample.turns) for sample in every] == [2, 2]
    assert [turn.prompt_ids for turn in every[0].turns] == [first.prompt_ids, second.prompt_ids]
    assert [len(sample.turns) for sample in some] == [2, 1]
    for samples in (every, some):
        assert [(sample.unit, sample.rollout) for sample in samples] == [(0, 0), (1, 1)]


def test_one_bad_mini_batch_is_skipped_counted_and_not_averaged(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    policy, groups = Policy("a", model, tokenizer), learned(tokenizer)
    critic = Critic("a", beside(policy), FAST)
    groups[2].episodes[0].rollouts["a"].turns[0].returns = math.inf
    orders = [minibatches(samples_of(groups, "a"), 2, random.Random(seed)) for seed in range(20)]
    bad_last = [
        any(turn.returns is math.inf for s in list(o)[1] for turn in s.turns) for o in orders
    ]
    first, last = bad_last.index(False), bad_last.index(True)
    metrics = critic.update(groups, regression(critic_epochs=1), 0, first)
    assert math.isfinite(metrics["value_loss"]) and math.isfinite(metrics["critic_grad_norm"])
    assert critic.nonfinite == 0  # the good one came after it
    assert "(1 in a row)" in caplog.text
    critic.update(groups, regression(critic_epochs=1), 0, last)
    assert critic.nonfinite == 1
    other = Critic("a", beside(policy), FAST)
    other.load_optimizer_state(*critic.optimizer_state())
    assert other.nonfinite == 1
    for turn in (turn for group in groups for each in group for turn in each.turns):
        turn.returns = math.inf
    with pytest.raises(TrainingError, match=r"critic of 'a'.*3 steps in a row"):
        other.update(groups, regression(critic_epochs=1), 0, 0)
    # nothing finite, and fewer than end the run
    once = Critic("a", beside(policy), FAST)
    assert once.update(groups, regression(critic_epochs=1), 0, 0) == {
        "critic_learning_rate": pytest.approx(1e-3)
    }


def test_a_loss_scale_that_is_too_high_is_no_failure_of_a_critic(
    model: Any, tokenizer: Any
) -> None:
    critic = Critic("a", beside(Policy("a", model, tokenizer, precision="fp16")), FAST)
    groups = learned(tokenizer)
    critic.stepper.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for step in range(3):
        critic.update(groups, regression(critic_epochs=1), step, step)
        assert critic.nonfinite == 0
    assert critic.stepper.scaler.get_scale() < 2.0**40


class Twice(Peers):
    """Another process that has computed the same."""

    def add_gradients(self, parameters: Any) -> None:
        for weight in parameters:
            if weight.grad is not None:
                weight.grad *= 2

    def add_numbers(self, tables: Any) -> list[dict[str, float]]:
        return [{name: 2 * number for name, number in table.items()} for table in tables]


def test_gradients_and_losses_are_those_of_all_processes(model: Any, tokenizer: Any) -> None:
    policy, groups = Policy("a", model, tokenizer), learned(tokenizer)
    alone, both = (
        Critic("a", beside(policy), replace(FAST, peers=peers)).update(
            groups, regression(num_minibatches=1, critic_epochs=1), 0, 0
        )
        for peers in (Peers(), Twice())
    )
    for name in ("value_loss", "critic_grad_norm"):
        assert both[name] == pytest.approx(2 * alone[name], rel=1e-5)


def test_micro_batches_that_are_empty_add_nothing(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a model is cut over processes, one that has no more to read computes along."""
    policy, groups, found = Policy("a", model, tokenizer), learned(tokenizer), []
    for padding in ([], [[], []]):
        monkeypatch.setattr(
            data_parallel, "rounds", lambda *given, more=padding: [*rounds(*given), *more]
        )
        critic = Critic("a", beside(policy), FAST)
        metrics = critic.update(groups, regression(critic_epochs=1), 0, 0)
        critic.annotate(groups)
        values = np.concatenate([turn.values for each in groups for turn in each.episodes[0].turns])
        found.append((metrics, values))
    assert found[0][0] == pytest.approx(found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4)
    assert np.abs(found[0][1]).max() > 0


def test_what_a_critic_learned_is_saved_bit_by_bit(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    policy, groups = Policy("a", model, tokenizer), learned(tokenizer)
    critic, other = (Critic("a", beside(policy), FAST) for _ in range(2))
    critic.update(groups, regression(), 0, 0)
    critic.save(tmp_path)
    assert moved(other.body, weights(critic.body))
    other.load(tmp_path)
    assert not moved(other.body, weights(critic.body))
    tensors, rest = copy.deepcopy(critic.optimizer_state())
    other.load_optimizer_state(tensors, json.loads(json.dumps(rest)))
    assert critic.update(groups, regression(), 1, 1) == other.update(groups, regression(), 1, 1)
    assert critic.modules() == critic.body.modules() and critic.title == "critic of 'a'"


# -- in a loop of one's own ------------------------------------------------------------------------


def test_a_learner_trains_a_separate_critic_in_a_loop_of_ones_own(
    model: Any, tokenizer: Any
) -> None:
    learner = Learner(model, tokenizer, PPO(critic="separate"))
    assert learner.critic is not None
    known = {id(weight) for weight in learner.parameters()}
    assert {id(w) for w in learner.critic.body.parameters()} < known
    loss = learner.calculate_loss([spoken("5"), spoken("6")], [1.0, 0.0])
    loss.backward()
    assert float(loss.metrics["value_loss"]) > 0
    head = learner.critic.body.value_head
    assert head is not None and head.linear.weight.grad is not None
    assert any(weight.grad is not None for weight in model.parameters())


def test_a_learner_of_one_policy_refuses_a_critic_of_the_team(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, MAPPO())
    with pytest.raises(ConfigError, match="sees every agent"):
        learner.calculate_loss([spoken("5")], [1.0])

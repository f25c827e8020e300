"""A team in an own loop: the same steps as the trainer's on the same episodes, in whatever form
they are given."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mrlm import (
    Callback,
    Environment,
    Episode,
    Generator,
    Message,
    MessageType,
    Observation,
    Reward,
    Rollout,
    StepResult,
    TeamLearner,
    load_config,
    run_experiment,
)
from mrlm.algorithms.happo import HAPPO
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.learn.credit.user_rollouts import TeamReader
from mrlm.learn.optimizer import LearnerSettings

pytestmark = pytest.mark.system

RATE = 0.05


class Pair(Environment):
    """Two agents speak one after the other, twice; each is rewarded for what a random model writes
    often."""

    agents = ("a", "b")
    blocking = False

    def reset(self, task: Any = None, seed: int | None = None) -> StepResult:
        self.left = ["b", "a", "b"]
        return StepResult({"a": Observation([Message(f"number {(seed or 0) % 10}")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        ((agent, message),) = actions.items()
        reward = Reward(sum(ord(letter) % 2 for letter in message.content) / 6)
        seen = {name: Observation([Message(message.content)]) for name in self.left[:1]}
        self.left = self.left[1:]
        return StepResult(seen, {agent: reward}, done=not seen)


CONFIG = """
experiment_name: team
environments: [{{env_type: "test_team_learner:Pair"}}]
training: {{algorithm: {name}, num_iterations: 1, batch_size: 2, optimizer: sgd,
  learning_rate: {rate}, {critic}max_grad_norm: null, report_to: none}}
{name}: {settings}
generation: {{max_new_tokens: 5}}
"""


class Keep(Callback):
    """Keeps the models before and after an iteration, and what was played in it."""

    def on_train_begin(self, run: Any) -> None:
        self.run = run
        self.before = {
            learner.policy: copy.deepcopy(learner.weights_of.model) for learner in run.learners
        }
        self.heads = [copy.deepcopy(critic.learned) for critic in run.critics]
        self.episodes: list[Episode] = []
        take = run.source.take

        async def taken(count: int) -> Any:
            groups = await take(count)
            self.episodes = copy.deepcopy([episode for group in groups for episode in group])
            return groups

        run.source.take = taken

    def on_step_end(self, run: Any, metrics: Any) -> None:
        self.metrics = dict(metrics)


def trained(name: str, settings: Any, folder: Path) -> Keep:
    valued = "values" in registry.load("algorithms", name)(**settings).spec.columns
    critic = f"critic_learning_rate: {RATE}, " * valued
    (folder / "c.yaml").write_text(
        CONFIG.format(name=name, settings=json.dumps(settings), rate=RATE, critic=critic)
    )
    keep = Keep()
    run_experiment(load_config(folder / "c.yaml"), callbacks=[keep])
    return keep


def of_the_run(keep: Keep, name: str, tokenizer: Any, seed: int = 0) -> TeamLearner:
    """A team with the models that the run began with."""
    algorithm = registry.load("algorithms", name)(**LIKE_THE_TRAINER[name])
    agents = {
        agent: (copy.deepcopy(model), tokenizer)
        for agent, model in zip("ab", keep.before.values(), strict=True)
    }
    team = TeamLearner(agents, algorithm, seed=seed)
    for critic, known in zip(team.critics, keep.heads, strict=True):
        if algorithm.spec.critic.topology == "mixed":
            critic.learned.load_state_dict(known.state_dict())  # type: ignore[attr-defined]
    return team


def first_of(keep: Keep) -> str:
    """The policy that HAPPO updated first."""
    (name,) = [key for key in keep.metrics if key.startswith("compound_factor/")]
    return name.partition("/")[2]


LIKE_THE_TRAINER: dict[str, dict[str, int]] = {
    "mappo": {},
    "happo": {"update_epochs": 2},
    "vdn": {"critic_epochs": 4},
    "qmix": {"critic_epochs": 3, "update_epochs": 2},
    "cory": {},
    "ippo": {},
    "magrpo": {"group_size": 3},
    "marft": {"update_epochs": 2},
    "dr_mas": {"group_size": 3},
    "spiral": {},
}


@pytest.mark.parametrize("name", LIKE_THE_TRAINER)
def test_the_losses_of_a_team_are_the_steps_of_its_trainer(
    name: str, tokenizer: Any, tmp_path: Path
) -> None:
    """Plain gradient descent over `losses` ends with the trainer's weights, critics included."""
    keep = trained(name, LIKE_THE_TRAINER[name], tmp_path)
    team = of_the_run(keep, name, tokenizer)
    if name == "happo":
        wanted = list(keep.before).index(first_of(keep))
        team = next(
            found
            for found in (of_the_run(keep, name, tokenizer, seed) for seed in range(20))
            if order_of(found)[0] == found.learners[wanted].policy
        )
    optimizer = torch.optim.SGD(team.parameters(), lr=RATE)
    steps = 0
    for loss in team.losses(keep.episodes):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    assert steps > 0
    moved = 0.0
    for mine, theirs, before in zip(
        team.learners, keep.run.learners, keep.before.values(), strict=True
    ):
        moved = max(moved, gap(before, theirs.weights_of.model))
        assert gap(mine.weights_of.model, theirs.weights_of.model) < 1e-6
    for mine, theirs in zip(team.critics, keep.run.critics, strict=True):
        for one, other in zip(mine.learned.parameters(), theirs.learned.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert moved > 1e-4


def order_of(team: TeamLearner) -> list[str]:
    """The policies in the order of the next iteration of `losses`."""
    import random

    from mrlm.learn.schedule import Schedule

    rng = random.Random(team.seed * 1_000_003 + team.iteration)
    stages = Schedule(order="sequential").stages(team.learners, 0, rng.getrandbits(32))
    return [learner.policy for (learner,) in stages]


def gap(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# -- forms of episodes -----------------------------------------------------------------------------


def pair_of(model: Any, tokenizer: Any) -> dict[str, Any]:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.01 * torch.randn(weight.shape, generator=torch.manual_seed(1))
    return {"a": (model, tokenizer), "b": (other, tokenizer)}


def generated(agents: dict[str, Any], plays: int = 3) -> list[dict[str, Rollout]]:
    """Two agents that answer two questions each, at the same time."""
    found = [{agent: Rollout(agent=agent) for agent in agents} for _ in range(plays)]
    for seed, (agent, (model, tokenizer)) in enumerate(agents.items()):
        generator = Generator(model, tokenizer, max_new_tokens=4, seed=seed)
        for question in ("2+3?", "and 4+4?"):
            for play in found:
                play[agent].add_messages(Message(question))
            generator.batch_generate([play[agent] for play in found])
    return found


TEAMS = ["mappo", "happo", "vdn", "qmix", "cory", "ippo", "magrpo", "marft", "spiral", "maremax"]


@pytest.mark.parametrize("name", TEAMS)
def test_three_lines_train_every_policy_and_critic(name: str, model: Any, tokenizer: Any) -> None:
    agents = pair_of(model, tokenizer)
    episodes = generated(agents)
    team = TeamLearner(agents, registry.load("algorithms", name)())
    for critic in team.critics:
        head = critic.learned.value_head
        if head is not None:
            nn.init.normal_(head.linear.weight, std=0.1)
    rewards = [1.0, 0.0, 0.5]
    optimizer = torch.optim.Adam(team.critic_parameters() or team.parameters(), lr=3e-3)
    for _ in range(3 if team.algorithm.spec.critic.topology == "mixed" else 0):
        team.calculate_loss(episodes, rewards).backward()  # a fresh mixer values nothing
        optimizer.step()
    loss = team.calculate_loss(episodes, rewards)
    optimizer.zero_grad()
    loss.backward()
    assert type(loss / 2) is type(loss) and loss.shape == ()
    assert any(key.startswith("policy_loss/") for key in loss.metrics)
    for agent, (live, _) in agents.items():
        slopes = [p.grad for p in live.parameters() if p.grad is not None]
        assert sum(float(slope.norm()) for slope in slopes) > 0, agent
    known = {id(parameter) for parameter in team.parameters()}
    for critic in team.critics:
        learned = list(critic.learned.parameters())
        assert {id(parameter) for parameter in learned} <= known
        assert sum(float(p.grad.norm()) for p in learned if p.grad is not None) > 0


def advantages(team: TeamLearner, episodes: Any, rewards: Any = None) -> dict[str, list[float]]:
    batches = team.batches(episodes, rewards)
    return {name: batch.advantages.tolist() for name, batch in batches.items()}


@pytest.mark.parametrize("name", ["mappo", "magrpo", "ippo"])
def test_rollouts_and_the_episodes_of_them_have_equal_advantages(
    name: str, model: Any, tokenizer: Any
) -> None:
    agents = pair_of(model, tokenizer)
    plays = generated(agents)
    algorithm = registry.load("algorithms", name)
    rewards = [1.0, 0.0, 0.5]
    found = advantages(TeamLearner(agents, algorithm()), plays, rewards)
    task = registry.load("environments", "relay")().task(0)
    episodes = [
        Episode(str(i), task, play, reward, [0.0, reward], "done")
        for i, (play, reward) in enumerate(zip(plays, rewards, strict=True))
    ]  # the turns were given their rewards by the first loss
    team = TeamLearner(agents, algorithm())  # units of values follow from what was seen before
    for name, column in advantages(team, episodes).items():
        assert column == pytest.approx(found[name])
        assert any(column)


def test_an_episode_that_is_given_keeps_its_own_rewards(model: Any, tokenizer: Any) -> None:
    """What training adds to the rewards of steps is not added to the caller's episode."""
    agents = pair_of(model, tokenizer)
    (play,) = generated(agents)[:1]
    task = registry.load("environments", "relay")().task(0)
    given = Episode("0", task, play, 1.0, [0.25, 0.75], "done")
    policies: Any = {name: SimpleNamespace(name=name, chat=None) for name in play}
    found = TeamReader(policies, frozenset(play)).episode(given, 0, "k", [])
    assert found.step_rewards == given.step_rewards == [0.25, 0.75]
    found.step_rewards[0] = 9.0
    assert given.step_rewards == [0.25, 0.75]


def transcript(first: str, second: str) -> Rollout:
    return Rollout().add_messages(
        Message("2+3?"),
        Message(first, MessageType.MODEL, agent="a"),
        Message("b, check that."),
        Message(second, MessageType.MODEL, agent="b"),
    )


def test_one_transcript_of_two_speakers_is_an_episode_of_a_team(model: Any, tokenizer: Any) -> None:
    """Both policies are trained on their own messages, in the joint steps of the transcript, and
    both get more for a win than for a loss."""
    team = TeamLearner(pair_of(model, tokenizer), registry.load("algorithms", "magrpo")())
    plays = [
        transcript("5", "yes"),
        transcript("6", "no"),
        transcript("5!", "ok"),
        transcript("4", ""),
    ]
    plays[-1].messages[-1] = Message("hm", MessageType.MODEL, agent="b")
    batches = team.batches(plays, [1.0, 1.0, 1.0, 0.0])
    assert [turn.message.content for turn in batches["a"].turns if turn.message] == [
        "5",
        "6",
        "5!",
        "4",
    ]
    for name, step in (("a", 0), ("b", 1)):
        batch = batches[name]
        assert {turn.step for turn in batch.turns} == {step}
        by_turn = [float(turn.advantages) for turn in batch.turns]  # type: ignore[arg-type]
        assert min(by_turn[:3]) > 0 > by_turn[3]


def test_agents_of_one_model_share_a_policy_and_others_may_be_frozen(
    model: Any, tokenizer: Any
) -> None:
    agents = {"a": (model, tokenizer), "b": (model, tokenizer)}
    team = TeamLearner(agents, registry.load("algorithms", "mappo")())
    assert [learner.policy for learner in team.learners] == ["a"]
    own = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in team.policy_parameters()} == own
    agents = pair_of(model, tokenizer)
    frozen = TeamLearner(agents, registry.load("algorithms", "mappo")(), trained=["a"])
    frozen.calculate_loss(generated(agents), [1.0, 0.0, 0.5]).backward()
    assert all(parameter.grad is None for parameter in agents["b"][0].parameters())
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_columns_are_carried_over_to_those_that_still_wait(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], list[str]]] = []

    async def carry(self: Any, stage: Any, waiting: Any, groups: Any) -> dict[str, float]:
        calls.append(([each.policy for each in stage], [each.policy for each in waiting]))
        return {}

    monkeypatch.setattr(HAPPO, "carry", carry)
    agents = pair_of(model, tokenizer)
    team = TeamLearner(agents, HAPPO())
    for loss in team.losses(generated(agents), [1.0, 0.0, 0.5]):
        loss.backward()
    first, last = order_of(TeamLearner(agents, HAPPO()))
    assert calls == [([first], [last])]


def test_every_policy_has_the_settings_of_the_team(model: Any, tokenizer: Any) -> None:
    settings = LearnerSettings(max_tokens=64, learning_rate=0.25)
    team = TeamLearner(
        pair_of(model, tokenizer), registry.load("algorithms", "mappo")(), settings=settings
    )
    assert [learner.settings for learner in team.learners] == [settings, settings]


def test_what_a_team_cannot_read_is_named(model: Any, tokenizer: Any) -> None:
    agents = pair_of(model, tokenizer)
    team = TeamLearner(agents, registry.load("algorithms", "mappo")())
    plays = [transcript("5", "yes"), transcript("6", "no")]
    with pytest.raises(ConfigError, match="2 episodes but 1 rewards"):
        team.calculate_loss(plays, [1.0])
    with pytest.raises(ConfigError, match="reward 0 is nan"):
        team.calculate_loss(plays, [float("nan"), None])
    with pytest.raises(ConfigError, match="the reward of episode '0' names agent 'judge'"):
        team.calculate_loss(plays, [{"judge": 1.0}, 0.0])
    plays[0].messages[1] = Message("5", MessageType.MODEL)
    with pytest.raises(ConfigError, match="episode 0: a transcript of a team needs the agent"):
        team.calculate_loss(plays, [1.0, 0.0])
    plays[0].messages[1] = Message("5", MessageType.MODEL, agent="judge")
    with pytest.raises(ConfigError, match="agent 'judge' is not in the team"):
        team.calculate_loss(plays, [1.0, 0.0])
    with pytest.raises(ConfigError, match="trained="):
        TeamLearner(agents, team.algorithm, trained=["c"])
    with pytest.raises(ConfigError, match="at least one agent"):
        TeamLearner({}, team.algorithm)


def test_happo_in_one_loss_says_that_its_order_is_missing(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agents = pair_of(model, tokenizer)
    plays = [transcript("5", "yes"), transcript("6", "no")]
    found = {}
    for name in ("happo", "mappo"):
        team = TeamLearner(agents, registry.load("algorithms", name)())
        found[name] = team.calculate_loss(plays, [1.0, 0.0]).item()
    assert found["happo"] == pytest.approx(found["mappo"])
    assert [record.getMessage() for record in caplog.records if "team.losses" in record.message]


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mappo", "vdn"])
def test_later_losses_compare_with_the_first(name: str, model: Any, tokenizer: Any) -> None:
    agents = pair_of(model, tokenizer)
    team = TeamLearner(agents, registry.load("algorithms", name)())
    plays = [transcript("5", "yes"), transcript("6", "no"), transcript("12", "well")]
    optimizer = torch.optim.SGD(team.policy_parameters(), lr=0.5)
    moved = []
    for _ in range(3):
        loss = team.calculate_loss(plays, [1.0, 0.0, 0.25])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        moved.append(loss.metrics["approx_kl/a"])
    if name == "mappo":  # a fresh mixer values nothing yet
        assert moved[0] == pytest.approx(0, abs=1e-9) and moved[1] > 1e-6 and moved[2] > moved[1]
    team.forget()
    loss = team.calculate_loss(plays, [1.0, 0.0, 0.25])
    assert loss.metrics["approx_kl/a"] == pytest.approx(0, abs=1e-9)

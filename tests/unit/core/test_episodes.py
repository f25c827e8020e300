"""Episodes keep their accounts, wherever they come from; a missing reward counts nowhere."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from mrlm import GRPO, ExperimentConfig, Learner, Rollout
from mrlm.algorithms.at_grpo import ATGRPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.records import episode_of, episode_record
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, StepResult, Task, Turn
from mrlm.environments.texts.length import LengthEnvironment
from mrlm.learn.credit.user_rollouts import RolloutReader
from mrlm.play.sources.rows import Grouping
from mrlm.serving.protocol.codec import reward_of, to_reward
from mrlm.training.checks import warn_untrained
from mrlm.training.metrics import credit_metrics, episode_metrics
from scripted_play import play, seats


def turn(agent: str, step: int, reward: float = 0.0, policy: str = "p") -> Turn:
    return Turn(agent, policy, [1, step], [2, 3], [-1.0, -1.0], reward=reward, step=step)


def part(agent: str, *turns: Turn) -> dict[str, Rollout]:
    return {agent: Rollout(agent, "p", "t", list(turns))}


def adds_up(episode: Episode) -> bool:
    """The invariants of `Episode.close`."""
    steps = [turn.step for turn in episode.turns]
    return (
        math.isclose(sum(episode.step_rewards), episode.reward, abs_tol=1e-9)
        and all(0 <= step < len(episode.step_rewards) for step in steps)
        and all(r.reward == sum(t.reward for t in r.turns) for r in episode.rollouts.values())
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"reward": 1.0, "step_rewards": [0.0, 0.5]}, "sum to 0.5, but reward is 1"),
        ({"reward": math.nan, "step_rewards": [math.nan, 0.0]}, "reward is nan"),
        ({"reward": 0.0, "step_rewards": [math.inf, -math.inf]}, "sum to nan"),
        (
            {"rollouts": part("a", turn("a", 1), turn("a", 0))},
            r"agent 'a' are of the joint steps \[1, 0\]",
        ),
        ({"rollouts": part("a", turn("a", -1))}, r"joint steps \[-1\]"),
    ],
)
def test_accounts_that_do_not_add_up_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(EpisodeError, match=f"'e' of task 't'.*{says}"):
        Episode("e", Task("t"), **({"status": "done"} | fields))
    Episode("e", Task("t"), **fields)  # one that is still being played may be anything
    Episode("e", Task("t"), **({"status": "error"} | fields))  # and one that failed counts nowhere


def test_a_reward_without_steps_counts_in_the_last_one() -> None:
    rollouts = part("a", turn("a", 0), turn("a", 2))
    assert Episode("e", Task("t"), rollouts, 3.0, status="done").step_rewards == [0.0, 0.0, 3.0]
    cut = Episode("e", Task("t"), rollouts, 1.0, [1.0], status="truncated")
    assert cut.step_rewards == [1.0, 0.0, 0.0]  # steps that were never completed


def test_without_an_environment_the_team_gets_the_mean_of_those_who_act() -> None:
    rollouts = part("a", turn("a", 0, 1.0), turn("a", 2, 3.0)) | part("b", turn("b", 2, 5.0))
    made = Episode.recorded("e", Task("t"), rollouts)
    assert (made.step_rewards, made.reward, made.status) == ([1.0, 0.0, 4.0], 5.0, "done")
    assert Episode.recorded("e", Task("t"), rollouts, 2.0).step_rewards == [0.0, 0.0, 2.0]


class Paid(LengthEnvironment):
    """Two seats that speak in turn, four times in all; what a step pays is given."""

    def __init__(self, pay: list[dict[str, Any]]) -> None:
        super().__init__(("a", "b"))
        self.pay, self.max_turns = pay, len(pay)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.count = 0
        return StepResult({"a": Observation([Message("go")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        rewards = self.pay[self.count]
        self.count += 1
        if self.count == len(self.pay):
            return StepResult(rewards=rewards, done=True)
        return StepResult({"ab"[self.count % 2]: Observation([Message("on")])}, rewards)


def played(tokenizer: Any, *pay: dict[str, Any]) -> Episode:
    source, _ = play(tokenizer, Paid(list(pay)), lambda request: "x", ("a", "b"), group_size=1)
    (group,) = run_async(source.take(1))
    (episode,) = group
    return episode


def test_every_source_makes_episodes_that_add_up(tokenizer: Any) -> None:
    episode = played(tokenizer, {"a": Reward(1.0)}, {}, {"a": 2.0, "b": 4.0}, {"b": Reward(1.0)})
    assert adds_up(episode) and episode.step_rewards == [1.0, 0.0, 3.0, 1.0]
    assert adds_up(episode_of(episode_record(episode)))
    row = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "one", "agent": "a"},
            {"role": "assistant", "content": "two", "agent": "b"},
            {"role": "assistant", "content": "three", "agent": "a"},
        ],
        "reward": 2.0,
    }
    (made,) = Grouping(seats(tokenizer, "a", "b")).group(row, 0)
    assert adds_up(made) and made.step_rewards == [0.0, 0.0, 2.0]
    assert [(t.agent, t.step, t.index) for t in made.turns] == [
        ("a", 0, 0),
        ("a", 2, 1),
        ("b", 1, 0),
    ]


def transcript(*said: tuple[str, str], opening: str = "2+3?") -> Rollout:
    rollout = Rollout().add_messages(Message(opening))
    for agent, text in said:
        rollout.add_messages(Message(text, "assistant", agent))  # type: ignore[arg-type]
    return rollout


def test_a_transcript_of_two_speakers_is_an_episode_of_two_agents(tokenizer: Any) -> None:
    from mrlm.core.chat import Chat

    reader = RolloutReader("p", Chat(tokenizer), None)
    talks = [transcript(("a", "4"), ("b", "no"), ("a", text)) for text in ("5", "6")]
    (group,), _ = reader.groups(talks, [1.0, 0.0])
    first = group.episodes[0]
    assert {name: [t.step for t in r.turns] for name, r in first.rollouts.items()} == {
        "a": [0, 2],
        "b": [1],
    }
    assert (first.step_rewards, first.reward, first.path) == ([0.0, 0.0, 1.0], 1.0, (0,))
    assert [rollout.reward for rollout in first.rollouts.values()] == [1.0, 1.0]
    own, _ = RolloutReader("p", Chat(tokenizer), frozenset({"b"})).groups(talks, [1.0, 0.0])
    assert [(t.agent, t.step) for t in own[0].episodes[0].turns] == [("b", 1)]
    assert all(adds_up(episode) for groups in (group, own[0]) for episode in groups)


# -- rewards that are missing ----------------------------------------------------------------------


def test_a_missing_reward_of_the_world_leaves_the_agent_out(tokenizer: Any) -> None:
    one = played(tokenizer, {}, {"a": None, "b": 1.0})
    assert (one.missing, one.reward, one.scored) == ({"a"}, 1.0, True)
    assert [(turn.agent, turn.trained) for turn in one.turns] == [("a", False), ("b", True)]
    both = played(tokenizer, {"a": Reward(1.0)}, {"a": None})
    assert both.missing == {"a", "b"} and not both.scored
    back = episode_of(episode_record(both))
    assert back.missing == both.missing and Group([back]).valid == []
    assert reward_of(to_reward(Reward(0.0, known=False))) == Reward(0.0, known=False)


def test_a_missing_reward_in_ones_own_loop_is_no_zero(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner(model, tokenizer, GRPO(scale_rewards="none"))
    talks = [transcript(("a", text)) for text in ("5", "6", "7", "8")]
    found = learner.batch(talks, [1.0, None, 0.0, math.nan])
    assert [turn.advantages for turn in found.turns] == [0.5, -0.5]
    assert "reward 3 is nan" in caplog.text
    for rewards in ([None] * 4, [math.nan] * 4):
        with pytest.raises(ConfigError, match="no reward is a finite number"):
            learner.batch(talks, rewards)


def test_episodes_of_a_trainer_keep_their_rewards(model: Any, tokenizer: Any) -> None:
    learner = Learner(model, tokenizer, GRPO(scale_rewards="none"))
    episodes = [
        Episode.recorded(str(i), Task("t"), part("a", turn("a", 0), turn("a", 1, r)))
        for i, r in enumerate((1.0, 0.0))
    ]
    by_episode = [turn.advantages for turn in learner.batch(episodes).turns]
    by_group = [turn.advantages for turn in learner.batch([Group(episodes, "t")]).turns]
    assert by_episode == by_group == [0.5, 0.5, -0.5, -0.5]
    given = [turn.advantages for turn in learner.batch(episodes, [0.0, 1.0]).turns]
    assert given == [-0.5, -0.5, 0.5, 0.5]
    with pytest.raises(ConfigError, match="is a group, whose episodes have their rewards"):
        learner.batch([Group(episodes, "t")], [1.0])
    assert all(turn.advantages is None for episode in episodes for turn in episode.turns)


# -- what is logged of rewards ---------------------------------------------------------------------


def test_mean_rewards_count_what_was_sampled_to_its_end() -> None:
    def one(reward: float, **fields: Any) -> Episode:
        return Episode.recorded("e", Task("t"), part("a", turn("a", 0, reward)), reward, **fields)

    counted = [one(1.0), one(3.0, status="truncated")]
    others = [
        one(100.0, status="error"),
        one(100.0, greedy=True),
        one(100.0, pruned=True),
        one(0.0, missing=frozenset({"a"})),
    ]
    found = episode_metrics([Group(counted + others)])
    assert found["reward/mean"] == found["reward/a/mean"] == 2.0
    assert found["reward/std"] == 1.0 and found["reward/missing"] == 1.0
    assert found["episodes/count"] == 4.0  # failed and unscored ones were played
    assert (found["episodes/failed"], found["episodes/truncated"]) == (0.25, 0.25)
    assert "reward/missing" not in episode_metrics([Group(counted)])
    nothing = episode_metrics([Group(others[-1:])])
    assert "reward/mean" not in nothing and nothing["reward/missing"] == 1.0


def test_components_are_means_over_the_environments_that_report_them() -> None:
    def one(environment: str, **metrics: float) -> Episode:
        rollouts = part(environment, turn(environment, 0, 0.0))
        fields = {"environment": environment, "metrics": metrics}
        return Episode.recorded("e", Task("t"), rollouts, 0.0, **fields)

    episodes = [
        one("math", correct=1.0),
        one("math"),
        one("code", passed=1.0),
        one("code", passed=0),
    ]
    found = episode_metrics([Group(episodes)])
    assert found["reward/correct"] == found["reward/passed"] == 0.5


def test_what_was_not_trained_is_counted_by_agent_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """AT-GRPO credits an answer with its own step: where the end alone is rewarded, who speaks
    first has the advantage 0, while the comparisons that vary seem to be many."""
    siblings = []
    for number, reward in enumerate((1.0, 0.0, 0.5)):
        parts = part("first", turn("first", 0)) | part("last", turn("last", 1, reward))
        siblings.append(Episode.recorded("e", Task("t"), parts, path=(number, 0)))
    for number, each in enumerate(siblings):  # three answers to one state of the second step
        each.path = (0, number)
        each.rollouts["first"].turns[0].trained = number == 0
    groups = [Group(siblings, "t")]
    algorithm = ATGRPO(group_size=3)
    algorithm.credit(groups)
    found = credit_metrics(groups)
    assert (found["advantage/first/zero"], found["advantage/last/zero"]) == (
        1.0,
        pytest.approx(1 / 3),
    )
    run: Any = SimpleNamespace(
        step=4, untrained=set(), config=ExperimentConfig(training={"algorithm": "at_grpo"})
    )
    for _ in range(3):
        warn_untrained(run, found)
    assert caplog.text.count("all turns of agent 'first' have advantage 0") == 1
    assert "iteration 5" in caplog.text and "'last'" not in caplog.text

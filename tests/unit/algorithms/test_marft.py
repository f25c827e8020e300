"""MARFT: values along the chain of agents, and ratios of whole turns."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grids import quick
from mrlm.algorithms.marft import MARFT
from mrlm.algorithms.ppo import PPO
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Rollout, Task, Turn
from mrlm.learn.credit.joint_steps import chain
from mrlm.learn.data.batch import Outputs, merge, pack
from scripted_play import Echo, play
from watched_runs import settings, watched

VALUES = [[0.1, 0.2], [0.3, 0.4]]
ADVANTAGES = [0.385453, 0.42424, 0.492, 0.6]
RETURNS = [0.485453, 0.62424, 0.792, 1.0]
"""Two joint steps of two agents, with gamma .9 and lambda .8."""


def group(length: int = 1, rewards: tuple[float, ...] = (0.0, 1.0), agents: str = "ab") -> Group:
    """Two agents speak in two steps, one after the other; the team is paid at the end."""
    parts = {}
    for place, name in enumerate(agents):
        turns = []
        for step, row in enumerate(VALUES):
            turn = Turn(name, name, [1] * (step + 1), [2] * length, [-1.0] * length, step=step)
            turn.order, turn.index, turn.values = place, step, [row[place]] * length
            turns.append(turn)
        parts[name] = Rollout(name, name, "t", turns)
    return Group([Episode("e", Task("t"), parts, sum(rewards), list(rewards), "done")], "t")


def ordered(played: Group) -> list[Turn]:
    return chain(played.episodes[0]).turns


def column(played: Group, name: str) -> list[float]:
    return [float(np.asarray(getattr(turn, name)).flat[0]) for turn in ordered(played)]


@pytest.mark.parametrize("length", [1, 3])
def test_values_follow_the_chain_of_agents(length: int) -> None:
    played = group(length)
    MARFT(gamma=0.9, gae_lambda=0.8, whiten_advantages=False).credit([played])
    np.testing.assert_allclose(column(played, "advantages"), ADVANTAGES, atol=1e-5)
    np.testing.assert_allclose(column(played, "returns"), RETURNS, atol=1e-5)
    assert all(len(np.asarray(turn.advantages)) == length for turn in ordered(played))


def test_tokens_are_the_same_chain_unrolled() -> None:
    """One token per turn: both levels are one. Several: gamma falls between turns only, and every
    token is a decision."""
    fields: dict[str, Any] = {"gamma": 0.9, "gae_lambda": 0.8, "whiten_advantages": False}
    one = group()
    MARFT(level="token", **fields).credit([one])
    np.testing.assert_allclose(column(one, "advantages"), ADVANTAGES, atol=1e-5)
    two = group(2)
    MARFT(level="token", **fields).credit([two])
    values = np.repeat([0.1, 0.2, 0.3, 0.4], 2)
    expected, following, after = np.zeros(8), 0.0, 0.0
    for place in reversed(range(8)):
        discount = 0.9 if place % 2 else 1.0
        reward = 1.0 if place == 7 else 0.0
        following = reward + discount * after - values[place] + discount * 0.8 * following
        expected[place], after = following, values[place]
    found = np.concatenate([np.asarray(turn.advantages) for turn in ordered(two)])
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_team_is_whitened_together() -> None:
    played = [group(), group(rewards=(1.0, 0.0))]
    MARFT().credit(played)
    found = [value for each in played for value in column(each, "advantages")]
    assert np.mean(found) == pytest.approx(0.0, abs=1e-9)
    assert np.std(found, ddof=1) == pytest.approx(1.0, abs=1e-6)


def test_a_step_is_paid_to_the_last_who_is_trained() -> None:
    """A frozen agent between and after them is part of the world; what came before is nobody's."""
    played = group(rewards=(2.0, 3.0))
    for turn in played.episodes[0].rollouts["b"].turns:
        turn.trained = False
    algorithm, episode = MARFT(whiten_advantages=False), played.episodes[0]
    assert algorithm.turn_rewards(episode, chain(episode)) == [2.0, 3.0]
    algorithm.credit([played])
    assert all(turn.advantages is None for turn in episode.rollouts["b"].turns)
    alone = group(rewards=(2.0, 3.0), agents="a")
    for turn, reward in zip(alone.episodes[0].rollouts["a"].turns, (2.0, 3.0), strict=True):
        turn.reward = reward
    PPO(level="turn", whiten_advantages=False).credit([alone])
    found = [turn.advantages for turn in episode.rollouts["a"].turns]
    expected = [turn.advantages for turn in alone.episodes[0].rollouts["a"].turns]
    np.testing.assert_allclose(found, expected)


def test_episodes_that_teach_nothing_are_in_no_chain() -> None:
    """One whose reward is no number, one of a frozen team."""
    played = [group(), group(), group()]
    for turn in ordered(played[1]):
        turn.trained = False
    played[2].episodes[0].reward = math.nan
    algorithm = MARFT()
    ((name, found),) = algorithm.successions(played).items()
    assert name == "team" and [episode for episode, _ in found] == played[0].episodes
    algorithm.credit(played)
    missing = [[turn.advantages is None for turn in ordered(each)] for each in played]
    assert missing == [[False] * 4, [True] * 4, [True] * 4]


def test_alone_it_is_ppo() -> None:
    """One agent: its chain is its own turns, at either level."""
    for level in ("turn", "token"):
        found = []
        for algorithm in (PPO(level=level), MARFT(level=level)):
            played = group(2, agents="a")
            for turn, reward in zip(ordered(played), (0.0, 1.0), strict=True):
                turn.reward = reward
            algorithm.credit([played])
            found.append([np.asarray(turn.advantages) for turn in ordered(played)])
        np.testing.assert_allclose(found[0], found[1])


def test_the_chain_is_the_order_in_which_agents_were_asked(tokenizer: Any) -> None:
    """At once: by name. One after the other: as they spoke, whatever their names."""

    async def relay(task: Task, agents: Any, env: Any) -> None:
        result = await env.reset()
        while not result.done:
            one = await agents.b.act([Message("first")])
            two = await agents.a.act([Message("second"), one])
            result = await env.step({"a": two, "b": one})

    for workflow, expected in ((None, "ababab"), (relay, "bababa")):
        source, _ = play(tokenizer, Echo(), lambda request: "hm", ("b", "a"), workflow, 1)
        (found,) = run_async(source.take(1))
        turns = chain(found.episodes[0]).turns
        assert "".join(turn.agent for turn in turns) == expected
        assert [turn.order for turn in turns] == ([0, 1] if workflow else [0, 0]) * 3
        assert [turn.opening for turn in turns] == ([True, False] if workflow else [True] * 2) * 3


# -- ratios ----------------------------------------------------------------------------------------

MOVES = [[0.1, 0.2], [-0.3, -0.1, -0.5]]
WORDS = ["one two three", "x"]


def batch_of() -> tuple[Any, Outputs]:
    """Two turns of 2 and 3 tokens, in one sample, with advantages +1 and -1."""
    turns, prompt = [], [1]
    for row, words, advantage in zip(MOVES, WORDS, (1.0, -1.0), strict=True):
        turn = Turn("a", "p", list(prompt), [3] * len(row), [-1.0] * len(row), advantages=advantage)
        turn.message = Message(words)
        turns.append(turn)
        prompt += [*turn.completion_ids, 2]
    new = torch.tensor(np.concatenate(MOVES) - 1.0, dtype=torch.float32, requires_grad=True)
    return pack(merge(turns)), Outputs(new, torch.zeros(5))


@pytest.mark.parametrize(
    ("normalization", "sizes"), [("sum", (1, 1)), ("token", (2, 3)), ("word", (3, 1))]
)
def test_the_ratio_of_a_turn(normalization: Any, sizes: tuple[int, int]) -> None:
    batch, outputs = batch_of()
    loss = MARFT(normalization=normalization).loss(batch, outputs)
    ratios = [math.exp(sum(row) / size) for row, size in zip(MOVES, sizes, strict=True)]
    expected = [-min(ratios[0], 1.2), max(ratios[1], 0.8)]
    assert loss.item() == pytest.approx(np.mean(expected), abs=1e-6)


def test_an_answer_without_words_counts_as_one_word() -> None:
    batch, outputs = batch_of()
    for turn in batch.turns:
        turn.message = Message(" ")
    found = MARFT(normalization="word").loss(batch, outputs).item()
    assert found == MARFT(normalization="sum").loss(batch, outputs).item()


def test_gradients_of_a_turn_are_shared_by_its_tokens() -> None:
    batch, outputs = batch_of()
    MARFT(normalization="token", clip_range=0.9).loss(batch, outputs).backward()
    ratios = [math.exp(np.mean(row)) for row in MOVES]
    expected = [-ratios[0] / 2 / 2] * 2 + [ratios[1] / 3 / 2] * 3
    np.testing.assert_allclose(outputs.logprobs.grad, expected, atol=1e-6)


def test_at_the_level_of_tokens_the_loss_is_ppos() -> None:
    found = []
    for algorithm in (MARFT(level="token"), PPO(critic="separate")):
        batch, outputs = batch_of()
        found.append(algorithm.loss(batch, outputs).item())
    assert found[0] == found[1]


def test_settings_that_nothing_would_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="normalization"):
        MARFT(loss_type="gspo")
    with pytest.raises(ConfigError, match="'sum'"):
        MARFT(level="token", normalization="word")
    assert MARFT(level="token", loss_type="gspo").loss_type == "gspo"


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "binding", ["shared", pytest.param("separate", marks=pytest.mark.slow), "lora"]
)
@pytest.mark.parametrize("level", quick(["turn", "token"], ["turn"]))
def test_it_trains(binding: str, level: str, tmp_path: Path) -> None:
    base = settings("marft", output_dir=str(tmp_path / "run")).given()
    policies: dict[str, Any] = {
        "shared": {"both": {}},
        "separate": {"short": {}, "long": {}},
        "lora": {"short": {"lora": {"r": 2}}, "long": {"lora": {"r": 4}}},
    }[binding]
    world = {"env_type": "played:Noise", "rounds": 2}
    own = {"level": level, "update_epochs": 2, "target_kl": 0.5}
    changed = {**base, "policies": policies, "environments": [world], "marft": own}
    from mrlm import ExperimentConfig

    watch, history = watched(ExperimentConfig(**changed))
    assert watch.moved == [set(policies)] * 2
    assert all(math.isfinite(row["loss"]) and row["value_loss"] > 0 for row in history)

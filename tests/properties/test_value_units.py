"""One level for all actor-critics, and the units that values are learned in."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from critics import columns, valued
from mrlm.algorithms.happo import HAPPO
from mrlm.algorithms.ippo import IPPO
from mrlm.algorithms.mappo import MAPPO
from mrlm.algorithms.marft import MARFT
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.sac import SAC
from mrlm.algorithms.vdn import VDN
from mrlm.config.flat_words import algorithm_fields
from mrlm.core import registry
from mrlm.core.episodes import Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Turn
from mrlm.learn.bases.actor_critic import ActorCritic
from mrlm.learn.data.batch import merge, pack

ACTOR_CRITICS = [
    name
    for name in registry.names("algorithms")
    if issubclass(registry.load("algorithms", name), ActorCritic)
]


def paid(values: list[float], rewards: list[float], agents: str = "ab") -> Group:
    """An episode whose agents act in every joint step, each paid what the team is."""
    group = valued(values, rewards, agents)
    for rollout in group.episodes[0].rollouts.values():
        for turn, reward in zip(rollout.turns, rewards, strict=True):
            turn.reward = reward
    return group


# -- one level -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_every_actor_critic_begins_at_the_same_level(name: str) -> None:
    kind = registry.load("algorithms", name)
    assert kind().level == ("turn" if "turn" in kind.levels else "token")
    for level in ("turn", "token"):
        if level in kind.levels:
            assert kind(level=level).turn_values == (level == "turn")
        else:
            with pytest.raises(ConfigError, match="level"):
                kind(level=level)


def test_which_algorithms_have_both_levels() -> None:
    one = {name for name in ACTOR_CRITICS if len(registry.load("algorithms", name).levels) == 1}
    assert one == {"mappo", "happo", "vdn", "qmix", "sac"}
    assert SAC.levels == ("token",) and MAPPO.levels == ("turn",)


def test_ippo_and_mappo_differ_in_their_critic_and_in_whose_reward_it_is() -> None:
    one, other = algorithm_fields(IPPO), algorithm_fields(MAPPO)
    differ = {name for name in one.keys() & other.keys() if one[name] != other[name]}
    assert differ == {"critic"}
    assert IPPO().normalizes_values and MAPPO().normalizes_values


@pytest.mark.parametrize("normalise", [False, True])
def test_from_the_same_values_ippo_for_the_team_is_mappo(normalise: bool) -> None:
    rng = np.random.default_rng(0)
    settings: dict[str, Any] = {"gamma": 0.9, "value_normalization": normalise}
    mappo, ippo = MAPPO(**settings), IPPO(rewards="team", critic="separate", **settings)
    for _ in range(3):
        rows = [(rng.random(3).tolist(), rng.random(3).tolist()) for _ in range(4)]
        joint, own = ([valued(*row) for row in rows] for _ in range(2))
        for group in own:
            for turn in group.episodes[0].turns:
                turn.policy = turn.agent
        mappo.credit(joint)
        ippo.credit(own)
        for one, other in zip(joint, own, strict=True):
            for name in ("advantages", "returns"):
                for agent in "ab":
                    expected = [column[0] for column in columns(other, name)[agent]]
                    assert columns(one, name)[agent] == pytest.approx(expected)


# -- units of values -------------------------------------------------------------------------------


def units(returns: list[float]) -> tuple[float, float]:
    return float(np.mean(returns)), float(np.std(returns, ddof=1))


def test_what_no_trained_agent_did_moves_no_estimate() -> None:
    """An episode of frozen policies alone leaves the units of values and every advantage alone."""
    found = []
    for more in ([], [paid([0.5, 0.1], [9.0, -7.0])]):
        algorithm = MAPPO(whiten_advantages=True)
        groups = [paid([0.3, 0.2], [0.0, 1.0]), paid([0.1, 0.4], [1.0, 0.0])]
        for turn in (turn for group in more for episode in group for turn in episode.turns):
            turn.trained = False
        algorithm.credit([*groups, *more])
        turns = [turn for group in groups for episode in group for turn in episode.turns]
        found.append((algorithm.state_dict(), [(turn.advantages, turn.returns) for turn in turns]))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [MAPPO, HAPPO])
def test_values_of_a_central_critic_are_in_running_deviations_of_the_returns(kind: Any) -> None:
    algorithm, seen = kind(gae_lambda=1.0, whiten_advantages=False), []
    rounds = [([0.5, -0.4], [1.0, 3.0]), ([0.3, 0.1], [0.0, 7.0]), ([-0.2, 0.6], [2.0, 2.0])]
    mean, std = 0.0, 1.0
    for values, rewards in rounds:
        group = valued(values, rewards)
        algorithm.credit([group])
        returns = [sum(rewards), rewards[1]]
        expected = [r - (v * std + mean) for r, v in zip(returns, values, strict=True)]
        for agent in "ab":
            assert columns(group, "returns")[agent] == pytest.approx(returns)
            assert columns(group, "advantages")[agent] == pytest.approx(expected)
        seen += returns
        mean, std = units(seen)
        assert algorithm.units_of("team") == pytest.approx((mean, std))
        turns = [Turn("team", "team", [1] * (1 + i), [2], [0.0]) for i in range(2)]
        for turn, value, target in zip(turns, values, returns, strict=True):
            turn.values, turn.returns = value, target
        batch, found = pack(merge(turns)), torch.tensor([0.9, -0.9])
        targets = (torch.tensor(returns) - mean) / std
        old = torch.tensor(values)
        clipped = old + (found - old).clamp(-0.2, 0.2)
        errors = torch.maximum((found - targets) ** 2, (clipped - targets) ** 2) / 2
        assert algorithm.value_loss(batch, found).item() == pytest.approx(errors.mean().item())


@pytest.mark.parametrize("level", ["turn", "token"])
def test_every_critic_has_units_of_its_own(level: Any) -> None:
    """Two policies, of which one is paid a hundred times what the other is; returns count a turn
    once at level `turn` and by its tokens at level `token`."""
    algorithm = PPO(level=level, value_normalization=True, gae_lambda=1.0, whiten_advantages=False)
    group = paid([0.0, 0.0, 0.0], [1.0, 2.0, 4.0])
    for agent, rollout in group.episodes[0].rollouts.items():
        for size, turn in enumerate(rollout.turns, 1):
            turn.policy, turn.reward = agent, turn.reward * (100.0 if agent == "b" else 1.0)
            turn.completion_ids, turn.logprobs = [2] * size, [0.0] * size
            turn.values = [0.0] * size
    algorithm.credit([group])
    returns = [7.0, 6.0, 4.0] if level == "turn" else [7.0, *[6.0] * 2, *[4.0] * 3]
    mean, std = units(returns)
    assert algorithm.units_of("a") == pytest.approx((mean, std))
    assert algorithm.units_of("b") == pytest.approx((100 * mean, 100 * std))
    assert algorithm.metrics["returns/b/std"] == pytest.approx(100 * std)
    again = paid([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    for turn in again.episodes[0].turns:
        turn.policy = turn.agent
    algorithm.credit([again])
    assert columns(again, "advantages")["a"][0][0] == pytest.approx(-(mean + std))
    assert columns(again, "advantages")["b"][0][0] == pytest.approx(-100 * (mean + std))


@pytest.mark.parametrize("kind", [MAPPO, IPPO])
def test_what_a_critic_learns_does_not_depend_on_the_size_of_rewards(kind: Any) -> None:
    rewards, losses = np.random.default_rng(0).random((3, 3)), {}
    for size in (1.0, 1000.0):
        algorithm = kind(critic="central" if kind is MAPPO else "separate")
        for row in size * rewards:
            group = paid([0.1, 0.2, 0.3], row.tolist())
            algorithm.credit([group])
            turns = group.episodes[0].rollouts["a"].turns
            for turn in turns:
                turn.policy = "team" if kind is MAPPO else turn.policy
            batch = pack(merge(turns))
            loss = algorithm.value_loss(batch, torch.linspace(-1, 1, len(batch))).item()
            losses.setdefault(size, []).append(loss)
    # only the very first advantages, whose values have no units yet, know the size
    assert losses[1.0] == pytest.approx(losses[1000.0], rel=0.05)


@pytest.mark.parametrize("kind", [MAPPO, IPPO, MARFT])
def test_units_are_part_of_a_checkpoint_to_the_last_bit(kind: Any) -> None:
    algorithm, again = (kind(value_normalization=True) for _ in range(2))
    for rewards in ([0.1, 0.7, 0.3], [1 / 3, 2 / 7, 0.9]):
        algorithm.credit([paid([0.1, 0.2, 0.3], rewards)])
    again.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert again.seen_returns == algorithm.seen_returns != {}
    one, other = (paid([0.1, 0.2, 0.3], [0.0, 1.0, 0.5]) for _ in range(2))
    algorithm.credit([one])
    again.credit([other])
    assert str(columns(one, "advantages")) == str(columns(other, "advantages"))


def test_returns_that_are_all_equal_have_a_mean_and_no_deviation() -> None:
    algorithm = MAPPO()
    algorithm.credit([valued([0.0], [0.5]), valued([0.0], [0.5])])
    assert algorithm.units_of("team") == (0.5, 1.0)


def test_where_values_are_not_normalised() -> None:
    algorithm = PPO()
    algorithm.credit([paid([0.0, 0.0], [3.0, 4.0])])
    assert algorithm.units_of("p") == (0.0, 1.0) and not algorithm.seen_returns
    assert not VDN().normalizes_values and not MAPPO(critic="mixed").normalizes_values
    with pytest.raises(ConfigError, match="value_normalization"):
        MAPPO(critic="mixed", value_normalization=True)
    with pytest.raises(ConfigError, match="value_normalization"):
        VDN(value_normalization=True)

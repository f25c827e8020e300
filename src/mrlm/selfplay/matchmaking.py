"""Matchmaking: agents played by past players, sampling of opponents, results of episodes. It knows
names of policies, and no weights."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode
from mrlm.play.agent import AgentSettings

Matchmaking = Literal["latest", "uniform", "pfsp"]


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The result of an episode, or of several with exchanged roles, between two policies: the mean
    return of `player` minus that of `other`."""

    player: str
    other: str
    reward: float

    @property
    def score(self) -> float:
        """1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 + 0.5 * ((self.reward > 0.0) - (self.reward < 0.0))


def rated_agents(
    env: Environment,
    agents: Mapping[str, AgentSettings],
    players: Collection[str],
    opponents: Mapping[str, str],
) -> list[str]:
    """The agents of an environment that may be rated for `players`, one at a time, while opponent
    policies play others."""
    names = [name for name in env.agents if name in agents]
    return [
        name
        for name in names
        if agents[name].policy in players and _opposing(names, name, agents, opponents)
    ]


def with_opponents(
    env: Environment, agents: Mapping[str, AgentSettings], rated: str, opponents: Mapping[str, str]
) -> dict[str, AgentSettings]:
    """The policy assignment of a match: the `rated` agent keeps its policy; those of other agents
    are replaced by the one in `opponents`, if any, and those agents are not trained."""
    names = [name for name in env.agents if name in agents]
    taken = {
        name: replace(agents[name], policy=opponents[agents[name].policy], trained=False)
        for name in _opposing(names, rated, agents, opponents)
    }
    return {**agents, **taken}


def _opposing(
    names: Sequence[str],
    rated: str,
    agents: Mapping[str, AgentSettings],
    opponents: Mapping[str, str],
) -> list[str]:
    return [name for name in names if name != rated and agents[name].policy in opponents]


def match_number(task: int, share: float) -> int | None:
    """Index of the match that a task is, or `None`: a `share` of an environment's tasks 0, 1, 2,
    ... are matches, spread evenly and counted from 0.

    Examples:
        >>> [match_number(task, 0.5) for task in range(6)]
        [None, 0, None, 1, None, 2]
    """
    # tolerance: 0.1 + 0.2 counts as 0.3
    before, after = (math.floor(count * share + 1e-9) for count in (task, task + 1))
    return before if after > before else None


def drawn(
    players: Sequence[str],
    count: int,
    how: Matchmaking,
    losses: Mapping[str, float],
    power: float,
    rng: random.Random,
) -> list[str]:
    """At most `count` different opponents among `players`, of which the newest is last.

    Args:
        how: `latest`: the newest; `uniform`: uniformly at random; `pfsp`: with a probability
            proportional to `losses[player] ** power`, which favours the hardest opponents
            (prioritised fictitious self-play, Vinyals et al. 2019, f(x) = (1 - x)^p with x the win
            probability).
        losses: player -> fraction of games against it that are lost, draws as half.
    """
    if how == "latest":
        return list(players[: -count - 1 : -1])
    left, sampled = list(players), []
    while left and len(sampled) < count:
        weights = [losses[name] ** power for name in left] if how == "pfsp" else []
        if not sum(weights) > 0.0:
            weights = [1.0] * len(left)
        sampled.append(left.pop(rng.choices(range(len(left)), weights)[0]))
    return sampled


def loss_rate(form: Mapping[str, Mapping[str, Sequence[float]]], other: str) -> float:
    """The fraction of all players' games against a past player that are lost, from `form`: player
    -> past player -> number of games and their score. Without games it counts as a draw."""
    results = [against[other] for against in form.values() if other in against]
    games, score = (sum(result[i] for result in results) for i in (0, 1))
    return 1.0 - (score + 0.5) / (games + 1.0)


def player_name(policy: str, step: int) -> str:
    """Name of a policy as a player after `step` iterations."""
    return f"{policy}@{step}"


def earned(episode: Episode, agent: str) -> float:
    """Return of an agent, including rewards outside its turns."""
    rollout = episode.rollouts.get(agent)
    unspoken = episode.metrics.get(f"{agent}/unspoken_reward", 0.0)
    return (rollout.reward if rollout is not None else 0.0) + unspoken


def results_of(
    episodes: Sequence[Episode], players: Collection[str], opponents: Mapping[str, str]
) -> list[MatchResult]:
    """Results between `players`, policies with their own weights, in one episode, or in several of
    one task that differ only in the role assignment: differences of returns are averaged over
    these, so that neither chance nor the first move decides. If one of them failed there is no
    result. `opponents`: opponent policy -> the player whose weights it has."""
    if any(episode.failed for episode in episodes):
        return []
    gaps: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        for rated, policy in episode.policies.items():
            for opponent, other in episode.policies.items():
                if policy in players and other in opponents:
                    gap = earned(episode, rated) - earned(episode, opponent)
                    gaps.setdefault((policy, opponents[other]), []).append(gap)
    return [MatchResult(*pair, math.fsum(each) / len(each)) for pair, each in gaps.items()]

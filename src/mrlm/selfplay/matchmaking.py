"""Who meets whom: which seats of an episode past players take, which of them are drawn, and what an
episode says about the two. It knows names of policies, and no weights."""

from __future__ import annotations

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
    """What an episode, or several with seats swapped, came to between two players.

    Args:
        player, other: names of policies.
        reward: how much more `player` was paid than `other`, the mean over episodes.
    """

    player: str
    other: str
    reward: float

    @property
    def score(self) -> float:
        """1 for a win, 0.5 for a draw, 0 for a loss."""
        return 0.5 + 0.5 * ((self.reward > 0.0) - (self.reward < 0.0))


def heroes(
    world: Environment,
    seats: Mapping[str, AgentSettings],
    players: Collection[str],
    stands_in: Mapping[str, str],
) -> list[str]:
    """The agents of a world that may play for `players`, one at a time, while stand-ins take seats
    of others."""
    names = [name for name in world.agents if name in seats]
    return [
        name
        for name in names
        if seats[name].policy in players and _guests(names, name, seats, stands_in)
    ]


def seated(
    world: Environment, seats: Mapping[str, AgentSettings], hero: str, stands_in: Mapping[str, str]
) -> dict[str, AgentSettings]:
    """The seats of a match: the hero's policy plays as it is, the policies of the other agents are
    replaced, where they have a stand-in, and nobody learns from what that one says.

    Args:
        world: it has several seats.
        seats: who plays otherwise.
        hero: an agent.
        stands_in: policy -> the one that takes its seats.
    """
    names = [name for name in world.agents if name in seats]
    taken = {
        name: replace(seats[name], policy=stands_in[seats[name].policy], trained=False)
        for name in _guests(names, hero, seats, stands_in)
    }
    return {**seats, **taken}


def _guests(
    names: Sequence[str],
    hero: str,
    seats: Mapping[str, AgentSettings],
    stands_in: Mapping[str, str],
) -> list[str]:
    return [name for name in names if name != hero and seats[name].policy in stands_in]


def match_number(task: int, share: float) -> int | None:
    """Of the tasks 0, 1, 2, ... of a world a `share` is played as a match, as evenly as can be:
    which match a task is, counted from 0; `None` for one that is none.

    Example:
        >>> [match_number(task, 0.5) for task in range(6)]
        [None, 0, None, 1, None, 2]
    """
    # a share of 0.1 + 0.2 is meant to be 0.3
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
    """At most `count` different opponents.

    Args:
        players: all there are, the newest last.
        count: how many are wanted.
        how: `latest`: the newest; `uniform`: any; `pfsp`: with a chance proportional to
            `losses[player] ** power`, so that those who are hardest to beat come most often
            (prioritised fictitious self-play, Vinyals et al. 2019, f(x) = (1 - x)^p with x the
            chance to win).
        losses: player -> share of games against it that are lost, draws as half.
        power: 0 makes all alike.
        rng: what is drawn from.
    """
    if how == "latest":
        return list(players[: -count - 1 : -1])
    left, found = list(players), []
    while left and len(found) < count:
        weights = [losses[name] ** power for name in left] if how == "pfsp" else []
        if not sum(weights) > 0.0:
            weights = [1.0] * len(left)
        found.append(left.pop(rng.choices(range(len(left)), weights)[0]))
    return found


def earned(episode: Episode, agent: str) -> float:
    """What an agent was paid in all, also where it had no turn to be paid for."""
    rollout = episode.rollouts.get(agent)
    unspoken = episode.metrics.get(f"{agent}/unspoken_reward", 0.0)
    return (rollout.reward if rollout is not None else 0.0) + unspoken


def results_of(
    episodes: Sequence[Episode], players: Collection[str], stands_in: Mapping[str, str]
) -> list[MatchResult]:
    """Who did how well against whom, in episodes of one task that differ in their seats alone (or
    in one): what players were paid is summed, so that neither the cards nor the first move decide.

    Args:
        episodes: with one that failed there is no result.
        players: policies that play as they are.
        stands_in: policy -> the player that it stands for in these episodes.
    """
    if any(episode.failed for episode in episodes):
        return []
    gaps: dict[tuple[str, str], list[float]] = {}
    for episode in episodes:
        for hero, policy in episode.policies.items():
            for guest, other in episode.policies.items():
                if policy in players and other in stands_in:
                    gap = earned(episode, hero) - earned(episode, guest)
                    gaps.setdefault((policy, stands_in[other]), []).append(gap)
    return [MatchResult(*pair, math.fsum(found) / len(found)) for pair, found in gaps.items()]

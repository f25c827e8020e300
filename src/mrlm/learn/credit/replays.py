"""Credit from replays: the answers to one decision, and outcomes without an agent's messages."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.replayed import shapley
from mrlm.core.types import Turn
from mrlm.learn.credit.groups import members, trained_turns

Answer = tuple[Episode, Turn]
"""An answer to a decision, and the episode in which it was given."""


def decisions(group: Group) -> Iterator[list[Answer]]:
    """The answers to each decision that was replayed: that of the episode, then its alternatives.
    Failed replays are left out."""
    again: dict[tuple[str, str, int], list[Answer]] = {}
    for episode in group.replays:
        mark = episode.replayed
        assert mark is not None
        if mark.index is None or not math.isfinite(episode.reward):
            continue
        (agent,) = mark.agents
        for turn in trained_turns(episode.rollouts[agent]):
            if turn.index == mark.index:
                again.setdefault((mark.of, agent, turn.index), []).append((episode, turn))
    for episode, rollout in chain.from_iterable(members(group).values()):
        for turn in trained_turns(rollout):
            if others := again.get((episode.id, turn.agent, turn.index)):
                yield [(episode, turn), *others]


def outcomes_without(group: Group) -> dict[str, dict[frozenset[str], float]]:
    """Id of an episode -> silent agents -> mean team reward of its replays with them silent."""
    by_episode: dict[str, dict[frozenset[str], list[float]]] = {}
    for episode in group.replays:
        mark = episode.replayed
        assert mark is not None
        if mark.index is None and math.isfinite(episode.reward):
            by_silent = by_episode.setdefault(mark.of, {})
            by_silent.setdefault(frozenset(mark.agents), []).append(episode.reward)
    return {
        name: {silent: float(np.mean(rewards)) for silent, rewards in by_silent.items()}
        for name, by_silent in by_episode.items()
    }


def shapley_values(
    reward: float, without: Mapping[frozenset[str], float]
) -> dict[str, float] | None:
    """Shapley values of the agents that are silent in some replay; `None` if the outcome of a
    coalition is unknown.

    Args:
        reward: the outcome with no agent silent.
        without: silent agents -> outcome.
    """
    agents = sorted(frozenset().union(*without))
    if len(without) < 2 ** len(agents) - 1:
        return None
    outcomes = {**without, frozenset(): reward}
    everybody = frozenset(agents)
    return shapley(agents, lambda coalition: outcomes[everybody - coalition])

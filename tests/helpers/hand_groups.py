"""Groups of episodes written down by hand."""

from typing import Any

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn

Paid = dict[str, list[float]]


def episode(name: str, paid: Paid, status: Any = "done", lengths: int = 2) -> Episode:
    """Agents that speak in one step after the other, and what each of their turns is paid."""
    rollouts = {}
    for agent, rewards in paid.items():
        turns = [
            Turn(agent, "p", [1, step], [2] * lengths, [-1.0] * lengths, step=step, index=step)
            for step in range(len(rewards))
        ]
        for turn, reward in zip(turns, rewards, strict=True):
            turn.reward = reward
        rollouts[agent] = Rollout(agent, "p", "t", turns)
    steps = max(map(len, paid.values()))
    team = [float(np.mean([row[t] for row in paid.values() if t < len(row)])) for t in range(steps)]
    return Episode(name, Task("t"), rollouts, sum(team), team, status)


def group(*plays: Paid) -> Group:
    return Group([episode(str(number), paid) for number, paid in enumerate(plays)], "t")


def found(group: Group, agent: str) -> list[list[Any]]:
    """Advantages of an agent's turns, episode by episode."""
    return [[turn.advantages for turn in e.rollouts[agent].turns] for e in group]


def close(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(one, float), other, atol=tolerance, rtol=0)

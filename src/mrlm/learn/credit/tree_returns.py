"""Forked episodes: returns of answers, and answers grouped by state."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.core.episodes import Episode

Node = tuple[int, ...]
"""Path of an answer; `node[:-1]` is the state it answers."""


def forked(episodes: Sequence[Episode]) -> bool:
    """Whether any episode was forked."""
    return any(len(episode.path) > 1 for episode in episodes)


def node_returns(
    paths: Sequence[Node], rewards: Sequence[Sequence[float]], gamma: float
) -> dict[Node, float]:
    """Return of every answer: its own reward plus the mean return of its continuations: `R_j = r_j
    + gamma mean_children(R)` (arXiv 2508.04652). Each episode has a path, one index per joint step,
    and one reward per joint step."""
    reward_of: dict[Node, float] = {}
    for path, row in zip(paths, rewards, strict=True):
        for step, reward in enumerate(row):
            reward_of[path[: step + 1]] = reward
    children: dict[Node, list[Node]] = {}
    for node in reward_of:
        children.setdefault(node[:-1], []).append(node)
    returns: dict[Node, float] = {}
    for node in sorted(reward_of, key=len, reverse=True):
        after = [returns[child] for child in children.get(node, [])]
        returns[node] = reward_of[node] + (gamma * sum(after) / len(after) if after else 0.0)
    return returns


def by_state(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """The answers to each state, in order."""
    answers: dict[Node, list[Node]] = {}
    for node in sorted(nodes):
        answers.setdefault(node[:-1], []).append(node)
    return answers

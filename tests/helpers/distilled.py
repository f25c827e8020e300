"""Rollouts and models to distil, and the divergences as their formulas state them."""

import copy
from typing import Any

import torch

from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, Task, Turn

TURNS = [([5, 6, 7], [10, 11, 12]), ([5, 6, 7, 10, 11, 12, 30, 31, 32], [13, 14]), ([8], [9, 15])]
"""Prompts and completions of a rollout of two turns, with a partner's or a tool's tokens between
them, and of another one."""


def moved(model: Any, seed: int = 3) -> Any:
    """A model a little way from another."""
    other = copy.deepcopy(model)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.03 * torch.randn_like(weight)
    return other


def group(reward: float = 0.0) -> Group:
    turns = [
        Turn("a", "policy", prompt, answer, [-1.0] * len(answer), step=number)
        for number, (prompt, answer) in enumerate(TURNS)
    ]
    rollouts = [Rollout("a", "policy", turns=part) for part in (turns[:2], turns[2:])]
    task = Task("t")
    episodes = [
        Episode.recorded(str(n), task, {"a": rollout}, reward * n)
        for n, rollout in enumerate(rollouts)
    ]
    return Group(episodes, "t")


def stated(kind: str, beta: float, p: Any, q: Any) -> Any:
    """The divergence (N,) of logits, as its formula states it."""
    p, q = p.log_softmax(-1), q.log_softmax(-1)

    def kl(a: Any, b: Any) -> Any:
        return (a.exp() * (a - b)).sum(-1)

    if kind == "jsd":
        m = (beta * q.exp() + (1 - beta) * p.exp()).log()
        return beta * kl(q, m) + (1 - beta) * kl(p, m)
    return kl(p, q) if kind == "reverse" else kl(q, p)

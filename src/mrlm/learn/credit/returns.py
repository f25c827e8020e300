"""Returns of an agent's turns, from the rewards of its team or its own, also in forked episodes."""

from collections.abc import Sequence

from mrlm.core.episodes import Episode
from mrlm.core.types import Rollout, Turn
from mrlm.learn.credit.groups import Member, discounted, trained_turns

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


def turn_returns(
    episode: Episode, rollout: Rollout, turns: Sequence[Turn], gamma: float, per_agent: bool
) -> list[float]:
    """`sum_{k >= t} gamma^(k - t) R_k` over joint steps, for each of some turns of a rollout.

    Args:
        rollout: an agent's part of it.
        turns: some of its turns.
        gamma: discount from one joint step to the next.
        per_agent: the agent's own rewards count, rather than the team's.
    """
    if per_agent:
        steps = [turn.step for turn in rollout.turns]
        values = discounted([turn.reward for turn in rollout.turns], gamma, steps)
        by_turn = {id(turn): value for turn, value in zip(rollout.turns, values, strict=True)}
        return [by_turn[id(turn)] for turn in turns]
    team = discounted(episode.step_rewards, gamma)
    return [team[turn.step] for turn in turns]


def tree_returns(rollouts: Sequence[Member], gamma: float, per_agent: bool) -> list[list[float]]:
    """The returns of the trained turns of each rollout, where episodes were forked
    (`node_returns`); arguments as of `turn_returns`."""
    paths = [episode.path for episode, _ in rollouts]
    returns = node_returns(paths, [_step_rewards(*member, per_agent) for member in rollouts], gamma)
    return [
        [returns[episode.path[: turn.step + 1]] for turn in trained_turns(rollout)]
        for episode, rollout in rollouts
    ]


def _step_rewards(episode: Episode, rollout: Rollout, per_agent: bool) -> list[float]:
    """Rewards of the joint steps, the team's or the agent's own."""
    if not per_agent:
        return list(episode.step_rewards)
    rewards = [0.0] * len(episode.step_rewards)
    for turn in rollout.turns:
        rewards[turn.step] += turn.reward
    return rewards

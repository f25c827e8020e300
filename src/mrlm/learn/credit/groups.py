"""Functions over groups: the partition into compared rollouts, their rewards and metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import TrainingError
from mrlm.core.owners import role_of
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.data.batch import as_column
from mrlm.learn.data.samples import has_advantage

Member = tuple[Episode, Rollout]
Key = Literal["agent", "task"] | dict[str, str]
"""Rollouts that are compared: of every `agent` separately, of all agents of a `task` together, or
by a mapping agent -> role those of one role; an agent that is not named is its own role."""
EPSILON = 1e-6
"""Added to the standard deviation of a group before division."""


def is_trained(turn: Turn) -> bool:
    """Whether the tokens of a turn are trained."""
    return turn.trained and bool(turn.completion_ids)


def trained_turns(rollout: Rollout) -> list[Turn]:
    """The turns of a rollout whose tokens are trained."""
    return [turn for turn in rollout.turns if turn.trained and turn.completion_ids]


def clear(groups: Iterable[Group]) -> None:
    """Clears earlier credit: a turn without advantages is not trained."""
    for group in groups:
        for episode in group:
            for turn in episode.turns:
                turn.advantages = turn.returns = turn.why = None


def members(group: Group) -> dict[str, list[Member]]:
    """Agent -> its rollouts, or its instances', with trained turns, of successful episodes."""
    by_agent: dict[str, list[Member]] = {}
    for episode in group.valid:
        if not math.isfinite(episode.reward):
            continue
        for agent, rollout in episode.rollouts.items():
            if math.isfinite(rollout.reward) and trained_turns(rollout):
                by_agent.setdefault(role_of(agent), []).append((episode, rollout))
    return by_agent


def all_members(groups: Iterable[Group]) -> dict[str, list[Member]]:
    """Agent -> its comparable rollouts in all groups."""
    by_agent: dict[str, list[Member]] = {}
    for group in groups:
        for agent, rollouts in members(group).items():
            by_agent.setdefault(agent, []).extend(rollouts)
    return by_agent


def sides(by_agent: Mapping[str, list[Member]], key: Key) -> dict[str, list[Member]]:
    """Side -> the rollouts that are compared, from agent -> its rollouts (`members`)."""
    if key == "agent":
        return dict(by_agent)
    together: dict[str, list[Member]] = {}
    for agent, rollouts in by_agent.items():
        name = "task" if key == "task" else key.get(agent, agent)
        together.setdefault(name, []).extend(rollouts)
    return together


def several(rollouts: Iterable[Member]) -> bool:
    """Whether rollouts come from several episodes, so that a comparison is informative."""
    return len({id(episode) for episode, _ in rollouts}) > 1


def team_rewards(episode: Episode, rollout: Rollout) -> list[float]:
    """Team reward from the joint step of each trained turn up to that of the agent's next turn."""
    team = episode.step_rewards or [episode.reward]
    steps = [turn.step for turn in trained_turns(rollout)]
    return [sum(team[start:end]) for start, end in pairwise([*steps, len(team)])]


def credited_turns(
    groups: Iterable[Group], by: Literal["turn", "batch"] = "batch"
) -> dict[str, list[Turn]]:
    """Name -> turns with advantages that are compared with one another: those of an agent, or with
    `turn` those of an agent with the same index."""
    by_name: dict[str, list[Turn]] = {}
    for agent, rollouts in all_members(groups).items():
        for _, rollout in rollouts:
            for index, turn in enumerate(rollout.turns):
                if turn.advantages is not None and is_trained(turn):
                    name = f"{agent}/{index}" if by == "turn" else agent
                    by_name.setdefault(name, []).append(turn)
    return by_name


def assign(rollout: Rollout, advantage: float) -> None:
    """Sets the same advantage on every trained turn of a rollout."""
    for turn in trained_turns(rollout):
        turn.advantages = float(advantage)


def discounted(
    rewards: Sequence[float], gamma: float, times: Sequence[int] | None = None
) -> list[float]:
    """`G_t = sum_{k >= t} gamma^(time_k - time_t) r_k`; times are 0, 1, 2, ... by default."""
    returns = [0.0] * len(rewards)
    following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        if t + 1 < len(rewards):
            following *= gamma if times is None else gamma ** (times[t + 1] - times[t])
        returns[t] = following = rewards[t] + following
    return returns


def centred(x: np.ndarray) -> np.ndarray:
    """`x - mean(x)` (n,); exactly 0 for equal entries or fewer than two."""
    return np.zeros(len(x)) if _constant(x) else x - x.mean()


def leave_one_out(x: np.ndarray) -> np.ndarray:
    """Each entry minus the mean of the others (n,) (RLOO, arXiv 2402.14740); exactly 0 like
    `centred`."""
    return centred(x) * len(x) / max(len(x) - 1, 1)


def group_std(x: np.ndarray) -> float:
    """Unbiased standard deviation of (n,) entries; 0 for equal ones or fewer than two."""
    return 0.0 if _constant(x) else float(x.std(ddof=1))


def standardised(x: np.ndarray) -> np.ndarray:
    """`(x - mean) / (std + 1e-6)` (n,) with the unbiased deviation (GRPO, arXiv 2402.03300);
    exactly 0 like `centred`."""
    return centred(x) / (group_std(x) + EPSILON)


def _constant(x: np.ndarray) -> bool:
    return len(x) < 2 or bool(x.max() == x.min())


def overlong_penalty(length: int, max_length: int, cache: int) -> float:
    """The soft penalty of a completion of `length` tokens: 0 up to `max_length - cache`, then
    linearly to -1 at `max_length` (DAPO, arXiv 2503.14476, eq. 13)."""
    over = length - (max_length - cache)
    return -min(1.0, over / cache if cache else 1.0) if over > 0 else 0.0


def adaptive_kl_coef(coef: float, kl: float, target: float, num: int, horizon: float) -> float:
    """`coef (1 + clip(kl / target - 1, -0.2, 0.2) num / horizon)` (arXiv 1909.08593, 2.2)."""
    return coef * (1 + min(max(kl / target - 1, -0.2), 0.2) * num / horizon)


def column(turn: Turn, name: str) -> np.ndarray:
    """A column of a turn as (tokens,) numbers; a `TrainingError` if it is not set."""
    return as_column(_noted(turn, name), len(turn))


def state_value(turn: Turn) -> float:
    """Value of the joint state in which a turn was taken, whether or not it has tokens; a
    `TrainingError` if it is not set."""
    return float(np.ravel(_noted(turn, "values"))[0])


def _noted(turn: Turn, name: str) -> Any:
    value = getattr(turn, name)
    if value is None:
        raise TrainingError(
            f"a turn of agent {turn.agent!r} (policy {turn.policy!r}) has no {name}; "
            "call annotate on the groups before credit assignment"
        )
    return value


def sampled_kl(turn: Turn) -> np.ndarray:
    """`log pi_old - log ref` of each token (tokens,), in nats: k1, as used in rewards."""
    old = "logprobs" if turn.old_logprobs is None else "old_logprobs"
    return column(turn, old) - column(turn, "ref_logprobs")


def sibling_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Shares of the comparisons (an agent in a group) over all ranks without a signal: every
    advantage is 0 (`frac_zero_variance`), or only one rollout is left (`frac_small_groups`)."""
    flags = [0, 0, 0]
    for group in groups:
        compared = members(group)
        rollouts = [pair for episode in group for pair in episode.rollouts.items()]
        for agent in {*compared} | {role_of(name) for name, one in rollouts if trained_turns(one)}:
            siblings = compared.get(agent, [])
            turns = (turn for _, rollout in siblings for turn in trained_turns(rollout))
            small = len(siblings) < 2
            flat = not small and not any(map(has_advantage, turns))
            flags = [flags[0] + 1, flags[1] + flat, flags[2] + small]
    ((number, flat, small),) = ops.global_sum({"groups": flags}).values()
    if not number:
        return {}
    return {"frac_zero_variance": flat / number, "frac_small_groups": small / number}


def greedy_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Mean reward of the greedy episodes of groups (`greedy_reward/mean`), and the share of groups
    without one (`frac_without_greedy`), over all ranks."""
    rewards = [group.greedy.reward for group in groups if group.greedy]
    sums = {"greedy": [len(groups), len(rewards), sum(rewards)]}
    ((number, greedy_count, total),) = ops.global_sum(sums).values()
    metrics = {"frac_without_greedy": 1 - greedy_count / number} if number else {}
    return metrics | ({"greedy_reward/mean": total / greedy_count} if greedy_count else {})

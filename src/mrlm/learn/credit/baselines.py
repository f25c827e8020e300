"""Baselines that returns are compared with. Independent of algorithms and models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mrlm.core.errors import ConfigError
from mrlm.core.types import Rollout, Turn
from mrlm.learn import ops
from mrlm.learn.credit.explain import because, explain_scale
from mrlm.learn.credit.groups import EPSILON, Member, is_trained, trained_turns
from mrlm.learn.ops import Moments

BaselineBy = Literal["turn", "node", "episode", "role", "batch"]
"""Returns that a turn is compared with. `turn`: those of the agent's turns with the same index in
sibling episodes. `node`: those of the other answers to the same state of a tree. `episode`: the
mean return of each sibling episode. `role`: those of all turns of the agent (or role) in the group.
`batch`: those of all its turns in the batch.

The return of a turn is a sum over later rewards, so with intermediate rewards early turns have
larger returns than late ones. `episode`, `role` and `batch` do not correct for this: it adds noise,
and a constant added to every reward changes the gradient."""
POOLS: dict[BaselineBy, str] = {
    "turn": "siblings at this turn",
    "node": "answers to this state",
    "episode": "sibling episodes",
    "role": "turns of this role in the group",
    "batch": "turns of this agent in the batch",
}
"""The compared returns in words."""
Statistic = Literal["none", "mean", "leave_one_out", "group_max", "standard"]


@dataclass(slots=True)
class Comparison:
    """Turns that are compared with one pool of returns.

    Args:
        turns: the compared turns (n,).
        values: their returns (n,).
        owners: index of the episode (in a tree: of the answer) of each (n,).
        pool: the returns they are compared with (m,).
        pool_owners: the same index of each of these (m,).
        flat: whether every episode has the same returns, turn by turn.
    """

    turns: list[Turn]
    values: np.ndarray
    owners: np.ndarray
    pool: np.ndarray
    pool_owners: np.ndarray
    flat: bool = False

    def __post_init__(self) -> None:
        one = len(set(self.pool_owners.tolist())) < 2
        self.flat |= one or bool((self.pool == self.pool[0]).all())

    def title(self, by: BaselineBy, statistic: Statistic) -> str:
        """The baseline in words."""
        if statistic == "none":
            return "no baseline"
        kind = {"mean": "mean", "leave_one_out": "mean of the others", "group_max": "best"}
        kind["standard"] = "standardised by mean and deviation"
        return f"{kind[statistic]} of {len(self.pool)} {POOLS[by]}"

    def advantages(self, statistic: Statistic) -> np.ndarray:
        """Returns minus their baseline (n,): zero, the pool's mean (with `standard` divided by its
        deviation), the mean over its other episodes, or its maximum. Exactly 0 for a single episode
        or equal returns."""
        if statistic == "none":
            return self.values.copy()
        if self.flat:
            return np.zeros(len(self.values))
        if statistic == "standard":
            return (self.values - self.pool.mean()) / max(float(self.pool.std()), EPSILON)
        if statistic == "leave_one_out":
            baseline = [self.pool[self.pool_owners != owner].mean() for owner in self.owners]
        elif statistic == "group_max":
            baseline = self.pool.max()
        else:
            baseline = self.pool.mean()
        return self.values - np.asarray(baseline)


def compare(
    rollouts: Sequence[Member],
    values: Sequence[Sequence[float] | np.ndarray],
    by: BaselineBy,
    statistic: Statistic = "mean",
    scaled: bool = False,
    noted: bool = True,
) -> None:
    """Writes the advantages of the trained turns of rollouts; arguments as of `comparisons`.
    `scaled` divides them by `deviation + 1e-6`, `noted` writes the returns too."""
    compared = comparisons(rollouts, values, by)
    scale = deviation(compared) + EPSILON if scaled else 1.0
    for comparison in compared:
        differences = comparison.advantages(statistic)
        columns = (comparison.values, differences, differences / scale)
        numbers = (column.tolist() for column in columns)
        for turn, value, difference, advantage in zip(comparison.turns, *numbers, strict=True):
            turn.advantages = advantage
            if turn.trace is not None:
                title = comparison.title(by, statistic)
                because(turn, "{} - {} {} = {:+}", value, title, value - difference, difference)
                explain_scale(turn, difference, advantage)
            if noted:
                turn.returns = value


def compare_greedy(
    rollouts: Sequence[Member],
    values: Sequence[Sequence[float]],
    greedy: Sequence[float],
    by: Literal["turn", "episode"],
) -> None:
    """Writes the returns of the trained turns of rollouts, and their advantages over the agent's
    returns in a `greedy` episode (`greedy_baselines`)."""
    for (_, rollout), row in zip(rollouts, values, strict=True):
        baselines = greedy_baselines(greedy, rollout, by)
        for turn, value, baseline in zip(trained_turns(rollout), row, baselines, strict=True):
            less = value - baseline
            turn.returns, turn.advantages = float(value), float(less)
            because(turn, "{} - greedy episode {} = {:+}", value, baseline, less)


def whiten_batch(
    table: Mapping[str, Sequence[Turn]], by: Literal["turn", "batch"], scaled: bool = True
) -> None:
    """Writes the advantages of turns, which are named as in `pooled_scales`: their `returns` less
    the mean over all ranks, divided by these scales if `scaled`. Exactly 0 if all are equal."""
    returns = {name: [np.asarray(turn.returns) for turn in turns] for name, turns in table.items()}
    moments = ops.global_moments({name: np.hstack(rows) for name, rows in returns.items()})
    scales = pooled_scales(moments, by)
    for name, turns in table.items():
        scale = scales[name] if scaled else 1.0
        for turn, row in zip(turns, returns[name], strict=True):
            varies = moments[name].variance > 0.0
            turn.advantages = (row - moments[name].mean) / scale if varies else np.zeros(row.shape)
            if turn.trace is not None:
                mean = float(moments[name].mean)
                because(turn, "{} - mean of the batch {} = {:+}", row, mean, row - mean)
                explain_scale(turn, float(np.mean(row)) - mean, float(np.mean(turn.advantages)))


def deviation(compared: Sequence[Comparison]) -> float:
    """Unbiased deviation of returns from their comparison means, pooled: with one per turn index, a
    turn with little influence would weigh as much as a decisive one."""
    squares = sum(float(np.square(row.pool - row.pool.mean()).sum()) for row in compared)
    count = sum(len(row.pool) - 1 for row in compared)
    flat = all(row.flat for row in compared)
    return 0.0 if flat or not count else math.sqrt(squares / count)


def comparisons(
    rollouts: Sequence[Member], values: Sequence[Sequence[float] | np.ndarray], by: BaselineBy
) -> list[Comparison]:
    """The trained turns of some rollouts, each with its comparison pool.

    Args:
        rollouts: rollouts that are compared with one another (`credit.sides`).
        values: for each rollout, the returns of its trained turns.
        by: the returns a turn is compared with. With `turn`, one beyond the length of all sibling
            episodes is compared with their last turns.
    """
    numbers: dict[int, int] = {}
    owners = [numbers.setdefault(id(episode), len(numbers)) for episode, _ in rollouts]
    if by == "turn":
        return _by_place(rollouts, values, owners)
    rows = [np.asarray(row, dtype=np.float64) for row in values]
    if by == "node":
        return _by_node(rollouts, rows)
    turns = [turn for _, rollout in rollouts for turn in trained_turns(rollout)]
    every = np.concatenate(rows) if rows else np.zeros(0)
    whose = np.repeat(owners, [len(row) for row in rows]).astype(np.int64)
    pool, pool_owners = every, whose
    if by == "episode":
        pool_owners = np.arange(len(numbers))
        pool = np.array([exact_mean(every[whose == number]) for number in pool_owners])
    if not turns:
        return []
    whole = Comparison(turns, every, whose, pool, pool_owners)
    whole.flat |= by != "batch" and all(np.array_equal(rows[0], row) for row in rows)
    return [whole]


def exact_mean(values: np.ndarray) -> float:
    """The mean of at least one number; exact for equal numbers."""
    return float(values[0] + (values - values[0]).mean())


def resolved(by: BaselineBy | None, forked: bool) -> BaselineBy:
    """The comparison: by default `node` in trees, `turn` in linear episodes. Raises `ConfigError`:
    `node` for episodes that were not forked."""
    if by == "node" and not forked:
        raise ConfigError(
            "baseline_by='node' compares several answers to one state, but these episodes were "
            "not forked; set baseline_by=turn, or use the workflow 'tree'"
        )
    return by or ("node" if forked else "turn")


def pooled_scales(moments: Mapping[str, Moments], by: Literal["turn", "batch"]) -> dict[str, float]:
    """Scales for whitening: for every name of `moments` (an agent, or with `turn` `<agent>/<index
    of the turn>`) the deviation from the means, over all turns of the agent."""
    sums: dict[str, tuple[float, int]] = {}
    agent = {name: name.rpartition("/")[0] if by == "turn" else name for name in moments}
    for name, entry in moments.items():
        squares, count = sums.get(agent[name], (0.0, 0))
        more = max(entry.count - 1, 0)
        sums[agent[name]] = squares + entry.variance * more, count + more
    scale = {owner: math.sqrt(x / max(count, 1) + 1e-8) for owner, (x, count) in sums.items()}
    return {name: scale[agent[name]] for name in moments}


def greedy_baselines(
    returns: Sequence[float], rollout: Rollout, by: Literal["turn", "episode"]
) -> list[float]:
    """Baseline of each trained turn from the agent's `returns` in a greedy episode: that of the
    turn with the same index (the last one if there are fewer), or their mean."""
    if by == "episode":
        return [sum(returns) / len(returns)] * len(trained_turns(rollout))
    last = len(returns) - 1
    return [returns[min(at, last)] for at, turn in enumerate(rollout.turns) if is_trained(turn)]


def _by_place(
    rollouts: Sequence[Member], rows: Sequence[Sequence[float] | np.ndarray], owners: Sequence[int]
) -> list[Comparison]:
    """One comparison per turn index."""
    at: dict[int, list[tuple[Turn, float, int]]] = {}
    for (_, rollout), row, owner in zip(rollouts, rows, owners, strict=True):
        returns = iter(row)
        for index, turn in enumerate(rollout.turns):
            if is_trained(turn):
                at.setdefault(index, []).append((turn, next(returns), owner))
    made = []
    for entries in at.values():
        turns, returns, acting = zip(*entries, strict=True)
        pool = values = np.array(returns, dtype=np.float64)
        pool_owners = whose = np.array(acting)
        if len(set(acting)) == 1:
            others = [number for number, owner in enumerate(owners) if owner != whose[0]]
            pool = np.append(values, [rows[number][-1] for number in others])
            pool_owners = np.append(whose, [owners[number] for number in others]).astype(np.int64)
        made.append(Comparison(list(turns), values, whose, pool, pool_owners))
    return made


def _by_node(rollouts: Sequence[Member], rows: Sequence[np.ndarray]) -> list[Comparison]:
    """One comparison per state; an answer counts once, however many episodes continue from it."""
    at: dict[object, list[tuple[Turn, float, int]]] = {}
    answers: dict[tuple[int, ...], int] = {}
    for (episode, rollout), row in zip(rollouts, rows, strict=True):
        for turn, value in zip(trained_turns(rollout), row, strict=True):
            answer = answers.setdefault(episode.path[: turn.step + 1], len(answers))
            at.setdefault((episode.path[: turn.step], turn.step), []).append((turn, value, answer))
    made = []
    for entries in at.values():
        values = np.array([value for _, value, _ in entries])
        whose = np.array([answer for _, _, answer in entries])
        pool_owners, first = np.unique(whose, return_index=True)
        pool = values[first]
        made.append(Comparison([turn for turn, _, _ in entries], values, whose, pool, pool_owners))
    return made

"""Whether a run makes progress: what distinguishes a solved task from a run that has stopped."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mrlm.core import registry
from mrlm.doctor.history import History
from mrlm.doctor.recent import RecentEpisodes, Rows, training
from mrlm.doctor.trends import difference, spread

TRUTHS = (
    *("correct", "success", "solved", "accuracy", "exact", "exact_match", "passed", "won"),
    *("right", "win"),
)
"""Components that measure success by their name."""
STATISTICS = ("mean", "std", "missing")
ALL = 0.99
"""Mean of success from which tasks are solved."""

Bounds = tuple[float, float]


def gained(history: History, steps: int) -> bool:
    """Whether the reward of the last steps is above that of the first ones, beyond noise.

    Args:
        history: the metrics.
        steps: steps of the two windows; in a shorter history the two halves are compared.
    """
    rewards = history.known("reward/mean")[1]
    steps = min(steps, len(rewards) // 2)
    if steps < 2:
        return False
    gain, error = difference(rewards[-steps:], rewards[:steps])
    return gain > 2 * error


def solved(history: History, episodes: RecentEpisodes, steps: int) -> bool:
    """Whether success is 1, or the reward is at the top of the environment's range. Where neither
    is known: whether it rose, is about the best it has been, and is the same for all tasks."""
    rewards = history.known("reward/mean")[1]
    rates = success(history, episodes)[1]
    if len(rates):
        return bool(rates[-steps:].mean() >= ALL)
    means = [history.known(f"reward/{agent}/mean", steps)[1] for agent in history.agents]
    if history.range is not None and means and all(map(len, means)):
        low, top = history.range
        if min(each.min() for each in means) >= top - (1 - ALL) * (top - low):
            return True
    if len(rewards) < 2 * steps:
        return False
    late, early = rewards[-steps:], rewards[:steps]
    gain, error = difference(late, early)
    best = float(np.convolve(rewards, np.ones(steps) / steps, "valid").max())
    apart = history.known("reward/std", steps)[1]
    even = not len(apart) or float(np.median(apart)) <= max(spread(rewards), 0.1 * abs(gain))
    return even and gain > 3 * error and late.mean() >= best - max(2 * spread(rewards), 0.05 * gain)


def components(history: History) -> dict[str, list[str]]:
    """Component of the reward -> its metrics, one for each agent."""
    named: dict[str, list[str]] = {}
    for name, rest in history.names(r"reward/(.+)").items():
        last = rest.rpartition("/")[2]
        if last not in STATISTICS:
            named.setdefault(last, []).append(name)
    return named


def means(history: History, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and means over the agents of a component's metrics."""
    steps, values = history.together(names)
    return steps, values.mean(axis=0)


def success_by_name(history: History, named: Mapping[str, list[str]]) -> str | None:
    """The component whose name says that it measures success. Where agents play against each other
    `won` does not: what one wins another loses, however well they play."""
    names = [name for name in TRUTHS if name in named]
    if "won" in names and "lost" in named:
        won, lost = (means(history, named[name])[1] for name in ("won", "lost"))
        if len(won) == len(lost) and np.allclose(won, lost):
            names.remove("won")
    return names[0] if names else None


def success(history: History, episodes: RecentEpisodes) -> tuple[str, np.ndarray]:
    """The component that measures success, and its mean in each step; empty where there is none.
    It has a known name, or it is 0 or 1 in every recent episode and determines most of the reward:
    those with 1 have about the same reward, above all those with 0."""
    named = components(history)
    name = success_by_name(history, named)
    if name is None:
        bounds = _pooled(list(episodes.by_step(_bounds).values()))
        telling = [
            (low, each)
            for each, (low, high, below) in bounds.items()
            if each in named and high - low < low - below
        ]
        name = max(telling)[1] if telling else None
    return ("", np.zeros(0)) if name is None else (name, means(history, named[name])[1])


def _bounds(rows: Rows) -> dict[str, dict[float, Bounds]]:
    """Component -> its value -> least and largest reward of a step's episodes."""
    found: dict[str, dict[float, Bounds]] = {}
    for row in training(rows):
        reward = row["reward"]
        if reward is None:
            continue
        for name, value in row.get("metrics", {}).items():
            values = found.setdefault(name.rpartition("/")[2], {})
            low, high = values.get(value, (reward, reward))
            values[value] = min(low, reward), max(high, reward)
    return found


def _pooled(steps: list[dict[str, dict[float, Bounds]]]) -> dict[str, tuple[float, float, float]]:
    """Component that is 0 or 1 and both -> least and largest reward at 1, largest at 0."""
    found: dict[str, tuple[float, float, float]] = {}
    for name in {name for step in steps for name in step}:
        parts = [step[name] for step in steps if name in step]
        ones, zeros = ([part[x] for part in parts if x in part] for x in (1.0, 0.0))
        if ones and zeros and all(part.keys() <= {0.0, 1.0} for part in parts):
            most = max(high for _, high in zeros)
            found[name] = min(low for low, _ in ones), max(high for _, high in ones), most
    return found


def range_of(config: Mapping[str, Any]) -> Bounds | None:
    """Least and largest return of an agent in the environments of a config; `None` where one is a
    user's, whose code is not read, or declares none."""
    names = [each.get("env_type") for each in config.get("environments") or ()]
    known = registry.names("environments")
    if not names or any(name not in known for name in names):
        return None
    ranges = [registry.load("environments", str(name)).reward_range for name in names]
    return ranges[0] if len(set(ranges)) == 1 else None

"""The reward rises and the truth does not (reward hacking).

The component that measures success is far below its best, and the reward, or a component of it,
has risen since, both beyond noise; or the reward rises steadily and far, and that component stays
where it is. Only changes over time count, not levels.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History, common
from mrlm.doctor.progress import components, means, success_by_name
from mrlm.doctor.recent import Rows, training
from mrlm.doctor.rule import Rule
from mrlm.doctor.trends import slope, spread


@dataclass(frozen=True)
class RewardHacking(Rule):
    """A proxy that parts from the truth.

    Args:
        truth: the component that measures success; by default the first known of `correct`,
            `success`, `solved`, `accuracy`, `exact`, `exact_match`, `passed`, `won` (unless agents
            play against each other), `right`, `win`.
        steps: steps of the window; its halves are compared with earlier ones.
        z: fall of the truth, and rise of the reward, in standard errors.
        part: fall of the truth, as a part of its range so far.
        t: t statistic of a slope that counts as steady.
        far: rise of the reward, in its noise from step to step, that the truth must follow.
    """

    truth: str = ""
    steps: int = 12
    z: float = 4.0
    part: float = 0.1
    t: float = 4.0
    far: float = 8.0

    do: ClassVar[str] = (
        "read the episodes for what raises the reward without helping; lower the weight of that "
        "component, make it depend on success, or bound it"
    )

    def ready(self, history: History) -> bool:
        named = components(history)
        truth = self.truth or success_by_name(history, named) or ""
        return any(history.has(re.escape(name), self.steps) for name in named.get(truth, ()))

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        named = components(history)
        truth = self.truth or success_by_name(history, named) or ""
        if truth not in named:
            return
        found = {name: means(history, names) for name, names in named.items()}
        actual = found.pop(truth)
        proxies = {"reward/mean": history.known("reward/mean"), **found}
        best = self._fallen(actual[1])
        for name, proxy in proxies.items():
            steps, (level, values) = common(actual, proxy)
            if len(steps) < self.steps:
                continue
            start, how = best if len(steps) == len(actual[0]) else self._fallen(level), "falls"
            if start is not None and not self._risen(values, start):
                start = None
            if start is None and name == "reward/mean" and self._flat(level, values):
                start, how = len(steps) - self.steps, "does not rise"
            if start is not None:
                early, late = slice(start, start + self.steps // 2), slice(-self.steps // 2, None)
                because = (
                    f"{name} rises from {values[early].mean():.3g} to {values[late].mean():.3g} "
                    f"since step {steps[start]}, and {truth} {how}: {level[early].mean():.3g} to "
                    f"{level[late].mean():.3g}"
                )
                yield Alarm(int(steps[start]), because, evidence=cited(_paid(episodes)))
                return

    def _fallen(self, truth: np.ndarray) -> int | None:
        """The first place of the best window of the truth, if it has fallen since."""
        half = self.steps // 2
        if len(truth) < self.steps:
            return None
        mean = np.convolve(truth, np.ones(half) / half, "valid")
        best = int(np.argmax(mean[:-half]))
        fall = mean[best] - mean[-1]
        far = fall > self.part * float(np.ptp(truth)) and fall > self._error(truth)
        return best if far else None

    def _risen(self, proxy: np.ndarray, start: int) -> bool:
        """Whether the proxy has risen since that window."""
        half = self.steps // 2
        rise = proxy[-half:].mean() - proxy[start : start + half].mean()
        return rise > self._error(proxy)

    def _error(self, values: np.ndarray) -> float:
        """The difference of two windows that noise explains."""
        return self.z * math.sqrt(2 / (self.steps // 2)) * spread(values)

    def _flat(self, truth: np.ndarray, reward: np.ndarray) -> bool:
        """Whether the truth stays at a level, neither its lowest nor its highest, while the reward
        rises steadily and far in the last steps."""
        before, truth, reward = truth, truth[-self.steps :], reward[-self.steps :]
        gain = float(reward[-4:].mean() - reward[:4].mean())
        if gain <= 0 or slope(reward)[1] < self.t:
            return False
        noise, other = spread(reward), spread(truth)
        late, early = truth[-4:].mean(), truth[:4].mean()
        follows = late - early > other or late >= before.max() - other
        return other > 0 and gain > self.far * noise and not follows and truth.min() > before.min()


def _paid(episodes: Rows) -> Rows:
    """The episodes of training with the most reward in the last steps."""
    rows = [row for row in training(episodes) if row["reward"] is not None]
    most = max((row["reward"] for row in rows), default=0.0)
    return [row for row in rows if row["reward"] == most]


PLUGIN = RewardHacking

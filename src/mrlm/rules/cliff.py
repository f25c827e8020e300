"""The reward falls (terminal cliff).

The held-out reward stays below its best for several evaluations, or the mean reward of the last
steps is far below the best that so many steps had, beyond noise and by a large part of the
standard deviation between episodes. Noise is that from step to step, and that of the last steps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import Rows, is_evaluation
from mrlm.doctor.rule import Rule
from mrlm.doctor.trends import spread


@dataclass(frozen=True)
class Cliff(Rule):
    """A reward that was there and is lost.

    Args:
        steps: steps of the windows of the sampled reward.
        evaluations: consecutive evaluations below the best one.
        drop: fall in standard deviations between episodes.
        z: fall in standard errors, from the noise from step to step.
        t: fall of the sampled reward in standard errors of the last window: after steps of equal
            rewards one bad step is no fall.
        part: fall of the sampled reward, as a part of its range so far.
    """

    steps: int = 6
    evaluations: int = 3
    drop: float = 0.5
    z: float = 6.0
    t: float = 3.0
    part: float = 0.1

    do: ClassVar[str] = (
        "go back to the checkpoint before the fall and lower the learning rate; if it falls from "
        "the first step, look at the sign of the reward and of the loss"
    )

    def ready(self, history: History) -> bool:
        return history.has("reward/mean", 2 * self.steps) or history.has(
            "eval/reward/mean", self.evaluations + 1
        )

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        finding = self._held_out(history) or self._sampled(history)
        if finding is not None:
            since, because, held_out = finding
            rows = [row for row in episodes if is_evaluation(row) == held_out]
            low = sorted(rows, key=lambda row: math.inf if row["reward"] is None else row["reward"])
            yield Alarm(since, because, evidence=cited(low[:8]))

    def _sampled(self, history: History) -> tuple[int, str, bool] | None:
        steps, rewards = history.known("reward/mean")
        deviations = history.known("reward/std")[1]
        if len(rewards) < 2 * self.steps or not len(deviations):
            return None
        smooth = np.convolve(rewards, np.ones(self.steps) / self.steps, "valid")
        best = int(np.argmax(smooth[: -self.steps]))
        fall = float(smooth[best] - smooth[-1])
        least = self.part * float(np.ptp(rewards))
        if fall < least or fall < self.drop * float(np.median(deviations)):
            return None
        error = float(np.std(rewards[-self.steps :], ddof=1)) / math.sqrt(self.steps)
        if fall <= self.t * error or fall <= self.z * math.sqrt(2 / self.steps) * spread(rewards):
            return None
        middle = (smooth[best] + smooth[-1]) / 2
        since = best + int(np.argmax(rewards[best:] < middle))
        because = (
            f"reward/mean of {self.steps} steps fell from {smooth[best]:.3g} at step "
            f"{steps[best + self.steps - 1]} to {smooth[-1]:.3g}"
        )
        return int(steps[since]), because, False

    def _held_out(self, history: History) -> tuple[int, str, bool] | None:
        steps, rewards = history.known("eval/reward/mean")
        deviations = history.known("eval/reward/std")[1]
        counts = history.known("eval/episodes/count")[1]
        if len(rewards) <= self.evaluations or not len(deviations) or not len(counts):
            return None
        best = int(np.argmax(rewards[: -self.evaluations]))
        deviation = float(np.median(deviations))
        error = math.sqrt(2 / counts[-1]) * deviation
        margin = max(self.drop / 2 * deviation, self.z * error)
        last = rewards[-self.evaluations :]
        if margin <= 0 or last.max() > rewards[best] - margin:
            return None
        because = (
            f"the held-out reward was {rewards[best]:.3g} at step {steps[best]}, and at most "
            f"{last.max():.3g} in the last {self.evaluations} evaluations"
        )
        return int(steps[-self.evaluations]), because, True


PLUGIN = Cliff

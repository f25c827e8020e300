"""Nothing is learned.

In all of the last steps no agent has an advantage (all compared episodes had equal rewards), or
the gradient is 0; or no step so far had a token to train on; or no step so far has moved the
weights, although gradients are not 0; and the task is not solved, which the reward shows by having
risen to its best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.progress import solved
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule


@dataclass(frozen=True)
class NothingLearned(Rule):
    """No signal, no gradient, or no movement.

    Args:
        steps: consecutive steps in which it holds.
        still: largest `weight_change` of a step that counts as none; a weight in float32 has no
            more digits.
    """

    steps: int = 8
    still: float = 1e-7

    do: ClassVar[str] = (
        "check whether the reward varies between episodes of a task; use easier or harder tasks, a "
        "larger group_size, a higher learning rate, or weights in float32"
    )

    def ready(self, history: History) -> bool:
        return history.has(r"grad_norm(/.+)?", self.steps)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        found = self._no_signal(history) or self._no_gradient(history) or self._still(history)
        if found is not None and not solved(history, self.steps):
            since, because = found
            yield Alarm(since, because, evidence=cited(episodes))

    def _no_signal(self, history: History) -> tuple[int, str] | None:
        steps, trained = history.known("tokens/trained")
        if len(trained) >= self.steps and not trained.any():
            return int(steps[0]), f"no token was trained in {len(trained)} steps"
        zeros = [history.known(f"advantage/{agent}/zero", self.steps) for agent in history.agents]
        if not zeros or any(len(values) < self.steps or values.min() < 1 for _, values in zeros):
            return None
        rewards = history.known("reward/mean", 1)[1]
        level = f" (reward {rewards[-1]:.3g})" if len(rewards) else ""
        since = min(_since(history, f"advantage/{each}/zero", 1.0) for each in history.agents)
        return since, f"all advantages are 0 in {self.steps} steps{level}"

    def _no_gradient(self, history: History) -> tuple[int, str] | None:
        steps, norms = history.known("grad_norm", self.steps)
        if len(norms) < self.steps or norms.max() > 0:
            return None
        return int(steps[0]), f"the norm of the gradient is 0 in {self.steps} steps"

    def _still(self, history: History) -> tuple[int, str] | None:
        """Weights that never moved: of all policies, or of one."""
        for name in ("weight_change", *history.names(r"weight_change/(.+)")):
            steps, changes = history.known(name)
            norms = history.known(name.replace("weight_change", "grad_norm"), self.steps)[1]
            if min(len(changes), len(norms)) < self.steps or changes.max() > self.still:
                continue
            rates = history.known(name.replace("weight_change", "learning_rate"), self.steps)[1]
            if norms.all() and not (len(rates) and rates[-1] > rates[0]):  # it is no warm-up
                rate = f" (learning rate {rates[-1]:.3g})" if len(rates) else ""
                return int(steps[0]), (
                    f"{name} was at most {changes.max():.2g} in {len(changes)} steps{rate}, and "
                    f"the gradient is not 0"
                )
        return None


def _since(history: History, name: str, value: float) -> int:
    """The first of the last steps in which a metric has had one value throughout."""
    steps, values = history.known(name)
    (others,) = np.nonzero(values != value)
    return int(steps[others[-1] + 1 if len(others) else 0])


PLUGIN = NothingLearned

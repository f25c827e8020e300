"""A critic learns nothing.

Its values explain nothing of the returns in all of the last steps, and are further from them than
their mean would be, although the returns vary about as much as they ever did.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mrlm.doctor.alarm import Alarm, cited
from mrlm.doctor.history import History
from mrlm.doctor.recent import Rows
from mrlm.doctor.rule import Rule


@dataclass(frozen=True)
class IdleCritic(Rule):
    """Values that are worth less than a constant.

    Args:
        steps: consecutive steps in which it holds.
        explained: explained variance below which values explain nothing.
        excess: error of the values, in variances of the returns.
        varies: variance of the returns, as a part of the largest so far, above which there is
            something to explain.
    """

    steps: int = 12
    explained: float = 0.02
    excess: float = 1.5
    varies: float = 0.05

    do: ClassVar[str] = "raise critic_learning_rate or critic_epochs, or set value_normalization"

    def ready(self, history: History) -> bool:
        return history.has(r"explained_variance.*", self.steps)

    def __call__(self, history: History, episodes: Rows) -> Iterator[Alarm]:
        if not history.names(r"(explained_variance).*"):
            return  # no critic
        for agent in history.agents:
            names = ("explained_variance", "value_error", "return_variance")
            steps, values = history.together([history.of_agent(name, agent) for name in names])
            if len(steps) < self.steps:
                continue
            largest = float(values[2].max())
            steps, (shares, errors, variances) = steps[-self.steps :], values[:, -self.steps :]
            idle = np.median(shares) <= self.explained and errors.min() >= errors[0] / 2
            if not idle or variances.min() <= self.varies * largest:
                continue
            if (errors <= self.excess * variances).any():
                continue
            because = (
                f"values explain {np.median(shares):.1%} of the variance of returns; their mean "
                f"squared error is {errors[-1]:.3g}, that variance {variances[-1]:.3g}"
            )
            rows = [row for row in episodes if agent in row["agents"]]
            yield Alarm(int(steps[0]), because, agent, history.policies.get(agent), cited(rows))


PLUGIN = IdleCritic

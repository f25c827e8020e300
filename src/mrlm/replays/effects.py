"""Estimates from branches of an episode: the outcome if a turn or an agent were different, and
Shapley values of agents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrlm.core.replayed import shapley
from mrlm.core.statistics import mean_interval, wilson_interval


@dataclass(frozen=True, slots=True)
class MeanEstimate:
    """A mean with its 95 % interval.

    Args:
        value, low, high: the mean and the ends of its interval; `None` if unknown.
        n: number of values.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    @classmethod
    def of(
        cls, values: Sequence[float], limits: tuple[float, float] | None = None
    ) -> "MeanEstimate":
        """The estimate from independent values: Wilson's interval where all are at one of two
        limits, such as failure and success, else Student's."""
        if limits is not None and values and all(value in limits for value in values):
            low, high = limits
            ends = wilson_interval(sum(value == high for value in values), len(values))
            rate, lower, upper = (low + (high - low) * end for end in ends)
            return cls(rate, lower, upper, len(values))
        mean, lower, upper = (None if math.isnan(end) else end for end in mean_interval(values))
        return cls(mean, lower, upper, len(values))

    def from_(self, value: float | None) -> "MeanEstimate":
        """The estimate of `value` minus this one."""
        ends = (self.value, self.high, self.low)
        mean, low, high = (None if value is None or end is None else value - end for end in ends)
        return MeanEstimate(mean, low, high, self.n)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the branches of one change.

    Args:
        rewards: the team's rewards, by number of the branch; `None` for a failed one.
        same: number of branches in which the changed turn was as recorded.
    """

    rewards: Sequence[float | None]
    same: int = 0

    @property
    def known(self) -> list[float]:
        """The rewards of branches that did not fail."""
        return [reward for reward in self.rewards if reward is not None]

    def mean(self, limits: tuple[float, float] | None) -> MeanEstimate:
        """The mean reward."""
        return MeanEstimate.of(self.known, limits)

    def success(self, least: float) -> MeanEstimate:
        """The rate of rewards of at least `least`."""
        return MeanEstimate.of([float(reward >= least) for reward in self.known], (0.0, 1.0))


def shapley_estimates(
    agents: Sequence[str], reward: float, replaced: Mapping[frozenset[str], Outcomes]
) -> dict[str, MeanEstimate]:
    """Shapley values with intervals: those of the first branches of all coalitions, of the second,
    and so on. Numbers with a failed branch are left out.

    Args:
        agents: the agents.
        reward: the recorded outcome, with no agent replaced.
        replaced: replaced agents -> outcomes.
    """
    everybody = frozenset(agents)
    samples: dict[str, list[float]] = {agent: [] for agent in agents}
    for rewards in zip(*(outcomes.rewards for outcomes in replaced.values()), strict=True):
        reward_of = dict(zip(replaced, rewards, strict=True))
        if any(value is None for value in rewards):
            continue
        values = shapley(
            agents,
            lambda members, reward_of=reward_of: reward_of.get(everybody - members, reward) or 0.0,
        )
        for agent, value in values.items():
            samples[agent].append(value)
    return {agent: MeanEstimate.of(values) for agent, values in samples.items()}

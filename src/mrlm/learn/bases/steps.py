"""Steps of an iteration that single algorithms add. The loops call the functions, which do nothing
for an algorithm without the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mrlm.core.episodes import Group
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.critics.critic import Critic
from mrlm.learn.critics.mixing_critic import MixedCritic
from mrlm.learn.schedule import OfPolicy


class Rescoring(OfPolicy, Protocol):
    """A learner that can score turns with its current weights."""

    async def rescore(self, groups: Sequence[Group]) -> None:
        """Write `new_logprobs` on the policy's turns."""
        ...


class GroupFilter:
    """An algorithm that chooses, with `sampling.refills`, which groups it learns from."""

    def keeps(self, group: Group) -> bool:
        """Return True where a group that was just played is worth learning from; columns are not
        computed yet."""
        raise NotImplementedError(f"{type(self).__name__} must define keeps")


class Refinement:
    """An algorithm whose columns follow from what a mixed critic has learned of the episodes."""

    def refine(self, groups: Sequence[Group], critics: Sequence[MixedCritic]) -> None:
        """Write them when the critics have learned what `credit` wrote, before any policy
        learns."""
        raise NotImplementedError(f"{type(self).__name__} must define refine")


class CarryOver:
    """An algorithm that recomputes columns where one policy has updated and others still will."""

    async def carry(
        self, stage: Sequence[Rescoring], waiting: Sequence[Rescoring], groups: Sequence[Group]
    ) -> dict[str, float]:
        """Recompute columns of `groups` for the learners that are still `waiting` to update, now
        that those of `stage` have; numbers to log."""
        raise NotImplementedError(f"{type(self).__name__} must define carry")


def keeps(algorithm: Algorithm, group: Group) -> bool:
    """Return True where an algorithm learns from a group."""
    return not isinstance(algorithm, GroupFilter) or algorithm.keeps(group)


def refine(algorithm: Algorithm, groups: Sequence[Group], critics: Sequence[Critic]) -> None:
    """Refine columns when the critics have learned."""
    if isinstance(algorithm, Refinement):
        algorithm.refine(groups, [each for each in critics if isinstance(each, MixedCritic)])


async def carry(
    algorithm: Algorithm,
    stage: Sequence[Rescoring],
    waiting: Sequence[Rescoring],
    groups: Sequence[Group],
) -> dict[str, float]:
    """Recompute columns between two stages of an iteration; numbers to log."""
    if waiting and isinstance(algorithm, CarryOver):
        return await algorithm.carry(stage, waiting, groups)
    return {}

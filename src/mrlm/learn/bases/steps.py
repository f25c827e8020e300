"""Optional steps of an iteration; the functions do nothing for an algorithm without the step."""

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
        """Writes `new_logprobs` on the policy's turns."""
        ...


class GroupFilter:
    """An algorithm that selects, with `sampling.refills`, the groups it trains on."""

    def keeps(self, group: Group) -> bool:
        """Whether to train on a new group; columns are not computed yet."""
        raise NotImplementedError(f"{type(self).__name__} must define keeps")


class Refinement:
    """An algorithm whose columns depend on a mixed critic trained on the same episodes."""

    def refine(self, groups: Sequence[Group], critics: Sequence[MixedCritic]) -> None:
        """Writes these columns after the critics were trained, before any policy update."""
        raise NotImplementedError(f"{type(self).__name__} must define refine")


class CarryOver:
    """An algorithm that recomputes columns between the updates of policies."""

    async def carry(
        self, stage: Sequence[Rescoring], waiting: Sequence[Rescoring], groups: Sequence[Group]
    ) -> dict[str, float]:
        """Recomputes columns of learners `waiting`, after those of `stage`; returns metrics."""
        raise NotImplementedError(f"{type(self).__name__} must define carry")


def keeps(algorithm: Algorithm, group: Group) -> bool:
    """Whether an algorithm trains on a group."""
    return not isinstance(algorithm, GroupFilter) or algorithm.keeps(group)


def refine(algorithm: Algorithm, groups: Sequence[Group], critics: Sequence[Critic]) -> None:
    """Refines columns after the critics were trained."""
    if isinstance(algorithm, Refinement):
        algorithm.refine(groups, [critic for critic in critics if isinstance(critic, MixedCritic)])


async def carry(
    algorithm: Algorithm,
    stage: Sequence[Rescoring],
    waiting: Sequence[Rescoring],
    groups: Sequence[Group],
) -> dict[str, float]:
    """Recomputes columns between two stages of an iteration; returns metrics."""
    if waiting and isinstance(algorithm, CarryOver):
        return await algorithm.carry(stage, waiting, groups)
    return {}

"""Frozen policies that engines sample from: judges and opponents."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.core.episodes import Group
from mrlm.learn.columns import rescore
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy


class Frozen:
    """A policy without a learner, with the interface for weight transfer; `given` is the copy of
    `policy` that the engine samples from, if any."""

    def __init__(self, policy: Policy, version: int = 0, given: Policy | None = None) -> None:
        self.weights_of: Policy = policy
        self.version: int = version
        self._given = given or policy

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self.weights_of.name

    def weights(self) -> Policy:
        """The weights for the engine."""
        return self._given

    async def rescore(self, groups: Sequence[Group]) -> None:
        """Writes `new_logprobs` on this policy's turns, as `Learner.rescore` does."""
        rescore(self.weights_of, LearnerSettings(), groups)

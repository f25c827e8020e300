"""Frozen policies that engines sample from: judges and opponents."""

from collections.abc import Sequence
from dataclasses import dataclass

from mrlm.core.episodes import Group
from mrlm.learn.columns import rescore
from mrlm.learn.optimizer import LearnerSettings
from mrlm.learn.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Frozen:
    """A policy without a learner, with the interface for weight transfer; `given` is the copy that
    the engine samples from, if any."""

    weights_of: Policy
    version: int = 0
    given: Policy | None = None

    @property
    def policy(self) -> str:
        return self.weights_of.name

    def weights(self) -> Policy:
        return self.given or self.weights_of

    async def rescore(self, groups: Sequence[Group]) -> None:
        """Writes `new_logprobs` on this policy's turns, as `Learner.rescore` does."""
        rescore(self.weights_of, LearnerSettings(), groups)

"""Frozen policies that engines sample from: judges and opponents."""

from __future__ import annotations

from collections.abc import Sequence

from mrlm.core.episodes import Group
from mrlm.learn.data.batch import pack
from mrlm.learn.data.data_parallel import write_column
from mrlm.learn.data.samples import samples_of
from mrlm.learn.policy.policy import Policy


class Frozen:
    """A policy without a learner, with the interface for weight transfer.

    Args:
        policy: the policy.
        version: of its weights.
        given: the copy of `policy` that the engine samples from, if any.
    """

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
        samples, policy = samples_of(groups, self.policy, "turn", credited=False), self.weights_of
        if not samples:
            return
        batch = pack(samples, pad_id=policy.pad_id, device=policy.device)
        with policy.scoring():
            write_column(batch, "new_logprobs", policy.forward(batch).logprobs)

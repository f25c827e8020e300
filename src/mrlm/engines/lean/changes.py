"""Weights that changed since their copies were made."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrlm.learn.policy.digest import digests


class Changes:
    """Tracks which tensors changed since the previous call: those named by `mark`, or, if weights
    may be written without notice, those with different values (`compared`)."""

    def __init__(self, compared: bool) -> None:
        self.compared = compared
        self._marked = True
        self._digests: list[int] = []

    @property
    def pending(self) -> bool:
        """Whether a tensor may have changed since the previous `take`."""
        return self.compared or self._marked

    def mark(self) -> None:
        """Mark all tensors as possibly changed."""
        self._marked = True

    def take(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return which tensors have changed since the previous call."""
        marked, self._marked = self._marked, False
        if not self.compared:
            return [marked] * len(tensors)
        before, self._digests = self._digests, digests(tensors)
        if marked or len(before) != len(tensors):
            return [True] * len(tensors)
        return [one != two for one, two in zip(before, self._digests, strict=True)]

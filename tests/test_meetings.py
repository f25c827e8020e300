"""Learners that meet: whose micro-batches are computed together, and when gradients add up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from mrlm.core.peers import Peers
from mrlm.core.running import run_async
from mrlm.learn import together
from mrlm.learn.batch import Loss
from mrlm.learn.together import Meeting


class Two(Peers):
    """Two processes, of which the other one computed the same."""

    rank, size = 0, 2

    def add_gradients(self, weights: Iterable[Any]) -> None:
        list(weights)

    def add_numbers(self, numbers: Sequence[dict[str, float]]) -> list[dict[str, float]]:
        return [{name: 2 * value for name, value in row.items()} for row in numbers]


def test_who_is_done_waits_for_who_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One learner brings one micro-batch and the other two: the second of these is computed while
    the first learner waits for the sums, which are formed once both are done."""
    computed: list[list[str]] = []

    def accumulate(works: Sequence[Any]) -> list[Loss]:
        computed.append(list(works))
        return [Loss(work) for work in works]

    monkeypatch.setattr(together, "accumulate", accumulate)
    meeting = Meeting(2, Two())

    async def learner(name: str, count: int) -> float:
        for number in range(count):
            work: Any = f"{name}{number}"
            assert (await meeting.accumulate(work)).total == work
        sums = await meeting.add_up(name, [], {"loss": float(count)})
        meeting.leave()
        return sums["loss"]

    async def both() -> list[float]:
        return await asyncio.wait_for(asyncio.gather(learner("a", 1), learner("b", 2)), 60)

    assert run_async(both()) == [2.0, 4.0]
    assert computed == [["a0", "b0"], ["b1"]]

"""Oversampling: more episodes of a task are started than needed, and the first to complete are
kept. The order of completion is counted in rounds, never timed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mrlm.core.episodes import Episode

Family = list[Episode]
"""An episode, with those that a workflow forked from it."""


@dataclass(eq=False, repr=False)
class OversampledTask:
    """Rollouts of one task, started at the same time.

    The first are those that needed the fewest rounds of the engine; of equals those with the lowest
    numbers, so that selection among simultaneous ones is unbiased. A failed rollout counts only
    where too few others are left.

    Args:
        plays: all of them.
        keep: how many are kept; the others are aborted.
        rounds: number of a rollout -> the engine round of its latest answer.
    """

    plays: Sequence[asyncio.Task[Family]]
    keep: int
    rounds: Callable[[int], int]

    def __post_init__(self) -> None:
        self.won: asyncio.Future[list[Family]] = asyncio.get_running_loop().create_future()
        for play in self.plays:
            play.add_done_callback(self._ended)

    def judge(self) -> bool:
        """Decides once enough rollouts are complete; returns whether that was now. Called when all
        running episodes wait for the engine."""
        if self.won.done():
            return False
        complete = [number for number, play in enumerate(self.plays) if play.done()]
        whole = [number for number in complete if not self.plays[number].result()[0].failed]
        if len(whole) < self.keep and len(complete) < len(self.plays):
            return False
        failed = [number for number in complete if number not in whole]
        order = sorted(whole, key=lambda number: (self.rounds(number), number)) + failed
        numbers = sorted(order[: self.keep])
        self.won.set_result([self.plays[number].result() for number in numbers])
        self.stop()
        return True

    def stop(self) -> None:
        """Aborts the rollouts that are still running."""
        for play in self.plays:
            play.cancel()

    def _ended(self, play: asyncio.Task[Family]) -> None:
        if self.won.done() or play.cancelled():
            return
        error = play.exception()
        if error is not None:
            self.won.set_exception(error)
            self.stop()
        elif all(other.done() for other in self.plays):
            self.judge()

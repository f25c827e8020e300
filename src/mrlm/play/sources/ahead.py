"""Play that goes on while somebody learns: groups are begun before they are asked for, with weights
that may be some updates old by the time they are learned from.

What is played with which weights is counted, never timed. Play goes on in rounds (one call of every
engine somebody waits for), and whatever is decided is decided between two of them: what is begun,
when play rests, when new weights come. So a run is the same however long anything takes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mrlm.core.episodes import Group
from mrlm.core.sync_async import Background
from mrlm.core.timing import beside, span
from mrlm.play.engine import Key
from mrlm.play.sources.play import Play
from mrlm.play.sources.source import EpisodeSource
from mrlm.play.sources.staleness import Staleness

T = TypeVar("T")


@dataclass(slots=True)
class PendingGroup:
    """A group that was begun.

    Args:
        key: what the keys of its requests begin with.
        before: how many tasks of each world had been begun before it.
        began: rounds until then.
        task: what plays it.
        ended: rounds until it was complete; `None` before.
    """

    key: Key
    before: dict[str, int]
    began: int
    task: asyncio.Task[Group]
    ended: int | None = None


@dataclass(slots=True)
class PlayProgress:
    """How far play has come, in groups and in rounds.

    Args:
        taken: groups that were handed out.
        begun: groups that were begun.
        goal: play goes on until so many of the first groups are complete.
        limit: so many groups may be begun with the weights of now.
        until: play goes on until so many rounds, if there is anything to play.
        last: rounds when something was last begun.
        length: rounds of the longest of the latest groups that were taken.
        exchanges: times that weights were exchanged.
        used: whether something was taken since.
    """

    taken: int = 0
    begun: int = 0
    goal: int = 0
    limit: int = 0
    until: int = 0
    last: int = 0
    length: int = 0
    exchanges: int = 0
    used: bool = False

    def spacing(self, max_lag: int) -> int:
        """Rounds between the beginnings of two batches, so that what is under way at once is spread
        evenly over an episode's length."""
        return math.ceil(self.length / max_lag) if max_lag > 1 else 0

    def exchange(self) -> None:
        """Weights are exchanged, once for everything that was taken before."""
        self.exchanges += self.used
        self.used = False


def _done(jobs: Iterable[PendingGroup]) -> bool:
    return all(job.task.done() for job in jobs)


class Ahead(EpisodeSource):
    """A source that plays ahead of those who take from it.

    While the groups of one iteration are learned from, those of the next are played, in a thread of
    its own. Groups are handed out in the order in which they were begun, the slow ones too, so that
    nothing is preferred. Before weights are exchanged, `rest` waits until the next groups are
    complete and nobody asks the engine for anything. With `max_lag` above 1, episodes of later
    iterations are under way then: they go on with the new weights from their next turn on.

    Args:
        play: what plays.
        max_lag: updates that weights may be behind when something is begun with them.
        batch_size: groups that are taken in an iteration, or more.
        partial: episodes may go on across an exchange of weights. Otherwise everything that was
            begun is complete before one.
    """

    def __init__(self, play: Play, max_lag: int, batch_size: int, partial: bool = True) -> None:
        self.play = play
        self.max_lag = max_lag
        self.batch_size = batch_size
        self.partial = partial
        self._spread = max_lag if partial else 0
        self.iterations: int | None = None
        """Iterations of the run, beyond which nothing is begun; `None`: nobody knows."""
        self.versions: dict[str, int] = {}
        """Policy -> version of the weights that engines have."""
        play.batcher.answers, play.batcher.gate = play.ledger, self._gate
        self._marks = PlayProgress()
        self._jobs: deque[PendingGroup] = deque()
        self._saved: dict[str, Any] | None = None
        self._thread: Background | None = None
        self._failure: BaseException | None = None
        self._age = Staleness()

    # -- what sources do ---------------------------------------------------------------------------

    def num_tasks(self) -> int | None:
        return self.play.num_tasks()

    def plan(self, iterations: int) -> None:
        self.iterations = iterations

    async def take(self, count: int) -> list[Group]:
        """The next `count` groups that are not too old, in the order in which they were begun."""
        with self._age.waiting(), span("waiting"):
            groups = await self._there(self._take(count))
        self._age.note(groups)
        return groups

    async def rest(self, versions: Mapping[str, int]) -> None:
        """Return when the next groups are complete and play rests, so that weights may be
        exchanged; it goes on when groups are taken.

        Args:
            versions: policy -> version of the weights that engines are about to get.
        """
        if self._thread is not None:
            with self._age.waiting(), span("waiting"):
                await self._there(self._rest())
        self._marks.exchange()
        self.versions |= versions

    def metrics(self) -> dict[str, float]:
        """How old the weights were that sampled what was taken since the last call of this, and how
        long learner and engines waited for each other (seconds)."""
        return self._age.take(self.max_lag)

    def state_dict(self) -> dict[str, Any]:
        """Where play stands while it rests: what was begun and not taken, with every answer that
        engines gave there."""
        if self._saved is not None:
            return self._saved | {"versions": dict(self.versions)}
        play = self.play.state_dict()
        if self._jobs:
            play["taken"] = dict(self._jobs[0].before)
        return {
            "play": play,
            "jobs": [{"began": job.began, "ended": job.ended} for job in self._jobs],
            "answers": self.play.ledger.state_dict(),
            "rounds": self.play.batcher.rounds,
            "marks": asdict(self._marks),
            "versions": dict(self.versions),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: what had been begun is begun again when groups are taken. Whatever is
        under way now is broken off."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
            self._age.wake()
        self.play.load_state_dict(state["play"])
        self.play.ledger.load_state_dict(state["answers"])
        self.play.batcher.rounds = state["rounds"]
        self._marks = PlayProgress(**state["marks"])
        self.versions = dict(state["versions"])
        self._jobs.clear()
        self._failure, self._saved = None, state

    def close(self) -> None:
        """End the thread. What was under way is begun again when groups are taken."""
        if self._thread is not None:
            self.load_state_dict(self._thread.run(self.state_dict))

    # -- in the thread of the play -----------------------------------------------------------------

    async def _there(self, job: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in the thread of the play, with a profile of its own."""
        if self._thread is None:
            self._thread = Background("mrlm-play")
            self._saved = self._saved or self.state_dict()

        async def inside() -> T:
            with beside("play"):
                return await job

        return await self._thread.call(inside())

    # -- in the thread of the play: taking ---------------------------------------------------------

    async def _take(self, count: int) -> list[Group]:
        if self._saved is not None:
            self._begin_again(self._saved)
        groups: list[Group] = []
        longest = 0
        while len(groups) < count:
            await self._rest()
            goal = self._marks.taken + count - len(groups)
            if goal > self._marks.goal:
                self._aim(goal, 0)
                await self._rest()
            while self._marks.taken < self._marks.goal and len(groups) < count:
                job = self._jobs.popleft()
                self._marks.taken += 1
                self.play.ledger.forget(job.key)
                group = job.task.result()
                longest = max(longest, (job.ended or 0) - job.began)
                if self._age.date(group, self.versions) <= self.max_lag:
                    groups.append(group)
                else:
                    self._age.drop()
        self.play.failures.checked(groups)
        self._marks.length, self._marks.used = longest, True
        left = None if self.iterations is None else self.iterations - self._marks.exchanges - 1
        ahead = self.max_lag if left is None else max(0, min(self.max_lag, left))
        self._aim(self._marks.taken + min(1, ahead) * self.batch_size, ahead)
        return groups

    async def _rest(self) -> None:
        await self._resting.wait()
        if self._failure is not None:
            raise self._failure

    def _aim(self, goal: int, ahead: int) -> None:
        """While play rests: go on until the first `goal` groups are complete, and begin up to
        `ahead` batches beyond what was taken."""
        marks = self._marks
        marks.goal = goal
        marks.limit = max(marks.limit, goal, marks.taken + ahead * self.batch_size)
        spacing = marks.spacing(self._spread) if ahead > 1 else 0
        marks.until = self.play.batcher.rounds + spacing
        if self._needed():
            self._age.wake()
            self._resting.clear()
            self._begin()
            self._moved.set()

    # -- in the thread of the play: between two rounds ---------------------------------------------

    async def _gate(self) -> None:
        """Everybody who plays waits for an engine: begin what may be begun, and let them go on, or
        rest."""
        await self.play.batcher.settled()
        if self.play.judge():
            await self.play.batcher.settled()  # those who were broken off end
        while True:
            if self._advance():
                return
            self._moved.clear()
            await self._moved.wait()

    def _advance(self) -> bool:
        """Whether play goes on from here, with what may be begun now; otherwise it rests."""
        rounds = self.play.batcher.rounds
        for job in self._jobs:
            if job.ended is None and job.task.done():
                job.ended = rounds
        if self._failure is None and self._needed():
            self._begin()
            return True
        self._age.doze()
        self._resting.set()
        return False

    def _needed(self) -> bool:
        """Whether play goes on."""
        marks = self._marks
        if marks.begun < marks.goal:
            return True
        asked = itertools.islice(self._jobs, marks.goal - marks.taken)
        if not _done(asked):
            return True
        if self.partial and self.play.batcher.rounds >= marks.until:
            return False
        return marks.begun < marks.limit or not _done(self._jobs)

    def _begin(self) -> None:
        """Begin the batches whose time has come."""
        marks, rounds = self._marks, self.play.batcher.rounds
        while marks.begun < marks.limit:
            asked = marks.begun < marks.goal
            early = rounds - marks.last < marks.spacing(self._spread)
            if early and not asked and not _done(self._jobs):
                return
            size = min(self.batch_size, marks.limit - marks.begun)
            for _ in range(max(size, marks.goal - marks.begun)):
                self._jobs.append(self._job(rounds))
            marks.last = rounds

    def _job(self, began: int, ended: int | None = None) -> PendingGroup:
        """The next group, begun."""
        before = dict(self.play.state_dict()["taken"])
        key, play = self.play.begin()
        task = asyncio.get_running_loop().create_task(play)
        task.add_done_callback(self._ended)
        self._marks.begun += 1
        return PendingGroup(key, before, began, task, ended)

    def _begin_again(self, state: Mapping[str, Any]) -> None:
        """Begin what was under way; the answers that were noted bring it to where it was."""
        self._saved = None
        self._moved, self._resting = asyncio.Event(), asyncio.Event()
        self._marks.begun = self._marks.taken
        for row in state["jobs"]:
            self._jobs.append(self._job(row["began"], row["ended"]))
        if not self._jobs:
            self._resting.set()

    def _ended(self, task: asyncio.Task[Group]) -> None:
        """A group is complete, or cannot be."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failure = self._failure or error
            self._resting.set()
        elif _done(self._jobs):  # nobody is left who would come to the gate
            self._advance()

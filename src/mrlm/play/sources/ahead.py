"""Sampling that overlaps with training: groups are started before they are taken, with weights that
may be some updates old by the time they are trained on.

Which weights sample what is counted, never timed. Rollouts proceed in rounds (one call of every
engine with waiting requests), and all decisions fall between two rounds: which groups start, when
sampling pauses, when new weights arrive. So a run is the same however long anything takes.
"""

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
    """A group that was started.

    Args:
        key: prefix of the keys of its requests.
        before: how many tasks of each environment had been started before it.
        began: rounds until then.
        task: the asyncio task that plays it.
        ended: rounds until it was complete; `None` before.
    """

    key: Key
    before: dict[str, int]
    began: int
    task: asyncio.Task[Group]
    ended: int | None = None


@dataclass(slots=True)
class PlayProgress:
    """Progress of sampling, in groups and in rounds.

    Args:
        taken: groups that were handed out.
        begun: groups that were started.
        goal: sampling continues until the first `goal` groups are complete.
        limit: how many groups may be started with the current weights.
        until: sampling continues until this round, if there is anything to sample.
        last: round of the latest start.
        length: rounds of the longest of the latest groups that were taken.
        exchanges: number of weight updates.
        used: whether something was taken since the last one.
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
        """Rounds between the starts of two batches, so that running batches are spread evenly over
        an episode's length."""
        return math.ceil(self.length / max_lag) if max_lag > 1 else 0

    def exchange(self) -> None:
        """Counts a weight update, once for everything that was taken before."""
        self.exchanges += self.used
        self.used = False


def _done(jobs: Iterable[PendingGroup]) -> bool:
    return all(job.task.done() for job in jobs)


class Ahead(EpisodeSource):
    """A source that samples ahead of its consumer.

    While the groups of one iteration are trained on, those of the next are sampled in a thread of
    their own. Groups are handed out in the order in which they were started, the slow ones too, so
    that selection is unbiased. Before a weight update, `rest` waits until the next groups are
    complete and no request is pending. With `max_lag` above 1, episodes of later iterations are
    running then: they take the new weights from their next turn on.

    Args:
        play: samples the groups.
        max_lag: updates that weights may be behind when a group starts with them.
        batch_size: groups that are taken in an iteration, or more.
        partial: episodes may span a weight update. Else all started ones are complete before one.
    """

    def __init__(self, play: Play, max_lag: int, batch_size: int, partial: bool = True) -> None:
        self.play = play
        self.max_lag = max_lag
        self.batch_size = batch_size
        self.partial = partial
        self._spread = max_lag if partial else 0
        self.iterations: int | None = None
        """Iterations of the run, beyond which nothing is started; `None`: unknown."""
        self.versions: dict[str, int] = {}
        """Policy -> version of the weights in the engines."""
        play.batcher.answers, play.batcher.gate = play.answer_log, self._gate
        self._marks = PlayProgress()
        self._jobs: deque[PendingGroup] = deque()
        self._saved: dict[str, Any] | None = None
        self._thread: Background | None = None
        self._failure: BaseException | None = None
        self._age = Staleness()

    # -- methods of every source -------------------------------------------------------------------

    def num_tasks(self) -> int | None:
        return self.play.num_tasks()

    def plan(self, iterations: int) -> None:
        self.iterations = iterations

    async def take(self, count: int) -> list[Group]:
        """The next `count` groups that are not too stale, in the order in which they started."""
        with self._age.waiting(), span("waiting"):
            groups = await self._there(self._take(count))
        self._age.note(groups)
        return groups

    async def pause(self, versions: Mapping[str, int]) -> None:
        """Returns when the next groups are complete and sampling is paused, so that weights may be
        updated; it continues when groups are taken."""
        if self._thread is not None:
            with self._age.waiting(), span("waiting"):
                await self._there(self._rest())
        self._marks.exchange()
        self.versions |= versions

    def metrics(self) -> dict[str, float]:
        """Staleness of the weights that sampled the groups taken since the last call, and the time
        that learner and engines waited for each other (seconds)."""
        return self._age.take(self.max_lag)

    def state_dict(self) -> dict[str, Any]:
        """The state while sampling is paused: groups that were started and not taken, with all
        completions of their engines."""
        if self._saved is not None:
            return self._saved | {"versions": dict(self.versions)}
        play = self.play.state_dict()
        if self._jobs:
            play["taken"] = dict(self._jobs[0].before)
        return {
            "play": play,
            "jobs": [{"began": job.began, "ended": job.ended} for job in self._jobs],
            "answers": self.play.answer_log.state_dict(),
            "rounds": self.play.batcher.rounds,
            "marks": asdict(self._marks),
            "versions": dict(self.versions),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state: its started groups are started again when groups are taken.
        Episodes that are running now are aborted."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
            self._age.wake()
        self.play.load_state_dict(state["play"])
        self.play.answer_log.load_state_dict(state["answers"])
        self.play.batcher.rounds = state["rounds"]
        self._marks = PlayProgress(**state["marks"])
        self.versions = dict(state["versions"])
        self._jobs.clear()
        self._failure, self._saved = None, state

    def close(self) -> None:
        """Ends the thread. Groups that were running are started again when groups are taken."""

        async def state() -> dict[str, Any]:
            return self.state_dict()

        if self._thread is not None:
            self.load_state_dict(self._thread.start(state()).result())

    # -- in the thread of the rollouts -------------------------------------------------------------

    async def _there(self, job: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine in the thread of the rollouts, with a profile of its own."""
        if self._thread is None:
            self._thread = Background("mrlm-play")
            self._saved = self._saved or self.state_dict()

        async def inside() -> T:
            with beside("play"):
                return await job

        return await self._thread.call(inside())

    # -- in the thread of the rollouts: taking -----------------------------------------------------

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
                self.play.answer_log.forget(job.key)
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
        """While paused: sets sampling to continue until the first `goal` groups are complete, and
        to start up to `ahead` batches beyond what was taken."""
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

    # -- in the thread of the rollouts: between two rounds -----------------------------------------

    async def _gate(self) -> None:
        """Called when all running episodes wait for an engine: starts groups that are due, and lets
        the episodes continue, or pauses them."""
        await self.play.batcher.settled()
        if self.play.judge():
            await self.play.batcher.settled()  # aborted episodes end
        while True:
            if self._advance():
                return
            self._moved.clear()
            await self._moved.wait()

    def _advance(self) -> bool:
        """Whether sampling continues, with the groups that may start now; otherwise it pauses."""
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
        marks = self._marks
        if marks.begun < marks.goal:
            return True
        if not _done(itertools.islice(self._jobs, marks.goal - marks.taken)):
            return True
        if self.partial and self.play.batcher.rounds >= marks.until:
            return False
        return marks.begun < marks.limit or not _done(self._jobs)

    def _begin(self) -> None:
        """Starts the batches that are due."""
        marks, rounds = self._marks, self.play.batcher.rounds
        while marks.begun < marks.limit:
            due = marks.begun < marks.goal
            early = rounds - marks.last < marks.spacing(self._spread)
            if early and not due and not _done(self._jobs):
                return
            size = min(self.batch_size, marks.limit - marks.begun)
            for _ in range(max(size, marks.goal - marks.begun)):
                self._jobs.append(self._job(rounds))
            marks.last = rounds

    def _job(self, began: int, ended: int | None = None) -> PendingGroup:
        before = dict(self.play.state_dict()["taken"])
        key, play = self.play.begin()
        task = asyncio.get_running_loop().create_task(play)
        task.add_done_callback(self._ended)
        self._marks.begun += 1
        return PendingGroup(key, before, began, task, ended)

    def _begin_again(self, state: Mapping[str, Any]) -> None:
        """Starts the groups of a state; logged answers bring them to where they were."""
        self._saved = None
        self._moved, self._resting = asyncio.Event(), asyncio.Event()
        self._marks.begun = self._marks.taken
        for row in state["jobs"]:
            self._jobs.append(self._job(row["began"], row["ended"]))
        if not self._jobs:
            self._resting.set()

    def _ended(self, task: asyncio.Task[Group]) -> None:
        """Called when a group is complete or failed."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._failure = self._failure or error
            self._resting.set()
        elif _done(self._jobs):  # no episode is left that would reach the gate
            self._advance()

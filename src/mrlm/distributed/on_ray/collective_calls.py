"""Groups of workers that train one policy with data parallelism: each holds the whole model and
trains on its share of every batch, as with `torchrun`. A group is called like one worker."""

from collections.abc import Sequence
from typing import Any, NoReturn

from mrlm.core.errors import PeerError, WorkerLost
from mrlm.core.sync_async import in_thread
from mrlm.distributed.on_ray.actor_calls import STARTED, WorkerSlot
from mrlm.distributed.on_ray.cluster import import_ray

TOGETHER = frozenset({
    "annotate", "learn", "load", "load_optimizer_state", "renew_reference", "update",
    "update_critic",
})  # fmt: skip
"""Methods that all workers of a group run at once; other methods run on the first worker only."""
GRACE = 10.0
"""Seconds that the other workers have to report their errors after one has failed."""


class WorkerGroup(WorkerSlot):
    """A group of workers, called like its `first` worker, which may sample too; the `others` only
    train. One worker waits `timeout` seconds for another."""

    def __init__(self, first: WorkerSlot, others: Sequence[WorkerSlot], timeout: float) -> None:
        super().__init__(first.name, first.kind, first.arguments, first.pool, first.max_restarts)
        self.others: list[WorkerSlot] = list(others)
        self.timeout: float = timeout

    @property
    def members(self) -> list[WorkerSlot]:
        return [self, *self.others]

    def start(self) -> None:
        super().start()
        for post in self.others:
            post.start()

    def stop(self) -> None:
        super().stop()
        for post in self.others:
            post.stop()

    def connect(self) -> None:
        """Create the process group of the workers."""
        for post in self.others:
            post.ask_now("ready", timeout=STARTED)
        where = WorkerSlot.ask_now(self, "address")
        size = len(self.members)
        calls = [
            (post, WorkerSlot.send(post, "join", rank, size, where, self.timeout))
            for rank, post in enumerate(self.members)
        ]
        for post, answer in calls:
            WorkerSlot.collect(post, answer)

    @property
    def alive(self) -> bool:
        try:
            for post in self.members:
                WorkerSlot.ask_now(post, "ready")
        except WorkerLost:
            return False
        return True

    def send(self, method: str, *arguments: Any, answers: int = 1) -> Any:
        if method not in TOGETHER:
            return super().send(method, *arguments, answers=answers)
        ray = import_ray()
        shared = [ray.put(argument) for argument in arguments]  # put into the object store once
        return [WorkerSlot.send(post, method, *shared) for post in self.members]

    async def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        references = self.send(method, *arguments)
        return await in_thread(lambda: self.collect_all(references))

    async def settle(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return await in_thread(lambda: self.collect(reference))
        return await super().settle(reference)

    def collect(self, reference: Any, timeout: float | None = None) -> Any:
        if isinstance(reference, list):
            return self.collect_all(reference)[0]
        return super().collect(reference, timeout)

    def collect_all(self, references: Any) -> list[Any]:
        """The results of all workers; the error of any of them is raised. Raises `WorkerLost`: one
        of them is gone, and the others are stopped, as their process group cannot continue."""
        ray = import_ray()
        waiting, failed = list(references), False
        while waiting and not failed:
            ready, waiting = ray.wait(waiting, num_returns=1)
            failed = self._error(references.index(ready[0]), ready[0]) is not None
        if not failed:
            return ray.get(references)
        ready, waiting = ray.wait(references, num_returns=len(references), timeout=GRACE)
        errors = [self._error(references.index(item), item) for item in ready]
        self._give_up([item for item in errors if item is not None], stuck=bool(waiting))

    def _error(self, rank: int, reference: Any) -> Exception | None:
        try:
            WorkerSlot.collect(self.members[rank], reference)
        except Exception as error:
            return error
        return None

    def _give_up(self, errors: Sequence[Exception], stuck: bool) -> NoReturn:
        """Raise the root cause: an error of the computation rather than a lost worker, and that
        rather than a timeout of a worker that waited for it."""
        worst = min(errors, key=lambda e: (isinstance(e, PeerError), isinstance(e, WorkerLost)))
        if stuck or isinstance(worst, PeerError | WorkerLost):
            self.stop()
        if isinstance(worst, PeerError):
            raise WorkerLost(f"{self.name}: its workers lost one another ({worst})") from worst
        raise worst

"""Calls of Ray actors. A caller does not notice when an actor is replaced. An error in a worker is
raised here with its own type; a worker that is gone is a `WorkerLost`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mrlm.core.errors import ConfigError, EndpointError, MRLMError, WorkerLost
from mrlm.core.log import log
from mrlm.distributed.on_ray.cluster import ActorPool, import_ray

STARTED = 300.0
"""Seconds in which the process of a worker with reserved resources has to answer."""


@dataclass(eq=False, repr=False)
class WorkerSlot:
    """A worker and its replacements.

    Args:
        name: its name in messages.
        kind, arguments: class of the actor, and its constructor arguments.
        pool: the resources it uses.
        max_restarts: most replacements.
        taught: called after a replacement was started, to bring it up to date.
    """

    name: str
    kind: type
    arguments: tuple[Any, ...]
    pool: ActorPool
    max_restarts: int
    taught: "Callable[[WorkerSlot], None] | None" = None
    restarts: int = field(default=0, init=False)
    """Times that its worker was lost."""
    handle: Any = field(default=None, init=False)

    @property
    def members(self) -> "list[WorkerSlot]":
        """The workers behind this one: itself, unless it is a worker group."""
        return [self]

    def start(self) -> None:
        ray = import_ray()
        options = self.pool.options() | {"max_restarts": 0}
        self.handle = ray.remote(self.kind).options(**options).remote(*self.arguments)

    def restart(self, wait: bool = True) -> None:
        """Replace a lost worker; with `wait`, return when the process of the new one answers.
        Raises `EndpointError`: too many replacements; `WorkerLost`: the new one is lost too."""
        self.restarts += 1
        if self.restarts > self.max_restarts:
            raise EndpointError(
                f"{self.name} was lost {self.restarts} times, which is more often than it may be "
                f"restarted (distributed.ray.max_restarts={self.max_restarts}); see its log"
            )
        log.info("%s is restarted (%d)", self.name, self.restarts)
        self.stop()
        self.start()
        if wait:
            self.ask_now("ready", timeout=STARTED)
            self.connect()
        if self.taught is not None:
            self.taught(self)

    def connect(self) -> None:
        """Connect the worker with its peers, once its process answers."""

    def stop(self) -> None:
        ray = import_ray()
        if self.handle is not None and ray.is_initialized():
            ray.kill(self.handle, no_restart=True)
        self.handle = None

    @property
    def alive(self) -> bool:
        try:
            self.ask_now("ready")
        except WorkerLost:
            return False
        return True

    def send(self, method: str, *arguments: Any, answers: int = 1) -> Any:
        """Call a method, and return the reference of its result, or `answers` of them."""
        if self.handle is None:
            raise WorkerLost(f"{self.name} is not running")
        return getattr(self.handle, method).options(num_returns=answers).remote(*arguments)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method and await its result. Raises `WorkerLost`, or the worker's own error."""
        return await self.settle(self.send(method, *arguments))

    async def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """The results of all members; errors as for `ask`."""
        return [await self.ask(method, *arguments)]

    async def settle(self, reference: Any) -> Any:
        """Await the result of a reference; errors as for `ask`."""
        try:
            return await reference
        except Exception as error:
            self._raise(error)

    def ask_now(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Call a method and block; after `timeout` seconds the worker counts as lost."""
        return self.collect(self.send(method, *arguments), timeout)

    def collect(self, reference: Any, timeout: float | None = None) -> Any:
        """Block until the result of a reference is available."""
        ray = import_ray()
        try:
            return ray.get(reference, timeout=timeout)
        except Exception as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        from ray import exceptions

        if isinstance(error, exceptions.RayTaskError):
            cause = getattr(error, "cause", None)
            if isinstance(cause, MRLMError):
                raise cause from None
            if isinstance(cause, Exception) and not isinstance(cause, exceptions.RayError):
                raise cause from error
        if isinstance(error, exceptions.RayError):
            raise WorkerLost(f"{self.name} was lost ({type(error).__name__})") from error
        raise error


def begin(posts: list[WorkerSlot]) -> None:
    """Start workers in parallel, and wait until their processes answer."""
    for post in posts:
        post.start()
    for post in posts:
        try:
            post.ask_now("ready", timeout=STARTED)
            post.connect()
        except WorkerLost as lost:
            cause = str(lost.__cause__).strip().splitlines()
            raise ConfigError(
                f"{post.name} did not start within {STARTED:g} s: {cause[0] if cause else lost}"
            ) from lost

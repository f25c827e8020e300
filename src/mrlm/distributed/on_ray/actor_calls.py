"""A post is a place that a worker has: who asks it does not notice when another one takes it over.
What goes wrong at a worker arrives here as the error it is; a worker that is gone is a
`WorkerLost`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from mrlm.core.errors import ConfigError, EndpointError, MRLMError, WorkerLost
from mrlm.distributed.on_ray.cluster import ActorPool, import_ray

log: logging.Logger = logging.getLogger("mrlm")

STARTED = 300.0
"""Seconds in which the process of a worker, whose resources are reserved, has to answer."""


class Post:
    """A worker, and how another takes its place.

    Args:
        name: what to call it in messages.
        kind: the class that lives there.
        arguments: what it is made with.
        pool: whose resources it uses.
        max_restarts: times it is started anew.
        taught: called with the post when a worker has taken it: what a fresh one must be told.
    """

    def __init__(
        self,
        name: str,
        kind: type,
        arguments: tuple[Any, ...],
        pool: ActorPool,
        max_restarts: int,
        taught: Callable[[Post], None] | None = None,
    ) -> None:
        self.name: str = name
        self.kind: type = kind
        self.arguments: tuple[Any, ...] = arguments
        self.pool: ActorPool = pool
        self.max_restarts: int = max_restarts
        self.taught: Callable[[Post], None] | None = taught
        self.restarts: int = 0
        """Times a worker was lost here."""
        self.handle: Any = None

    @property
    def members(self) -> list[Post]:
        """Who is asked here: one worker, where it is not a team."""
        return [self]

    def start(self) -> None:
        """Let a worker begin; it is not waited for."""
        ray = import_ray()
        options = self.pool.options() | {"max_restarts": 0}
        self.handle = ray.remote(self.kind).options(**options).remote(*self.arguments)

    def restart(self, wait: bool = True) -> None:
        """Let another worker take the place of one that was lost.

        Args:
            wait: return only when its process answers.

        Raises:
            EndpointError: that happened too often.
            WorkerLost: the new one does not begin either.
        """
        self.restarts += 1
        if self.restarts > self.max_restarts:
            raise EndpointError(
                f"{self.name} was lost {self.restarts} times, which is more often than it is "
                f"started anew (distributed.ray.max_restarts={self.max_restarts}); look into its "
                "log"
            )
        log.info("%s is started anew (%d)", self.name, self.restarts)
        self.stop()
        self.start()
        if wait:
            self.ask_now("ready", timeout=STARTED)
            self.meet()
        if self.taught is not None:
            self.taught(self)

    def meet(self) -> None:
        """Find those it works with, once its process answers."""

    def stop(self) -> None:
        """End the worker, whatever it does."""
        ray = import_ray()
        if self.handle is not None and ray.is_initialized():
            ray.kill(self.handle, no_restart=True)
        self.handle = None

    @property
    def alive(self) -> bool:
        """Whether the worker answers."""
        try:
            self.ask_now("ready")
        except WorkerLost:
            return False
        return True

    def send(self, method: str, *arguments: Any, answers: int = 1) -> Any:
        """Ask, and return what the answer will be in: a reference, or `answers` of them."""
        if self.handle is None:
            raise WorkerLost(f"{self.name} is not there")
        return getattr(self.handle, method).options(num_returns=answers).remote(*arguments)

    async def ask(self, method: str, *arguments: Any) -> Any:
        """The answer to a question.

        Raises:
            WorkerLost: the worker is gone.
            MRLMError: what it raised.
        """
        return await self.settle(self.send(method, *arguments))

    async def ask_all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all who work here; errors are those of `ask`."""
        return [await self.ask(method, *arguments)]

    async def settle(self, reference: Any) -> Any:
        """The answer that is in a reference; errors are those of `ask`."""
        try:
            return await reference
        except Exception as error:
            self._raise(error)

    def ask_now(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The same from ordinary code.

        Args:
            method: what is asked.
            arguments: with what.
            timeout: seconds after which the worker counts as lost.
        """
        return self.collect(self.send(method, *arguments), timeout)

    def collect(self, reference: Any, timeout: float | None = None) -> Any:
        """The answer that is in a reference, from ordinary code."""
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


def begin(posts: list[Post]) -> None:
    """Start workers side by side, and wait until their processes answer."""
    for post in posts:
        post.start()
    for post in posts:
        try:
            post.ask_now("ready", timeout=STARTED)
            post.meet()
        except WorkerLost as lost:
            cause = str(lost.__cause__).strip().splitlines()
            raise ConfigError(
                f"{post.name} did not start within {STARTED:g} s: {cause[0] if cause else lost}"
            ) from lost

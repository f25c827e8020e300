"""A world that lives on an environment server, as an `Environment` like any other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, EpisodeError, MRLMError
from mrlm.core.types import Message, StepResult, Task
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.calling import (
    Broken,
    Pauses,
    SessionLost,
    Unreachable,
    start,
    there,
    waited,
)
from mrlm.serving.client.pool import ServerPool
from mrlm.serving.client.session import ClientSession
from mrlm.serving.protocol import codec

log: logging.Logger = logging.getLogger("mrlm")

STARTING = 30.0
"""Seconds within which a server has to say what its world is, when a run begins."""
KEPT = 4096
"""Tasks that are kept."""
TRIES = 3
"""Times that a call is sent to one server at the start of an episode, before another is tried."""


@dataclass(slots=True)
class _Known:
    """What all instances of one world share.

    Args:
        pool: where it lives.
        world: its name and arguments.
        said: what the server says of it.
        deadline: seconds a call may take, with everything that is tried again.
        patience: seconds until a call that has no answer is sent again.
    """

    pool: ServerPool
    world: pb.World
    said: pb.Description
    deadline: float
    patience: float
    with_state: bool = False
    tasks: OrderedDict[tuple[str, int], pb.Task] = field(default_factory=OrderedDict)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def until(self) -> float:
        return time.monotonic() + self.deadline


class RemoteEnvironment(Environment):
    """A world on an environment server (`mrlm serve --environments ...`), in the place of the same
    world in this process: the same tasks, observations, rewards and experts.

    An episode is a session on one server. Calls that were lost on the way are sent again, and a
    step happens once. When a server fails at the start of an episode another one takes it;
    later, the episode ends as one that failed, and `retries:` plays it again.

    Args:
        environment: its name on the server, or `module:Class` there.
        server: the address of the server, a list of them, or a `ServerPool`.
        token, token_env, tls_ca, tls_cert, tls_key, servers_file: as `ServerPool` takes them.
        deadline: seconds a call may take, with everything that is tried again.
        patience: seconds until a call that has no answer is sent again.
        arguments: of the world's constructor, where their names are those above.
        **more: all others; they travel as JSON.

    Raises:
        ConfigError: no server can be reached, or it refuses: a wrong token, an unknown world,
            arguments that do not fit, a certificate that is not trusted.

    Example:
        >>> world = RemoteEnvironment("math", server="localhost:50051", max_attempts=2)
    """

    def __init__(
        self,
        environment: str,
        *,
        server: str | Sequence[str] | ServerPool = (),
        token: str | None = None,
        token_env: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        servers_file: str | None = None,
        deadline: float = 60.0,
        patience: float = 20.0,
        arguments: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        words = {
            "token": token,
            "token_env": token_env,
            "tls_ca": tls_ca,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "servers_file": servers_file,
        }
        if isinstance(server, ServerPool):
            given = [name for name, value in words.items() if value is not None]
            if given:
                raise ConfigError(f"{given[0]} is said to the ServerPool, not to the environment")
            pool = server
        else:
            pool = ServerPool(server, **words)
        world = pb.World(
            environment=environment,
            arguments_json=_arguments_json(environment, {**(arguments or {}), **more}),
        )
        said = _described(pool, world, patience)
        self._known = _Known(pool, world, said, deadline, patience)
        self.name: str = said.name or environment.rsplit(":", 1)[-1].lower()
        self.agents: tuple[str, ...] = tuple(said.agents)
        self.max_turns: int | None = said.max_turns if said.HasField("max_turns") else None
        self._session: Future[ClientSession] | None = None
        self._state: str | None = None
        self._told = False  # whether results of the session say the state
        self._over = False

    @property
    def pool(self) -> ServerPool:
        """The servers it is played on."""
        return self._known.pool

    @property
    def seeded(self) -> bool:
        return self._known.said.reproducible

    @property
    def counts_turns(self) -> bool:
        return self._known.said.counts_turns

    # -- before an episode --

    def num_tasks(self, split: Split = "train") -> int | None:
        said = self._known.said
        name = "eval_tasks" if split == "eval" else "train_tasks"
        return getattr(said, name) if said.HasField(name) else None

    def task(self, seed: int, split: Split = "train") -> Task:
        known, key = self._known, (split, seed)
        with known.lock:
            found = known.tasks.get(key)
        if found is None:
            request = pb.TaskRequest(world=known.world, seed=seed, split=split)
            found = waited(known.pool.ask("GetTask", request, known.until, known.patience))
            with known.lock:
                known.tasks[key] = found
                while len(known.tasks) > KEPT:
                    known.tasks.popitem(last=False)
        return codec.task_of(found)

    def spawn(self) -> RemoteEnvironment:
        fresh = self._copied()
        fresh._session = fresh._state = None
        return fresh

    # -- an episode --

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        """Start an episode, on whichever server takes it."""
        sent = None if task is None else codec.to_task(task)
        return self._seen(await there(self._reset(pb.Reset(task=sent, seed=seed))))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Answer the agents' messages."""
        said = {agent: codec.to_message(message) for agent, message in actions.items()}
        call = pb.Step(actions=said, order=list(actions))
        return self._seen(await there(self._call("step", call)))

    def state(self) -> str | None:
        if self._told and not self._over:  # what is over says it no more
            return self._state
        self._known.with_state = True  # from now on, whatever answers says it too
        return self._said("state", pb.State())

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        seen = [codec.to_message(message) for message in messages]
        return self._said("expert", pb.Expert(agent=agent, messages=seen))

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            start(_closed(session))

    def __deepcopy__(self, memo: object) -> RemoteEnvironment:
        """One that goes on from here. The server copies its world; whoever plays the copy first
        waits for that."""
        twin = self._copied()
        if self._session is not None:
            twin._session = start(self._forked(self._session))
        return twin

    def _copied(self) -> RemoteEnvironment:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> Any:
        """For another process: the same world, of which nothing is played yet."""
        if self._session is not None:
            raise TypeError("an episode that is being played stays in its process")
        known = self._known
        return _again, (known.pool, known.world.SerializeToString(), known.deadline, known.patience)

    # -- in the loop of all channels --

    async def _reset(self, call: pb.Reset) -> pb.Reply:
        known, until, pauses = self._known, self._known.until, Pauses()
        while True:
            session = await self._opened(until)
            try:
                return await session.call("reset", call, until, attempts=TRIES)
            except (SessionLost, Unreachable) as error:
                self._session = None
                await session.abandon()
                if isinstance(error, Unreachable):
                    session.link.failed(str(error))
                pause = pauses.take()
                if time.monotonic() + pause >= until:
                    raise
            log.info("environment %r: the episode begins anew elsewhere", known.world.environment)
            await asyncio.sleep(pause)

    async def _opened(self, until: float) -> ClientSession:
        """The session of this instance; where there is none, a new one on whichever server has
        room."""
        if self._session is not None:
            return await _settled(self._session)
        known = self._known
        while True:
            link = await known.pool.choose(until)
            session = ClientSession(link, known.world.environment, known.patience)
            self._told = known.with_state
            try:
                await session.open(known.world, self._told, until, TRIES)
            except Broken as error:
                reason = error.final(link.address)
                if reason:
                    link.refuses(reason)
                else:
                    link.busy(error.retry_after)
            except ConfigError as error:
                link.refuses(str(error))
            except Unreachable as error:
                link.failed(str(error))
            else:
                self._session = Future()
                self._session.set_result(session)
                return session
            await session.abandon()

    async def _call(self, kind: str, what: Any) -> pb.Reply:
        until = self._known.until
        session = await self._opened(until)
        return await session.call(kind, what, until)

    async def _forked(self, origin: Future[ClientSession]) -> ClientSession:
        return await (await _settled(origin)).fork(self._known.until)

    def _said(self, kind: str, what: Any) -> str | None:
        said = waited(self._call(kind, what)).said
        return said.text if said.HasField("text") else None

    def _seen(self, reply: pb.Reply) -> StepResult:
        record = reply.result
        self._over = record.done
        self._state = record.state if record.HasField("state") else None
        return codec.result_of(record)


async def _settled(session: Future[ClientSession]) -> ClientSession:
    """A session that may still be on its way; giving up waiting for it does not end it."""
    return await asyncio.shield(asyncio.wrap_future(session))


async def _closed(session: Future[ClientSession]) -> None:
    with contextlib.suppress(MRLMError):  # one that was never forked needs no end
        await (await _settled(session)).close()


def _again(pool: ServerPool, world: bytes, deadline: float, patience: float) -> RemoteEnvironment:
    """What `__reduce__` says."""
    record = pb.World.FromString(world)
    given = codec.json_of(record.arguments_json, "arguments")
    return RemoteEnvironment(
        record.environment, server=pool, arguments=given, deadline=deadline, patience=patience
    )


def _arguments_json(environment: str, given: Mapping[str, Any]) -> str:
    try:
        return codec.to_json(dict(given), f"environment {environment!r}: the argument") or ""
    except EpisodeError as error:
        raise ConfigError(
            f"{error}; a remote world's arguments travel to its server as JSON"
        ) from None


def _described(pool: ServerPool, world: pb.World, patience: float) -> pb.Description:
    """What the servers say of the world, before anything is played."""
    name = world.environment
    until = time.monotonic() + STARTING
    try:
        return waited(pool.ask("Describe", world, until, max(patience, STARTING)))
    except Unreachable as error:
        first = pool.addresses[0] if pool.addresses else "localhost:50051"
        raise ConfigError(
            f"environment {name!r}: {error}; start a server with `mrlm serve --environments "
            f"{name} --port {first.rpartition(':')[2]}` and wait for it with `mrlm info --server "
            f"{first} --wait 30`"
        ) from None
    except (ConfigError, EpisodeError) as error:
        raise ConfigError(f"environment {name!r}: {error}") from None

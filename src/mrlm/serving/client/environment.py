"""An environment that runs on an environment server, used like any other `Environment`."""

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, EpisodeError, MRLMError
from mrlm.core.log import log
from mrlm.core.types import Message, StepResult, Task
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client import calling
from mrlm.serving.client.pool import ServerPool
from mrlm.serving.client.session import ClientSession
from mrlm.serving.protocol import codec

STARTING = 30.0
"""Seconds in which a server has to describe its environment when a run begins."""
KEPT = 4096
"""Number of tasks that are cached."""
TRIES = 3
"""Times that the first call of an episode is sent before another server is tried."""


@dataclass(slots=True)
class _Shared:
    """State that all instances of one remote environment share: its name and arguments (`wanted`),
    the server's description of it, and the times of `RemoteEnvironment`."""

    pool: ServerPool
    wanted: pb.World
    description: pb.Description
    deadline: float
    patience: float
    with_state: bool = False
    with_board: bool = False
    tasks: OrderedDict[tuple[str, int], pb.Task] = field(default_factory=OrderedDict)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def until(self) -> float:
        return time.monotonic() + self.deadline


class RemoteEnvironment(Environment):
    """A remote environment (`mrlm serve --environments ...`) with the tasks, observations, rewards
    and experts of the local one.

    An episode is a session on one server. Lost calls are sent again, and every step is executed
    once. If a server fails at the start of an episode, another one takes over; later, the episode
    is marked as failed and `retries:` plays it again.

    Args:
        environment: its name on the server, or `module:Class` there.
        server: the address of the server, a list of them, or a `ServerPool`.
        token, token_env, tls_ca, tls_cert, tls_key, servers_file: as for `ServerPool`.
        deadline: seconds a call may take, including retries.
        patience: seconds until an unanswered call is sent again.
        arguments: constructor arguments whose names collide with those above.
        **more: all other constructor arguments; they are sent as JSON.

    Raises:
        ConfigError: no server can be reached, or the server refuses: wrong token, unknown
            environment, arguments that do not fit, untrusted certificate.

    Examples:
        >>> env = RemoteEnvironment("math", server="localhost:50051", max_attempts=2)
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
        words = {"token": token, "token_env": token_env, "servers_file": servers_file}
        words |= {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        if isinstance(server, ServerPool):
            names = [name for name, value in words.items() if value is not None]
            if names:
                raise ConfigError(f"{names[0]}: give it to the ServerPool, not to the environment")
            pool = server
        else:
            pool = ServerPool(server, **words)
        spec = pb.World(
            environment=environment,
            arguments_json=_arguments_json(environment, {**(arguments or {}), **more}),
        )
        description = _described(pool, spec, patience)
        self._shared = _Shared(pool, spec, description, deadline, patience)
        self.name: str = description.name or environment.rsplit(":", 1)[-1].lower()
        self.agents: tuple[str, ...] = tuple(description.agents)
        self.max_turns: int | None = (
            description.max_turns if description.HasField("max_turns") else None
        )
        self._session: Future[ClientSession] | None = None
        self._state: str | None = None
        self._with_state = False  # whether results of the session include the state
        self._with_board = False
        self._board: str | None = None
        self._over = False

    @property
    def pool(self) -> ServerPool:
        """The servers that run its episodes."""
        return self._shared.pool

    @property
    def seeded(self) -> bool:
        return self._shared.description.reproducible

    @property
    def counts_turns(self) -> bool:
        return self._shared.description.counts_turns

    # -- before an episode --

    def num_tasks(self, split: Split = "train") -> int | None:
        info = self._shared.description
        name = "eval_tasks" if split == "eval" else "train_tasks"
        return getattr(info, name) if info.HasField(name) else None

    def task(self, seed: int, split: Split = "train") -> Task:
        shared, key = self._shared, (split, seed)
        with shared.lock:
            reply = shared.tasks.get(key)
        if reply is None:
            request = pb.TaskRequest(world=shared.wanted, seed=seed, split=split)
            reply = calling.waited(
                shared.pool.ask("GetTask", request, shared.until, shared.patience)
            )
            with shared.lock:
                shared.tasks[key] = reply
                while len(shared.tasks) > KEPT:
                    shared.tasks.popitem(last=False)
        return codec.task_of(reply)

    def spawn(self) -> "RemoteEnvironment":
        fresh = self._copied()
        fresh._session = fresh._state = fresh._board = None
        return fresh

    # -- an episode --

    async def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        """Start an episode on the first server with room."""
        sent = None if task is None else codec.to_task(task)
        return self._seen(await calling.there(self._reset(pb.Reset(task=sent, seed=seed))))

    async def step(self, actions: dict[str, Message]) -> StepResult:
        """Send the agents' messages and return the environment's answer."""
        sent = {agent: codec.to_message(message) for agent, message in actions.items()}
        call = pb.Step(actions=sent, order=list(actions))
        return self._seen(await calling.there(self._call("step", call)))

    def state(self) -> str | None:
        if self._with_state and not self._over:  # the state of a finished episode is not available
            return self._state
        self._shared.with_state = True  # from now on, every result includes it
        return _text_of(calling.waited(self._call("state", pb.State())))

    def render(self, agent: str | None = None) -> str | None:
        if not self._shared.description.draws:
            return None
        if agent is None:
            if self._with_board:
                return self._board
            self._shared.with_board = True  # from now on, every result includes it
        reply = calling.waited(self._call("render", pb.Render(agent=agent)))
        return codec.board_of(reply.board)

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        seen = [codec.to_message(message) for message in messages]
        return _text_of(calling.waited(self._call("expert", pb.Expert(agent=agent, messages=seen))))

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            calling.start(_closed(session))

    def __deepcopy__(self, memo: object) -> "RemoteEnvironment":
        """A copy that continues from the current state, once the server has made its own."""
        twin = self._copied()
        if self._session is not None:
            twin._session = calling.start(_forked(self._session, self._shared))
        return twin

    def _copied(self) -> "RemoteEnvironment":
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> Any:
        """Pickle as a fresh instance: the same environment without its current episode."""
        if self._session is not None:
            raise TypeError(
                "an environment in the middle of an episode cannot be pickled; close it first"
            )
        shared = self._shared
        values = codec.json_of(shared.wanted.arguments_json, "arguments")
        fresh = partial(
            RemoteEnvironment,
            shared.wanted.environment,
            server=shared.pool,
            arguments=values,
            deadline=shared.deadline,
            patience=shared.patience,
        )
        return fresh, ()

    # -- in the loop of all channels --

    async def _reset(self, call: pb.Reset) -> pb.Reply:
        shared, until, pauses = self._shared, self._shared.until, calling.Pauses()
        while True:
            session = await self._opened(until)
            try:
                return await session.call("reset", call, until, attempts=TRIES)
            except (calling.SessionLost, calling.Unreachable) as error:
                self._session = None
                await session.abandon()
                if isinstance(error, calling.Unreachable):
                    session.link.failed(str(error))
                pause = pauses.take()
                if time.monotonic() + pause >= until:
                    raise
            log.info(
                "environment %r: the episode is restarted on another server",
                shared.wanted.environment,
            )
            await asyncio.sleep(pause)

    async def _opened(self, until: float) -> ClientSession:
        """The session of this instance; opens one on a server with room if there is none."""
        if self._session is not None:
            return await _settled(self._session)
        shared = self._shared
        while True:
            link = await shared.pool.choose(until)
            session = ClientSession(link, shared.wanted.environment, shared.patience)
            self._with_state, self._with_board = shared.with_state, shared.with_board
            call = pb.Open(
                world=shared.wanted, with_state=shared.with_state, with_board=shared.with_board
            )
            try:
                await session.open(call, until, TRIES)
            except calling.Broken as error:
                link.judge(error)
            except ConfigError as error:
                link.refuses(str(error))
            except calling.Unreachable as error:
                link.failed(str(error))
            else:
                self._session = Future()
                self._session.set_result(session)
                return session
            await session.abandon()

    async def _call(self, kind: str, what: Any) -> pb.Reply:
        until = self._shared.until
        session = await self._opened(until)
        return await session.call(kind, what, until)

    def _seen(self, reply: pb.Reply) -> StepResult:
        record = reply.result
        self._over = record.done
        self._state = record.state if record.HasField("state") else None
        self._board = codec.board_of(record.board)
        return codec.result_of(record)


def _text_of(reply: pb.Reply) -> str | None:
    return reply.said.text if reply.said.HasField("text") else None


async def _settled(session: Future[ClientSession]) -> ClientSession:
    """Await a session that is still being opened; cancelling the wait does not end it."""
    return await asyncio.shield(asyncio.wrap_future(session))


async def _forked(origin: Future[ClientSession], shared: _Shared) -> ClientSession:
    return await (await _settled(origin)).fork(shared.until)


async def _closed(session: Future[ClientSession]) -> None:
    with contextlib.suppress(MRLMError):  # a fork that failed needs no close
        await (await _settled(session)).close()


def _arguments_json(environment: str, arguments: Mapping[str, Any]) -> str:
    try:
        return codec.to_json(dict(arguments), f"environment {environment!r}: the argument") or ""
    except EpisodeError as error:
        raise ConfigError(
            f"{error}; a remote environment's arguments are sent to its server as JSON"
        ) from None


def _described(pool: ServerPool, spec: pb.World, patience: float) -> pb.Description:
    """The servers' description of the environment, read before any episode."""
    name = spec.environment
    until = time.monotonic() + STARTING
    try:
        return calling.waited(pool.ask("Describe", spec, until, max(patience, STARTING)))
    except calling.Unreachable as error:
        first = pool.addresses[0] if pool.addresses else "localhost:50051"
        raise ConfigError(
            f"environment {name!r}: {error}; start a server with `mrlm serve --environments "
            f"{name} --port {first.rpartition(':')[2]}` and wait for it with `mrlm info --server "
            f"{first} --wait 30`"
        ) from None
    except (ConfigError, EpisodeError) as error:
        raise ConfigError(f"environment {name!r}: {error}") from None

"""Environments and their sessions inside a worker, from decoded requests to encoded results."""

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import DecodeError

from mrlm.config.plugins import accepted, fitted_arguments
from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment, validated_reward
from mrlm.core.errors import EpisodeError
from mrlm.core.stepping import is_async, is_pending
from mrlm.core.sync_async import BackgroundJobs, in_thread
from mrlm.core.types import StepResult
from mrlm.play.proof import check_rows
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.ipc import End, Op
from mrlm.serving.protocol import codec
from mrlm.serving.protocol.replies import RefusedError, SlowError, failure_of, log_failure

MOST_TEMPLATES = 64
"""Environments with different arguments that are kept ready."""
SPLITS = ("train", "eval")
FORK = "fork"
"""Name of the copy operation, which is not a method of an environment."""


@dataclass(slots=True)
class OpenSession:
    """A session: one environment instance, which is its own. A call may take `timeout` seconds;
    every result includes the state if `with_state`, and the board if `with_board`; `begun`: it was
    reset."""

    environment: Environment
    name: str
    timeout: float
    with_state: bool = False
    with_board: bool = False
    begun: bool = False

    async def answered(self, what: str, call: Callable[[], Any]) -> Any:
        """Call a method within its time limit: a coroutine is awaited, one that may block runs in a
        thread. Raises `SlowError`: it took longer; it keeps running unattended."""
        environment, timeout = self.environment, self.timeout
        coroutine = what != FORK and is_async(getattr(environment, what))
        if environment.blocking and not coroutine:
            answer = await _in_time(in_thread(call), timeout, hung=True)
        else:
            answer = call()
        return await _in_time(answer, timeout, hung=False) if is_pending(answer) else answer

    async def encoded(self, result: Any) -> pb.StepResult:
        """A result as a protocol message, checked."""
        if not isinstance(result, StepResult):
            raise EpisodeError(f"it returned {type(result).__name__}, not a StepResult")
        for agent, reward in result.rewards.items():
            result.rewards[agent] = validated_reward(reward, f"agent {agent!r}")
        state = None
        if self.with_state and not result.done:
            state = await self.answered("state", self.environment.state)
        board = None
        if self.with_board and self.environment.draws:
            board = await self.drawn(None)
        return codec.to_result(result, state, board)

    async def drawn(self, agent: str | None) -> pb.Board:
        """The board of spectators, or of an agent; empty after an error, which is logged: a drawing
        never ends a session."""
        try:
            board = await self.answered("render", lambda: self.environment.render(agent))
            return codec.to_board(board)
        except Exception as error:
            log_failure(error, f"environment {self.name!r}: render")
            return pb.Board()

    async def close(self) -> None:
        """Close the instance; errors are logged."""
        try:
            await self.answered("close", self.environment.close)
        except Exception as error:
            log_failure(error, f"environment {self.name!r}: close")


@dataclass(slots=True)
class EnvironmentTemplate(OpenSession):
    """An environment with its arguments, from which instances are copied, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answered(self, what: str, call: Callable[[], Any]) -> Any:
        """Call it while no other call is running, and return the result."""
        async with self.lock:
            return await OpenSession.answered(self, what, call)


class Host:
    """The sessions of one worker. `served` maps a name to `reference` (of the plug-in),
    `arguments`, `timeout`, and whether the arguments are complete (`whole`); an answer has
    `most_bytes` at most; clients may pass arguments if `arguments` is set. Raises `ConfigError`: an
    environment does not exist, or its arguments do not fit."""

    def __init__(self, served: Mapping[str, Any], most_bytes: int, arguments: bool) -> None:
        self._served = served
        self._plugins = {
            name: registry.load("environments", env["reference"]) for name, env in served.items()
        }
        self._most_bytes, self._arguments = most_bytes, arguments
        for name in (name for name, env in served.items() if env["whole"]):
            self._fitted(name, self._given(name, ""))
        self._sessions: dict[bytes, OpenSession] = {}
        self._closing = BackgroundJobs()
        self._templates = OrderedDict[tuple[str, str], asyncio.Task[EnvironmentTemplate]]()

    async def answer(self, op: int, session: bytes, body: bytes) -> tuple[End, bytes]:
        """Execute an operation; returns the outcome, and a protocol message: the result, or a
        `Failure`. A `CALL` is answered by a whole `Reply`."""
        instance = self._sessions.get(session)
        what = "the environment" if instance is None else f"the environment {instance.name!r}"
        opening = op in (Op.OPEN, Op.DESCRIBE, Op.TASK)
        try:
            if op == Op.CALL:
                request = pb.Request.FromString(body)
                what = f"{what}: {request.WhichOneof('call')}"
                result = await self._call(self._sessions[session], request)
            else:
                what = f"{what}: {Op(op).name.lower()}"
                result = await self._other(op, session, body)
            self._check_size(result)
            return End.DONE, result
        except DecodeError:
            return self._failed(
                session, RefusedError("the message is not one of the protocol"), what
            )
        except Exception as error:  # any error of an environment ends its session, and nothing else
            return self._failed(session, error, what, opening)

    def close(self) -> None:
        for instance in self._sessions.values():
            with suppress(Exception):
                instance.environment.close()

    # -- operations -----------------------------------------------------------------------------

    async def _other(self, op: int, session: bytes, body: bytes) -> bytes:
        if op == Op.OPEN:
            opened = pb.Open.FromString(body)
            template = await self._template(opened.world)
            environment = await template.answered("spawn", template.environment.spawn)
            self._sessions[session] = OpenSession(
                environment, template.name, template.timeout, opened.with_state, opened.with_board
            )
        elif op == Op.FORK:
            instance = self._sessions[session]
            twin = await instance.answered(FORK, lambda: copy.deepcopy(instance.environment))
            self._sessions[body] = replace(instance, environment=twin)
        elif op == Op.CLOSE:
            instance = self._sessions.pop(session, None)
            if instance is not None:
                await instance.close()
        elif op == Op.DESCRIBE:
            return _description(await self._template(pb.World.FromString(body)))
        else:
            return await self._task(pb.TaskRequest.FromString(body))
        return b""

    async def _task(self, request: pb.TaskRequest) -> bytes:
        template = await self._template(request.world)
        if request.split not in SPLITS:
            raise RefusedError(f"unknown split {request.split!r} (known: train, eval)")
        split = "eval" if request.split == "eval" else "train"
        env = template.environment
        count = env.num_tasks(split)
        if count is not None and request.seed >= count:
            raise RefusedError(
                f"environment {template.name!r} has {count} {split} tasks, no number {request.seed}"
            )
        task = await template.answered("task", lambda: env.task(request.seed, split))
        return codec.to_task(task).SerializeToString()

    async def _call(self, instance: OpenSession, request: pb.Request) -> bytes:
        reply = pb.Reply(session=request.session, seq=request.seq)
        kind = request.WhichOneof("call") or "state"
        if kind != "reset" and not instance.begun:
            raise RefusedError(f"environment {instance.name!r} was not reset yet; reset it first")
        if kind == "render":
            agent = request.render.agent if request.render.HasField("agent") else None
            reply.board.CopyFrom(await instance.drawn(agent))
            return reply.SerializeToString()
        try:
            call = CALLS[kind](instance.environment, getattr(request, kind))
        except EpisodeError as error:  # a malformed part of the request
            raise RefusedError(str(error)) from error
        outcome = await instance.answered(kind, call)
        if kind == "reset":
            instance.begun = True
        if kind in ("reset", "step"):
            reply.result.CopyFrom(await instance.encoded(outcome))
        else:
            reply.said.CopyFrom(pb.Said(text=outcome))
        return reply.SerializeToString()

    def _check_size(self, answer: bytes) -> None:
        if len(answer) > self._most_bytes:
            raise EpisodeError(
                f"an answer of {len(answer)} bytes is longer than a message may be "
                f"({self._most_bytes}); start the server, and its clients, with a higher limit"
            )

    def _failed(
        self, session: bytes, error: Exception, what: str, opening: bool = False
    ) -> tuple[End, bytes]:
        failure = failure_of(error, what, opening).SerializeToString()
        if isinstance(error, RefusedError):
            return End.REFUSED, failure
        instance = self._sessions.pop(session, None)
        hung = isinstance(error, SlowError) and error.hung
        if instance is not None and not hung:
            self._closing.start(instance.close())
        return End.HUNG if hung else End.OVER, failure

    # -- templates ---------------------------------------------------------------------------------

    async def _template(self, spec: pb.World) -> EnvironmentTemplate:
        """The environment with these arguments, created once."""
        if spec.environment not in self._served:
            names = list(self._served)
            raise RefusedError(registry.unknown(spec.environment, names, "this server"))
        key = (spec.environment, spec.arguments_json)
        task = self._templates.get(key)
        if task is None:
            task = asyncio.ensure_future(self._made(*key))
            self._templates[key] = task
            if len(self._templates) > MOST_TEMPLATES:
                self._templates.popitem(last=False)
        else:
            self._templates.move_to_end(key)
        try:
            return await asyncio.shield(task)
        except BaseException:
            self._templates.pop(key, None)
            raise

    async def _made(self, name: str, arguments_json: str) -> EnvironmentTemplate:
        env, plugin = self._served[name], self._plugins[name]
        arguments = self._given(name, arguments_json)
        timeout = float(env["timeout"])

        def make() -> Environment:
            environment = as_environment(plugin(**self._fitted(name, arguments)))
            if not environment.name:
                environment.name = env["reference"].rsplit(":", 1)[-1].lower()
            for split in SPLITS:  # a data set is read now, before the first task
                environment.num_tasks(split)
            check_rows(environment, name, slow=False)  # programs would outlast the time limit
            return environment

        try:
            async with asyncio.timeout(timeout) as limit:
                made = await in_thread(make)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise SlowError(timeout, hung=True) from error
        return EnvironmentTemplate(made, name, timeout)

    def _fitted(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return fitted_arguments(self._plugins[name], arguments, f"environment {name!r}")

    def _given(self, name: str, arguments_json: str) -> dict[str, Any]:
        """The arguments of the server and the client, as they were written."""
        server_args = dict(self._served[name]["arguments"])
        try:
            more = codec.json_of(arguments_json, "arguments") or {}
        except EpisodeError as error:
            raise RefusedError(str(error)) from error
        if not isinstance(more, dict):
            raise RefusedError("arguments must be an object")
        if more and not self._arguments:
            raise RefusedError("this server takes no arguments for its environments")
        for key, value in more.items():
            if key in server_args and server_args[key] != value:
                raise RefusedError(f"environment {name!r}: {key!r} is set by the server")
        named, _ = accepted(self._plugins[name])
        arguments = server_args | more
        if "max_turns" in arguments and "max_turns" not in named:
            limit = arguments.pop("max_turns")  # the workflow's, if the environment has none
            if "max_attempts" in named:
                arguments.setdefault("max_attempts", limit)
        return arguments


def _description(template: EnvironmentTemplate) -> bytes:
    env = template.environment
    return pb.Description(
        name=env.name,
        agents=env.agents,
        max_turns=env.max_turns,
        train_tasks=env.num_tasks("train"),
        eval_tasks=env.num_tasks("eval"),
        reproducible=env.seeded,
        counts_turns=env.counts_turns,
        draws=env.draws,
    ).SerializeToString()


# -- calls of an environment -----------------------------------------------------------------------


def _reset(environment: Environment, reset: pb.Reset) -> Callable[[], Any]:
    task = codec.task_of(reset.task) if reset.HasField("task") else None
    seed = reset.seed if reset.HasField("seed") else None
    return lambda: environment.reset(task, seed)


def _step(environment: Environment, step: pb.Step) -> Callable[[], Any]:
    if {*step.order} != {*step.actions} or len(step.order) != len(step.actions):
        raise RefusedError("a step's order must name each of its actions once")
    stray = next((agent for agent in step.order if agent not in environment.agents), None)
    if stray is not None:
        agents = ", ".join(environment.agents)
        raise RefusedError(f"unknown agent {stray[:60]!r}; the agents are {agents}")
    if not step.order:
        raise RefusedError("a step needs the message of at least one agent")
    messages = {agent: codec.message_of(step.actions[agent]) for agent in step.order}
    return lambda: environment.step(messages)


def _expert(environment: Environment, expert: pb.Expert) -> Callable[[], Any]:
    seen = [codec.message_of(message) for message in expert.messages]
    return lambda: environment.expert(expert.agent, seen)


CALLS: dict[str, Callable[[Environment, Any], Callable[[], Any]]] = {
    "reset": _reset,
    "step": _step,
    "expert": _expert,
    "state": lambda environment, _: environment.state,
}
"""Kind of a request -> a function that reads it, and returns the call of the environment."""


async def _in_time(answer: Any, timeout: float, hung: bool) -> Any:
    job = asyncio.ensure_future(answer)
    done, _ = await asyncio.wait({job}, timeout=timeout)
    if not done:
        job.cancel()  # not awaited: the task may ignore the cancellation
        raise SlowError(timeout, hung)
    if job.cancelled():
        raise EpisodeError("it was cancelled by itself")
    return job.result()

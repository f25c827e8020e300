"""The gRPC service `Environments`. Requests are passed on as raw bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.environments.ipc import Op
from mrlm.serving.environments.sessions import Sessions
from mrlm.serving.protocol.channels import STATUS, trailers
from mrlm.serving.protocol.replies import SerializedReply, log_failure

NAME = "mrlm.v1.Environments"
"""Name of the service for health checks and clients."""

QUIET = 2.0
"""Leases without a request after which a stream is ended."""

Context = Any
Unary = Callable[[bytes, Context], Awaitable[bytes]]


class EnvironmentsService:
    """Answers gRPC calls with the results of `Sessions`; `info` returns the state of the server."""

    def __init__(self, sessions: Sessions, info: Callable[[], pb.InfoReply]) -> None:
        self._sessions, self._info = sessions, info

    def add_to(self, server: grpc.aio.Server) -> None:
        unary = {
            "Info": self._tell_info,
            "Describe": _answering(partial(self._sessions.asked, Op.DESCRIBE)),
            "GetTask": _answering(partial(self._sessions.asked, Op.TASK)),
            "Call": _answering(self._sessions.answer),
            "Renew": self._renew,
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(guarded(function))
            for name, function in unary.items()
        }
        handlers["Play"] = grpc.stream_stream_rpc_method_handler(self._play)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    async def _tell_info(self, data: bytes, context: Context) -> bytes:
        return self._info().SerializeToString()

    async def _renew(self, data: bytes, context: Context) -> bytes:
        try:
            request = pb.RenewRequest.FromString(data)
        except DecodeError:
            text = "the message is not a RenewRequest"
            await refuse(context, pb.Failure(kind=pb.Failure.BAD, message=text))
            raise
        if len(request.sessions) > self._sessions.max_sessions:
            text = f"at most {self._sessions.max_sessions} sessions can be renewed at once"
            await refuse(context, pb.Failure(kind=pb.Failure.BAD, message=text))
        lost = self._sessions.renew(list(request.sessions))
        return pb.RenewReply(lost=lost, epoch=self._sessions.epoch).SerializeToString()

    async def _play(self, requests: Any, context: Context) -> None:
        seconds, now = QUIET * self._sessions.lease, asyncio.get_running_loop().time
        try:  # the stream of a client that vanished would otherwise stay open for ever
            async with asyncio.timeout(seconds) as silence:
                async for data in requests:
                    silence.reschedule(None)
                    try:
                        answer = await self._sessions.answer(data)
                    except Exception as error:
                        await _broken(context, error)
                        raise
                    await context.write(answer.data)
                    silence.reschedule(now() + seconds)
        except TimeoutError:
            text = f"no request arrived on this stream for {seconds:g} s"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)


def _answering(ask: Callable[[bytes], Awaitable[SerializedReply]]) -> Unary:
    """A handler that returns the reply of a function, or ends the call with its failure."""

    async def call(data: bytes, context: Context) -> bytes:
        answer = await ask(data)
        if answer.failure is not None:
            await refuse(context, answer.failure)
        return answer.data

    return call


async def refuse(context: Context, failure: pb.Failure) -> None:
    """End a unary call with a failure."""
    await context.abort(STATUS[failure.kind], failure.message, trailers(failure))


def guarded(function: Unary) -> Unary:
    """A handler whose unexpected errors stay in the server's log."""

    async def call(data: bytes, context: Context) -> bytes:
        try:
            return await function(data, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _broken(context, error)
            raise

    return call


async def _broken(context: Context, error: Exception) -> None:
    failure = pb.Failure(message=log_failure(error, "the server"))
    await refuse(context, failure)

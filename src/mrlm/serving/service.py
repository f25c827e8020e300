"""The service `Environments` as gRPC sees it. Requests are passed on as the bytes they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.failures import told
from mrlm.serving.frames import Op
from mrlm.serving.sessions import Sessions
from mrlm.serving.statuses import STATUS, trailers

NAME = "mrlm.v1.Environments"
"""As health and clients call it."""

M = TypeVar("M", bound=Message)
Context = Any
Unary = Callable[[bytes, Context], Awaitable[bytes]]


class EnvironmentsService:
    """Answers calls with what sessions say.

    Args:
        sessions: whom it asks.
        info: what the server has and how it is, now.
    """

    def __init__(self, sessions: Sessions, info: Callable[[], pb.InfoReply]) -> None:
        self._sessions, self._info = sessions, info

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let a server answer for this service."""
        unary = {
            "Info": self._tell_info,
            "Describe": self._asked(Op.DESCRIBE),
            "GetTask": self._asked(Op.TASK),
            "Call": self._call,
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

    def _asked(self, op: Op) -> Unary:
        async def ask(data: bytes, context: Context) -> bytes:
            answer = await self._sessions.asked(op, data)
            if answer.failure is not None:
                await refuse(context, answer.failure)
            return answer.data

        return ask

    async def _call(self, data: bytes, context: Context) -> bytes:
        answer = await self._sessions.answer(data)
        if answer.failure is not None:
            await refuse(context, answer.failure)
        return answer.data

    async def _renew(self, data: bytes, context: Context) -> bytes:
        request = await parsed(pb.RenewRequest, data, context)
        lost = self._sessions.renew(list(request.sessions))
        return pb.RenewReply(lost=lost, epoch=self._sessions.rules.epoch).SerializeToString()

    async def _play(self, requests: Any, context: Context) -> None:
        async for data in requests:
            try:
                answer = await self._sessions.answer(data)
            except Exception as error:
                await _broken(context, error)
                raise
            await context.write(answer.data)


async def refuse(context: Context, failure: pb.Failure) -> None:
    """End a unary call with a failure."""
    await context.abort(STATUS[failure.kind], failure.message, trailers(failure))


async def parsed(kind: type[M], data: bytes, context: Context) -> M:
    """The message that the bytes of a request are; others end the call."""
    try:
        return kind.FromString(data)
    except DecodeError:
        text = f"that is no {kind.DESCRIPTOR.name}"
        await refuse(context, pb.Failure(kind=pb.Failure.BAD, message=text))
        raise


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
    failure = pb.Failure(message=told(error, "the server"))
    await refuse(context, failure)

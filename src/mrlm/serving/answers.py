"""Replies as they are sent: an answer, or why there is none."""

from __future__ import annotations

from typing import NamedTuple

from mrlm.serving import mrlm_pb2 as pb


class Answer(NamedTuple):
    """A `Reply` as it is sent, and why it is a refusal, if it is one."""

    data: bytes
    failure: pb.Failure | None = None


def as_answer(reply: pb.Reply, seq: int, session: str = "") -> Answer:
    """A reply to a call of that number."""
    told = pb.Reply()
    told.CopyFrom(reply)
    told.seq = seq
    if session:
        told.session = session
    return Answer(told.SerializeToString(), told.failure if told.HasField("failure") else None)


def failed(request: pb.Request, body: bytes) -> Answer:
    """The bytes of a `Failure` as the reply to a request."""
    failure = pb.Failure.FromString(body)
    reply = pb.Reply(session=request.session, seq=request.seq, failure=failure)
    return Answer(reply.SerializeToString(), failure)


def refused(request: pb.Request, kind: pb.Failure.Kind, text: str) -> Answer:
    """A request that is not done, and why."""
    return failed(request, pb.Failure(kind=kind, message=text).SerializeToString())

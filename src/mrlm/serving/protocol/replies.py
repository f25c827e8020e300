"""Replies as they are sent: an answer, or why there is none."""

from __future__ import annotations

from typing import NamedTuple

from mrlm.serving import mrlm_pb2 as pb


class SerializedReply(NamedTuple):
    """A `Reply` as it is sent, and why it is a refusal, if it is one."""

    data: bytes
    failure: pb.Failure | None = None


MOST_PARTS = 10_000
"""Messages, actions or names in one request."""


def excess(request: pb.Request) -> str | None:
    """What a request holds more of than is looked at; `None` where nothing is."""
    counts = {
        "messages": max(len(request.reset.task.prompt), len(request.expert.messages)),
        "actions": max(len(request.step.actions), len(request.step.order)),
    }
    name = next((name for name, count in counts.items() if count > MOST_PARTS), None)
    return None if name is None else f"a request holds at most {MOST_PARTS} {name}"


def as_answer(reply: pb.Reply, seq: int, session: str = "") -> SerializedReply:
    """A reply to a call of that number."""
    told = pb.Reply()
    told.CopyFrom(reply)
    told.seq = seq
    if session:
        told.session = session
    return SerializedReply(
        told.SerializeToString(), told.failure if told.HasField("failure") else None
    )


def failed(request: pb.Request, body: bytes) -> SerializedReply:
    """The bytes of a `Failure` as the reply to a request."""
    failure = pb.Failure.FromString(body)
    reply = pb.Reply(session=request.session, seq=request.seq, failure=failure)
    return SerializedReply(reply.SerializeToString(), failure)


def refused(request: pb.Request, kind: pb.Failure.Kind, text: str) -> SerializedReply:
    """A request that is not done, and why."""
    return failed(request, pb.Failure(kind=kind, message=text).SerializeToString())

"""Serialized replies: an answer, or the reason why there is none."""

from __future__ import annotations

from typing import NamedTuple

from mrlm.serving import mrlm_pb2 as pb


class SerializedReply(NamedTuple):
    """A serialized `Reply`, and the reason if it is a refusal."""

    data: bytes
    failure: pb.Failure | None = None


MOST_PARTS = 10_000
"""Messages, actions or names in one request."""


def excess(request: pb.Request) -> str | None:
    """The first limit on its parts that a request exceeds; `None` if it exceeds none."""
    counts = {
        "messages": max(len(request.reset.task.prompt), len(request.expert.messages)),
        "actions": max(len(request.step.actions), len(request.step.order)),
    }
    name = next((name for name, count in counts.items() if count > MOST_PARTS), None)
    return None if name is None else f"a request holds at most {MOST_PARTS} {name}"


def as_answer(reply: pb.Reply, seq: int, session: str = "") -> SerializedReply:
    """The reply to the call of that number."""
    sent = pb.Reply()
    sent.CopyFrom(reply)
    sent.seq = seq
    if session:
        sent.session = session
    return SerializedReply(
        sent.SerializeToString(), sent.failure if sent.HasField("failure") else None
    )


def failed(request: pb.Request, body: bytes) -> SerializedReply:
    """The bytes of a `Failure` as the reply to a request."""
    failure = pb.Failure.FromString(body)
    reply = pb.Reply(session=request.session, seq=request.seq, failure=failure)
    return SerializedReply(reply.SerializeToString(), failure)


def refused(
    request: pb.Request, kind: pb.Failure.Kind, text: str, retry_after: float = 0.0
) -> SerializedReply:
    """The reply to a request that is refused, with the reason, and the seconds after which it may
    be sent again."""
    failure = pb.Failure(kind=kind, message=text, retry_after=retry_after)
    return failed(request, failure.SerializeToString())

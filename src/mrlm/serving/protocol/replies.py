"""Replies to clients: answers, and failures without internal details. No network."""

import secrets
from typing import NamedTuple

from mrlm.core.errors import ConfigError, MRLMError, RewardError
from mrlm.core.log import log
from mrlm.core.user_errors import explain, whole
from mrlm.serving import mrlm_pb2 as pb


class SlowError(Exception):
    """An environment took longer than its deadline; `hung`: a thread of it still runs."""

    def __init__(self, seconds: float, hung: bool) -> None:
        super().__init__(f"it took longer than {seconds:g} s")
        self.seconds: float = seconds
        self.hung: bool = hung


class RefusedError(Exception):
    """An invalid request; nothing was executed. Its message is written for the client."""


def failure_of(error: Exception, what: str, opening: bool = False) -> pb.Failure:
    """The `Failure` that a client receives for an error in an environment; `what` names the
    environment and its operation. When `opening` it, a `ConfigError` is the request's fault."""
    if isinstance(error, RefusedError) or (opening and isinstance(error, ConfigError)):
        return pb.Failure(kind=pb.Failure.BAD, message=str(error))
    if isinstance(error, SlowError):
        log.warning("%s took longer than %g s", what, error.seconds)
        words = f"{what} took longer than the {error.seconds:g} s that the server gives it"
        return pb.Failure(kind=pb.Failure.SLOW, message=words)
    kind = pb.Failure.REWARD if isinstance(error, RewardError) else pb.Failure.WORLD
    return pb.Failure(kind=kind, message=log_failure(error, what))


def log_failure(error: BaseException, what: str) -> str:
    """Log an error with the user's stack frames under a fresh number. Returns the text for the
    client: the error's class, its message if that was written for users, and the number."""
    number = secrets.token_hex(4)
    log.error("[%s] %s failed: %s", number, what, explain(error))
    log.debug("[%s] %s", number, whole(error))
    words = f": {error}" if isinstance(error, MRLMError) else ""
    return f"{what} failed with {type(error).__name__}{words} ({number} in the server's log)"


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

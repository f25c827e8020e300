"""A `Failure`: the error message for a client, without internal details; and, for a unary call in
gRPC, a status with the whole message in the trailing metadata."""

from __future__ import annotations

import logging
import secrets

import grpc

from mrlm.core.errors import ConfigError, MRLMError, RewardError
from mrlm.core.user_errors import explain, whole
from mrlm.serving import mrlm_pb2 as pb

log: logging.Logger = logging.getLogger("mrlm")


class SlowError(Exception):
    """An environment took longer than its deadline.

    Args:
        seconds: the deadline.
        hung: whether one of its threads still runs.
    """

    def __init__(self, seconds: float, hung: bool) -> None:
        super().__init__(f"it took longer than {seconds:g} s")
        self.seconds: float = seconds
        self.hung: bool = hung


class RefusedError(Exception):
    """An invalid request; nothing was executed. Its message is written for the client."""


def failure_of(error: Exception, what: str, opening: bool = False) -> pb.Failure:
    """The `Failure` that a client receives for an error in an environment.

    Args:
        error: the exception.
        what: the environment and its current operation.
        opening: whether it was being constructed, so that a `ConfigError` is the request's fault.
    """
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


# -- in gRPC ---------------------------------------------------------------------------------------

TRAILER = "mrlm-failure-bin"
"""Key of the trailing metadata that holds the `Failure`."""
PUSHBACK = "grpc-retry-pushback-ms"
"""Key of gRPC's own retry delay."""

STATUS: dict[int, grpc.StatusCode] = {
    pb.Failure.UNKNOWN: grpc.StatusCode.INTERNAL,
    pb.Failure.WORLD: grpc.StatusCode.ABORTED,
    pb.Failure.LOST: grpc.StatusCode.NOT_FOUND,
    pb.Failure.GAP: grpc.StatusCode.FAILED_PRECONDITION,
    pb.Failure.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.Failure.BAD: grpc.StatusCode.INVALID_ARGUMENT,
    pb.Failure.SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
    pb.Failure.REWARD: grpc.StatusCode.ABORTED,
}
"""Kind of a failure -> status. A status alone may come from gRPC or from a proxy; with the trailing
metadata it comes from the server."""


def trailers(failure: pb.Failure) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of a call that failed."""
    found: list[tuple[str, str | bytes]] = [(TRAILER, failure.SerializeToString())]
    if failure.retry_after:
        found.append((PUSHBACK, str(round(failure.retry_after * 1000))))
    return tuple(found)


def failure_in(error: BaseException) -> pb.Failure | None:
    """The server's `Failure` of a unary call; `None` if the network, or gRPC itself, failed the
    call.

    error: the `grpc.RpcError` that was raised; its class depends on the kind of channel.
    """
    metadata = getattr(error, "trailing_metadata", tuple)()
    for key, value in metadata or ():
        if key == TRAILER:
            return pb.Failure.FromString(value)
    return None

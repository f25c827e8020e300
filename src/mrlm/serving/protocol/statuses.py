"""A `Failure` of a unary call in gRPC: a status, with the whole message in the trailing
metadata."""

from __future__ import annotations

import grpc

from mrlm.serving import mrlm_pb2 as pb

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

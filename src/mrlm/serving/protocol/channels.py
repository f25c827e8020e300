"""Both ends of gRPC connections: options of channels and servers, clients of the services in
`mrlm.proto`, and a `Failure` of a unary call: a status, and the message in trailing metadata."""

import resource
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from mrlm.serving import mrlm_pb2 as pb

MOST_BYTES = 4 << 20
"""Default size limit of a message in bytes."""
KEEPALIVE = 20.0
"""Seconds of silence after which a peer is pinged."""
KEEPALIVE_WAIT = 10.0
"""Seconds allowed for the answer to a ping."""
CONNECTING = 5.0
"""Seconds an attempt to connect may take, including TLS."""
HANDSHAKE = 10.0
"""Seconds in which a new connection has to speak the protocol."""
CONNECTIONS = 4096
"""Open connections to a server, if the machine allows twice as many file descriptors."""
STREAMS = 8192
"""Concurrent calls on one connection."""

Options = list[tuple[str, int]]


def _options(most_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", most_bytes),
        ("grpc.keepalive_time_ms", int(KEEPALIVE * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_WAIT * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(most_bytes: int = MOST_BYTES) -> Options:
    """Options of a server: its port is exclusive, and clients may ping as this package's do."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        *_options(most_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE * 1000)),
        ("grpc.max_allowed_incoming_connections", min(CONNECTIONS, descriptors // 2)),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE * 500)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", int(KEEPALIVE * 500)),
    ]


def channel_options(most_bytes: int = MOST_BYTES) -> Options:
    """Options of a client: it reconnects within a second after the server was away."""
    return [
        *_options(most_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(CONNECTING * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def service_stub(channel: grpc.Channel | grpc.aio.Channel, service: str) -> Any:
    """The methods of a service (`Environments` or `Policies`), as gRPC's compiler makes them."""
    stub = SimpleNamespace()
    for method in pb.DESCRIPTOR.services_by_name[service].methods:
        sent = "stream" if method.client_streaming else "unary"
        answered = "stream" if method.server_streaming else "unary"
        make = getattr(channel, f"{sent}_{answered}")
        call = make(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(stub, method.name, call)
    return stub


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
    metadata: list[tuple[str, str | bytes]] = [(TRAILER, failure.SerializeToString())]
    if failure.retry_after:
        metadata.append((PUSHBACK, str(round(failure.retry_after * 1000))))
    return tuple(metadata)


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

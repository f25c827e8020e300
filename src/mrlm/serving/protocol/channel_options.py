"""Channel options that both ends of a connection share: message size and keep-alive."""

from __future__ import annotations

import resource

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
    """Options of a server: its port is exclusive, and clients may ping as often as this package's
    do."""
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

"""What both ends of a connection agree on: how long messages are, how a dead peer is seen."""

from __future__ import annotations

import resource

MOST_BYTES = 4 << 20
"""Bytes of a message, where nothing else is agreed."""
KEEPALIVE = 20.0
"""Seconds after which a silent peer is asked whether it is there."""
KEEPALIVE_WAIT = 10.0
"""Seconds it may take to say so."""
CONNECTING = 5.0
"""Seconds an attempt to connect may take, with all that TLS asks."""
HANDSHAKE = 10.0
"""Seconds in which whoever connects has to speak the protocol."""
CONNECTIONS = 4096
"""Open to a server at the same time, where the machine allows it twice as many descriptors."""
STREAMS = 8192
"""Calls under way on one connection."""

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
    """Of a server: two cannot share a port, and clients may ask as often as ours do."""
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
    """Of a client: it tries again within a second when the server was away."""
    return [
        *_options(most_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(CONNECTING * 1000)),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

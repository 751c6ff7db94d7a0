"""Options of gRPC channels and servers."""

from typing import Any

#: Bytes; a prompt of a million ids and 20 candidates at 32k positions fit.
MAX_MESSAGE_BYTES = 64 * 2**20

KEEP_ALIVE: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
]
SIZES: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
#: A server that is back is found within two seconds; one that takes no connection in three is not
#: reachable. gRPC's own values are 120 and 20.
RECONNECT: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
#: What a sender may have under way stays at 64 KiB: a worker merges what its caller is not ready
#: for, which costs both less than reading it piece by piece.
SMALL_WINDOW: list[tuple[str, Any]] = [("grpc.http2.bdp_probe", 0)]

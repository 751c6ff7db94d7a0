"""Options of gRPC channels and servers."""

from typing import Any

#: Bytes; a prompt of a million ids and 20 candidates at 32k positions fit.
MAX_MESSAGE_BYTES = 64 * 2**20

#: Seconds: between two signs of life, for the answer to the question for one, and for a connection.
KEEP_ALIVE_S = 60.0
PING_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 3.0

KEEP_ALIVE: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", int(KEEP_ALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(PING_TIMEOUT_S * 1000)),
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
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

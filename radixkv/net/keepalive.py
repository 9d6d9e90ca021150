"""Keepalive pings: detect a peer that is gone without closing its connection, by a crash of its machine or of the network.

Without pings a stream that has nothing to send waits forever. Connections without calls are closed after a while; a client
opens a new one by itself. Pings are sent only on connections with calls in flight. gRPC's own threads answer them, however busy
the process is; a stopped process does not answer.
"""

from __future__ import annotations

__all__ = ["client_keepalive", "server_keepalive"]

CLIENT_S = 5.0
"""Silence before a client pings; shorter than the server's, so that the waiting client detects the loss first."""

SERVER_S = 60.0
ANSWER_S = 5.0
"""How long the answer, or the other end's word that it got what was sent, may take before the connection is closed."""

IDLE_S = 300.0
"""How long a connection may stay without a call."""

HANDSHAKE_S = 20.0
"""How long a handshake may take until a call can be made."""

_LEAST_S = 1.0


def client_keepalive() -> list[tuple[str, int]]:
    """Options of a channel. Its calls end with UNAVAILABLE where the server is gone."""
    return _pings(CLIENT_S)


def server_keepalive() -> list[tuple[str, int]]:
    """Options of a server. Calls of a lost client are cancelled; clients may ping as often as once a second."""
    return [
        *_pings(SERVER_S),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * _LEAST_S)),
        ("grpc.max_connection_idle_ms", round(1000 * IDLE_S)),
        ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE_S)),
    ]


def _pings(silence_s: float) -> list[tuple[str, int]]:
    answer_ms = round(1000 * ANSWER_S)
    return [
        ("grpc.keepalive_time_ms", round(1000 * silence_s)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # applies while a read is under way; the default is a minute
    ]

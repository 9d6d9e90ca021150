"""Client retries: gRPC's own for unary calls, and the same waits for the beginning of a stream.

A call that fails with UNAVAILABLE (no listener, a broken connection, a stopping server) before any answer is retried:
`MAX_TRIES` tries in all, over about one and a half seconds and never beyond the caller's timeout. That is longer than a restart
of a cache service. CANCELLED by the server is retried too: gRPC's servers drop calls at random where too many are unread. Only
repeatable calls use these retries.
"""

# gRPC would retry streams by the same policy. With grpcio 1.85 a stream that a stopping server rejected was then sometimes
# neither retried nor ended, and a stream of tokens has no deadline to end it.

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

__all__ = ["retry_policy", "retry_waits_s"]

MAX_TRIES = 5  # gRPC's own limit
_FIRST_WAIT_S, _LONGEST_WAIT_S, _GROWTH = 0.1, 1.0, 2.0


def retry_policy(service: Any) -> tuple[str, str]:
    """The channel option that makes gRPC retry the unary calls of one service; `service`: its descriptor."""
    policy = {
        "maxAttempts": MAX_TRIES,
        "initialBackoff": f"{_FIRST_WAIT_S}s",
        "maxBackoff": f"{_LONGEST_WAIT_S}s",
        "backoffMultiplier": _GROWTH,
        "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
    }
    names = [
        {"service": service.full_name, "method": method.name}
        for method in service.methods
        if not (method.client_streaming or method.server_streaming)
    ]
    return "grpc.service_config", json.dumps({"methodConfig": [{"name": names, "retryPolicy": policy}]})


def retry_waits_s() -> Iterator[float]:
    """The waits before each retry, in seconds."""
    for number in range(MAX_TRIES - 1):
        yield min(_FIRST_WAIT_S * _GROWTH**number, _LONGEST_WAIT_S) * random.uniform(0.8, 1.2)

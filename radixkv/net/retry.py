"""How clients try again: gRPC's own retries for unary calls, and the same waits for the beginning of a stream.

What was told UNAVAILABLE (nobody listens, the connection broke, the server is stopping) before it was told anything else is
tried again, `MAX_TRIES` times in all, over about one and a half seconds and never beyond the caller's timeout: longer than a
cache service takes to be started again. So is what a server cancels though its caller did not: gRPC's servers drop calls at
random where too many wait to be looked at. Only calls that may be repeated are made in this way.

gRPC would retry streams by the same policy. One that a stopping server refused was then sometimes neither retried nor ended,
with grpcio 1.85, and a stream of tokens has no deadline that would end it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

__all__ = ["retry_policy", "retry_waits_s"]

MAX_TRIES = 5  # gRPC allows no more
_FIRST_WAIT_S, _LONGEST_WAIT_S, _GROWTH = 0.1, 1.0, 2.0


def retry_policy(service: Any) -> tuple[str, str]:
    """The option of a channel that has the unary calls of one service retried; `service`: its descriptor."""
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
    """How long to wait before each further try, in seconds."""
    for number in range(MAX_TRIES - 1):
        yield min(_FIRST_WAIT_S * _GROWTH**number, _LONGEST_WAIT_S) * random.uniform(0.8, 1.2)

"""gRPC's own retries, as the channels of radixkv's clients ask for them.

A call that was told UNAVAILABLE (nobody listens, the connection broke, the server is stopping) before it was told anything else
is tried again, up to `MAX_TRIES` times over about one and a half seconds and never beyond the caller's timeout: longer than a
cache service takes to be started again. So only calls that may be repeated are carried by such channels.
"""

from __future__ import annotations

import json

__all__ = ["retries"]

MAX_TRIES = 5  # gRPC allows no more
_FIRST_WAIT_S, _LONGEST_WAIT_S, _GROWTH = 0.1, 1.0, 2.0


def retries(service_name: str) -> tuple[str, str]:
    """The option of a channel that has the calls of one service retried; `service_name`: with its package."""
    policy = {
        "maxAttempts": MAX_TRIES,
        "initialBackoff": f"{_FIRST_WAIT_S}s",
        "maxBackoff": f"{_LONGEST_WAIT_S}s",
        "backoffMultiplier": _GROWTH,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = {"methodConfig": [{"name": [{"service": service_name}], "retryPolicy": policy}]}
    return "grpc.service_config", json.dumps(config)

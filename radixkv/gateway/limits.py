"""How much each tenant may ask for: requests and tokens per minute, and requests at once.

Requests and tokens are drawn from buckets that hold a minute's worth and fill evenly. What a request costs in tokens is known
only when it has run, so it may begin while there is anything left and is charged as it runs: a bucket can fall below empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from radixkv.gateway.auth import Tenant
from radixkv.gateway.errors import ApiError

__all__ = ["RATE_LIMIT_HEADERS", "Limiter", "Slot"]

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{kind}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)

_PERIOD_S = 60.0


class _Bucket:
    """What is left of a limit per minute."""

    __slots__ = ("left", "limit", "seen_s")

    def __init__(self, limit: int, now_s: float) -> None:
        self.limit = limit
        self.left = float(limit)
        self.seen_s = now_s

    def fill(self, limit: int, now_s: float) -> None:
        if limit != self.limit:  # the keys file was changed
            self.left += limit - self.limit
            self.limit = limit
        self.left = min(float(limit), self.left + (now_s - self.seen_s) * limit / _PERIOD_S)
        self.seen_s = now_s

    def wait_s(self, least: float) -> float:
        """Until so much is there."""
        return max(0.0, (least - self.left) * _PERIOD_S / self.limit)

    def headers(self, kind: str) -> dict[str, str]:
        return {
            f"x-ratelimit-limit-{kind}": str(self.limit),
            f"x-ratelimit-remaining-{kind}": str(max(0, math.floor(self.left))),
            f"x-ratelimit-reset-{kind}": _duration(self.wait_s(self.limit)),
        }


class _Account:
    __slots__ = ("num_running", "requests", "tokens")

    def __init__(self) -> None:
        self.num_running = 0
        self.requests: _Bucket | None = None
        self.tokens: _Bucket | None = None


class Slot:
    """One admitted request of a tenant. `headers`: the rate limits as they stood then."""

    __slots__ = ("_account", "_is_open", "headers")

    def __init__(self, account: _Account, headers: dict[str, str]) -> None:
        self._account = account
        self._is_open = True
        self.headers = headers

    def charge(self, num_tokens: int) -> None:
        """Draw tokens that the request has cost."""
        if self._account.tokens is not None:
            self._account.tokens.left -= num_tokens

    def close(self) -> None:
        """The request has ended; harmless when repeated."""
        if self._is_open:
            self._is_open = False
            self._account.num_running -= 1


class Limiter:
    """The accounts of all tenants, by name. One thread uses it; every call is O(1).

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def admit(self, tenant: Tenant) -> Slot:
        """Count a request that begins now; close its slot when it ends.

        Raises:
            ApiError: 429 with Retry-After: a limit is reached. Nothing was counted.
        """
        account = self._accounts.setdefault(tenant.name, _Account())
        now_s = self._clock()
        limits = tenant.limits
        account.requests = _filled(account.requests, limits.requests_per_minute, now_s)
        account.tokens = _filled(account.tokens, limits.tokens_per_minute, now_s)
        if account.requests is not None and account.requests.left < 1:
            self._refuse(account, f"{limits.requests_per_minute} requests per minute", account.requests.wait_s(1))
        if account.tokens is not None and account.tokens.left <= 0:
            self._refuse(account, f"{limits.tokens_per_minute} tokens per minute", account.tokens.wait_s(1))
        if limits.max_concurrent is not None and account.num_running >= limits.max_concurrent:
            self._refuse(account, f"{limits.max_concurrent} requests at once", 1.0)
        if account.requests is not None:
            account.requests.left -= 1
        account.num_running += 1
        return Slot(account, _headers(account))

    def _refuse(self, account: _Account, limit: str, wait_s: float) -> None:
        headers = {**_headers(account), "Retry-After": str(max(1, math.ceil(wait_s)))}
        message = f"the limit of {limit} is reached; try again in {_duration(wait_s)}"
        raise ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)


def _filled(bucket: _Bucket | None, limit: int | None, now_s: float) -> _Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return _Bucket(limit, now_s)
    bucket.fill(limit, now_s)
    return bucket


def _headers(account: _Account) -> dict[str, str]:
    requests = account.requests.headers("requests") if account.requests else {}
    tokens = account.tokens.headers("tokens") if account.tokens else {}
    return {**requests, **tokens}


def _duration(seconds: float) -> str:
    """As the protocol writes them: ``6m0s``, ``1.5s``, ``20ms``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"

"""Limits of each tenant: requests and tokens per minute, and concurrent requests.

Requests and tokens are drawn from token buckets that hold a minute's worth and fill evenly. The tokens of a request are known
only after it has run. So it is admitted while any are left, and is charged as it runs: a bucket can fall below empty.

One limiter serves both HTTP and gRPC of a process, so that a limit holds per tenant, not per protocol.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from radixkv.core.errors import LimitError, RateLimit
from radixkv.net.tenants import Tenant

__all__ = ["Limiter", "Slot", "Standing", "duration"]

_PERIOD_S = 60.0

_KEPT = 0.5
"""The part of a minute's limits that background requests of a tenant may not use."""


class _Bucket:
    """The rest of a limit per minute."""

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
        """Seconds until `least` are available."""
        return max(0.0, (least - self.left) * _PERIOD_S / self.limit)

    def rate(self, kind: str) -> RateLimit:
        return RateLimit(kind, self.limit, max(0, math.floor(self.left)), self.wait_s(self.limit))


@dataclass(slots=True, eq=False)
class _Account:
    num_running: int = 0
    requests: _Bucket | None = None
    tokens: _Bucket | None = None

    def rates(self) -> tuple[RateLimit, ...]:
        requests = (self.requests.rate("requests"),) if self.requests else ()
        tokens = (self.tokens.rate("tokens"),) if self.tokens else ()
        return (*requests, *tokens)


class Slot:
    """One admitted request of a tenant. `rates`: its rate limits at that moment. Thread-safe.

    `takes_place`: whether it counts as a concurrent request, until it is closed.
    """

    __slots__ = ("_account", "_is_open", "_lock", "rates")

    def __init__(self, account: _Account, lock: threading.Lock, *, takes_place: bool) -> None:
        self._account = account
        self._lock = lock
        self._is_open = takes_place
        account.num_running += takes_place
        self.rates = account.rates()

    def charge(self, num_tokens: int) -> None:
        """Charge tokens of the request."""
        with self._lock:
            if self._account.tokens is not None:
                self._account.tokens.left -= num_tokens

    def close(self) -> None:
        """End the request; may be repeated."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._account.num_running -= 1


class Standing(NamedTuple):
    """A tenant's state. rates: the rest of its limits per minute. num_running: its concurrent requests."""

    rates: tuple[RateLimit, ...]
    num_running: int


class Limiter:
    """The accounts of all tenants, by name. Thread-safe; every call is O(1).

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, _Account] = {}

    def admit(self, tenant: Tenant, *, is_background: bool = False) -> Slot:
        """Admit a request that begins now; close its slot when it ends.

        `is_background`: it may use half of a minute's limits, and does not count as a concurrent request; its number is bounded
        elsewhere.

        Raises:
            LimitError: a limit is reached; has the time to retry after, and the rate limits. Nothing was counted.
        """
        with self._lock:
            account = self._accounts.setdefault(tenant.name, _Account())
            now_s = self._clock()
            limits = tenant.limits
            account.requests = _filled(account.requests, limits.requests_per_minute, now_s)
            account.tokens = _filled(account.tokens, limits.tokens_per_minute, now_s)
            kept = _KEPT if is_background else 0.0
            if account.requests is not None and account.requests.left < 1 + int(kept * account.requests.limit):
                wait_s = account.requests.wait_s(1 + int(kept * account.requests.limit))
                raise _refusal(account, f"{limits.requests_per_minute} requests per minute", wait_s)
            if account.tokens is not None and account.tokens.left <= kept * account.tokens.limit:
                wait_s = account.tokens.wait_s(1 + kept * account.tokens.limit)
                raise _refusal(account, f"{limits.tokens_per_minute} tokens per minute", wait_s)
            is_bounded = limits.max_concurrent is not None and not is_background
            if is_bounded and account.num_running >= (limits.max_concurrent or 0):
                raise _refusal(account, f"{limits.max_concurrent} requests at once", 1.0)
            if account.requests is not None:
                account.requests.left -= 1
            return Slot(account, self._lock, takes_place=not is_background)

    def standing(self, tenant: Tenant) -> Standing:
        """A tenant's current state; does not count as a request."""
        with self._lock:
            account = self._accounts.setdefault(tenant.name, _Account())
            now_s = self._clock()
            account.requests = _filled(account.requests, tenant.limits.requests_per_minute, now_s)
            account.tokens = _filled(account.tokens, tenant.limits.tokens_per_minute, now_s)
            return Standing(account.rates(), account.num_running)


def _refusal(account: _Account, limit: str, wait_s: float) -> LimitError:
    message = f"the limit of {limit} is reached; try again in {duration(wait_s)}"
    return LimitError(message, retry_after_s=wait_s, rates=account.rates())


def _filled(bucket: _Bucket | None, limit: int | None, now_s: float) -> _Bucket | None:
    if limit is None:
        return None
    if bucket is None:
        return _Bucket(limit, now_s)
    bucket.fill(limit, now_s)
    return bucket


def duration(seconds: float) -> str:
    """A time in the format of rate limit headers: ``6m0s``, ``1.5s``, ``20ms``."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"

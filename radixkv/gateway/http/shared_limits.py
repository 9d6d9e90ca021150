"""Limits of tenants over all gateways that share a Valkey or Redis server.

    admit    one script: fills the buckets by the server's clock, counts the slots of living gateways, takes or rejects
    charge   tokens of all requests together, some times per second
    beat     renews this gateway's lease; without one its slots are free

While the server is away, or is not configured, each gateway grants its share: a limit divided by the gateways seen last.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from radixkv.core.errors import LimitError, RateLimit
from radixkv.gateway.storage.shared_server import connect, stop
from radixkv.net.limits import Limiter, Slot, Standing, duration
from radixkv.net.tenants import LIMITS, Tenant

__all__ = ["SharedLimiter", "SharedSlot"]

BEAT_S, LEASE_S = 2.0, 10.0
CHARGE_S = 0.05
"""How often the tokens of running requests are charged, in seconds."""

TIMEOUT_S = 0.25
"""How long a request waits for the server, in seconds; then the gateway grants its share."""

AWAY_S = 1.0
"""After a failure the server is not asked for so long, in seconds."""

_BUCKETS = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local function fill(kind, limit)
    if limit == 0 then return nil end
    local kept = redis.call('HMGET', KEYS[1], kind .. '.left', kind .. '.limit', kind .. '.seen')
    local left, before, seen = tonumber(kept[1]), tonumber(kept[2]), tonumber(kept[3])
    if not left then return limit end
    if before ~= limit then left = left + limit - before end
    return math.min(limit, left + math.max(0, now - seen) * limit / 60)
end
local function keep(kind, left, limit)
    if limit == 0 then return end
    redis.call('HSET', KEYS[1], kind .. '.left', string.format('%.6f', left), kind .. '.limit', limit,
        kind .. '.seen', string.format('%.6f', now))
    redis.call('EXPIRE', KEYS[1], 3600)
end
local function running()
    local number, slots = 0, redis.call('HGETALL', KEYS[2])
    for i = 1, #slots, 2 do
        local until_s = tonumber(redis.call('ZSCORE', KEYS[3], slots[i]) or 0)
        if until_s < now then redis.call('HDEL', KEYS[2], slots[i]) else number = number + slots[i + 1] end
    end
    return number
end
"""
_ADMIT = (
    _BUCKETS
    + """
local requests, tokens, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local kept, owner, takes = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local left_requests, left_tokens = fill('requests', requests), fill('tokens', tokens)
local why, wait = '', 0
if requests > 0 and left_requests < 1 + math.floor(kept * requests) then
    why, wait = 'requests', (1 + math.floor(kept * requests) - left_requests) * 60 / requests
elseif tokens > 0 and left_tokens <= kept * tokens then
    why, wait = 'tokens', (1 + kept * tokens - left_tokens) * 60 / tokens
end
local number = running()
if why == '' and takes == 1 and most > 0 and number >= most then why, wait = 'concurrent', 1 end
if why == '' and takes >= 0 then
    if requests > 0 then left_requests = left_requests - 1 end
    if takes == 1 then
        redis.call('HINCRBY', KEYS[2], owner, 1)
        redis.call('EXPIRE', KEYS[2], 86400) -- no request takes longer
    end
    keep('requests', left_requests or 0, requests)
    keep('tokens', left_tokens or 0, tokens)
end
return {why, tostring(wait), tostring(left_requests or 0), tostring(left_tokens or 0), number}
"""
)
_CHARGE = (
    _BUCKETS
    + """
local tokens = tonumber(ARGV[1])
local left = fill('tokens', tokens)
if left then keep('tokens', left - tonumber(ARGV[2]), tokens) end
"""
)
_CLOSE = """
if tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) <= tonumber(ARGV[2]) then redis.call('HDEL', KEYS[1], ARGV[1])
else redis.call('HINCRBY', KEYS[1], ARGV[1], -ARGV[2]) end
"""
_BEAT = """
local clock = redis.call('TIME')
local known = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) >= tonumber(clock[1])
redis.call('ZADD', KEYS[1], clock[1] + tonumber(ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', clock[1] - 3600)
return {known and 1 or 0, redis.call('ZCOUNT', KEYS[1], clock[1], '+inf')}
"""
_KEPT = 0.5
"""The part of a minute's limits that background requests of a tenant may not use."""

_GATEWAYS = "radixkv:gateways"
_LOG = logging.getLogger(__name__)


class SharedSlot:
    """One admitted request, as `Slot`."""

    def __init__(
        self, limiter: SharedLimiter, tenant: Tenant, rates: tuple[RateLimit, ...], *, takes_place: bool
    ) -> None:
        self._limiter = limiter
        self._tenant = tenant
        self._is_open = takes_place
        self.rates = rates

    def charge(self, num_tokens: int) -> None:
        """Charge tokens of the request."""
        self._limiter.charge(self._tenant, num_tokens)

    def close(self) -> None:
        """End the request; may be repeated."""
        if self._is_open:
            self._is_open = False
            self._limiter.give_back(self._tenant)


class SharedLimiter:
    """The accounts of all tenants, over all gateways. The event loop owns it.

    Args:
        url: ``redis://host:port``, of the server that all gateways share; None: every gateway grants its share.
        own: counts here while no server does.

    Attributes:
        num_gateways: those seen last, this one included.
    """

    def __init__(self, url: str | None, own: Limiter) -> None:
        self.num_gateways = 1
        self._own = own
        self._id = uuid.uuid4().hex
        self._tokens: Counter[Tenant] = Counter()  # to be charged
        self._ended: Counter[str] = Counter()  # slots to be given back, by tenant
        self._open: Counter[str] = Counter()  # slots taken here
        self._num_asking = 0
        self._is_in_doubt = False  # whether the server's count of slots is this gateway's
        self._away_until_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._redis: Any = None
        self._scripts: dict[str, Any] = {}
        self._failures: tuple[type[Exception], ...] = ()
        if url is not None:
            self._redis, self._failures = connect(url, TIMEOUT_S)
            scripts = (_ADMIT, _CHARGE, _CLOSE, _BEAT)
            self._scripts = {text: self._redis.register_script(text) for text in scripts}

    async def start(self) -> None:
        """Begin to renew the lease and to charge."""
        if self._redis is not None:
            try:
                await self._beat()
            except self._failures as error:
                self._lose(error)
            self._tasks = [
                asyncio.create_task(self._every(BEAT_S, self._beat), name="radixkv-limits-beat"),
                asyncio.create_task(self._every(CHARGE_S, self._flush), name="radixkv-limits-charge"),
            ]

    async def aclose(self) -> None:
        """Give everything back."""
        await stop(self._tasks)
        if self._redis is not None:
            with suppress(*self._failures):
                await self._flush()
                await self._redis.zrem(_GATEWAYS, self._id)
            await self._redis.aclose()

    async def admit(self, tenant: Tenant, *, is_background: bool = False) -> Slot | SharedSlot:
        """As `Limiter.admit`.

        Raises:
            LimitError: a limit is reached; nothing was counted.
        """
        if self._is_alone or all(getattr(tenant.limits, name) is None for name in LIMITS):
            return self._own.admit(tenant, is_background=is_background)
        asking = asyncio.create_task(self._asked(tenant, _KEPT if is_background else 0.0, takes=int(not is_background)))
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda _: self._doubt())
            raise
        if answer is None:
            return self._own.admit(self._shared(tenant), is_background=is_background)
        why, wait_s, rates, _ = answer
        if why:
            limit, what = {
                "requests": (tenant.limits.requests_per_minute, "requests per minute"),
                "tokens": (tenant.limits.tokens_per_minute, "tokens per minute"),
                "concurrent": (tenant.limits.max_concurrent, "requests at once"),
            }[why]
            message = f"the limit of {limit} {what} is reached; try again in {duration(wait_s)}"
            raise LimitError(message, retry_after_s=wait_s, rates=rates)
        self._open[tenant.name] += not is_background
        return SharedSlot(self, tenant, rates, takes_place=not is_background)

    async def standing(self, tenant: Tenant) -> Standing:
        """As `Limiter.standing`."""
        answer = None if self._is_alone else await self._asked(tenant, 0.0, takes=-1)
        return self._own.standing(self._shared(tenant)) if answer is None else Standing(answer[2], answer[3])

    def charge(self, tenant: Tenant, num_tokens: int) -> None:
        """Charge tokens soon."""
        if tenant.limits.tokens_per_minute is not None:
            self._tokens[tenant] += num_tokens

    def give_back(self, tenant: Tenant) -> None:
        """Free a slot soon."""
        self._open[tenant.name] -= 1
        self._ended[tenant.name] += 1

    @property
    def _is_alone(self) -> bool:
        return self._redis is None and self.num_gateways == 1

    def _shared(self, tenant: Tenant) -> Tenant:
        """Return a tenant with this gateway's share of its limits."""
        shares = {
            name: max(1, limit // self.num_gateways)
            for name in LIMITS
            if (limit := getattr(tenant.limits, name)) is not None
        }
        return replace(tenant, limits=replace(tenant.limits, **shares))

    async def _asked(
        self, tenant: Tenant, kept: float, *, takes: int
    ) -> tuple[str, float, tuple[RateLimit, ...], int] | None:
        """Return the reason to reject, the time to wait, the rates and the running requests; None: the server is away."""
        if self._redis is None or time.monotonic() < self._away_until_s:
            return None
        limits = tenant.limits
        numbers = limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.max_concurrent or 0
        self._num_asking += 1
        self._open[tenant.name] += 0  # so that the next beat frees a slot whose admission was lost
        try:
            await self._flush()
            told = await self._run(_ADMIT, [*_keys(tenant.name), _GATEWAYS], *numbers, kept, self._id, takes)
        except self._failures as error:
            self._lose(error)
            return None
        finally:
            self._num_asking -= 1
        why, wait, requests, tokens, number = (each.decode() if isinstance(each, bytes) else each for each in told)
        rates = _rates("requests", numbers[0], float(requests)) + _rates("tokens", numbers[1], float(tokens))
        return why, float(wait), rates, int(number)

    async def _flush(self) -> None:
        """Charge what is due, and free slots."""
        self._num_asking += 1
        try:
            while self._ended:
                name, number = self._ended.popitem()
                await self._run(_CLOSE, _keys(name)[1:], self._id, number)
        finally:
            self._num_asking -= 1
        while self._tokens:
            tenant, number = self._tokens.popitem()
            await self._run(_CHARGE, _keys(tenant.name), tenant.limits.tokens_per_minute or 0, number)

    async def _beat(self) -> None:
        is_known, self.num_gateways = await self._run(_BEAT, [_GATEWAYS], self._id, LEASE_S)
        if not is_known:  # the server has lost its memory, or this gateway its lease
            self._is_in_doubt = True
        if self._is_in_doubt and not self._num_asking:
            self._is_in_doubt = False
            batch = self._redis.pipeline(transaction=False)
            for name, number in self._open.items():  # all at one moment: slots are taken and given back meanwhile
                self._ended.pop(name, None)
                batch.hset(_keys(name)[1], self._id, str(number))
            await batch.execute()
            self._open = +self._open

    async def _every(self, period_s: float, work: Any) -> None:
        while True:
            if time.monotonic() >= self._away_until_s:
                try:
                    await work()
                except self._failures as error:
                    self._lose(error)
            await asyncio.sleep(period_s)

    def _lose(self, error: Exception) -> None:
        if time.monotonic() >= self._away_until_s:
            _LOG.warning("limits: every gateway grants its share, 1/%d: %s", self.num_gateways, error)
        self._away_until_s = time.monotonic() + AWAY_S
        self._doubt()

    def _doubt(self) -> None:
        self._is_in_doubt = True

    async def _run(self, script: str, keys: Sequence[str], *values: Any) -> Any:
        return await self._scripts[script](keys=keys, args=values)


def _keys(name: str) -> list[str]:
    """Return the keys of a tenant's buckets and slots."""
    return [f"radixkv:limits:{name}", f"radixkv:slots:{name}"]


def _rates(kind: str, limit: int, left: float) -> tuple[RateLimit, ...]:
    """Return the rest of a limit per minute, if there is one."""
    if not limit:
        return ()
    return (RateLimit(kind, limit, max(0, math.floor(left)), max(0.0, (limit - left) * 60 / limit)),)

"""Limits of tenants: buckets of requests and tokens, requests at once, whichever thread asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from radixkv.core.errors import LimitError
from radixkv.net.limits import Limiter
from radixkv.net.tenants import Tenant, TenantLimits


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def admit(limiter: Limiter, **limits: int) -> Any:
    return limiter.admit(Tenant("t", "t", TenantLimits(**limits)))


def test_a_bucket_fills_evenly() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    for _ in range(60):
        admit(limiter, requests_per_minute=60).close()
    with pytest.raises(LimitError) as caught:
        admit(limiter, requests_per_minute=60)
    assert caught.value.retry_after_s == pytest.approx(1)
    clock.now_s += 1.0
    slot = admit(limiter, requests_per_minute=60)
    assert [(rate.kind, rate.remaining, rate.reset_s) for rate in slot.rates] == [("requests", 0, 60)]
    with pytest.raises(LimitError):
        admit(limiter, requests_per_minute=60)


def test_tokens_are_charged_and_given_back() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    slot = admit(limiter, tokens_per_minute=600)
    slot.charge(1200)
    with pytest.raises(LimitError) as caught:
        admit(limiter, tokens_per_minute=600)
    assert caught.value.retry_after_s == pytest.approx(60.1)  # 600 overdrawn at 10 a second, and one token
    slot.charge(-700)  # they were found in the cache
    assert admit(limiter, tokens_per_minute=600).rates[0].remaining == 100


def test_how_a_tenant_stands_is_told_without_counting() -> None:
    clock = Clock()
    limiter = Limiter(clock)
    limits = TenantLimits(requests_per_minute=60, tokens_per_minute=600)
    tenant = Tenant("t", "t", limits)
    for _ in range(2):
        standing = limiter.standing(tenant)
        assert [(rate.kind, rate.limit, rate.remaining) for rate in standing.rates] == [
            ("requests", 60, 60),
            ("tokens", 600, 600),
        ]
    slot = limiter.admit(tenant)
    slot.charge(100)
    standing = limiter.standing(tenant)
    assert ([rate.remaining for rate in standing.rates], standing.num_running) == ([59, 500], 1)
    slot.close()
    clock.now_s += 10
    standing = limiter.standing(tenant)
    assert ([rate.remaining for rate in standing.rates], standing.num_running) == ([60, 600], 0)
    assert limiter.standing(Tenant("u", "u")) == ((), 0)


def test_a_slot_comes_back_once() -> None:
    limiter = Limiter(Clock())
    first = admit(limiter, max_concurrent=2)
    second = admit(limiter, max_concurrent=2)
    with pytest.raises(LimitError, match="2 requests at once"):
        admit(limiter, max_concurrent=2)
    first.close()
    first.close()
    admit(limiter, max_concurrent=2)
    with pytest.raises(LimitError):
        admit(limiter, max_concurrent=2)
    second.close()


def test_a_raised_limit_holds_at_once() -> None:
    limiter = Limiter(Clock())
    admit(limiter, requests_per_minute=1)
    with pytest.raises(LimitError):
        admit(limiter, requests_per_minute=1)
    assert admit(limiter, requests_per_minute=10).rates[0].remaining == 8


def test_one_tenants_limit_is_not_anothers() -> None:
    limiter = Limiter(Clock())
    limits = TenantLimits(requests_per_minute=1)
    limiter.admit(Tenant("a", "a", limits))
    with pytest.raises(LimitError):
        limiter.admit(Tenant("a", "a", limits))
    assert limiter.admit(Tenant("b", "b", limits)).rates[0].remaining == 0


def test_threads_that_ask_at_once_get_no_more_than_the_limit() -> None:
    limiter = Limiter(Clock())

    def tries(_number: int) -> int:
        num_admitted = 0
        for _ in range(2000):
            try:
                admit(limiter, requests_per_minute=1000)
            except LimitError:
                continue
            num_admitted += 1
        return num_admitted

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(tries, range(4))) == 1000


REFUSALS: list[tuple[dict[str, int], int, str]] = [
    ({"max_concurrent": 2}, 2, "at once"),
    ({"tokens_per_minute": 10}, 1, "tokens per minute"),
    ({"requests_per_minute": 3}, 3, "requests per minute"),
]


@pytest.mark.parametrize(("bound", "num_fitting", "reason"), REFUSALS, ids=[reason for _, _, reason in REFUSALS])
def test_a_refusal_counts_nothing(bound: dict[str, int], num_fitting: int, reason: str) -> None:
    limiter = Limiter(Clock())
    limits = {"requests_per_minute": 10, "tokens_per_minute": 600, "max_concurrent": 5, **bound}
    slots = [admit(limiter, **limits) for _ in range(num_fitting)]
    slots[0].charge(100)
    with pytest.raises(LimitError, match=reason) as first:
        admit(limiter, **limits)
    for _ in range(20):
        with pytest.raises(LimitError, match=reason) as last:
            admit(limiter, **limits)
    assert last.value.rates == first.value.rates
    for slot in slots:
        slot.close()
    free = {"requests_per_minute": 10, "tokens_per_minute": 600, "max_concurrent": 1}
    slot = admit(limiter, **free)
    assert [rate.remaining for rate in slot.rates] == [10 - num_fitting - 1, 500]


def test_half_of_a_minute_is_kept_from_the_background_which_takes_no_place() -> None:
    limiter = Limiter(Clock())
    tenant = Tenant("t", "t", TenantLimits(requests_per_minute=10, max_concurrent=1))
    jobs = [limiter.admit(tenant, is_background=True) for _ in range(5)]
    with pytest.raises(LimitError, match="10 requests per minute") as caught:
        limiter.admit(tenant, is_background=True)
    assert caught.value.retry_after_s == pytest.approx(6)
    asked = limiter.admit(tenant)
    with pytest.raises(LimitError, match="1 requests at once"):
        limiter.admit(tenant)
    for job in jobs:
        job.close()
    with pytest.raises(LimitError, match="1 requests at once"):
        limiter.admit(tenant)
    asked.close()
    limiter.admit(tenant)


def test_half_of_the_tokens_of_a_minute_are_kept_from_the_background() -> None:
    limiter = Limiter(Clock())
    tenant = Tenant("t", "t", TenantLimits(tokens_per_minute=100))
    limiter.admit(tenant, is_background=True).charge(50)
    with pytest.raises(LimitError, match="100 tokens per minute"):
        limiter.admit(tenant, is_background=True)
    limiter.admit(tenant)

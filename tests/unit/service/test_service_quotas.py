"""Quotas beyond the life of a pool: what each new one gets of what its operator wants."""

from __future__ import annotations

import logging

import pytest
from own_threads import own_records

from radixkv import InvalidArgumentError, LimitError, PrefixCache
from radixkv.service import Quota, ServiceConfig
from radixkv.service.quotas import QuotaBook


def book(*quotas: Quota, max_quotas: int = 100, max_pools: int = 100) -> QuotaBook:
    return QuotaBook(quotas, max_quotas, max_pools)


def life(quotas: QuotaBook, num_blocks: int = 40, pool_name: str = "default") -> PrefixCache:
    """A new life of a pool."""
    cache = PrefixCache(num_blocks, 2)
    quotas.furnish(pool_name, cache)
    return cache


def told(cache: PrefixCache) -> list[tuple[str, int | None, int | None]]:
    return [(use.namespace, use.block_quota, use.sequence_quota) for use in cache.usage()]


def test_every_pool_begins_with_the_quotas_that_the_service_was_given() -> None:
    quotas = book(Quota("gold", percent=25), Quota("silver", 3), Quota("trial", sequences=2))
    assert told(life(quotas)) == [("gold", 10, None), ("silver", 3, None), ("trial", None, 2)]
    assert told(life(quotas, 9, "small")) == [("gold", 2, None), ("silver", 3, None), ("trial", None, 2)]


def test_what_was_set_goes_before_what_was_given_and_outlives_the_pool() -> None:
    quotas = book(Quota("gold", percent=25), Quota("trial", sequences=2))
    cache = life(quotas)
    assert quotas.set({"default": cache}, "gold", 30, None)["default"].block_quota == 30
    quotas.set({"default": cache}, "trial", None, None)
    quotas.set({"default": cache}, "new", 5, 1)
    assert told(cache) == told(life(quotas)) == [("gold", 30, None), ("new", 5, 1)]
    assert told(life(quotas, pool_name="other")) == [("gold", 10, None), ("trial", None, 2)]
    quotas.set({"default": cache}, "new", None, None)
    assert told(life(quotas)) == [("gold", 30, None)]


def test_a_pool_too_small_gets_every_quota_cut_in_proportion_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    quotas = book(Quota("gold", percent=50), Quota("silver", 30, sequences=4), Quota("trial", sequences=1))
    with caplog.at_level(logging.WARNING):
        assert told(life(quotas, 60)) == [("gold", 30, None), ("silver", 30, 4), ("trial", None, 1)]
        assert not own_records(caplog)
        assert told(life(quotas, 20)) == [("gold", 5, None), ("silver", 15, 4), ("trial", None, 1)]
    [record] = own_records(caplog)
    assert "pool 'default' has 20 blocks and the quotas of its namespaces are 40" in record.getMessage()
    assert told(life(quotas, 60))[1] == ("silver", 30, 4)


def test_of_several_pools_all_are_changed_or_none() -> None:
    quotas = book(Quota("gold", 15))
    caches = {name: life(quotas, num_blocks, name) for name, num_blocks in (("large", 40), ("small", 20))}
    with pytest.raises(InvalidArgumentError, match=r"blocks is 6; it must be at most 5, which .* pool 'small'"):
        quotas.set(caches, "silver", 6, None)
    assert [told(cache) for cache in caches.values()] == [[("gold", 15, None)]] * 2
    with pytest.raises(InvalidArgumentError, match="sequences is -1"):
        quotas.set(caches, "silver", 5, -1)
    assert told(life(quotas)) == [("gold", 15, None)]
    assert [usage.block_quota for usage in quotas.set(caches, "silver", 5, None).values()] == [5, 5]
    assert [usage.block_quota for usage in quotas.set(caches, "gold", 10, None).values()] == [10, 10]


def test_quotas_are_bounded_in_number() -> None:
    quotas = book(Quota("gold", 1), max_quotas=2)
    caches = {"default": life(quotas)}
    quotas.set(caches, "silver", 1, None)
    with pytest.raises(LimitError, match="2 namespaces of pool 'default' have a quota"):
        quotas.set(caches, "bronze", 1, None)
    quotas.set(caches, "silver", 2, 2)
    quotas.set(caches, "bronze", None, None)
    quotas.set(caches, "silver", None, None)
    quotas.set(caches, "bronze", 1, None)


def test_pools_whose_quotas_were_set_longest_ago_are_forgotten_past_the_bound() -> None:
    quotas = book(max_pools=2)
    for name in ("a", "b", "a", "c"):
        quotas.set({name: life(quotas, pool_name=name)}, "tenant", 7, None)
    assert [len(told(life(quotas, pool_name=name))) for name in "abc"] == [1, 0, 1]


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        (lambda: (Quota("a", 1), Quota("a", 2)), "quotas is 'a'; it must be a list that names each namespace once"),
        (lambda: (Quota("a", percent=60), Quota("b", percent=50)), "'110% of each pool in all'; .* at most 100%"),
        (lambda: (Quota("a", percent=101),), "percent is 101"),
        (lambda: (Quota("a", 1, percent=1),), "percent is 1; it must be left out"),
        (lambda: (Quota("a", -1),), "blocks is -1"),
        (lambda: (Quota("a", sequences=-1),), "sequences is -1"),
        (lambda: (Quota("", 1),), "namespace is ''"),
        (lambda: tuple(Quota(str(n), 1) for n in range(2000)), "'2000 of them'; it must be at most 1024"),
    ],
)
def test_quotas_that_cannot_be_kept_are_refused_at_the_start(quotas: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ServiceConfig(quotas=quotas())  # type: ignore[operator]  # made in the test, since making them may fail

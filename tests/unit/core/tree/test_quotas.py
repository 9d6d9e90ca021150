"""Quotas: what a namespace is guaranteed, what it is lent, and who gives way."""

from __future__ import annotations

import pytest

from radixkv import InvalidArgumentError, OutOfBlocksError, PrefixCache, QuotaError
from radixkv.core.eviction import POLICIES

BLOCK = 2


def store(cache: PrefixCache, namespace: str, first: int, num_blocks: int = 2) -> list[int]:
    """Cache a branch of its own in a namespace; its prompt."""
    prompt = [first] * (BLOCK * num_blocks)
    seq = cache.acquire(prompt, namespace=namespace)
    cache.insert(seq.seq_id, len(prompt))
    cache.release(seq.seq_id)
    cache.check()
    return prompt


def fill(cache: PrefixCache, namespace: str, num_branches: int, first: int = 1) -> list[list[int]]:
    return [store(cache, namespace, first + number) for number in range(num_branches)]


def num_cached(cache: PrefixCache, namespace: str, prompts: list[list[int]]) -> int:
    return sum(cache.match(prompt, namespace=namespace).num_tokens for prompt in prompts) // BLOCK


def blocks_of(cache: PrefixCache, namespace: str) -> int:
    return cache.usage(namespace)[0].num_blocks


def test_a_neighbours_burst_takes_nothing_that_lies_within_a_quota() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("quiet", 16)
    kept = fill(cache, "quiet", 8)
    fill(cache, "burst", 200)
    assert num_cached(cache, "quiet", kept) == 16
    assert blocks_of(cache, "burst") == 24


def test_without_a_quota_the_same_burst_takes_all() -> None:
    cache = PrefixCache(40, BLOCK, eviction="lru")
    kept = fill(cache, "quiet", 8)
    fill(cache, "burst", 200)
    assert num_cached(cache, "quiet", kept) == 0


@pytest.mark.parametrize("eviction", POLICIES)
def test_who_is_over_its_quota_evicts_its_own_branches_first(eviction: str) -> None:
    cache = PrefixCache(40, BLOCK, eviction=eviction)
    cache.set_quota("greedy", 10)
    others = fill(cache, "others", 10)
    fill(cache, "greedy", 100)
    assert num_cached(cache, "others", others) == 20
    assert blocks_of(cache, "greedy") == 20  # what the others leave idle is lent


def test_lent_blocks_come_back_by_evicting_who_borrowed_them() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("owner", 30)
    borrowed = fill(cache, "borrower", 20)
    assert num_cached(cache, "borrower", borrowed) == 40
    mine = fill(cache, "owner", 15, first=100)
    assert num_cached(cache, "owner", mine) == 30
    assert blocks_of(cache, "borrower") == 10


def test_of_several_borrowers_the_one_who_borrowed_most_gives_back_first() -> None:
    cache = PrefixCache(40, BLOCK, eviction="lru")
    for namespace in ("small", "large", "owner"):
        cache.set_quota(namespace, 10)
    fill(cache, "small", 7)
    fill(cache, "large", 13)
    fill(cache, "owner", 2)
    assert [blocks_of(cache, name) for name in ("small", "large", "owner")] == [14, 22, 4]
    fill(cache, "owner", 5, first=100)
    assert [blocks_of(cache, name) for name in ("small", "large", "owner")] == [14, 16, 10]


def test_what_runs_within_a_quota_always_fits_beside_what_runs_elsewhere() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("tenant", 12)
    others = cache.acquire([1] * 28 * BLOCK, namespace="other")
    with pytest.raises(OutOfBlocksError) as refused:
        cache.acquire([2] * BLOCK, namespace="another")
    assert (refused.value.num_needed, refused.value.num_available) == (1, 0)
    seq = cache.acquire([3] * 6 * BLOCK, reserve=6 * BLOCK, namespace="tenant")
    cache.extend(seq.seq_id, 12 * BLOCK)
    with pytest.raises(QuotaError) as over:
        cache.extend(seq.seq_id, 12 * BLOCK + 1)
    assert (over.value.namespace, over.value.unit) == ("tenant", "blocks")
    assert (over.value.num_needed, over.value.num_available, over.value.quota) == (1, 0, 12)
    cache.check()
    for seq_id in (seq.seq_id, others.seq_id):
        cache.release(seq_id)
    cache.check()


def test_a_refusal_changes_nothing_and_leaves_no_account_behind() -> None:
    cache = PrefixCache(8, BLOCK, clock=lambda: 0.0)
    cache.set_quota("tenant", 2)
    kept = fill(cache, "other", 3)
    before = (cache.stats(), cache.dump(), cache.usage())
    with pytest.raises(
        QuotaError, match=r"3 blocks are needed, and of the 2 that namespace 'tenant' may use 2 are left"
    ):
        cache.acquire([9] * 6, namespace="tenant")
    with pytest.raises(OutOfBlocksError):
        cache.acquire([9] * 14, namespace="new")
    assert (cache.stats(), cache.dump(), cache.usage()) == before
    assert num_cached(cache, "other", kept) == 6


def test_sequences_are_bounded_forks_among_them() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("tenant", sequences=3)
    first = cache.acquire([1, 2, 3], namespace="tenant")
    cache.insert(first.seq_id, 3)
    with pytest.raises(QuotaError) as over:
        cache.fork(first.seq_id, 2, n=3)
    assert (over.value.unit, over.value.num_needed, over.value.num_available, over.value.quota) == (
        "sequences",
        3,
        2,
        3,
    )
    children = cache.fork(first.seq_id, 2, n=2)
    with pytest.raises(QuotaError):
        cache.acquire([5], namespace="tenant")
    cache.acquire([5], namespace="other")
    cache.release(children[0].seq_id)
    cache.acquire([5], namespace="tenant", share_prefix=False)
    assert cache.usage("tenant")[0].num_sequences == 3
    cache.check()


def test_a_quota_set_below_what_runs_stops_what_is_new_and_nothing_that_runs() -> None:
    cache = PrefixCache(40, BLOCK)
    seq = cache.acquire([1] * 10 * BLOCK, reserve=4 * BLOCK, namespace="tenant")
    usage = cache.set_quota("tenant", 6, 1)
    assert (usage.num_blocks, usage.num_blocks_in_use, usage.block_quota, usage.sequence_quota) == (10, 14, 6, 1)
    cache.check()
    cache.extend(seq.seq_id, 14 * BLOCK)
    cache.insert(seq.seq_id, 10 * BLOCK)
    with pytest.raises(QuotaError):
        cache.extend(seq.seq_id, 15 * BLOCK)
    with pytest.raises(QuotaError):
        cache.fork(seq.seq_id, 3)
    cache.release(seq.seq_id)
    cache.acquire([1] * 6 * BLOCK, namespace="tenant")
    cache.check()


def test_a_shrunk_quota_never_promises_blocks_that_are_in_use() -> None:
    cache = PrefixCache(10, BLOCK)
    cache.acquire([1] * 10 * BLOCK, namespace="tenant")
    cache.set_quota("tenant", 2)
    with pytest.raises(OutOfBlocksError):
        cache.acquire([1], namespace="other")
    cache.check()


def test_setting_and_dropping_a_quota_keeps_what_is_cached_and_its_order() -> None:
    cache = PrefixCache(40, BLOCK, eviction="lru")
    oldest, *_, newest = prompts = fill(cache, "tenant", 6)
    cache.set_quota("tenant", 12)
    cache.check()
    assert num_cached(cache, "tenant", prompts) == 12
    cache.set_quota("tenant", 8)
    cache.check()
    store(cache, "tenant", 50)
    assert cache.match(oldest, namespace="tenant").num_tokens == 4  # nobody needed the room
    fill(cache, "other", 17)
    assert cache.match(oldest, namespace="tenant").num_tokens == 0
    assert cache.match(newest, namespace="tenant").num_tokens == 4
    assert cache.set_quota("tenant").block_quota is None
    cache.check()
    fill(cache, "other", 40)
    assert cache.match(newest, namespace="tenant").num_tokens == 0


def test_usage_tells_every_namespace_and_forgets_those_that_are_gone() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("reserved", 5)
    store(cache, "a", 1)
    seq = cache.acquire([1, 1, 1], reserve=4, namespace="b")
    told = [(use.namespace, use.num_blocks, use.num_blocks_in_use, use.num_sequences) for use in cache.usage()]
    assert told == [("a", 2, 0, 0), ("b", 2, 4, 1), ("reserved", 0, 0, 0)]
    cache.release(seq.seq_id, keep=False)
    cache.clear("a")
    assert [use.namespace for use in cache.usage()] == ["reserved"]
    cache.set_quota("reserved")
    assert cache.usage() == []
    assert cache.usage("nobody")[0].num_blocks == 0


def test_cleared_sequences_count_until_they_end() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("tenant", 10)
    seq = cache.acquire([1] * 8, namespace="tenant")
    cache.insert(seq.seq_id, 8)
    cache.clear("tenant")
    cache.check()
    assert cache.usage("tenant")[0].num_blocks_in_use == 4
    with pytest.raises(QuotaError):
        cache.acquire([2] * 14, namespace="tenant")
    cache.release(seq.seq_id)
    cache.check()
    assert cache.usage("tenant")[0].num_blocks == 0


def test_pins_stay_within_the_quota_and_hold_under_a_burst() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("tenant", 8)
    pinned = store(cache, "tenant", 1, num_blocks=6)
    cache.pin(pinned, ttl="1h", namespace="tenant")
    assert cache.usage("tenant")[0].num_blocks_in_use == 6
    fill(cache, "tenant", 30, first=10)
    fill(cache, "other", 60)
    assert cache.match(pinned, namespace="tenant").num_tokens == 12
    with pytest.raises(QuotaError):
        cache.acquire([99] * 6, namespace="tenant")
    cache.check()


def test_an_explicit_eviction_takes_from_who_borrowed_first() -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("within", 10)
    kept = fill(cache, "within", 5)
    cache.set_quota("over", 10)
    fill(cache, "over", 8)
    assert cache.evict(6) == 6
    assert (num_cached(cache, "within", kept), blocks_of(cache, "over")) == (10, 10)
    assert cache.evict(100) == 20
    cache.check()


@pytest.mark.parametrize(
    ("blocks", "sequences", "message"),
    [
        (-1, None, r"blocks is -1; it must be an integer of at least 0"),
        (31, None, r"blocks is 31; it must be an integer from 0 to 30"),
        (True, None, r"blocks is True"),
        (1.5, None, r"blocks is 1\.5"),
        (None, -1, r"sequences is -1"),
        (5, "many", r"sequences is 'many'"),
    ],
)
def test_bad_quotas_are_refused_and_change_nothing(blocks: object, sequences: object, message: str) -> None:
    cache = PrefixCache(40, BLOCK)
    cache.set_quota("first", 10)
    with pytest.raises(InvalidArgumentError, match=message):
        cache.set_quota("second", blocks, sequences)  # type: ignore[arg-type]  # bad on purpose
    assert [use.namespace for use in cache.usage()] == ["first"]
    with pytest.raises(InvalidArgumentError, match="namespace"):
        cache.set_quota("", 1)
    cache.set_quota("first", 40)
    cache.check()


def test_a_quota_of_nothing_shuts_a_namespace_out() -> None:
    cache = PrefixCache(40, BLOCK)
    store(cache, "tenant", 1)
    cache.set_quota("tenant", 0)
    with pytest.raises(QuotaError):
        cache.acquire([5], namespace="tenant")
    assert cache.match([1, 1], namespace="tenant").num_tokens == 2


def test_blocks_are_counted_times_the_seconds_that_they_are_held() -> None:
    now_s = 100.0
    cache = PrefixCache(16, BLOCK, clock=lambda: now_s)
    seq = cache.acquire([1] * BLOCK * 4, namespace="tenant")
    cache.insert(seq.seq_id, num_computed=BLOCK * 4)
    now_s += 10
    cache.release(seq.seq_id)  # four blocks stay cached
    now_s += 5
    assert cache.usage("tenant")[0].held_block_s == 4 * 15
    assert cache.usage("tenant#adapter=sql")[0].held_block_s == 4 * 15, "the owner's"
    cache.set_quota("tenant", 4)
    cache.set_quota("tenant")
    cache.evict(1)
    now_s += 2
    held = cache.usage("tenant")[0]
    assert held.held_block_s == 4 * 15 + held.num_blocks * 2
    cache.clear("tenant")
    now_s += 1000
    assert cache.usage() == []
    assert cache.usage("tenant")[0].held_block_s == held.held_block_s, "kept while it holds nothing"
    seq = cache.acquire([2] * BLOCK, namespace="tenant")
    now_s += 1
    assert cache.usage("tenant")[0].held_block_s == held.held_block_s + 1
    assert cache.usage("other")[0].held_block_s == 0
    cache.check()

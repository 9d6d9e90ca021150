"""Namespaces of adapters and salts: nothing matches across them, and all of them stand in their owner's books."""

from __future__ import annotations

import pytest

from radixkv import InvalidArgumentError, OutOfBlocksError, PinBudgetError, PrefixCache, QuotaError
from radixkv.client.ledger import Ledger
from radixkv.core.api import AcquireOp, InsertOp, PoolShape, ReleaseOp, StepOp
from radixkv.core.namespaces import adapter_of, covers, derived_namespace, is_derived, owner_of
from radixkv.core.tokens import pack_tokens
from radixkv.service.quotas import Quota

SALTED = derived_namespace("team", salt="pepper")
OTHER = derived_namespace("team", salt="sugar")
ADAPTED = derived_namespace("team", salt="pepper", adapter="sql")


def cached(cache: PrefixCache, namespace: str, tokens: range) -> None:
    seq = cache.acquire(tokens, namespace=namespace)
    cache.insert(seq.seq_id, num_computed=len(tokens))
    cache.release(seq.seq_id)


def new_cache(num_blocks: int = 32, **options: float) -> PrefixCache:
    return PrefixCache(num_blocks, 4, eviction="lru", clock=lambda: 0.0, **options)


def test_a_name_tells_its_owner_and_adapter_and_not_its_salt() -> None:
    names = [SALTED, OTHER, ADAPTED, derived_namespace("team", adapter="sql"), derived_namespace("crew", salt="pepper")]
    assert len({*names}) == len({name.split("#", 1)[1] for name in names}) == 5
    assert [owner_of(name) for name in names] == ["team"] * 4 + ["crew"]
    assert [adapter_of(name) for name in names] == ["", "", "sql", "sql", ""]
    assert not any("pepper" in name for name in names)
    assert derived_namespace("team") == "team"
    assert not is_derived("team#1")
    assert covers("team", ADAPTED)
    assert not covers(SALTED, ADAPTED)


@pytest.mark.parametrize("owner", [SALTED, "team#adapter=x", "x" * 256])
def test_nothing_is_derived_of_what_is_derived_or_too_long(owner: str) -> None:
    with pytest.raises(InvalidArgumentError, match="namespace"):
        derived_namespace(owner, salt="pepper")


def test_a_quota_counts_what_every_salt_holds() -> None:
    cache = new_cache()
    cache.set_quota("team", 4, sequences=2)
    cached(cache, SALTED, range(8))
    first = cache.acquire(range(100, 108), namespace=OTHER)
    (usage,) = cache.usage("team")
    assert (usage.num_blocks, usage.num_blocks_in_use, usage.num_sequences) == (4, 2, 1)
    with pytest.raises(QuotaError, match="'team'"):
        cache.acquire(range(200, 212), namespace=ADAPTED)
    cache.acquire(range(300, 304), namespace="team")
    with pytest.raises(QuotaError, match="1 sequences are needed, and of the 2"):
        cache.acquire(range(400, 404), namespace=SALTED)
    cache.release(first.seq_id)
    cache.check()


def test_a_full_share_evicts_the_branches_of_its_own_salts() -> None:
    cache = new_cache(8)
    cached(cache, "neighbour", range(16))
    cache.set_quota("team", 4)
    for number in range(8):
        cached(cache, derived_namespace("team", salt=str(number)), range(8))
    assert cache.match(range(16), namespace="neighbour").num_tokens == 16
    assert cache.usage("team")[0].num_blocks == 4
    cache.check()


@pytest.mark.parametrize("namespace", [SALTED, "team#adapter=sql"])
def test_a_quota_is_the_owners_alone(namespace: str) -> None:
    cache = new_cache()
    with pytest.raises(InvalidArgumentError, match="'team', whose quota counts it"):
        cache.set_quota(namespace, 4)
    with pytest.raises(InvalidArgumentError, match="'team', whose quota counts it"):
        Quota(namespace, 4)


def test_a_pin_budget_is_spent_by_all_salts_and_its_refusal_tells_none_of_anothers() -> None:
    cache = new_cache(pin_budget=200.0)
    for namespace in (SALTED, OTHER):
        cached(cache, namespace, range(8))
    cache.pin(range(8), ttl=60, namespace=SALTED)
    with pytest.raises(PinBudgetError) as refused:
        cache.pin(range(8), ttl=60, namespace=OTHER)
    assert refused.value.pins == ()
    assert [pin.namespace for pin in cache.pins("team")] == [SALTED]
    assert cache.unpin(range(8), namespace=SALTED)
    cache.pin(range(8), ttl=60, namespace=OTHER)
    cache.check()


def test_salts_take_one_share_of_what_may_be_pinned() -> None:
    cache = new_cache(32)  # 16 may be pinned: 8 each for two owners
    spaces = [derived_namespace("team", salt=str(number)) for number in range(4)]
    for namespace in (*spaces, "neighbour"):
        cached(cache, namespace, range(16))
    for namespace in spaces:
        cache.pin(range(16), ttl=60, namespace=namespace)
    cache.pin(range(16), ttl=60, namespace="neighbour")
    assert [len(cache.pins(name)) for name in ("team", "neighbour")] == [3, 1]
    with pytest.raises(PinBudgetError):
        cache.pin(range(16), ttl=60, namespace=spaces[-1])
    cache.check()


def test_a_clear_of_the_owner_covers_what_is_derived_and_no_other_way_round() -> None:
    cache = new_cache()
    for namespace in ("team", SALTED, ADAPTED, "team2"):
        cached(cache, namespace, range(8))
    assert {node.namespace for node in cache.dump("team")} == {"team", SALTED, ADAPTED}
    assert cache.clear(SALTED) == 2
    assert cache.match(range(8), namespace=ADAPTED).num_tokens == 8
    assert cache.clear("team") == 4
    assert [use.namespace for use in cache.usage()] == ["team2"]
    cache.check()


def test_what_was_cleared_with_its_owner_stays_away_after_a_restart() -> None:
    cache = new_cache()
    cache.clear("team")
    table = cache.acquire(range(8), namespace="team2").block_table  # a cache of the same shape says which blocks
    restarted = new_cache()
    restarted.clear("team")
    assert restarted.adopt(range(8), table, namespace=SALTED) == 0
    assert restarted.adopt(range(8), table, namespace="team2") == 8


def test_a_holder_that_heard_of_a_clear_tells_nothing_of_it_to_the_next_service() -> None:
    shape = PoolShape(32, 4)
    cache, after, ledger = new_cache(record_key=7), new_cache(record_key=7), Ledger(shape)
    ops: list[StepOp] = []
    for seq_id, name in enumerate((SALTED, "team2")):
        ops += [AcquireOp(pack_tokens(range(8)), 0, name, seq_id), InsertOp(seq_id, 8), ReleaseOp(seq_id)]
    ledger.answered(ops, cache.step(ops))
    ledger.keep(cache.take_records())
    cache.clear("team")
    ledger.noted(cache.take_records())
    after.step(list(ledger.adoption()))
    assert [after.match(range(8), namespace=name).num_tokens for name in (SALTED, "team2")] == [0, 8]


def test_a_million_salts_leave_no_more_behind_than_the_pool_holds() -> None:
    cache = new_cache(8)
    for number in range(2000):
        cached(cache, derived_namespace("team", salt=str(number)), range(4))
    assert len(cache.dump("team")) == 8
    assert len(cache.usage()) == 1
    with pytest.raises(OutOfBlocksError):
        cache.acquire(range(64), namespace=SALTED)
    cache.check()

"""What a holder gives a restarted service back: every history that was cached, in its blocks, and nothing that was not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from radixkv import PrefixCache
from radixkv.client import ledger as ledger_module
from radixkv.client.ledger import Ledger
from radixkv.core.api import (
    AcquireOp,
    AdoptBlocksOp,
    AdoptSequenceOp,
    EvictBranchOp,
    ExtendOp,
    ForkOp,
    InsertOp,
    PinOp,
    PoolShape,
    ReleaseOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.testing.hash_kv_worker import HashKvWorker

SIZE, KEY = 4, 77


class Followed(PrefixCache):
    """A cache whose Steps and changes a ledger records."""

    def __init__(self, num_blocks: int = 32) -> None:
        super().__init__(num_blocks, SIZE, eviction="lru", clock=lambda: 0.0, record_key=KEY)
        self.ledger = Ledger(PoolShape(num_blocks, SIZE))
        self.journal.is_kept = True
        self.num_blocks = num_blocks

    def step(self, ops: Sequence[Any], refused: Any = None) -> list[Any]:
        results: list[StepResult] = super().step(ops, refused or {})
        self.ledger.keep(self.take_records())
        self.ledger.answered(ops, results)
        self.heard()
        return results

    def heard(self) -> None:
        for entry in (*self.journal.take(1 << 30), self.take_records()):
            self.ledger.noted(entry)

    def cached(self, tokens: Sequence[int], namespace: str = "default", **options: Any) -> None:
        """A history that is left in the cache."""
        packed = pack_tokens(tokens)
        ops: list[StepOp] = [AcquireOp(packed, 0, namespace, 10**6, **options), InsertOp(10**6, len(tokens))]
        assert not any(isinstance(result, RadixKVError) for result in self.step([*ops, ReleaseOp(10**6)]))

    def restarted(self) -> PrefixCache:
        """The cache of a service that was told everything."""
        cache = PrefixCache(self.num_blocks, SIZE, eviction="lru", clock=lambda: 0.0, record_key=KEY)
        for op in list(self.ledger.adoption()):
            (result,) = cache.step([op])
            assert not isinstance(result, RadixKVError) or isinstance(op, SetQuotaOp), f"{op}: {result}"
        cache.check()
        return cache


def histories(cache: PrefixCache) -> set[tuple[str, bytes, tuple[int, ...]]]:
    """Namespace, tokens and blocks of every node's whole history."""
    known: dict[int, tuple[bytes, tuple[int, ...]]] = {0: (b"", ())}
    found = set()
    for node in cache.dump():
        before, blocks = known.get(node.parent_id, (b"", ()))
        known[node.node_id] = before + node.tokens, blocks + tuple(node.block_ids)
        found.add((node.namespace, *known[node.node_id]))
    return found


def leaves(cache: PrefixCache) -> set[tuple[str, bytes, tuple[int, ...]]]:
    """Those that no other one goes on from."""
    found = histories(cache)
    return {
        one
        for one in found
        if not any(other != one and other[0] == one[0] and other[1].startswith(one[1]) for other in found)
    }


def test_every_history_comes_back_in_its_blocks() -> None:
    cache = Followed()
    cache.cached(range(11))
    cache.cached([*range(8), 50, 51])
    cache.cached([*range(6), 60, 61, 62])
    cache.cached(range(11), "other")
    cache.cached([1], "other")
    assert leaves(cache.restarted()) == leaves(cache)


def test_a_block_that_others_took_is_told_with_what_it_holds_now() -> None:
    cache = Followed(4)
    cache.cached(range(16))
    cache.cached(range(50, 58))
    after = cache.restarted()
    assert after.match(pack_tokens(range(50, 58))).num_tokens == 8
    assert leaves(after) == leaves(cache)


def test_nothing_that_was_cleared_comes_back() -> None:
    cache = Followed()
    for namespace in ("a", "b"):
        cache.cached(range(9), namespace)
    cache.clear("a")
    cache.heard()
    after = cache.restarted()
    assert {namespace for namespace, _, _ in histories(after)} == {"b"}
    cache.cached(range(5), "a")
    assert cache.restarted().match(pack_tokens(range(9)), namespace="a").num_tokens == 5


@pytest.mark.parametrize("dropped", [range(6), range(4), range(8), [*range(8), 50], [0], [70]])
def test_a_dropped_branch_stays_dropped_and_what_parts_from_it_before_stays(dropped: Sequence[int]) -> None:
    cache = Followed()
    kept = [range(11), [*range(8), 50, 51], range(70, 72), range(80, 89)]
    for tokens in kept[:2]:
        cache.cached(tokens)
    cache.cached(range(11), "other")
    cache.cached(kept[3])
    cache.step([EvictBranchOp(pack_tokens(dropped), "default")])
    after = cache.restarted()
    assert [after.match(pack_tokens(tokens)).num_tokens for tokens in kept] == [
        cache.match(pack_tokens(tokens)).num_tokens for tokens in kept
    ]
    assert after.match(pack_tokens(range(11)), namespace="other").num_tokens == 11
    cache.cached(kept[0])
    assert cache.restarted().match(pack_tokens(kept[0])).num_tokens == 11, "what is computed again is told again"


def test_pins_quotas_and_retention_come_back() -> None:
    cache = Followed()
    cache.cached(range(12), retention=(Retention(0, 4, priority=90), Retention(4, None, priority=20, duration_s=60.0)))
    cache.step([PinOp(pack_tokens(range(8)), 30.0), PinOp(pack_tokens(range(12)), 40.0), SetQuotaOp("a", 20, 3)])
    cache.unpin(pack_tokens(range(12)))
    cache.heard()
    after = cache.restarted()
    assert [(pin.num_tokens, pin.ttl_s) for pin in after.pins()] == [(8, 30.0)]
    (usage,) = (use for use in after.usage() if use.namespace == "a")
    assert (usage.block_quota, usage.sequence_quota) == (20, 3)
    worth = {(node.position, node.priority, node.retained_until_s) for node in after.dump()}
    assert worth == {(node.position, node.priority, node.retained_until_s) for node in cache.dump()}
    assert {priority for _, priority, _ in worth} == {90, 20}


def test_many_blocks_are_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "_BLOCKS_AT_ONCE", 2)
    cache = Followed()
    cache.cached(range(22))
    cache.cached([*range(12), 50])
    told = [op for op in cache.ledger.adoption() if isinstance(op, AdoptBlocksOp)]
    assert max(len(op.block_ids) for op in told) <= 2
    assert sum(len(op.block_ids) for op in told) == cache.stats().num_cached_blocks, "nothing is told twice"
    assert leaves(cache.restarted()) == leaves(cache)


def test_the_latest_used_is_told_last_so_that_it_is_evicted_last() -> None:
    cache = Followed()
    for first in (1, 2, 3, 4):
        cache.cached([first] * 5)
        cache.cached([9, 9, 9, 9, first, 0])
    cache.cached([2] * 5)
    cache.cached([9, 9, 9, 9, 1, 0])
    after = cache.restarted()
    for _ in range(3):
        after.evict(1)
        cache.evict(1)
        assert leaves(after) == leaves(cache)


def test_an_open_sequence_comes_back_with_its_room_and_its_blocks() -> None:
    cache = Followed()
    first, *_ = cache.step([AcquireOp(pack_tokens(range(6)), 9, "default", 1), InsertOp(1, 5), ExtendOp(1, 10)])
    cache.step([ForkOp(1, 5, 1, 2, (2,)), AcquireOp(pack_tokens(range(6)), 0, "default", 3, share_prefix=False)])
    told = {op.seq_id: op for op in cache.ledger.adoption() if isinstance(op, AdoptSequenceOp)}
    assert set(told) == {1, 2, 3}
    assert list(told[1].block_table)[:2] == list(first.block_table)
    assert (told[1].num_computed, told[1].room, told[1].reserve) == (5, 10, 5)
    assert (told[2].num_computed, told[2].room, told[2].reserve, told[2].shares_last) == (5, 5, 2, True)
    assert [told[number].share_prefix for number in (1, 2, 3)] == [True, True, False]
    after = cache.restarted()
    assert after.stats().num_sequences == 3
    assert after.stats().num_private_blocks == cache.stats().num_private_blocks
    for one in (cache, after):
        assert one.extend(1, 11).block_ids is not None
    cache.ledger.lost(3)
    assert {op.seq_id for op in cache.ledger.adoption() if isinstance(op, AdoptSequenceOp)} == {1, 2}


def test_sequences_of_a_cleared_tree_go_on_sharing_among_themselves() -> None:
    cache = Followed()
    cache.step([AcquireOp(pack_tokens(range(9)), 0, "default", 1), InsertOp(1, 9)])
    cache.step([ForkOp(1, 8, 1, 0, (2,))])
    cache.clear("default")
    cache.heard()
    one, two = (op for op in cache.ledger.adoption() if isinstance(op, AdoptSequenceOp))
    assert (one.share_prefix, two.share_prefix) == (False, False)
    assert {one.same_tree_as, two.same_tree_as} == {None, one.seq_id}
    after = cache.restarted()
    assert after.match(pack_tokens(range(9))).num_tokens == 0
    assert after.stats().num_private_blocks + after.stats().num_cached_blocks == 3, "the common blocks are held once"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_was_done_every_slot_is_right_after_a_restart(seed: int) -> None:
    rng, cache = random.Random(seed), Followed(20)
    worker = HashKvWorker(cache, 20, SIZE)
    for number in range(1, 120):
        usable = [one for one in worker.sequences.values() if one.is_usable]
        chance, one = rng.random(), rng.choice(usable) if usable else None
        if one is None or chance < 0.25:
            tokens = pack_tokens([rng.randrange(2) for _ in range(rng.randint(1, 14))])
            ops: list[StepOp] = [AcquireOp(tokens, rng.choice([0, 5]), rng.choice("ab"), number)]
        elif chance < 0.35 and one.num_computed:
            ops = [ForkOp(one.seq_id or 0, rng.randint(1, one.num_computed), 1, 0, (number,))]
        elif chance < 0.45:
            ops = [ReleaseOp(one.seq_id or 0, rng.random() < 0.8)]
        elif chance < 0.5:
            ops = [EvictBranchOp(pack_tokens([rng.randrange(2) for _ in range(rng.randint(1, 6))]), "a")]
        elif chance < 0.7:
            ops = [ExtendOp(one.seq_id or 0, one.room + rng.randint(1, 5))]
        else:
            while len(one.tokens) < one.room:
                worker.sample(one, rng.randrange(2))
            worker.compute(one, one.num_computed + rng.randint(1, 9))
            new = one.tokens[one.num_reported : max(one.num_computed, one.num_reported)]
            ops = [InsertOp(one.seq_id or 0, one.num_computed, pack_tokens(new))]
        worker.submit(ops)
        worker.catch_up()
        if number % 10:
            continue
        after = cache.restarted()
        for namespace, tokens, blocks in histories(after):
            worker.verify_blocks(namespace, unpack_tokens(tokens), len(tokens) // 4, blocks)
        open_ids = {one.seq_id for one in worker.sequences.values() if one.is_usable}
        assert after.stats().num_sequences == len(open_ids)
        for namespace, tokens, _ in histories(cache):
            assert after.match(tokens, namespace=namespace).num_tokens == len(tokens) // 4

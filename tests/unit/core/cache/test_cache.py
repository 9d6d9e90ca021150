"""What a caller of `PrefixCache` sees, call by call."""

from __future__ import annotations

import contextlib
import random
import threading
from array import array

import pytest

from radixkv import (
    AbortedError,
    AcquireOp,
    Copy,
    ExtendOp,
    ForkOp,
    InsertOp,
    InvalidArgumentError,
    OutOfBlocksError,
    PrefixCache,
    ReleaseOp,
    UnknownSequenceError,
    WrongThreadError,
    pack_tokens,
)


def stored(cache: PrefixCache, tokens: list[int], namespace: str = "default") -> None:
    """Leave `tokens` cached, with nobody standing on them."""
    seq = cache.acquire(tokens, namespace=namespace)
    cache.insert(seq.seq_id, len(tokens))
    cache.release(seq.seq_id)
    cache.check()


def test_a_prompt_that_was_inserted_matches_to_the_token() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, [1, 2, 3, 4, 5, 6])
    assert cache.match([1, 2, 3, 4, 5, 6, 7]).num_tokens == 6
    assert cache.match([1, 2, 3, 4, 5, 9]).num_tokens == 5
    assert cache.match([1, 2, 9]).num_tokens == 2
    assert cache.match([9]).num_tokens == 0
    assert cache.match([]).num_tokens == 0


def test_a_full_hit_leaves_the_last_token_to_be_run_again() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, list(range(8)))
    seq = cache.acquire(list(range(8)))
    assert (seq.num_stored_tokens, seq.num_cached_tokens) == (8, 7)
    assert seq.ops == ()


def test_match_reads_only() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, list(range(12)))
    before = cache.dump(), cache.stats()
    cache.match([0, 1, 2, 3, 4, 99])
    assert (cache.dump(), cache.stats()) == before


def test_of_the_block_where_histories_part_the_common_part_is_copied() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, list(range(8)))
    source = cache.dump()[0].block_ids[1]
    seq = cache.acquire([0, 1, 2, 3, 4, 5, 90, 91, 92])
    assert seq.num_stored_tokens == 6
    assert seq.ops == (Copy(source, seq.block_table[1], 2),)
    assert seq.block_table[1] != source
    cache.check()


def test_a_follow_up_goes_on_in_the_tail_without_a_copy() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, [1, 2, 3, 4, 5, 6])
    tail_block = cache.dump()[1].block_ids[0]
    seq = cache.acquire([1, 2, 3, 4, 5, 6, 7])
    assert seq.ops == ()
    assert seq.block_table[1] == tail_block
    cache.insert(seq.seq_id, 7)
    assert cache.match([1, 2, 3, 4, 5, 6, 7]).num_tokens == 7
    cache.check()


def test_a_second_writer_of_a_tail_gets_a_copy() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, [1, 2])
    first = cache.acquire([1, 2, 3])
    second = cache.acquire([1, 2, 7])
    assert first.ops == ()
    assert second.ops == (Copy(first.block_table[0], second.block_table[0], 2),)
    cache.check()


def test_decoding_leaves_one_node_and_not_a_chain_of_blocks() -> None:
    cache = PrefixCache(64, 4)
    seq = cache.acquire([1, 2, 3])
    cache.insert(seq.seq_id, 3)
    for length in range(4, 41):
        cache.extend(seq.seq_id, length)
        cache.insert(seq.seq_id, length, [length])
        cache.check()
    assert cache.stats().num_nodes == 1


def test_a_fork_moves_nothing_and_copies_at_its_first_write_only() -> None:
    cache = PrefixCache(16, 4)
    seq = cache.acquire(list(range(6)))
    cache.insert(seq.seq_id, 6)
    left, right = cache.fork(seq.seq_id, 5, n=2)
    assert left.ops == right.ops == ()
    assert left.block_table == right.block_table == seq.block_table
    assert (left.num_stored_tokens, left.num_cached_tokens) == (5, 4)
    grown = cache.extend(left.seq_id, 6)
    assert grown.first_changed == 1
    assert grown.ops == (Copy(seq.block_table[1], grown.block_ids[0], 1),)
    cache.check()


def test_a_fork_at_the_tip_lets_the_parent_go_on_in_place() -> None:
    cache = PrefixCache(16, 4)
    seq = cache.acquire([1, 2])
    cache.insert(seq.seq_id, 2)
    (child,) = cache.fork(seq.seq_id, 2)
    grown = cache.extend(seq.seq_id, 3)
    assert grown.ops == ()
    assert grown.first_changed == 1
    assert len(cache.extend(child.seq_id, 3).ops) == 1
    cache.check()


def test_extend_is_harmless_when_repeated() -> None:
    cache = PrefixCache(16, 4)
    seq = cache.acquire([1, 2, 3])
    first = cache.extend(seq.seq_id, 9)
    assert (first.first_changed, len(first.block_ids)) == (1, 2)
    again = cache.extend(seq.seq_id, 9)
    assert (again.first_changed, len(again.block_ids), again.ops) == (3, 0, ())


def test_equal_work_of_two_sequences_is_kept_once_when_they_end() -> None:
    cache = PrefixCache(16, 4)
    tokens = list(range(8))
    first, second = cache.acquire(tokens), cache.acquire(tokens)
    cache.insert(first.seq_id, 8)
    cache.insert(second.seq_id, 8)
    assert set(first.block_table).isdisjoint(second.block_table)
    cache.check()
    cache.release(first.seq_id)
    cache.release(second.seq_id)
    cache.check()
    assert cache.stats().num_cached_blocks == 2


def test_a_reserve_is_promised_to_its_sequence_and_to_nobody_else() -> None:
    cache = PrefixCache(4, 4)
    seq = cache.acquire([1, 2, 3, 4], reserve=8)
    with pytest.raises(OutOfBlocksError) as error:
        cache.acquire([9] * 8)
    assert (error.value.num_needed, error.value.num_available) == (2, 1)
    cache.extend(seq.seq_id, 12)
    cache.check()


def test_what_cannot_fit_evicts_nothing_and_counts_nowhere() -> None:
    cache = PrefixCache(4, 4)
    stored(cache, list(range(8)))
    before = cache.dump(), cache.stats()
    with pytest.raises(OutOfBlocksError):
        cache.acquire([9] * 20)
    assert (cache.dump(), cache.stats()) == before


def test_eviction_takes_the_least_recently_used_branch_and_never_a_locked_one() -> None:
    cache = PrefixCache(6, 2)
    stored(cache, [1, 1, 2, 2])
    stored(cache, [1, 1, 3, 3])
    held = cache.acquire([1, 1, 2, 2])
    cache.release(held.seq_id)
    locked = cache.acquire([7, 7, 7, 7])
    cache.acquire([8, 8, 8, 8])
    assert cache.match([1, 1, 3, 3]).num_tokens == 2
    assert cache.match([1, 1, 2, 2]).num_tokens == 4
    cache.insert(locked.seq_id, 4)
    assert cache.evict(100) == 2
    assert cache.match([7, 7, 7, 7]).num_tokens == 4
    cache.check()


def test_release_without_keep_takes_away_what_nobody_else_has_used() -> None:
    cache = PrefixCache(32, 4)
    stored(cache, list(range(6)))
    seq = cache.acquire([*range(6), 70, 71, 72])
    cache.insert(seq.seq_id, 9)
    cache.release(seq.seq_id, keep=False)
    assert cache.match([*range(6), 70, 71, 72]).num_tokens == 6
    cache.check()


def test_release_without_keep_leaves_what_another_has_used() -> None:
    cache = PrefixCache(32, 4)
    seq = cache.acquire(list(range(8)))
    cache.insert(seq.seq_id, 8)
    other = cache.acquire([0, 1, 2, 3, 99])
    cache.release(seq.seq_id, keep=False)
    assert cache.match(list(range(8))).num_tokens == 4
    cache.release(other.seq_id)
    cache.check()


def test_namespaces_share_the_pool_and_nothing_else() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, [1, 2, 3, 4], namespace="a")
    assert cache.match([1, 2, 3, 4], namespace="b").num_tokens == 0
    assert cache.dump("b") == []
    assert cache.clear("b") == 0
    assert cache.match([1, 2, 3, 4], namespace="a").num_tokens == 4
    assert [event.kind for event in cache.events(namespace="a")] == ["reset", "stored", "synced"]
    assert [event.kind for event in cache.events(namespace="b")] == ["reset", "synced"]


def test_clear_forgets_at_once_and_frees_what_is_locked_when_it_is_let_go() -> None:
    cache = PrefixCache(16, 4)
    stored(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    seq = cache.acquire([1, 2, 3, 4])
    assert cache.clear() == 1
    assert cache.match([1, 2, 3, 4]).num_tokens == 0
    cache.check()
    (child,) = cache.fork(seq.seq_id, 3)
    cache.release(seq.seq_id)
    cache.release(child.seq_id)
    cache.check()
    assert cache.stats().num_free_blocks == 16


def test_a_step_applies_ops_in_order_and_aborts_what_hangs_on_a_failed_one() -> None:
    cache = PrefixCache(16, 4)
    results = cache.step(
        [
            AcquireOp(pack_tokens([1, 2, 3]), seq_id=7),
            InsertOp(7, 3),
            ForkOp(7, 9, seq_ids=(8,)),
            ExtendOp(8, 12),
            AcquireOp(pack_tokens([1, 2, 3]), seq_id=9),
            ReleaseOp(9),
        ]
    )
    assert results[0].seq_id == 7  # type: ignore[union-attr]
    assert results[1] is None
    assert isinstance(results[2], InvalidArgumentError)
    assert isinstance(results[3], AbortedError)
    assert results[4].num_cached_tokens == 2  # type: ignore[union-attr]
    assert results[5] is None
    assert cache.submit([ReleaseOp(7)]).result() == [None]
    cache.check()


def test_sequence_ids_may_be_chosen_and_are_unique() -> None:
    cache = PrefixCache(16, 4)
    assert cache.acquire([1], seq_id=1).seq_id == 1
    assert cache.acquire([1]).seq_id == 2
    with pytest.raises(InvalidArgumentError, match="seq_id is 1"):
        cache.acquire([1], seq_id=1)


def test_a_call_from_another_thread_is_refused() -> None:
    cache = PrefixCache(16, 4)
    cache.match([1])
    errors: list[Exception] = []

    def call() -> None:
        try:
            cache.match([1])
        except WrongThreadError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _cache, _: PrefixCache(0, 4), "num_blocks is 0"),
        (lambda _cache, _: PrefixCache(4, 0), "block_size is 0"),
        (lambda cache, _: cache.acquire([]), "tokens is 'empty'"),
        (lambda cache, _: cache.acquire([-1]), "tokens is -1"),
        (lambda cache, _: cache.acquire([2**32]), "tokens is 4294967296"),
        (lambda cache, _: cache.acquire(b"abc"), "whole number of 4-byte"),
        (lambda cache, _: cache.acquire([1], reserve=-1), "reserve is -1"),
        (lambda cache, _: cache.acquire([1], namespace=""), "namespace is ''"),
        (lambda cache, seq_id: cache.extend(seq_id, 0), "num_tokens is 0"),
        (lambda cache, seq_id: cache.insert(seq_id, 4), "num_computed is 4; it must be at most 3, the room"),
        (lambda cache, seq_id: cache.insert(seq_id, 1), "num_computed is 1"),
        (lambda cache, seq_id: cache.fork(seq_id, 3), "position is 3"),
        (lambda cache, seq_id: cache.fork(seq_id, 0), "position is 0"),
        (lambda cache, seq_id: cache.fork(seq_id, 1, n=0), "n is 0"),
        (lambda cache, seq_id: cache.fork(seq_id, 1, seq_ids=[3, 4]), "1 distinct ids"),
        (lambda cache, _: cache.evict(-1), "num_blocks is -1"),
    ],
)
def test_bad_arguments_are_named_with_their_bound_and_change_nothing(call, message) -> None:  # type: ignore[no-untyped-def]
    cache = PrefixCache(16, 4)
    seq = cache.acquire([1, 2, 3])
    cache.insert(seq.seq_id, 2)
    before = cache.dump(), cache.stats()
    with pytest.raises(InvalidArgumentError) as error:
        call(cache, seq.seq_id)
    assert message in str(error.value)
    assert (cache.dump(), cache.stats()) == before
    cache.check()


@pytest.mark.parametrize("call", ["extend", "insert", "fork", "release"])
def test_an_unknown_sequence_is_named(call: str) -> None:
    cache = PrefixCache(16, 4)
    arguments = {"extend": (99, 1), "insert": (99, 1), "fork": (99, 1), "release": (99,)}[call]
    with pytest.raises(UnknownSequenceError, match="99"):
        getattr(cache, call)(*arguments)


def test_a_caller_may_keep_and_change_the_tables_it_was_given() -> None:
    cache = PrefixCache(16, 4)
    seq = cache.acquire(list(range(8)))
    table = seq.block_table[:]
    seq.block_table[0] = 15
    cache.insert(seq.seq_id, 8)
    assert array("i", cache.dump()[0].block_ids) == table
    cache.check()


def test_a_branch_is_evicted_with_all_below_it_and_nothing_beside() -> None:
    cache = PrefixCache(32, 4)
    for tokens in ([1] * 4 + [2] * 4, [1] * 4 + [3] * 4 + [4] * 4, [1] * 4 + [3] * 4 + [5] * 6, [6] * 4):
        stored(cache, tokens)
    stored(cache, [1] * 4 + [3] * 4, namespace="other")
    assert cache.evict_branch([1] * 4 + [3] * 4) == 4
    assert cache.match([1] * 4 + [3] * 4).num_tokens == 4
    assert cache.match([1] * 4 + [2] * 4).num_tokens == 8
    assert cache.match([1] * 4 + [3] * 4, namespace="other").num_tokens == 8
    assert cache.stats().num_evicted_blocks == 4
    cache.check()
    assert (
        cache.evict_branch([7])
        == cache.evict_branch([1] * 4 + [3] * 4)
        == cache.evict_branch([1], namespace="nobody")
        == 0
    )
    assert cache.evict_branch([]) == 3
    assert cache.stats().num_cached_blocks == 2
    cache.check()


def test_a_branch_that_begins_inside_a_block_is_all_that_begins_so() -> None:
    cache = PrefixCache(32, 4)
    for last in (3, 4, 5):
        stored(cache, [1, 2, last, last, 9])
    stored(cache, [1, 7, 7, 7])
    assert cache.evict_branch([1, 2]) == 6
    assert cache.match([1, 7, 7, 7]).num_tokens == 4
    cache.check()


def test_of_a_branch_what_sequences_and_pins_hold_stays() -> None:
    cache = PrefixCache(32, 4)
    for tokens in ([1] * 4 + [2] * 4, [1] * 4 + [3] * 4, [1] * 4 + [4] * 4):
        stored(cache, tokens)
    seq = cache.acquire([1] * 4 + [2] * 4 + [9])
    cache.pin([1] * 4 + [3] * 4, ttl=60)
    assert cache.evict_branch([1] * 4) == 1
    assert cache.match([1] * 4 + [2] * 4).num_tokens == cache.match([1] * 4 + [3] * 4).num_tokens == 8
    assert cache.match([1] * 4 + [4] * 4).num_tokens == 4
    cache.check()
    cache.release(seq.seq_id)
    assert cache.evict_branch([1] * 4) == 1
    cache.check()


def test_a_node_tells_how_many_sequences_stand_on_it() -> None:
    cache = PrefixCache(32, 4)
    stored(cache, [1] * 4 + [2] * 4)
    first = cache.acquire([1] * 4 + [2] * 4 + [5])
    cache.acquire([1] * 4 + [2] * 4 + [6])
    third = cache.acquire([1] * 4 + [7] * 4)
    cache.insert(third.seq_id, 8)
    cache.pin([1] * 4 + [2] * 4, ttl=60)
    assert [(node.position, node.num_sequences) for node in cache.dump()] == [(0, 0), (4, 2), (4, 1)]
    cache.release(first.seq_id)
    assert [(node.position, node.num_sequences) for node in cache.dump()] == [(0, 0), (4, 1), (4, 1)]


def test_every_block_that_leaves_the_cache_is_reported_once_to_who_mirrors_them() -> None:
    choose = random.Random(5)
    cache = PrefixCache(num_blocks=12, block_size=2, follows_freed=True)
    assert not PrefixCache(num_blocks=12).take_freed()
    held: dict[int, set[int]] = {}
    for _ in range(2000):
        before = {block for node in cache.dump() for block in node.block_ids}.union(*held.values())
        match choose.randrange(6):
            case 0 | 1 | 2:
                tokens = [choose.randrange(2) for _ in range(choose.randrange(1, 9))]
                with contextlib.suppress(OutOfBlocksError):
                    opened = cache.acquire(tokens)
                    held[opened.seq_id] = set(opened.block_table)
                    cache.insert(opened.seq_id, len(tokens))
            case 3 | 4 if held:
                seq_id = choose.choice(list(held))
                del held[seq_id]
                cache.release(seq_id, keep=choose.random() < 0.7)
            case 5:
                cache.evict(choose.randrange(3)) if choose.random() < 0.9 else cache.clear()
        after = {block for node in cache.dump() for block in node.block_ids}.union(*held.values())
        freed = cache.take_freed()
        assert len(set(freed)) == len(freed)
        assert before - after <= set(freed)
        assert set(freed) <= before
        assert not cache.take_freed()
    cache.check()

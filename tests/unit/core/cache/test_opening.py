"""Sequences that share nothing: what they compute is theirs and their forks' alone, and goes with them."""

from __future__ import annotations

from radixkv.core.cache.prefix_cache import PrefixCache

PROMPT = list(range(18))


def test_an_unshared_sequence_matches_nothing_and_is_matched_by_nobody() -> None:
    cache = PrefixCache(num_blocks=32, block_size=4)
    known = cache.acquire(PROMPT)
    cache.insert(known.seq_id, 18)
    before = cache.dump()
    alone = cache.acquire([*PROMPT, 7, 7], share_prefix=False)
    assert alone.num_stored_tokens == 0
    cache.insert(alone.seq_id, 20)
    cache.check()
    assert cache.match([*PROMPT, 7, 7]).num_tokens == 18
    assert cache.dump() == before
    second = cache.acquire([*PROMPT, 7, 7], share_prefix=False)
    assert second.num_stored_tokens == 0
    assert not set(second.block_table) & set(alone.block_table)


def test_an_unshared_sequence_leaves_nothing_behind() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    number = cache.events()[-1].sequence_number + 1
    for _ in range(3):
        seq = cache.acquire(PROMPT, reserve=4, share_prefix=False)
        cache.insert(seq.seq_id, 18)
        cache.extend(seq.seq_id, 22)
        cache.release(seq.seq_id, keep=True)
        cache.check()
        assert cache.stats().num_free_blocks == 8
    assert [event.kind for event in cache.events()] == ["reset", "synced"]
    assert cache.events(number) == []


def test_forks_of_an_unshared_sequence_share_among_themselves() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    parent = cache.acquire(PROMPT, share_prefix=False)
    cache.insert(parent.seq_id, 18)
    children = cache.fork(parent.seq_id, 18, n=3)
    assert {tuple(child.block_table) for child in children} == {tuple(parent.block_table)}
    room = cache.extend(children[0].seq_id, 20)
    assert [copy.src for copy in room.ops] == [parent.block_table[-1]]
    cache.release(parent.seq_id)
    cache.check()
    assert cache.stats().num_free_blocks == 2
    for child in children:
        cache.release(child.seq_id)
    cache.check()
    assert cache.stats().num_free_blocks == 8


def test_a_clear_of_the_namespace_leaves_an_unshared_sequence_as_it_is() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    seq = cache.acquire(PROMPT, share_prefix=False)
    cache.insert(seq.seq_id, 18)
    assert cache.clear() == 0
    cache.check()
    (child,) = cache.fork(seq.seq_id, 18)
    assert child.num_stored_tokens == 18

"""Acquires of a prompt of which enough is cached, or of whole blocks of it."""

from __future__ import annotations

from array import array

import pytest

from radixkv.core.api import AcquireOp, AcquireResult, ExtendOp, InsertOp, Notice, Pending, StepOp
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import AbortedError, InvalidArgumentError, NotCachedError
from radixkv.core.tokens import pack_tokens

BLOCK = 4
PROMPT = list(range(20))
OTHER = 99


@pytest.fixture
def cache() -> PrefixCache:
    """One that holds the first 10 tokens of the prompt."""
    cache = PrefixCache(num_blocks=16, block_size=BLOCK)
    first = cache.acquire(PROMPT[:10])
    cache.insert(first.seq_id, 10)
    cache.release(first.seq_id)
    return cache


@pytest.mark.parametrize(("at_least", "is_opened"), [(0, True), (10, True), (11, False), (20, False)])
@pytest.mark.parametrize("waits", [False, True])
def test_a_prompt_of_which_too_little_is_cached_is_not_opened(
    cache: PrefixCache, at_least: int, is_opened: bool, waits: bool
) -> None:
    before, listing = cache.stats(), cache.dump()
    acquire = cache.acquire_or_wait if waits else cache.acquire
    if is_opened:
        opened = acquire(PROMPT, at_least=at_least)
        assert isinstance(opened, AcquireResult)
        assert opened.num_stored_tokens == 10
    else:
        with pytest.raises(NotCachedError, match=rf"10 leading tokens .* at least {at_least}") as error:
            acquire(PROMPT, at_least=at_least)
        assert (error.value.num_cached, error.value.at_least) == (10, at_least)
        assert (cache.stats(), cache.dump()) == (before, listing)
    cache.check()


def test_later_ops_on_a_sequence_that_was_not_opened_are_aborted(cache: PrefixCache) -> None:
    tokens = pack_tokens(PROMPT)
    ops: list[StepOp] = [
        AcquireOp(tokens, seq_id=1, at_least=11),
        ExtendOp(1, 30),
        AcquireOp(tokens, seq_id=2, at_least=10),
        InsertOp(2, 20),
    ]
    kinds = [type(result) for result in cache.step(ops)]
    assert kinds == [NotCachedError, AbortedError, AcquireResult, type(None)]


@pytest.mark.parametrize("at_least", [-1, 21, "3"])
def test_a_number_that_no_prompt_can_have_is_refused_by_name(cache: PrefixCache, at_least: int) -> None:
    with pytest.raises(InvalidArgumentError, match="at_least"):
        cache.acquire(PROMPT, at_least=at_least)


def test_what_is_shared_with_nobody_is_never_cached(cache: PrefixCache) -> None:
    with pytest.raises(NotCachedError, match="0 leading tokens"):
        cache.acquire(PROMPT, at_least=1, share_prefix=False)


def test_it_waits_for_who_gets_so_far_and_for_no_other(cache: PrefixCache) -> None:
    provider = cache.acquire([*PROMPT[:16], OTHER, OTHER])
    with pytest.raises(NotCachedError):
        cache.acquire_or_wait(PROMPT, at_least=17)
    assert cache.acquire_or_wait(PROMPT, at_least=16) == Pending(provider.seq_id, 16)
    cache.insert(provider.seq_id, 18)
    assert cache.take_notices() == [Notice("published", provider.seq_id, 16)]
    opened = cache.acquire_or_wait(PROMPT, at_least=16)
    assert isinstance(opened, AcquireResult)
    assert opened.num_stored_tokens == 16
    cache.check()


def test_a_match_of_whole_blocks_brings_no_copy_and_writes_no_block_of_another(cache: PrefixCache) -> None:
    [node] = [node for node in cache.dump() if node.position == 0]
    for prompt in (PROMPT, PROMPT[:10], [*PROMPT[:9], OTHER]):
        opened = cache.acquire(prompt, whole_blocks=True)
        assert (opened.num_stored_tokens, opened.num_cached_tokens, opened.ops) == (8, 8, ())
        assert opened.block_table[:2] == array("i", node.block_ids[:2])
        room = cache.extend(opened.seq_id, 24)
        assert (room.first_changed, room.ops) == (len(opened.block_table), ())
        cache.insert(opened.seq_id, len(prompt))
        cache.release(opened.seq_id)
        cache.check()
    assert cache.match(PROMPT).num_tokens == 20
    assert cache.match([*PROMPT[:9], OTHER]).num_tokens == 10


def test_enough_is_counted_in_whole_blocks_where_these_are_asked_for(cache: PrefixCache) -> None:
    with pytest.raises(NotCachedError, match=r"8 leading tokens .* at least 9") as error:
        cache.acquire(PROMPT, at_least=9, whole_blocks=True)
    assert (error.value.num_cached, error.value.at_least) == (8, 9)
    opened = cache.acquire(PROMPT, at_least=8, whole_blocks=True)
    assert opened.num_stored_tokens == 8
    cache.release(opened.seq_id)
    provider = cache.acquire([*PROMPT[:15], OTHER])
    with pytest.raises(NotCachedError):  # it will have 15 tokens of the prompt, of which 12 are whole blocks
        cache.acquire_or_wait(PROMPT, at_least=13, whole_blocks=True)
    assert cache.acquire_or_wait(PROMPT, at_least=12, whole_blocks=True) == Pending(provider.seq_id, 15)

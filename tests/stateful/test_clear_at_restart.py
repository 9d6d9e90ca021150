"""What was cleared does not come back with a service that is restarted, whenever it was cleared."""

from __future__ import annotations

from array import array

import pytest

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptSequenceOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    ReleaseOp,
)
from radixkv.core.cache import manage
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import LimitError
from radixkv.core.tokens import pack_tokens

from .wire import BLOCK_SIZE, NUM_BLOCKS, Wire

PROMPT = pack_tokens(range(10))


@pytest.fixture
def wire() -> Wire:
    """Sequence 1 and its fork 2 are open, and share two blocks; another history is cached beside them."""
    wire = Wire()
    wire.carry()
    wire.submit([AcquireOp(PROMPT, seq_id=1), InsertOp(1, 10), ForkOp(1, 9, 1, 0, (2,))])
    wire.submit([AcquireOp(pack_tokens([7] * 8), seq_id=3), InsertOp(3, 8), ReleaseOp(3)])
    wire.carry()
    return wire


def assert_forgotten(wire: Wire) -> None:
    cache = wire.pool.cache
    cache.check()
    assert cache.dump() == []
    grown = wire.submit([ExtendOp(1, 12), ExtendOp(2, 12)])
    wire.carry()
    assert [type(result) for result in grown.result(0)] == [ExtendResult, ExtendResult], "they go on"
    anew = wire.submit([AcquireOp(PROMPT, seq_id=4), InsertOp(4, 10)])
    wire.carry()
    assert isinstance(opened := anew.result(0)[0], AcquireResult)
    assert opened.num_stored_tokens == 0
    assert cache.match(PROMPT).num_tokens == 10, "what is computed later is cached"
    cache.check()


def assert_only_the_new_is_told(wire: Wire) -> None:
    """At a further restart."""
    wire.restart()
    wire.carry()
    cache = wire.pool.cache
    cache.check()
    assert b"".join(node.tokens for node in cache.dump()) == PROMPT


def test_what_was_cleared_does_not_come_back() -> None:
    wire = Wire()
    wire.carry()
    wire.submit([AcquireOp(pack_tokens(range(10)), seq_id=1), InsertOp(1, 10), ReleaseOp(1)])
    wire.submit([AcquireOp(pack_tokens(range(10)), 0, "other", 2), InsertOp(2, 10)])
    wire.carry()
    wire.clear("default")
    wire.clear("other")
    wire.carry()
    wire.restart()
    wire.carry()
    assert wire.pool.cache.match(pack_tokens(range(10))).num_tokens == 0
    assert wire.pool.cache.match(pack_tokens(range(10)), namespace="other").num_tokens == 0
    opened = wire.submit([ForkOp(2, 7, 1, 0, (3,))])
    wire.carry()
    (children,) = opened.result(0)
    assert isinstance(children, list), "a sequence of the cleared namespace goes on"
    assert children[0].num_stored_tokens == 7
    wire.pool.cache.check()


def test_what_is_cleared_while_a_restarted_service_is_told_of_it_does_not_come_back(wire: Wire) -> None:
    wire.restart()
    wire.act()
    wire.hear()  # attached, and what it held is on the way
    wire.clear("default")
    wire.carry()
    assert_forgotten(wire)
    assert_only_the_new_is_told(wire)


def test_what_is_cleared_before_a_restarted_service_is_told_of_it_does_not_come_back(wire: Wire) -> None:
    wire.restart()
    wire.act()  # it has taken the holder, who has not heard of it
    wire.clear("default")
    wire.carry()
    assert_forgotten(wire)
    assert_only_the_new_is_told(wire)


@pytest.mark.parametrize(("num_breaks", "is_answered_again"), [(0, True), (1, True), (1, False), (2, False)])
def test_what_was_heard_to_be_cleared_before_the_answer_that_it_stands_behind_does_not_come_back(
    wire: Wire, num_breaks: int, is_answered_again: bool
) -> None:
    """Where that answer was lost, the clear is told first on the next stream, and the service may be gone before the answer."""
    wire.submit([ExtendOp(1, 11)])
    wire.act()
    wire.clear("default")
    for _ in range(num_breaks):
        wire.reconnect()
        wire.act()
        wire.hear()  # attached, and what was cleared; the Step is on the way again
    if is_answered_again:
        wire.act()
        wire.hear()
    wire.restart()
    wire.carry()
    assert_forgotten(wire)
    assert_only_the_new_is_told(wire)


def test_what_is_cleared_between_two_of_its_sequences_does_not_come_back() -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    cache.adopt_sequence(AdoptSequenceOp(1, PROMPT, array("i", [0, 1, 2]), 10, 10))
    assert cache.match(PROMPT).num_tokens == 10
    cache.clear()
    cache.adopt_sequence(AdoptSequenceOp(2, PROMPT, array("i", [0, 1, 3]), 9, 10))
    assert cache.adopt(PROMPT[: 8 * 4], [0, 1]) == 0
    cache.check()
    assert (cache.match(PROMPT).num_tokens, cache.dump()) == (0, [])
    assert cache.stats().num_free_blocks == NUM_BLOCKS - 4
    for seq_id in (1, 2):
        cache.release(seq_id)
    cache.check()
    assert cache.stats().num_free_blocks == NUM_BLOCKS


def test_histories_of_other_namespaces_are_adopted_behind_one_that_was_cleared() -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    cache.clear("gone")
    assert cache.adopt([1] * 8, [0, 1], 0, "gone") == 0
    assert cache.adopt([2] * 4, [2], 4, "gone") == 0
    assert cache.adopt([1] * 8, [3, 4], 0, "kept") == 8
    assert cache.stats().num_cached_blocks == 2
    cache.check()


def test_too_many_namespaces_cleared_before_anything_is_cached_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manage, "MAX_CLEARED", 2)
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    for namespace in ("a", "b", "a"):
        assert cache.clear(namespace) == 0
    with pytest.raises(LimitError, match="2 namespaces were cleared"):
        cache.clear("c")
    assert cache.adopt([1] * 4, [0], 0, "c") == 4, "it was not cleared"
    cache.acquire([5] * 4)
    assert cache.clear("c") == 1, "what comes later was never before"

"""What bench.waste counts as held and as live."""

from __future__ import annotations

import pytest

from bench.waste.memories import Lengths, Paged, RadixKV, ReserveToMax
from bench.waste.run import replay

REQUESTS = [Lengths(40, 20), Lengths(7, 30), Lengths(100, 3), Lengths(16, 16)] * 5


def test_a_reserved_span_is_mostly_empty_while_blocks_are_not() -> None:
    reserved = replay(ReserveToMax(1024, 112), REQUESTS, 64, 0, 8)
    paged = replay(Paged(64, 16), REQUESTS, 64, 0, 8)
    assert reserved.live_percent < 60 < paged.live_percent


def test_one_token_blocks_without_sharing_waste_nothing_once_prompts_are_computed() -> None:
    held = replay(Paged(1024, 1), REQUESTS, 10_000, 0, 8)
    assert held.live_percent == pytest.approx(100.0)


def test_the_real_cache_holds_no_more_than_a_block_of_look_ahead_and_the_last_block_s_rest() -> None:
    cache = RadixKV(64, 4, 0)
    held = replay(cache, REQUESTS, 10_000, 0, 8)
    cache.check()
    assert held.live <= held.held <= held.live + held.running * (4 - 1 + 4)


def test_what_all_prompts_begin_with_is_held_once() -> None:
    requests = [Lengths(64 + number, 8) for number in range(1, 9)]
    shared = replay(RadixKV(64, 16, 64), requests, 512, 64, 8)
    copied = replay(Paged(64, 16), requests, 512, 64, 8)
    assert shared.live_percent > 2 * copied.live_percent


def test_a_request_that_cannot_fit_is_said_so() -> None:
    with pytest.raises(ValueError, match="does not fit the pool"):
        replay(RadixKV(2, 16, 0), [Lengths(100, 1)], 512, 0, 8)

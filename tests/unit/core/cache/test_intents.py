"""Who waits for whom, and what they are told: `acquire_or_wait`, `Pending` and notices of a cache in process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixkv.core.api import AcquireOp, AcquireResult, ExtendOp, InsertOp, MatchOp, MatchResult, Notice, Pending
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import AbortedError, InvalidArgumentError, OutOfBlocksError
from radixkv.core.tokens import pack_tokens

BLOCK = 4
PROMPT = list(range(20))


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(num_blocks=32, block_size=BLOCK)


def wait(cache: PrefixCache, tokens: Sequence[int], namespace: str = "default") -> AcquireResult | Pending:
    """Acquire, or wait; whatever it answers, every invariant holds after it."""
    answer = cache.acquire_or_wait(tokens, namespace=namespace)
    cache.check()
    return answer


def test_who_needs_what_another_computes_waits_and_opens_nothing(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    before, listing = cache.stats(), cache.dump()
    assert wait(cache, PROMPT) == Pending(provider.seq_id, 20)
    assert cache.stats() == before._replace(num_pending=1)
    assert cache.dump() == listing


def test_an_acquire_that_may_not_wait_is_opened(cache: PrefixCache) -> None:
    cache.acquire(PROMPT)
    assert isinstance(cache.acquire(PROMPT), AcquireResult)
    assert cache.stats().num_pending == 0


def test_the_wait_is_for_the_tokens_in_common(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    assert wait(cache, [*PROMPT[:10], 99, 99]) == Pending(provider.seq_id, 10)
    assert wait(cache, [*PROMPT, 99]) == Pending(provider.seq_id, 20)
    cache.insert(provider.seq_id, 9)
    assert cache.take_notices() == []
    cache.insert(provider.seq_id, 15)
    assert cache.take_notices() == [Notice("published", provider.seq_id, 10)]
    cache.insert(provider.seq_id, 20)
    assert cache.take_notices() == [Notice("published", provider.seq_id, 20)]
    assert cache.take_notices() == []


def test_less_than_a_block_is_waited_for_by_nobody(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    assert isinstance(wait(cache, PROMPT[: BLOCK - 1]), AcquireResult)
    cache.insert(provider.seq_id, 20 - BLOCK)
    assert wait(cache, PROMPT) == Pending(provider.seq_id, 20)
    cache.insert(provider.seq_id, 21 - BLOCK)
    assert isinstance(wait(cache, PROMPT), AcquireResult)


def test_what_was_published_is_there_for_who_acquires_again(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    pending = wait(cache, [*PROMPT[:10], 99])
    assert isinstance(pending, Pending)
    cache.insert(provider.seq_id, 10)
    answer = wait(cache, [*PROMPT[:10], 99])
    assert isinstance(answer, AcquireResult)
    assert answer.num_stored_tokens == pending.num_tokens


@pytest.mark.parametrize("keep", [True, False])
def test_a_released_provider_is_gone_for_every_length_that_was_waited_for(cache: PrefixCache, keep: bool) -> None:
    provider = cache.acquire(PROMPT)
    for end in (8, 12, 20, 12):
        wait(cache, [*PROMPT[:end], 99])
    cache.insert(provider.seq_id, 8)
    cache.take_notices()
    cache.release(provider.seq_id, keep)
    assert cache.take_notices() == [Notice("gone", provider.seq_id, 12), Notice("gone", provider.seq_id, 20)]
    answer = wait(cache, PROMPT)
    assert isinstance(answer, AcquireResult)
    assert answer.num_stored_tokens == (8 if keep else 0)


def test_of_those_who_waited_the_first_to_ask_again_takes_over(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    wait(cache, PROMPT)
    cache.release(provider.seq_id)
    heir = wait(cache, PROMPT)
    assert isinstance(heir, AcquireResult)
    assert [wait(cache, PROMPT) for _ in range(3)] == [Pending(heir.seq_id, 20)] * 3


def test_the_sequence_that_gets_furthest_is_waited_for(cache: PrefixCache) -> None:
    cache.acquire(PROMPT[:8])
    far = cache.acquire(PROMPT[:16])
    cache.acquire([*PROMPT[:9], 77, 77, 77])
    assert wait(cache, PROMPT) == Pending(far.seq_id, 16)


def test_of_equal_histories_the_one_opened_first_is_waited_for(cache: PrefixCache) -> None:
    first, last = cache.acquire(PROMPT), cache.acquire(PROMPT)
    assert wait(cache, PROMPT[:12]) == Pending(first.seq_id, 12)
    assert wait(cache, PROMPT) == Pending(first.seq_id, 20)
    assert wait(cache, [*PROMPT, 1]) == Pending(last.seq_id, 20), "of a prompt that goes on behind them it is the last"


def test_of_those_who_get_equally_far_the_one_that_has_computed_more_is_waited_for(cache: PrefixCache) -> None:
    cache.acquire([*PROMPT, 1])
    later = cache.acquire([*PROMPT, 3])
    cache.insert(later.seq_id, 3)
    assert wait(cache, [*PROMPT, 2]) == Pending(later.seq_id, 20)


def test_a_provider_covered_by_another_counts_as_published(cache: PrefixCache) -> None:
    provider, twin = cache.acquire(PROMPT[:10]), cache.acquire(PROMPT[:10])
    assert wait(cache, PROMPT[:10]) == Pending(provider.seq_id, 10)
    cache.insert(twin.seq_id, 10)
    cache.insert(provider.seq_id, 10)
    assert cache.take_notices() == [Notice("published", provider.seq_id, 10)]
    assert cache.match(PROMPT).num_tokens == 10


def test_a_fork_provides_what_it_was_given_tokens_and_room_for(cache: PrefixCache) -> None:
    parent = cache.acquire(PROMPT[:6])
    cache.insert(parent.seq_id, 6)
    (child,) = cache.fork(parent.seq_id, 6)
    more = list(range(50, 60))
    cache.insert(child.seq_id, 6, more)
    assert isinstance(wait(cache, [*PROMPT[:6], *more]), AcquireResult), "it has no room for them yet"
    cache = PrefixCache(num_blocks=32, block_size=BLOCK)
    parent = cache.acquire(PROMPT[:6])
    cache.insert(parent.seq_id, 6)
    (child,) = cache.fork(parent.seq_id, 6)
    assert isinstance(wait(cache, [7] * 6), AcquireResult)
    cache.insert(child.seq_id, 6, more)
    cache.extend(child.seq_id, 14)
    assert wait(cache, [*PROMPT[:6], *more]) == Pending(child.seq_id, 14)
    cache.extend(child.seq_id, 16)
    assert wait(cache, [*PROMPT[:6], *more]) == Pending(child.seq_id, 16)
    cache.release(parent.seq_id)
    cache.insert(child.seq_id, 16)
    assert [notice[:2] for notice in cache.take_notices()] == [("published", child.seq_id)] * 2


def test_a_sequence_that_has_stopped_growing_is_waited_for_by_nobody(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT[:8])
    wait(cache, PROMPT)
    cache.insert(provider.seq_id, 8)
    cache.extend(provider.seq_id, 20)
    assert isinstance(wait(cache, PROMPT), AcquireResult)


def test_a_clear_lets_everyone_who_waited_go(cache: PrefixCache) -> None:
    provider, other = cache.acquire(PROMPT), cache.acquire(PROMPT, namespace="other")
    wait(cache, PROMPT)
    wait(cache, PROMPT, "other")
    cache.clear()
    assert cache.take_notices() == [Notice("gone", provider.seq_id, 20)]
    cache.insert(provider.seq_id, 20)
    cache.release(provider.seq_id)
    assert cache.take_notices() == []
    assert isinstance(wait(cache, PROMPT), AcquireResult)
    assert wait(cache, PROMPT, "other") == Pending(other.seq_id, 20)


def test_nobody_waits_for_another_namespace(cache: PrefixCache) -> None:
    cache.acquire(PROMPT, namespace="other")
    assert isinstance(wait(cache, PROMPT), AcquireResult)


def test_nobody_waits_for_a_sequence_that_shares_nothing(cache: PrefixCache) -> None:
    cache.acquire(PROMPT, share_prefix=False)
    assert isinstance(wait(cache, PROMPT), AcquireResult)


def test_who_shares_nothing_never_waits(cache: PrefixCache) -> None:
    cache.acquire(PROMPT)
    assert isinstance(cache.acquire_or_wait(PROMPT, share_prefix=False), AcquireResult)


def test_a_wait_needs_no_blocks(cache: PrefixCache) -> None:
    provider = cache.acquire([0] * 128)
    assert cache.stats().num_free_blocks == 0
    assert wait(cache, [0] * 128) == Pending(provider.seq_id, 128)
    with pytest.raises(OutOfBlocksError):
        cache.acquire_or_wait([1] * 8)


def test_a_bad_acquire_is_refused_though_it_might_wait(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    with pytest.raises(InvalidArgumentError, match="seq_id"):
        cache.acquire_or_wait(PROMPT, seq_id=provider.seq_id)
    assert cache.stats().num_pending == 0


def test_later_ops_on_a_sequence_that_waits_are_aborted(cache: PrefixCache) -> None:
    answers = cache.step(
        [
            AcquireOp(pack_tokens(PROMPT), seq_id=1),
            AcquireOp(pack_tokens(PROMPT), seq_id=2, waits=True),
            ExtendOp(2, 30),
            InsertOp(1, 8),
            MatchOp(pack_tokens(PROMPT)),
        ]
    )
    assert answers[1] == Pending(1, 20)
    assert isinstance(answers[2], AbortedError)
    assert answers[3:] == [None, MatchResult(8, 8)]


def test_past_the_bound_of_what_is_outstanding_an_acquire_is_opened() -> None:
    cache = PrefixCache(num_blocks=32, block_size=BLOCK, max_waits=2)
    provider = cache.acquire(PROMPT)
    for end in (20, 8, 8, 20):
        assert isinstance(wait(cache, [*PROMPT[:end], 99]), Pending)
    opened = wait(cache, [*PROMPT[:12], 99])
    assert isinstance(opened, AcquireResult)
    cache.insert(provider.seq_id, 8)
    assert isinstance(wait(cache, [*PROMPT[:16], 99]), AcquireResult), "the notice that was told was not taken yet"
    assert cache.take_notices() == [Notice("published", provider.seq_id, 8)]
    assert isinstance(wait(cache, [*PROMPT[:17], 99]), Pending)


def test_a_thousand_waiters_are_answered_by_one_sequence_and_one_notice(cache: PrefixCache) -> None:
    provider = cache.acquire(PROMPT)
    for question in range(1000):
        assert wait_quickly(cache, [*PROMPT, 1000 + question]) == Pending(provider.seq_id, 20)
    cache.insert(provider.seq_id, 20)
    assert cache.take_notices() == [Notice("published", provider.seq_id, 20)]


def wait_quickly(cache: PrefixCache, tokens: Sequence[int]) -> AcquireResult | Pending:
    return cache.acquire_or_wait(tokens)


def test_only_acquire_or_wait_waits() -> None:
    cache = PrefixCache(num_blocks=32, block_size=BLOCK)
    cache.acquire(PROMPT)
    assert isinstance(cache.acquire(PROMPT), AcquireResult)
    with pytest.raises(TypeError, match="waits"):
        cache.acquire(PROMPT, waits=True)  # type: ignore[call-arg]  # the case
    assert isinstance(cache.acquire_or_wait(PROMPT), Pending)

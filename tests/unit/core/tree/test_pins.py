"""Pins: what they protect, for how long, within which bounds."""

from __future__ import annotations

import pytest

from radixkv import (
    AcquireOp,
    InsertOp,
    InvalidArgumentError,
    OutOfBlocksError,
    PinBudgetError,
    PinInfo,
    PinOp,
    PrefixCache,
    ReleaseOp,
    pack_tokens,
)

SYSTEM, OTHER = [1] * 8, [2] * 8


class Bench:
    """A cache of blocks of 4 with a clock that stands until it is moved."""

    def __init__(self, num_blocks: int = 16, pin_budget: float | None = None) -> None:
        self.now_s = 100.0
        self.cache = PrefixCache(num_blocks, 4, clock=lambda: self.now_s, pin_budget=pin_budget)

    def store(self, tokens: list[int], namespace: str = "default") -> None:
        self.now_s += 1
        seq = self.cache.acquire(tokens, namespace=namespace)
        self.cache.insert(seq.seq_id, len(tokens))
        self.cache.release(seq.seq_id)

    def left_s(self, tokens: list[int], namespace: str = "default") -> float | None:
        """How long a prefix is still pinned; None where it is not."""
        self.cache.check()
        pins = {pin.tokens: pin.remaining_s for pin in self.cache.pins(namespace)}
        return pins.get(pack_tokens(tokens))

    def cached(self, *prompts: list[int]) -> list[int]:
        return [self.cache.match(prompt).num_tokens for prompt in prompts]


def test_what_is_pinned_outlives_pressure_that_evicts_all_else() -> None:
    bench = Bench(num_blocks=8)
    bench.store(SYSTEM)
    assert bench.cache.pin(SYSTEM, ttl=60) == PinInfo("default", pack_tokens(SYSTEM), 8, 2, 60.0, 60.0)
    for token in range(10, 30):
        bench.store([token] * 16)
        assert bench.cached(SYSTEM) == [8]
    assert bench.cache.evict(100) == 6
    assert bench.cached(SYSTEM, [29] * 16) == [8, 0]


def test_a_step_pins_what_it_has_published_before_it_ends_the_sequence() -> None:
    bench = Bench(num_blocks=8, pin_budget=600)
    tokens = pack_tokens(SYSTEM)
    results = bench.cache.step(
        [
            AcquireOp(tokens, seq_id=1),
            PinOp(tokens, 300.0),
            InsertOp(1, 8),
            PinOp(tokens, 300.0),
            PinOp(tokens, 301.0),
            ReleaseOp(1),
        ]
    )
    assert results[1] == PinInfo("default", b"", 0, 0, 300.0, 0.0)
    assert results[3] == PinInfo("default", tokens, 8, 2, 300.0, 300.0)
    assert isinstance(results[4], PinBudgetError)
    assert results[5] is None
    assert bench.left_s(SYSTEM) == 300
    assert bench.cache.evict(8) == 0


def test_only_the_pinned_prefix_of_a_longer_branch_stays_to_the_token() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 7, 7, 7, 8, 8, 8, 8])
    assert bench.cache.pin([*SYSTEM, 7, 7], ttl="5m").num_tokens == 10
    bench.cache.evict(100)
    assert bench.cached([*SYSTEM, 7, 7, 7, 8, 8]) == [12]


def test_of_a_prompt_what_is_cached_is_pinned_and_the_answer_says_how_much() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    assert bench.cache.pin([*SYSTEM, 5, 5, 5], ttl="1h").num_tokens == 8
    assert bench.cache.pin(OTHER, ttl="1h") == PinInfo("default", b"", 0, 0, 3600.0, 0.0)
    assert bench.cache.pin(SYSTEM, ttl="1h", namespace="elsewhere").num_tokens == 0
    assert [pin.num_tokens for pin in bench.cache.pins()] == [8]


def test_past_its_time_a_pinned_branch_is_an_ordinary_one_as_old_as_its_last_use() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    bench.cache.pin(SYSTEM, ttl=10)
    bench.store(OTHER)
    bench.now_s += 9.5
    assert bench.cache.stats().num_pins == 0
    bench.cache.evict(1)
    assert bench.cached(SYSTEM, OTHER) == [4, 8], "the pin's end was taken for a use"


def test_a_use_below_a_pinned_prefix_makes_all_above_as_young() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    bench.cache.pin(SYSTEM, ttl=10)
    bench.store(OTHER)
    bench.store([*SYSTEM, 5, 5, 5, 5])
    bench.now_s += 20
    bench.cache.evict(2)
    assert bench.cached([*SYSTEM, 5, 5, 5, 5], OTHER) == [12, 0]
    bench.cache.check()


@pytest.mark.parametrize("use", ["acquire", "acquire of more", "fork", "copy of the last block"])
def test_each_use_of_all_that_is_pinned_puts_its_end_off(use: str) -> None:
    bench = Bench()
    prefix = [*SYSTEM, 5, 5]
    bench.store(prefix)
    parent = bench.cache.acquire([*prefix, 6]).seq_id
    bench.cache.insert(parent, 11)
    bench.cache.pin(prefix, ttl=100)
    bench.now_s += 60
    match use:
        case "acquire":
            bench.cache.acquire(prefix)
        case "acquire of more":
            bench.cache.acquire([*prefix, 6, 7, 8, 9])
        case "fork":
            bench.cache.fork(parent, 10)
        case _:
            bench.cache.acquire([*prefix, 8])
    assert bench.left_s(prefix) == 100


@pytest.mark.parametrize("num_pinned", [1, 5, 6, 7])
@pytest.mark.parametrize("use", ["acquire", "acquire of more", "fork"])
def test_a_use_of_a_branch_beside_it_that_holds_all_that_is_pinned_puts_its_end_off(num_pinned: int, use: str) -> None:
    bench = Bench()
    prefix = list(range(num_pinned))
    beside = [*prefix, 60, 61, 62, 63]
    bench.store([*prefix, 50, 51])
    bench.cache.pin(prefix, ttl=100)
    parent = bench.cache.acquire(beside).seq_id
    bench.cache.insert(parent, len(beside))
    bench.now_s += 60
    assert bench.left_s(prefix) == 40
    match use:
        case "acquire":
            bench.cache.acquire(beside)
        case "acquire of more":
            bench.cache.acquire([*beside, 64])
        case _:
            bench.cache.fork(parent, num_pinned + 1)
    assert bench.left_s(prefix) == 100
    bench.cache.unpin(prefix)
    assert bench.left_s(prefix) is None


def test_a_use_of_less_than_what_is_pinned_puts_nothing_off() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 5, 5])
    bench.cache.pin([*SYSTEM, 5, 5], ttl=100)
    bench.cache.pin(SYSTEM, ttl=100)
    bench.now_s += 60
    for prompt in ([*SYSTEM, 5, 9], SYSTEM[:6], OTHER):
        bench.cache.acquire(prompt)
    assert bench.left_s([*SYSTEM, 5, 5]) == 40
    assert bench.left_s(SYSTEM) == 100


def test_a_match_puts_nothing_off() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    bench.cache.pin(SYSTEM, ttl=100)
    bench.now_s += 60
    bench.cache.match(SYSTEM)
    assert bench.left_s(SYSTEM) == 40


def test_a_pin_that_ends_while_a_sequence_stands_there_leaves_that_one_its_lock() -> None:
    bench = Bench(num_blocks=8)
    bench.store(SYSTEM)
    seq = bench.cache.acquire([*SYSTEM, 3]).seq_id
    bench.cache.pin(SYSTEM, ttl=10)
    bench.now_s += 11
    assert bench.cache.evict(100) == 0
    assert bench.left_s(SYSTEM) is None
    bench.cache.release(seq)
    assert bench.cache.evict(100) == 2


def test_pinning_again_sets_the_time_anew_and_costs_once() -> None:
    bench = Bench(pin_budget=2 * 100.0)
    bench.store(SYSTEM)
    bench.cache.pin(SYSTEM, ttl=100)
    bench.cache.pin(SYSTEM, ttl=50)
    assert bench.left_s(SYSTEM) == 50
    bench.cache.pin(SYSTEM, ttl=100)
    assert bench.left_s(SYSTEM) == 100
    assert bench.cache.stats().num_pins == 1


def test_a_pin_over_the_budget_is_refused_and_told_what_is_pinned() -> None:
    bench = Bench(pin_budget=1000.0)
    bench.store(SYSTEM)
    bench.store([*OTHER, 3])
    bench.cache.pin(SYSTEM, ttl=300)
    before = bench.cache.dump()
    with pytest.raises(PinBudgetError, match=r"takes 900 block-seconds .* 1,000 and 400 are left") as refusal:
        bench.cache.pin([*OTHER, 3], ttl="5m")
    assert (refusal.value.num_needed, refusal.value.num_available, refusal.value.num_total) == (900, 400, 1000)
    assert [(pin.tokens, pin.num_blocks, pin.ttl_s) for pin in refusal.value.pins] == [(pack_tokens(SYSTEM), 2, 300)]
    assert bench.cache.dump() == before
    bench.cache.pin([*OTHER, 3], ttl=100)


def test_each_namespace_has_a_budget_of_its_own_and_hears_of_no_other() -> None:
    bench = Bench(num_blocks=64, pin_budget=600.0)
    for namespace in ("a", "b"):
        bench.store(SYSTEM, namespace)
        bench.cache.pin(SYSTEM, ttl=300, namespace=namespace)
    bench.store(OTHER, "b")
    with pytest.raises(PinBudgetError) as refusal:
        bench.cache.pin(OTHER, ttl=300, namespace="b")
    assert {pin.namespace for pin in refusal.value.pins} == {"b"}


def test_all_pins_together_protect_at_most_half_of_the_pool_counting_shared_blocks_once() -> None:
    bench = Bench(num_blocks=8)
    bench.store([*SYSTEM, 5, 5, 5, 5])
    bench.store([*SYSTEM, 6, 6, 6, 6])
    for end in (4, 8, 12):
        bench.cache.pin([*SYSTEM, 5, 5, 5, 5][:end], ttl=100)
    bench.cache.pin([*SYSTEM, 6, 6, 6, 6], ttl=100)
    assert bench.cache.stats().num_pinned_blocks == 4
    bench.store(OTHER)
    with pytest.raises(PinBudgetError, match="takes 2 blocks of the pool, of which pins may take 4 and 0 are left"):
        bench.cache.pin(OTHER, ttl=100)
    assert bench.cache.unpin([*SYSTEM, 5, 5, 5, 5])
    assert bench.cache.stats().num_pinned_blocks == 3
    bench.cache.check()


def pin_many(bench: Bench, namespace: str, num_pins: int) -> list[list[int]]:
    """Prefixes of a block each, all of them pinned for an hour."""
    prefixes = [[token] * 4 for token in range(1, num_pins + 1)]
    for prefix in prefixes:
        bench.store(prefix, namespace)
        bench.cache.pin(prefix, ttl="1h", namespace=namespace)
    return prefixes


def test_a_namespace_that_has_pinned_all_it_may_leaves_others_their_share() -> None:
    bench = Bench(num_blocks=64)
    prefixes = pin_many(bench, "a", 32)
    bench.store([90] * 8, "b")
    assert bench.cache.pin([90] * 8, ttl="1h", namespace="b").num_blocks == 2
    assert [bench.left_s(prefix, "a") is None for prefix in prefixes] == [False] * 30 + [True] * 2
    pin_many(bench, "b", 14)
    with pytest.raises(PinBudgetError, match="takes 1 blocks of the pool, of which pins may take 16 and 0 are left"):
        pin_many(bench, "b", 15)
    assert len(bench.cache.pins("a")) == 16
    bench.store([9] * 4, "c")
    bench.cache.pin([9] * 4, ttl="1h", namespace="c")
    assert bench.cache.stats().num_pinned_blocks == 32


def test_what_others_leave_idle_may_be_pinned_until_they_want_it() -> None:
    bench = Bench(num_blocks=64)
    bench.store(SYSTEM, "b")
    bench.cache.pin(SYSTEM, ttl="5m", namespace="b")
    pin_many(bench, "a", 30)
    with pytest.raises(PinBudgetError, match="pins may take 30 and 0 are left"):
        pin_many(bench, "a", 31)
    bench.now_s += 300
    pin_many(bench, "a", 32)


def test_a_pin_within_its_share_is_never_ended_by_another_namespace() -> None:
    bench = Bench(num_blocks=64)
    for number, namespace in enumerate(("a", "b", "c", "d")):
        pin_many(bench, namespace, 8)
        assert all(len(bench.cache.pins(other)) == 8 for other in "abcd"[: number + 1])
    for namespace in ("a", "b", "c", "d"):
        bench.store([9] * 4, namespace)
        with pytest.raises(PinBudgetError):
            bench.cache.pin([9] * 4, ttl="1h", namespace=namespace)
    assert bench.cache.stats().num_pins == 32


def test_a_pin_that_is_refused_ends_no_other() -> None:
    bench = Bench(num_blocks=64)
    pin_many(bench, "a", 32)
    bench.store([1] * 68, "b")
    with pytest.raises(PinBudgetError, match="takes 17 blocks of the pool, of which pins may take 16 and 16 are left"):
        bench.cache.pin([1] * 68, ttl="1h", namespace="b")
    assert len(bench.cache.pins("a")) == 32


def test_what_is_promised_to_running_sequences_is_not_pinned() -> None:
    bench = Bench(num_blocks=8)
    bench.store(SYSTEM)
    bench.cache.acquire(OTHER, reserve=20)
    with pytest.raises(OutOfBlocksError):
        bench.cache.pin(SYSTEM, ttl=10)
    bench.cache.check()


def test_unpin_ends_the_pin_of_just_these_tokens() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 5, 5])
    bench.cache.pin(SYSTEM, ttl=100)
    assert not bench.cache.unpin([*SYSTEM, 5, 5])
    assert not bench.cache.unpin([*SYSTEM, 9])
    assert not bench.cache.unpin(OTHER)
    assert not bench.cache.unpin(SYSTEM, namespace="elsewhere")
    assert bench.cache.unpin(SYSTEM)
    assert not bench.cache.unpin(SYSTEM)
    assert bench.cache.evict(100) == 3


def test_what_was_pinned_is_not_withdrawn_by_the_release_of_its_own_sequence() -> None:
    bench = Bench()
    seq = bench.cache.acquire([*SYSTEM, 5, 5]).seq_id
    bench.cache.insert(seq, 10)
    bench.cache.pin(SYSTEM, ttl=100)
    bench.cache.unpin(SYSTEM)
    bench.cache.release(seq, keep=False)
    assert bench.cached([*SYSTEM, 5, 5]) == [8]


def test_clear_ends_the_pins_of_its_namespace_and_no_others() -> None:
    bench = Bench()
    for namespace in ("a", "b"):
        bench.store(SYSTEM, namespace)
        bench.cache.pin(SYSTEM, ttl="1h", namespace=namespace)
    assert bench.cache.clear("a") == 2
    assert [pin.namespace for pin in bench.cache.pins()] == ["b"]
    bench.cache.check()


def test_a_pinned_tail_that_grows_stays_pinned() -> None:
    bench = Bench()
    seq = bench.cache.acquire([*SYSTEM, 5, 5], reserve=8).seq_id
    bench.cache.insert(seq, 10)
    bench.cache.pin([*SYSTEM, 5, 5], ttl=100)
    bench.cache.extend(seq, 14)
    bench.cache.insert(seq, 14, [5, 5, 6, 6])
    bench.cache.release(seq)
    assert bench.left_s([*SYSTEM, 5, 5]) == 100
    bench.cache.evict(100)
    assert bench.cached([*SYSTEM, 5, 5, 5, 5, 6]) == [12]
    assert bench.cache.unpin([*SYSTEM, 5, 5])
    assert bench.cache.evict(100) == 3


def test_the_listing_of_nodes_tells_until_when_each_is_pinned() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 5, 5])
    bench.cache.pin(SYSTEM, ttl=100)
    assert [node.pinned_until_s for node in bench.cache.dump()] == [bench.now_s + 100, 0.0]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 8 * 86400, "2h", True, None])
def test_a_time_out_of_its_bound_is_refused(ttl: float) -> None:
    bench = Bench()
    bench.store(SYSTEM)
    with pytest.raises(
        InvalidArgumentError, match=r"ttl is .*; it must be above 0 and at most 604800 seconds, or one of"
    ):
        bench.cache.pin(SYSTEM, ttl=ttl)


def test_pinning_again_and_again_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    for _ in range(2000):
        bench.cache.pin(SYSTEM, ttl=10_000)
        bench.now_s += 1
    assert len(bench.cache._pins._expiries) < 100

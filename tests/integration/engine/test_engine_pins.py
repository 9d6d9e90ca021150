"""Pins that requests ask for: set as soon as the prefix is computed, left out over the budget, told at the end."""

from __future__ import annotations

import random

import pytest
from desk import Desk, LateCache, advance, greedy, take

from radixkv import PrefixCache, pack_tokens
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, PrefixPin
from radixkv.generation.stream import Completed
from radixkv.testing.hash_model import HashRunner, generate
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.generation import Generation
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import SchedulerLimits
from radixkv.worker.server import GenerationServer

BLOCK_SIZE = 4
PROMPT = [1, 2] * 10


def pinned_of(generation: Generation) -> tuple[int, ...]:
    """What the last event of an ended stream tells."""
    items = []
    while (item := generation.items.get(timeout=1)) is not None:  # type: ignore[attr-defined]  # it is a queue
        items.append(item)
    assert isinstance(items[-1], Completed)
    return items[-1].pinned


def run_to_the_end(desk: Desk, cache: LateCache) -> None:
    rng = random.Random(0)
    while desk.loop.generations:
        advance(desk, lambda: cache, rng)
    while desk.loop.run() or cache.answer():
        pass
    cache.check()


def test_what_is_to_be_pinned_stands_in_blocks_where_lines_have_spans_of_their_own() -> None:
    cache, arena = LateCache(64, BLOCK_SIZE), Arena(64, 2, 16, BLOCK_SIZE)
    desk = Desk(cache, HashRunner(96, BLOCK_SIZE), SchedulerLimits(8, 32, 8), arena=arena)
    desk.put(PROMPT, greedy(1))
    run_to_the_end(desk, cache)
    assert arena.num_lines == 1
    assert cache.match(PROMPT).num_tokens == 0
    moved = desk.put(PROMPT, greedy(1), pins=(PrefixPin(20, 60.0),))
    fresh = desk.put([3] * 12, greedy(1), pins=(PrefixPin(12, 60.0),))
    run_to_the_end(desk, cache)
    assert (pinned_of(moved), pinned_of(fresh)) == ((20,), (12,))
    assert arena.num_moves == 1
    cache.evict(64)
    assert cache.match(PROMPT).num_tokens == 20


@pytest.mark.parametrize("max_tokens", [1, 30])
def test_a_prefix_is_pinned_in_its_namespace_and_the_end_of_the_request_tells(max_tokens: int) -> None:
    cache = LateCache(64, BLOCK_SIZE)
    desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits(8, 32, 8))
    wanted = (PrefixPin(7, 300.0), PrefixPin(20, 60.0))
    first = desk.put(PROMPT, greedy(max_tokens), namespace="a", pins=wanted)
    run_to_the_end(desk, cache)
    assert pinned_of(first) == (7, 20)
    assert {(pin.num_tokens, pin.ttl_s) for pin in cache.pins("a")} == {(7, 300.0), (20, 60.0)}
    assert cache.pins("default") == []
    cache.evict(64)
    assert cache.match(PROMPT, namespace="a").num_tokens == 20


def test_a_prefix_is_pinned_while_its_request_still_runs() -> None:
    cache = LateCache(64, BLOCK_SIZE)
    desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits(8, 32, 8))
    generation = desk.put(PROMPT, greedy(40), pins=(PrefixPin(9, 300.0),))
    while not cache.pins():
        assert desk.loop.run() or cache.answer()
    assert len(generation.branches[0].tokens) < len(PROMPT) + 3
    desk.loop.cancel(generation)
    while desk.loop.run() or cache.answer():
        pass
    cache.evict(64)
    assert [pin.num_tokens for pin in cache.pins()] == [9]


def test_a_prefix_that_was_cached_already_is_pinned_too() -> None:
    cache = LateCache(64, BLOCK_SIZE)
    desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits())
    desk.put(PROMPT, greedy(1))
    run_to_the_end(desk, cache)
    again = desk.put(PROMPT, greedy(1), pins=(PrefixPin(20, 60.0),))
    run_to_the_end(desk, cache)
    assert pinned_of(again) == (20,)


def test_a_pin_over_the_budget_is_left_out_and_the_request_is_served() -> None:
    cache = LateCache(64, BLOCK_SIZE)
    desk = Desk(cache, HashRunner(64, BLOCK_SIZE), SchedulerLimits())
    days = PrefixPin(20, 7 * 86400.0)
    generation = desk.put(PROMPT, greedy(5, n=2), pins=(days, PrefixPin(8, 60.0)))
    run_to_the_end(desk, cache)
    assert [pin.num_tokens for pin in cache.pins()] == [8]
    assert generation.pinning.num_tokens == (0, 8)
    assert take(generation) == {0: generate(PROMPT, 5), 1: generate(PROMPT, 5)}


@pytest.mark.parametrize("num_rounds", [2, 4, 5, 9])
def test_pins_are_set_again_where_the_lease_was_lost(num_rounds: int) -> None:
    caches = [LateCache(64, BLOCK_SIZE)]

    def reattach() -> LateCache:
        caches.append(LateCache(64, BLOCK_SIZE))
        return caches[-1]

    desk = Desk(caches[0], HashRunner(64, BLOCK_SIZE), SchedulerLimits(8, 32, 8), reattach=reattach)
    generation = desk.put(PROMPT, greedy(12), pins=(PrefixPin(20, 60.0),))
    for _ in range(num_rounds):
        desk.loop.run()
        caches[-1].answer()
    caches[-1].lose()
    rng = random.Random(0)
    while desk.loop.generations:
        advance(desk, lambda: caches[-1], rng)
    assert len(caches) == 2
    assert pinned_of(generation) == (20,)
    assert [pin.num_tokens for pin in caches[-1].pins()] == [20]


def test_a_lease_that_ends_with_the_reply_leaves_nothing_waiting() -> None:
    caches = [LateCache(64, BLOCK_SIZE)]

    def reattach() -> LateCache:
        caches.append(LateCache(64, BLOCK_SIZE))
        return caches[-1]

    desk = Desk(caches[0], HashRunner(64, BLOCK_SIZE), SchedulerLimits(), reattach=reattach)
    generation = desk.put(PROMPT, greedy(1), pins=(PrefixPin(20, 60.0),))
    desk.loop.run()
    caches[0].answer()
    desk.loop.run()
    desk.loop.run()
    assert desk.loop.generations  # the reply is there; whether its prompt is pinned is not answered
    caches[0].lose()
    desk.loop.run()
    assert not desk.loop.generations
    assert pinned_of(generation) == (0,)


@pytest.mark.parametrize("num_tokens", [0, 21])
def test_a_prefix_that_is_none_of_the_prompt_is_refused(num_tokens: int) -> None:
    with (
        Engine(HashRunner(64, BLOCK_SIZE), PrefixCache(64, BLOCK_SIZE)) as engine,
        pytest.raises(InvalidArgumentError, match="between 1 and 20 tokens"),
    ):
        engine.generate(GenerateParams(token_ids=PROMPT, pins=[PrefixPin(num_tokens, 60.0)]))


def test_pins_come_through_grpc() -> None:
    with (
        Engine(HashRunner(64, BLOCK_SIZE), PrefixCache(64, BLOCK_SIZE)) as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
        GenerationClient(server.address) as client,
    ):
        wanted = [PrefixPin(8, 300.0), PrefixPin(20, 1e6)]
        with pytest.raises(InvalidArgumentError, match="ttl"):
            client.generate(GenerateParams(token_ids=PROMPT, pins=wanted))
        wanted[1] = PrefixPin(20, 7 * 86400.0)
        params = GenerateParams(token_ids=PROMPT, sampling=SamplingParams(max_tokens=3), pins=wanted)
        *_, last = client.generate(params)
        assert isinstance(last, Completed)
        assert last.pinned == (8, 0)
        (pin,) = engine.call(lambda holder: holder.pins())
        assert (pin.tokens, pin.ttl_s) == (pack_tokens(PROMPT[:8]), 300.0)

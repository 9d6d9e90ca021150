"""Crowds on one cache: one computes what all of them want, and whoever comes to an end in the middle has one heir."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixkv.client import RemoteHolder, connect
from radixkv.core.api import CacheHolder, PoolShape
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.service import ServiceConfig, ServiceThread

from .crowd import Crowd, Request

BLOCK = 16
PREFIX = 2000
QUESTION = 8
ALONE = (PREFIX + QUESTION + BLOCK - 1) // BLOCK
"""Blocks that one request needs."""

PATIENCE_S = 300.0
"""A busy machine is no lost service and no lost holder."""


def questions(number: int) -> list[Request]:
    """Requests of one prefix, each with a question of its own below it."""
    return [Request(order, array("I", [*range(PREFIX), *[1_000_000 + order] * QUESTION])) for order in range(number)]


def computing(crowd: Crowd) -> list[Request]:
    """Those who run and do not have all of the prefix yet."""
    return [request for request in crowd.running if request.num_computed < PREFIX]


def assert_nothing_is_left(holder: CacheHolder, crowd: Crowd) -> None:
    assert (crowd.queued, crowd.running, crowd.waiting) == ([], [], {})
    assert holder.take_notices() == []
    holder.check()
    stats = holder.stats()
    assert (stats.num_sequences, stats.num_private_blocks, stats.num_promised_blocks) == (0, 0, 0)
    assert stats.num_evictable_blocks == stats.num_cached_blocks


@pytest.mark.parametrize("num_blocks", [ALONE, ALONE + 3, 4 * ALONE, 1000 + ALONE])
def test_a_thousand_requests_compute_their_common_prefix_once(num_blocks: int) -> None:
    cache = PrefixCache(num_blocks, BLOCK)
    crowd = Crowd(cache, questions(1000), chunk=256)
    most_computing = 0
    while crowd.num_done < 1000:
        crowd.run_round()
        most_computing = max(most_computing, len(computing(crowd)))
    assert most_computing == 1
    assert crowd.num_computed_tokens == PREFIX + 1000 * QUESTION
    assert_nothing_is_left(cache, crowd)


def kill_provider(holder: CacheHolder, crowd: Crowd, source: Random, breaks: Callable[[], None]) -> None:
    """Let one request take over, while all others wait for it, and end it at a random point of the prefix.

    It leaves a block to compute, or nobody would wait for it.
    """
    num_requests = len(crowd.queued) + sum(map(len, crowd.waiting.values()))
    crowd.wake()
    opened = crowd.admit()
    (provider,) = opened
    assert crowd.running == opened
    assert {seq_id for seq_id, _ in crowd.waiting} == {provider.seq_id}
    assert sum(map(len, crowd.waiting.values())) == num_requests - 1
    provider.num_computed = min(provider.num_computed + source.randrange(40), PREFIX - BLOCK)
    holder.insert(provider.seq_id, provider.num_computed)
    breaks()
    crowd.end(provider, keep=source.random() < 0.5)
    breaks()
    insort(crowd.queued, provider)


@pytest.mark.parametrize("num_ends", [40, pytest.param(200, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("num_blocks", [ALONE, 3 * ALONE])
def test_of_a_thousand_who_wait_one_takes_over_each_time_the_provider_ends(num_blocks: int, num_ends: int) -> None:
    cache = PrefixCache(num_blocks, BLOCK)
    source = Random(num_blocks)
    crowd = Crowd(cache, questions(1000), chunk=512)
    for _ in range(num_ends):
        kill_provider(cache, crowd, source, cache.check)
    while crowd.num_done < 1000:
        crowd.run_round()
        assert len(computing(crowd)) <= 1
    assert_nothing_is_left(cache, crowd)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=PATIENCE_S)) as service:
        yield service.addresses[0]


@pytest.mark.parametrize("seed", range(3))
def test_one_takes_over_each_time_over_streams_that_break(address: str, seed: int) -> None:
    source = Random(seed)
    with connect(address, PoolShape(2 * ALONE, BLOCK), timeout_s=PATIENCE_S) as holder:
        assert isinstance(holder, RemoteHolder)
        crowd = Crowd(holder, questions(30), chunk=300, is_fenced=True)
        for _ in range(20):
            kill_provider(holder, crowd, source, lambda: holder.interrupt() if source.random() < 0.5 else None)
        while crowd.num_done < 30:
            crowd.run_round()
            assert len(computing(crowd)) <= 1
        assert_nothing_is_left(holder, crowd)


prompts = st.lists(st.sampled_from((1, 1, 1, 2)), min_size=1, max_size=10)


@settings(max_examples=400)
@given(
    num_blocks=st.integers(3, 7),
    block_size=st.integers(2, 4),
    crowd_of=st.lists(st.tuples(prompts, st.integers(0, 6)), min_size=2, max_size=9),
    chunk=st.integers(1, 6),
)
def test_everyone_comes_to_an_end_in_a_pool_of_a_few_blocks(
    num_blocks: int, block_size: int, crowd_of: list[tuple[list[int], int]], chunk: int
) -> None:
    capacity = num_blocks * block_size
    requests = []
    for order, (tokens, num_to_decode) in enumerate(crowd_of):
        prompt = array("I", (tokens * 3)[: capacity - 1 - order % 3])
        requests.append(Request(order, prompt, min(num_to_decode, capacity - len(prompt))))
    cache = PrefixCache(num_blocks, block_size)
    crowd = Crowd(cache, requests, chunk)
    num_rounds = 0
    while crowd.num_done < len(requests):
        crowd.run_round()
        cache.check()
        num_rounds += 1
        assert num_rounds <= 8 * capacity * len(requests), "somebody waits for ever"
    assert_nothing_is_left(cache, crowd)

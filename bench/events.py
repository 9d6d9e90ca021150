"""The cost of a subscriber: insert, decode steps and eviction with one subscriber and without, taking turns.

Two caches with the same histories are called in turns of ten. One has a subscriber, which came after the histories and reads
after each turn, outside the clock: on a service this is between two Steps. Its own time is reported too, per call, and so are
the slices of a snapshot of 100,000 leaves; a Step may have to wait for one of them.

    python -m bench.events            half a minute
    python -m bench.events --quick    a tenth of it, for a smoke test; figures not worth quoting

At the end the subscriber's events are compared with the cache's content. Exit code: 0 if every bar is met, otherwise 1.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Report, Summary, Table, bench_parser, summarise
from bench.tree.workload import Contender, interleave, leaf_prompts, random_tokens, timer_floor_ns
from radixkv.core.api import CacheEvent
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.events.subscription import EventSubscription
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens

__all__ = ["main"]

OFF, ON, READING = "nobody follows", "followed", "the subscriber, per call"
COST_BOUND = 1.10
SLICE_BOUND_MS = 5.0
BLOCK_SIZE = 16
SHARED_TOKENS, OWN_TOKENS, LEAF_TOKENS = 4096, 4096, 64
NUM_DECODED = 64
BURST = 10
NS_TO_US, NS_TO_MS = 1e-3, 1e-6

Samples = dict[str, dict[str, list[int]]]


class Sizes(NamedTuple):
    """Amount of each measurement."""

    num_leaves: int
    num_inserts: int
    num_steps: int
    num_single: int
    num_bulk: int


FULL = Sizes(100_000, 2000, 400, 5000, 60)
QUICK = Sizes(10_000, 100, 20, 300, 10)


class Cache:
    """Cache under measurement, with a subscriber after `follow`.

    `reading`: the subscriber's times of reading the events of a turn, in nanoseconds by call.
    """

    def __init__(self, num_blocks: int) -> None:
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.reading: list[int] = []
        self.held: dict[int, int] = {}
        self._num_calls = 0
        self._subscription: EventSubscription | None = None

    def load(self, tokens: bytes) -> None:
        """Leave a history in the cache."""
        seq = self.cache.acquire(tokens)
        self.cache.insert(seq.seq_id, len(tokens) // TOKEN_BYTES)
        self.cache.release(seq.seq_id)

    def follow(self) -> None:
        """Add a subscriber, and read the present state."""
        self._subscription = self.cache.subscribe_events()
        self.read_all()

    def read_all(self) -> None:
        """Read all pending events of the subscriber."""
        subscription = self._subscription
        if subscription is None:
            return
        start = clock()
        events = subscription.take()
        while not subscription.is_current:
            events += subscription.take()
        self.reading.append((clock() - start) // BURST)
        self._believe(events)

    def called(self) -> None:
        """Count one more timed call; at the end of a turn the subscriber reads."""
        self._num_calls += 1
        if self._num_calls % BURST == 0:
            self.read_all()

    def _believe(self, events: Sequence[CacheEvent]) -> None:
        for event in events:
            if event.kind == "stored":
                self.held.update(zip(event.block_ids, event.block_hashes, strict=True))
            for block in event.block_ids if event.kind == "removed" else ():
                del self.held[block]

    def check(self) -> None:
        """Check that the subscriber's state is exactly the cached whole blocks."""
        whole = {block for node in self.cache.dump() if not node.is_tail for block in node.block_ids}
        if self._subscription is not None and whole != set(self.held):
            raise AssertionError(f"{len(whole)} blocks are cached, the subscriber was told of {len(self.held)}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("events", __doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth; nothing is written unless --json is given")
    parser.add_argument("--seed", type=int, default=0, help="seed of the histories (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/events.json on a full run)")
    return parser.parse_args(arguments)


def open_caches(num_blocks: int) -> dict[str, Cache]:
    return {OFF: Cache(num_blocks), ON: Cache(num_blocks)}


def measure(caches: dict[str, Cache], contenders: dict[str, Contender], num_items: int) -> dict[str, list[int]]:
    """Samples by contender, with those of the subscriber."""
    if not caches[ON].held:
        caches[ON].follow()
    caches[ON].reading.clear()
    samples = interleave(contenders, num_items, 1, burst=BURST)
    samples[READING] = list(caches[ON].reading)
    caches[ON].read_all()
    for cache in caches.values():
        cache.check()
    return samples


def measure_inserts(source: random.Random, num_inserts: int, own_tokens: int) -> dict[str, list[int]]:
    """Insert of a prompt's own tokens under a shared prefix, all at once."""
    shared = random_tokens(source, SHARED_TOKENS)
    prompts = [shared + random_tokens(source, own_tokens) for _ in range(num_inserts)]
    caches = open_caches((SHARED_TOKENS + own_tokens * num_inserts) // BLOCK_SIZE + 64)

    def contender(cache: Cache) -> Contender:
        cache.load(shared)

        def insert(item: int) -> int:
            seq = cache.cache.acquire(prompts[item])
            start = clock()
            cache.cache.insert(seq.seq_id, SHARED_TOKENS + own_tokens)
            elapsed = clock() - start
            cache.cache.release(seq.seq_id)
            cache.called()
            return elapsed

        return insert

    return measure(caches, {name: contender(cache) for name, cache in caches.items()}, num_inserts)


def measure_decoding(source: random.Random, num_sequences: int) -> dict[str, list[int]]:
    """64 consecutive steps of decoding, extend and insert each, after a shared prefix; the time of all of them."""
    shared = random_tokens(source, SHARED_TOKENS)
    prompts = [shared + random_tokens(source, 5) for _ in range(num_sequences)]
    new_tokens = [pack_tokens([70_000 + number]) for number in range(NUM_DECODED)]
    caches = open_caches(SHARED_TOKENS // BLOCK_SIZE + num_sequences * (NUM_DECODED // BLOCK_SIZE + 2))

    def contender(cache: Cache) -> Contender:
        cache.load(shared)

        def decode(item: int) -> int:
            length = SHARED_TOKENS + 5
            seq_id = cache.cache.acquire(prompts[item], reserve=NUM_DECODED).seq_id
            cache.cache.insert(seq_id, length)
            start = clock()
            for token in new_tokens:
                length += 1
                cache.cache.extend(seq_id, length)
                cache.cache.insert(seq_id, length, token)
            elapsed = clock() - start
            cache.cache.release(seq_id)
            cache.called()
            return elapsed

        return decode

    return measure(caches, {name: contender(cache) for name, cache in caches.items()}, num_sequences)


def measure_evictions(source: random.Random, sizes: Sizes) -> Samples:
    """Evict one leaf of many, and one in a hundred of them."""
    histories = leaf_histories(source, sizes)
    caches = open_caches(len(histories) * LEAF_TOKENS // BLOCK_SIZE)
    for cache in caches.values():
        for history in histories:
            cache.load(history)

    def contender(cache: Cache, num_leaves: int) -> Contender:
        def evict(_item: int) -> int:
            start = clock()
            num_blocks = cache.cache.evict(num_leaves * LEAF_TOKENS // BLOCK_SIZE)
            elapsed = clock() - start
            if num_blocks != num_leaves * LEAF_TOKENS // BLOCK_SIZE:
                raise AssertionError(f"{num_blocks} blocks were evicted")
            cache.called()
            return elapsed

        return evict

    samples = {}
    one_percent = sizes.num_leaves // 100
    for what, num_leaves, num_items in (
        (f"evict one leaf of {sizes.num_leaves:,}", 1, sizes.num_single),
        (f"evict {one_percent:,} of {sizes.num_leaves:,} leaves", one_percent, sizes.num_bulk),
    ):
        contenders = {name: contender(cache, num_leaves) for name, cache in caches.items()}
        samples[what] = measure(caches, contenders, num_items)
    return samples


def leaf_histories(source: random.Random, sizes: Sizes) -> list[bytes]:
    parents, leaves = leaf_prompts(source, sizes.num_leaves, LEAF_TOKENS, LEAF_TOKENS)
    return [*parents, *leaves]


def measure_snapshot(source: random.Random, sizes: Sizes) -> list[int]:
    """CPU nanoseconds of each slice of a snapshot of many leaves for a first subscriber, with all hashes already computed.

    CPU time, since a slice interrupted on a busy machine delays a Step no longer than any other interrupted call would.
    """
    histories = leaf_histories(source, sizes)
    cache = Cache(len(histories) * LEAF_TOKENS // BLOCK_SIZE)
    for history in histories:
        cache.load(history)
    subscription = cache.cache.subscribe_events()
    slices = []
    while not subscription.is_synced:
        start = thread_time_ns()
        subscription.take()
        slices.append(thread_time_ns() - start)
    subscription.close()
    return slices


def summaries(samples: Samples) -> dict[str, dict[str, Summary]]:
    floor = timer_floor_ns()
    return {
        what: {name: summarise([max(0.0, one - floor) for one in taken], NS_TO_US) for name, taken in by_name.items()}
        for what, by_name in samples.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    sizes = QUICK if options.quick else FULL
    source = random.Random(options.seed)
    samples: Samples = {
        f"insert {OWN_TOKENS:,} tokens under {SHARED_TOKENS:,}": measure_inserts(source, sizes.num_inserts, OWN_TOKENS),
        f"insert {LEAF_TOKENS} tokens under {SHARED_TOKENS:,}": measure_inserts(
            source, sizes.num_inserts * 3, LEAF_TOKENS
        ),
        f"{NUM_DECODED} decode steps": measure_decoding(source, sizes.num_steps),
    }
    slices = measure_snapshot(source, sizes)
    figures = summaries(samples | measure_evictions(source, sizes))
    snapshot = summarise(slices, NS_TO_MS)

    report = Report("events", options.seed)
    report.figures = {
        "unit": "microseconds",
        "times": {what: {name: one._asdict() for name, one in row.items()} for what, row in figures.items()},
        "snapshot_slices_ms": snapshot._asdict() | {"total": sum(slices) * NS_TO_MS},
    }
    rows = [
        (what, *(f"{row[name].p50:,.2f}" for name in (OFF, ON, READING)), f"{row[ON].p50 / row[OFF].p50:.3f}")
        for what, row in figures.items()
    ]
    report.tables = [
        Table("time per call, microseconds, medians", ("operation", OFF, ON, READING, "ratio"), rows),
        Table(
            f"snapshot of {sizes.num_leaves:,} leaves in slices, milliseconds of CPU time",
            ("slices", "p50", "longest", "in all"),
            [(f"{snapshot.n:,}", f"{snapshot.p50:.2f}", f"{snapshot.max:.2f}", f"{sum(slices) * NS_TO_MS:,.0f}")],
        ),
    ]
    report.bars = [
        Bar(f"{what}: followed / not", row[ON].p50 / row[OFF].p50, COST_BOUND, "x") for what, row in figures.items()
    ]
    report.bars.append(Bar("a slice of a snapshot, p99", snapshot.p99, SLICE_BOUND_MS, " ms"))
    path = options.json or (None if options.quick else RESULTS_DIR / "events.json")
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

"""One schedule's run of the churn benchmark: the traffic, the control, and the measurements."""

from __future__ import annotations

import gc
import random
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, thread_time_ns
from time import perf_counter_ns as clock
from typing import Any, NamedTuple

from bench.tree.workload import LEAVES_PER_PARENT, random_tokens
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.service.runtime.collector import Collector

__all__ = ["run"]

BLOCK_SIZE = 16
PARENT_TOKENS = 64
LEAF_TOKENS = 64
MAX_OPEN = 64
NUM_HISTORIES = 2_000
DECODED_TOKENS = 8
TAKE_EVERY = 16
PIN_EVERY = 1000
PIN_TTL_S = 5.0
WARM_UP_TURNOVERS = 2
CALIBRATION_CALLS = 301
SUB_BUCKETS = 64
CALLS_PER_LOOK = 2_000
NUM_QUARTERS = 4


class Times:
    """Durations of calls, in buckets of 1.6% of their length, so that ten minutes of them take little memory."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * SUB_BUCKETS * 40))
        self.n = 0
        self.max_ns = 0

    def add(self, elapsed_ns: int) -> None:
        shift = max(0, elapsed_ns.bit_length() - 7)
        self._counts[shift * SUB_BUCKETS + (elapsed_ns >> shift)] += 1
        self.n += 1
        self.max_ns = max(self.max_ns, elapsed_ns)

    def quantile_ns(self, share: float) -> float:
        """The least bucket that `share` of the calls do not exceed."""
        left = share * self.n
        for index, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                shift = max(0, index // SUB_BUCKETS - 1)
                return float((index - shift * SUB_BUCKETS) << shift)
        return float(self.max_ns)

    def figures(self) -> dict[str, float]:
        """Quantiles in microseconds."""
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
        return {
            "n": self.n,
            **{name: self.quantile_ns(share) / 1e3 for name, share in shares.items()},
            "max": self.max_ns / 1e3,
        }


class _Pauses:
    """Times of the collector, by generation: in CPU time, and in wall time, which includes other processes."""

    def __init__(self) -> None:
        self._started_ns = self._started_cpu_ns = 0
        self.by_generation: list[dict[str, float]] = []
        self.clear()
        gc.callbacks.insert(0, self._note)

    def clear(self) -> None:
        """Discard all samples."""
        self.by_generation = [dict.fromkeys(("n", "longest_ms", "total_ms", "longest_wall_ms"), 0.0) for _ in range(3)]

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started_ns, self._started_cpu_ns = clock(), thread_time_ns()
            return
        took_ms, wall_ms = (thread_time_ns() - self._started_cpu_ns) / 1e6, (clock() - self._started_ns) / 1e6
        generation = self.by_generation[info["generation"]]
        generation["n"] += 1
        generation["total_ms"] += took_ms
        generation["longest_ms"] = max(generation["longest_ms"], took_ms)
        generation["longest_wall_ms"] = max(generation["longest_wall_ms"], wall_ms)


class _Open(NamedTuple):
    """An open sequence and its history."""

    seq_id: int
    tokens: bytes


class _Traffic:
    """Random calls of the cache; each returns its duration."""

    def __init__(self, source: random.Random, num_leaves: int) -> None:
        self._source = source
        self._prefixes = [random_tokens(source, PARENT_TOKENS) for _ in range(max(1, num_leaves // LEAVES_PER_PARENT))]
        self._num_blocks = (num_leaves * LEAF_TOKENS + len(self._prefixes) * PARENT_TOKENS) // BLOCK_SIZE
        self.cache = PrefixCache(self._num_blocks, BLOCK_SIZE)
        self._open: deque[_Open] = deque()
        self._histories: deque[bytes] = deque(maxlen=NUM_HISTORIES)
        self._num_calls = 0
        self.num_events = 0
        while self.cache.stats().num_free_blocks:
            self._finish(self._begin(), keep=True)
        self._subscription = self.cache.subscribe_events()
        self._take()
        self._next: list[tuple[str, Callable[[], Any]]] = []

    @property
    def num_turnovers(self) -> float:
        """Number of times that all blocks have been evicted."""
        return self.cache.stats().num_evicted_blocks / self._num_blocks

    def _prompt(self) -> bytes:
        """A known history and a new turn, or a prefix and a new part."""
        if self._histories and self._source.random() < 0.4:
            known = self._source.choice(self._histories)
            if len(known) < 8 * LEAF_TOKENS * TOKEN_BYTES:
                return known + random_tokens(self._source, self._source.randint(1, LEAF_TOKENS))
        own = random_tokens(self._source, self._source.randint(LEAF_TOKENS // 2, LEAF_TOKENS * 3 // 2))
        return self._source.choice(self._prefixes) + own

    def _begin(self) -> _Open:
        prompt = self._prompt()
        opened = _Open(self.cache.acquire(prompt).seq_id, prompt)
        self.cache.insert(opened.seq_id, len(prompt) // TOKEN_BYTES)
        return opened

    def _finish(self, opened: _Open, keep: bool) -> None:
        self.cache.release(opened.seq_id, keep)
        self._histories.append(opened.tokens)

    def _take(self) -> None:
        """Read all pending events as the subscriber; outside every clock, as between two Steps of a service."""
        self.num_events += len(self._subscription.take())
        while not self._subscription.is_current:
            self.num_events += len(self._subscription.take())

    def call(self) -> tuple[str, int]:
        """Make one call of the cache. Returns its kind and its nanoseconds."""
        self._num_calls += 1
        if self._num_calls % TAKE_EVERY == 0:
            self._take()
        if self._num_calls % PIN_EVERY == 0:
            prefix = self._source.choice(self._prefixes)
            return self._timed("pin", partial(self.cache.pin, prefix, ttl=PIN_TTL_S))
        if not self._next:
            self._plan()
        return self._timed(*self._next.pop())

    def _timed(self, kind: str, function: Callable[[], Any]) -> tuple[str, int]:
        start = clock()
        function()
        return kind, clock() - start

    def _plan(self) -> None:
        """Plan the calls of the next request, last first: matched, opened, inserted, a few tokens decoded, possibly forked."""
        if len(self._open) >= MAX_OPEN:
            ended, keep = self._open.popleft(), self._source.random() < 0.9
            self._histories.append(ended.tokens)
            self._next.append(("release", partial(self.cache.release, ended.seq_id, keep)))
            return
        prompt = self._prompt()
        num_tokens = len(prompt) // TOKEN_BYTES
        seq_id = self._source.getrandbits(60)
        new_tokens = [pack_tokens([self._source.randrange(1 << 16)]) for _ in range(DECODED_TOKENS)]
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("match", partial(self.cache.match, prompt)),
            ("acquire", partial(self.cache.acquire, prompt, reserve=DECODED_TOKENS, seq_id=seq_id)),
            ("insert", partial(self.cache.insert, seq_id, num_tokens)),
        ]
        for number, token in enumerate(new_tokens, start=num_tokens + 1):
            calls.append(("extend", partial(self.cache.extend, seq_id, number)))
            calls.append(("insert a token", partial(self.cache.insert, seq_id, number, token)))
        self._open.append(_Open(seq_id, prompt + b"".join(new_tokens)))
        if self._source.random() < 0.2:
            child_id, position = self._source.getrandbits(60), self._source.randint(1, num_tokens)
            calls.append(("fork", partial(self.cache.fork, seq_id, position, seq_ids=[child_id])))
            self._open.append(_Open(child_id, prompt[: position * TOKEN_BYTES]))
        self._next = calls[::-1]

    def end(self) -> None:
        """Complete the current request, end all sequences and verify the cache."""
        while self._next:
            self._next.pop()[1]()
        while self._open:
            self._finish(self._open.popleft(), keep=True)
        self._take()
        self.cache.check()


class _Control:
    """A loop of look-ups and slices, as long for each kind of call as that kind's median."""

    def __init__(self, source: random.Random) -> None:
        self._bytes = source.randbytes(1 << 22)
        self._table = {index: index * 7919 % (1 << 16) for index in range(1 << 16)}
        self._key = 1
        self._num_rounds: dict[str, int] = {}

    def calibrate(self, kind: str, median_ns: float) -> None:
        """Set the loop's rounds to the median duration of a kind of call."""
        low, high = 1, 4096
        while low < high:
            middle = (low + high) // 2
            self._num_rounds[kind] = middle
            taken = sorted(self.call(kind) for _ in range(CALIBRATION_CALLS))[CALIBRATION_CALLS // 2]
            low, high = (middle + 1, high) if taken < median_ns else (low, middle)
        self._num_rounds[kind] = low

    def call(self, kind: str) -> int:
        """Duration in nanoseconds."""
        start = clock()
        table, data, key = self._table, self._bytes, self._key
        for _ in range(self._num_rounds[kind]):
            key = table[key ^ 0x5A5A]
            if data[key << 6 : (key << 6) + 64] == data[:64]:
                key = 1
        self._key = key ^ 1
        return clock() - start


def run(seed: int, num_leaves: int, seconds: float, *, is_service: bool) -> dict[str, Any]:
    """Fill a cache, and churn it for `seconds`. Returns the times of calls, the control and the collector."""
    source = random.Random(seed)
    pauses = _Pauses()
    filled_s = monotonic()
    collector = Collector() if is_service else None
    if collector is not None:
        collector.start()
    traffic, control = _Traffic(source, num_leaves), _Control(source)
    filled_s = monotonic() - filled_s
    times: dict[str, Times] = {}
    while traffic.num_turnovers < WARM_UP_TURNOVERS:
        kind, elapsed_ns = traffic.call()
        times.setdefault(kind, Times()).add(elapsed_ns)
    for kind, taken in times.items():
        control.calibrate(kind, taken.quantile_ns(0.5))
    filling = pauses.by_generation
    pauses.clear()
    times = {kind: Times() for kind in times}
    every, idle = Times(), Times()
    rss_start_mib, evicted = _rss_mib(), traffic.cache.stats().num_evicted_blocks
    start_s, peaks_mib = monotonic(), [0.0] * NUM_QUARTERS
    while (elapsed_s := monotonic() - start_s) < seconds:
        quarter = int(elapsed_s / seconds * NUM_QUARTERS)
        peaks_mib[quarter] = max(peaks_mib[quarter], _rss_mib())
        for _ in range(CALLS_PER_LOOK):
            kind, elapsed_ns = traffic.call()
            times[kind].add(elapsed_ns)
            every.add(elapsed_ns)
            idle.add(control.call(kind))
    stats = traffic.cache.stats()
    collections = pauses.by_generation
    pauses.clear()
    traffic.end()
    if collector is not None:
        collector.stop()
    return {
        **{kind: taken.figures() for kind, taken in times.items()},
        "all calls": every.figures(),
        "control": idle.figures(),
        "collections": collections,
        "collections while filling": filling,
        "filled_s": filled_s,
        "num_nodes": stats.num_nodes,
        "num_evicted_blocks": stats.num_evicted_blocks - evicted,
        "num_turnovers": traffic.num_turnovers,
        "num_events": traffic.num_events,
        "rss_start_mib": rss_start_mib,
        "rss_peaks_mib": peaks_mib,
    }


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmRSS in /proc/self/status")

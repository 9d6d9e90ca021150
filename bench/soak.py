"""The load of `bench.faults` for an hour, with regular faults: growth, slowdown, and lost requests.

The service and the gateway live for the whole run and are stopped for a while now and then; the workers are stopped, and killed
and started again. Memory and latencies of the second half are compared with those of the first.

    memory        resident bytes of each process, of its current life from a while after its start
    latency       of requests without a fault near them, the median of each half
    books         tries = finished + failed; requests counted by the gateway = requests sent by clients; tokens counted by the
                  last life of worker b = tokens received by its clients; free + cached blocks = pool, no sequence is open
    answers       as in `bench.faults`

    python -m bench.soak                    an hour
    python -m bench.soak --minutes 10
    python -m bench.soak --quick            a minute, as in CI
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, percentile
from bench.faults.asker import Done, Ledger
from bench.faults.fault import KILL, LONG, SHORT, Fault
from bench.faults.run import QUICK_LEASE_TTL_S, Injury, end_clients, inspect, record, start_clients, strike
from bench.faults.stack import GATEWAY, SERVICE, WORKER_A, WORKER_B, Stack
from bench.faults.typewriter import save_typewriter
from radixkv.generation.client import GenerationClient

__all__ = ["main", "slope_per_hour"]

FAULTS = (
    *((name, SHORT) for name in (SERVICE, WORKER_A, WORKER_B, GATEWAY)),
    *((name, LONG) for name in (SERVICE, WORKER_A, WORKER_B, GATEWAY)),
    (WORKER_A, KILL),
    (WORKER_B, KILL),
)
MAX_GROWTH = 1.10
MAX_SLOWDOWN = 1.5
JUDGED_MINUTES = 5.0
KEPT_MINUTES = 10.0
_SAMPLE_S = 1.0
_WARM_S = 20.0
_NEAR_S = 1.0
_SETTLED_S = 20.0
_MIB = 2**20


class Sample(NamedTuple):
    """Resident memory of a process. `life`: index of the process in its place; `age_s`: since it was first seen."""

    at_s: float
    name: str
    life: int
    age_s: float
    rss_bytes: int


class Sampler(threading.Thread):
    """Samples the memory of every process once a second."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self._stack = stack
        self._seen_s: dict[tuple[str, int], float] = {}
        self._ending = threading.Event()

    def end(self) -> None:
        """Stop sampling."""
        self._ending.set()
        self.join()

    def run(self) -> None:
        while not self._ending.wait(_SAMPLE_S):
            try:
                rss = self._stack.rss_bytes()
            except psutil.NoSuchProcess:  # just killed
                continue
            now_s = time.monotonic()
            for name, role in self._stack.roles.items():
                life = role.num_starts
                age_s = now_s - self._seen_s.setdefault((name, life), now_s)
                self.samples.append(Sample(now_s, name, life, age_s, rss[name]))


def slope_per_hour(points: Sequence[tuple[float, float]], most: int = 200) -> float:
    """The median slope of all pairs of points (Theil 1950, Sen 1968), robust against a few outliers; per 3,600 of x."""
    step = max(1, len(points) // most)
    few = points[::step]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for place, earlier in enumerate(few)
        for later in few[place + 1 :]
        if later[0] > earlier[0]
    ]
    return 3600 * percentile(slopes, 0.5) if slopes else 0.0


class Half(NamedTuple):
    """Figures of the first and the second half of a run; None if there are too few samples."""

    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """The second half's figure over the first's."""
        return None if self.first is None or self.second is None else self.second / self.first

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]], share: float = 0.5) -> Half:
        """Figures of points over time: the `share` quantile in each half of their time."""
        if len(points) < 4:
            return cls(None, None)
        middle_s = (points[0][0] + points[-1][0]) / 2
        halves = ([y for x, y in points if x <= middle_s], [y for x, y in points if x > middle_s])
        return cls(*(percentile(half, share) if half else None for half in halves))


def memory_points(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """Times and MiB of a place, for warm processes."""
    return [(each.at_s, each.rss_bytes / _MIB) for each in samples if each.name == name and each.age_s >= _WARM_S]


def quiet(done: Sequence[Done], injuries: Sequence[Injury], route: str) -> list[tuple[float, float]]:
    """Time and latency of the requests of a route without a fault near them."""
    times = [(injury.at_s - _NEAR_S, injury.at_s + (injury.all_s or 60.0) + _NEAR_S) for injury in injuries]
    return [
        (each.ended_s, each.ended_s - each.begun_s)
        for each in done
        if each.route == route and not any(each.begun_s < end and each.ended_s > start for start, end in times)
    ]


class Soaked(NamedTuple):
    """Result of a run."""

    ledger: Ledger
    injuries: list[Injury]
    samples: list[Sample]
    found: list[str]
    books: dict[str, tuple[int, int]]


def run(stack: Stack, options: argparse.Namespace) -> Soaked:
    """Run load and faults until the time is over, then compare the books."""
    answers = record(stack)
    with httpx.Client(base_url=stack.urls[0]) as http:
        num_counted = _count_requests(http)
    with GenerationClient(stack.worker) as client:
        num_drawn = client.stats().engine.num_generated_tokens
    ledger, source = Ledger(), random.Random(options.seed)
    sampler, clients = Sampler(stack), start_clients(stack, answers, ledger)
    sampler.start()
    injuries: list[Injury] = []
    started_s = time.monotonic()
    num_faults = max(1, round(60 * options.minutes / options.every) - 1)
    progress = Progress("faults", num_faults)
    try:
        for number in range(num_faults):
            due_s = started_s + (number + source.uniform(0.6, 1.0)) * options.every
            time.sleep(max(0.0, due_s - time.monotonic()))
            injuries.append(strike(stack, Fault(*FAULTS[number % len(FAULTS)]), clients, ledger, options.lease_ttl))
            progress.advance()
        time.sleep(max(0.0, started_s + 60 * options.minutes - time.monotonic()))
    finally:
        end_clients(clients, ledger)
        sampler.end()
    found = inspect(stack)
    books = _books(stack, ledger, injuries, num_counted, num_drawn)
    found += [f"{name}: ended with {code}" for name, code in stack.stop().items() if code]
    return Soaked(ledger, injuries, sampler.samples, found, books)


def _count_requests(http: httpx.Client) -> int:
    """Number of requests counted by the gateway, of all routes and statuses."""
    lines = re.findall(r"^radixkv:http_requests_total\{.*\} (\S+)$", http.get("/metrics").text, re.M)
    return round(sum(map(float, lines)))


def _books(
    stack: Stack, ledger: Ledger, injuries: Sequence[Injury], num_counted: int, num_drawn: int
) -> dict[str, tuple[int, int]]:
    """Pairs of figures that must be equal. `num_counted`, `num_drawn`: counts from before the clients started."""
    is_killed = any(injury.fault == (WORKER_B, KILL) for injury in injuries)
    since_s = stack.roles[WORKER_B].started_s if is_killed else 0.0
    heard = sum(each.num_tokens for each in ledger.heard if each.taken_s > since_s)
    until_s = time.monotonic() + _SETTLED_S
    with GenerationClient(stack.worker) as client, httpx.Client(base_url=stack.urls[0]) as http:
        while True:
            drawn = client.stats().engine.num_generated_tokens - (0 if is_killed else num_drawn)
            counted = _count_requests(http) - num_counted
            if (drawn, counted) == (heard, ledger.num_sent) or time.monotonic() > until_s:
                break
            time.sleep(0.1)  # a caller who hung up is noticed a moment later
    return {
        "tries, finished + failed": (ledger.num_tries, len(ledger.done) + len(ledger.failures)),
        "requests sent, counted by the gateway": (ledger.num_sent, counted),
        "tokens heard, drawn by worker b in its last life": (heard, drawn),
    }


def bars(soaked: Soaked, options: argparse.Namespace) -> list[Bar]:
    ledger = soaked.ledger
    found = [
        Bar("wrong answers, lasting failures, hangs", len(ledger.wrong), 0, reason="; ".join(ledger.wrong[:2])[:1500]),
        Bar("broken invariants, leaks, tracebacks", len(soaked.found), 0, reason="; ".join(soaked.found)[:1500]),
    ]
    for what, (one, other) in soaked.books.items():
        found.append(Bar(f"difference of {what}", abs(one - other), 0, reason=f"{one:,} and {other:,}"))
    if options.minutes < JUDGED_MINUTES:
        return found
    for name in (SERVICE, WORKER_A, WORKER_B, GATEWAY):
        growth = Half.of(memory_points(soaked.samples, name)).ratio
        found.append(Bar(f"{name}: memory, second half / first", growth, MAX_GROWTH, "x"))
    for route in ("http", "grpc"):
        slowdown = Half.of(quiet(ledger.done, soaked.injuries, route)).ratio
        found.append(Bar(f"{route}: median latency, second half / first", slowdown, MAX_SLOWDOWN, "x"))
    return found


def tables(soaked: Soaked) -> list[Table]:
    memory: list[tuple[str, ...]] = []
    latency: list[tuple[str, ...]] = []
    for name in (SERVICE, WORKER_A, WORKER_B, GATEWAY):
        points = memory_points(soaked.samples, name)
        lives = len({sample.life for sample in soaked.samples if sample.name == name})
        half = Half.of(points)
        memory.append((name, str(lives), _text(half.first), _text(half.second), f"{slope_per_hour(points):+.1f}"))
    for route in ("http", "grpc"):
        points = quiet(soaked.ledger.done, soaked.injuries, route)
        halves = [Half.of(points, share) for share in (0.5, 0.99)]
        cells = (_text(value, 1000) for half in halves for value in half)
        latency.append((route, f"{len(points):,}", *cells))
    return [
        Table("resident memory, MiB", ("process", "lives", "first half", "second half", "per hour"), memory),
        Table(
            "latency in quiet times, ms",
            ("route", "requests", "p50 first half", "second", "p99 first", "second"),
            latency,
        ),
    ]


def _text(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:,.1f}"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="default: 60")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from a fault to the next (default: 20)")
    parser.add_argument("--quick", action="store_true", help="a minute, a fault every 12 seconds, and no JSON")
    parser.add_argument("--lease-ttl", type=float, default=1.0, help="of the service, seconds (default: 1)")
    parser.add_argument("--num-blocks", type=int, default=512, help="of each pool, 16 tokens each (default: 512)")
    parser.add_argument("--seed", type=int, default=0, help="of when a fault comes (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/soak.json from 10 minutes on)"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.minutes, options.every = 1.0, 12.0
        options.lease_ttl = max(options.lease_ttl, QUICK_LEASE_TTL_S)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that none of our processes is left
    try:
        with tempfile.TemporaryDirectory(prefix="radixkv-") as name:
            folder = Path(name)
            model = save_typewriter(folder / "model")
            pool = {"lease_ttl_s": options.lease_ttl, "num_blocks": options.num_blocks}
            with Stack(folder, model, dtype="float32", **pool) as stack:
                soaked = run(stack, options)
    except KeyboardInterrupt:
        print("interrupted; every process that was started is gone", file=sys.stderr)
        return 130
    ledger = soaked.ledger
    figures = {
        "minutes": options.minutes,
        "num_tries": ledger.num_tries,
        "num_finished": len(ledger.done),
        "num_failed_tries": len(ledger.failures),
        "num_cancelled": ledger.num_cancelled,
        "num_faults": len(soaked.injuries),
        "books": soaked.books,
        "memory_mib_per_hour": {
            name: slope_per_hour(memory_points(soaked.samples, name)) for name in (SERVICE, WORKER_A, WORKER_B, GATEWAY)
        },
    }
    report = Report("soak", options.seed, figures, bars(soaked, options), tables(soaked))
    return report.finish(options.json or (RESULTS_DIR / "soak.json" if options.minutes >= KEPT_MINUTES else None))


if __name__ == "__main__":
    sys.exit(main())

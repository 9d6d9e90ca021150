"""A million hostile messages over every way into a running stack: crashes, hangs, leaks, and changes of the cache.

`radixkv up` runs in a separate process with a tiny model. In rounds it receives

    gRPC       calls of every method of both servers, found by reflection: messages made from the descriptors, nearly valid or
               wrong in any field, and mutations of their bytes; streams of holders out of order
    HTTP       requests to every route that the gateway describes, and bytes that are hardly HTTP
    HTTP/2     connections to both gRPC servers that break the protocol: floods, garbage, bombs, incomplete input
    excess     endless heads and lists, missing bodies, readers that never read, idle streams left open
    parsers    the conversions of both ends and a pool's Steps, called directly; with atheris installed also by coverage

After each round the process must live and respond, without a traceback or a running generation, and a holder in another pool
must not be affected; refused calls are repeated alone, with all state compared before and after. No status may be UNKNOWN or
INTERNAL, no response a 500.

    python -m bench.bad_input                     1,000,000 messages
    python -m bench.bad_input --quick             20,000, as in CI, less than a minute
    python -m bench.bad_input --first N           repeats a round from its first case on: all depends on seed and number
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import median

import grpc

from bench.bad_input.calls import Caller, find_methods
from bench.bad_input.excess import Excess
from bench.bad_input.http1 import HttpAttack
from bench.bad_input.http2 import ATTACKS, Connections
from bench.bad_input.parsers import Parsers
from bench.bad_input.target import Target, Victim, running_target
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.hostile.stack import Site

__all__ = ["main"]

QUICK_MESSAGES, FULL_MESSAGES = 20_000, 1_000_000
NUM_THREADS = 8
ROUND_CALLS, ROUND_HTTP, ROUND_CONNECTIONS, ROUND_SAMPLES, ROUND_PARSED = 512, 96, 12, 4, 900
ROUND_EXCESS = 8
ROUND_MESSAGES = 1718
"""Approximate number of messages of a round."""
COVERAGE_SHARE = 0.2
"""Share of all messages that are made by atheris, if it is installed."""
MAX_GROWTH_BYTES = 32 << 20
"""Allowed growth of the target's memory per million messages, once its bounded stores are full."""
_MOST_FAULTS = 50
_TRIES = 3


@dataclass(slots=True)
class Found:
    """Results. `rss`: messages sent so far and the target's resident bytes then. `num_compared`: refused calls before and
    after which all state was compared.
    """

    num_messages: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    rss: list[tuple[int, int]] = field(default_factory=list)
    num_compared: int = 0

    def answered(self, kind: str, what: str) -> None:
        """Count a response of a way in."""
        self.answers.setdefault(kind, Counter())[what] += 1

    def growth_bytes(self) -> float | None:
        """The target's growth per million messages in the second half of the run: the median of all slopes."""
        points = self.rss[len(self.rss) // 2 :: max(1, len(self.rss) // 400)]
        slopes = [(y - x) / (b - a) for (a, x), (b, y) in combinations(points, 2) if b > a]
        return 1e6 * median(slopes) if len(points) > 4 else None


class Run:
    """Rounds against one target.

    Args:
        seed: every case depends on it and its number.
        first: the number of the first case.
    """

    def __init__(self, seed: int, first: int, target: Target, victim: Victim, found: Found) -> None:
        self._seed = seed
        self._next = first
        self._target = target
        self._victim = victim
        self._found = found
        self._methods = find_methods((target.service, target.worker))
        self._caller = Caller(seed, self._methods)
        self._http = HttpAttack(seed, target.gateway)
        self._connections = Connections(seed)
        self._excess = Excess(seed, Site(target.gateway, target.worker, target.service, "", "model"))
        self._parsers = Parsers(seed)
        self._threads = ThreadPoolExecutor(NUM_THREADS)
        self.ways = {"methods": len(self._methods), "routes": self._http.num_operations, "HTTP/2 attacks": len(ATTACKS)}
        self.ways["parsers"] = self._parsers.num_targets

    def round(self) -> None:
        """Run one round."""
        first, self._next = self._next, self._next + ROUND_PARSED
        self._call(range(first, first + ROUND_CALLS))
        self._send_http(range(first, first + ROUND_HTTP))
        self._connect(range(first, first + ROUND_CONNECTIONS))
        self._exceed(range(first, first + ROUND_EXCESS))
        self._parse(range(first, first + ROUND_PARSED))
        faults = [] if self._target.wait_idle() else ["a generation runs on though nobody reads it"]
        for number in range(first + ROUND_CALLS, first + ROUND_CALLS + ROUND_SAMPLES):
            try:
                faults += self._compare(number)
            except grpc.RpcError as error:
                faults.append(f"a look at what is held failed: {error!r}")
        faults += self._target.faults() + self._victim.faults()
        self._found.faults += [f"cases {first} to {self._next - 1}: {fault}" for fault in faults]
        self._found.rss.append((self._found.num_messages.total(), self._target.rss_bytes()))

    def close(self) -> None:
        """End the threads."""
        self._connections.close()
        self._excess.close()
        self._caller.close()
        self._threads.shutdown()

    def _call(self, numbers: range) -> None:
        for outcome in self._threads.map(self._caller.call, map(self._caller.draw, numbers)):
            case = outcome.case
            self._found.num_messages["gRPC"] += len(case.messages)
            self._found.answered("gRPC", outcome.status.name)
            if outcome.fault:
                self._found.faults.append(f"gRPC case {case.number}, {case.method.path}: {outcome.fault}")

    def _send_http(self, numbers: range) -> None:
        for case, status, fault in self._threads.map(self._http.send, map(self._http.draw, numbers)):
            self._found.num_messages["HTTP"] += 1
            self._found.answered("HTTP", status)
            if fault:
                what = (case.raw or case.body)[:300]
                self._found.faults.append(f"HTTP case {case.number}, {case.method} {case.path[:80]}: {fault}: {what!r}")

    def _connect(self, numbers: range) -> None:
        def one(number: int) -> str:
            method = self._methods[number % len(self._methods)]
            return self._connections.attack(number, method.address, method.path)

        for name in self._threads.map(one, numbers):
            self._found.num_messages["HTTP/2"] += 1
            self._found.answered("HTTP/2", name)

    def _exceed(self, numbers: range) -> None:
        for outcome in self._threads.map(self._excess.send, numbers):
            self._found.num_messages["excess"] += 1
            self._found.answered("excess", outcome.answer)
            if outcome.fault:
                self._found.faults.append(f"excess {outcome.fault}")

    def _parse(self, numbers: range) -> None:
        for number in numbers:
            self._found.num_messages["parsers"] += 1
            if fault := self._parsers.run(number):
                self._found.faults.append(f"parsers {fault}")

    def _compare(self, number: int) -> list[str]:
        """Check that a refused call, alone, changes nothing; a change by itself shows once, but not three times."""
        case = self._caller.draw(number)
        for _ in range(_TRIES):
            before = self._target.state()
            outcome = self._caller.call(case)
            after = self._target.state()
            self._found.num_messages["gRPC"] += len(case.messages)
            if outcome.fault or outcome.status.name in ("OK", "DEADLINE_EXCEEDED"):
                return [outcome.fault] if outcome.fault else []
            names = ("default", "victim") if case.method.streams_in else before.keys() & after.keys()
            if all(before.get(name) == after.get(name) for name in names):
                self._found.num_compared += 1
                return []
        return [f"case {number}, {case.method.path}, was refused with {outcome.status.name} and has changed the cache"]


def run_coverage(seed: int, num_runs: int, found: Found) -> None:
    """Run atheris on the parsers, in a separate process."""
    command = [sys.executable, "-m", "bench.bad_input.parsers", str(seed), str(num_runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    found.num_messages["parsers, by coverage"] += num_runs
    if done.returncode:
        found.faults.append(f"atheris ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("bad_input", __doc__)
    parser.add_argument("--messages", type=int, default=FULL_MESSAGES, help="how many in all (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MESSAGES:,} messages; written only with --json")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first case, to run a round again (default: 0)"
    )
    parser.add_argument("--minutes", type=float, default=inf, help="stop after so many (default: no bound)")
    parser.add_argument("--seed", type=int, default=0, help="of every case (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/bad_input.json on a full run)"
    )
    return parser.parse_args(arguments)


def report(found: Found, ways: dict[str, int], options: argparse.Namespace, seconds: float) -> Report:
    made = Report("bad_input", options.seed)
    growth = found.growth_bytes()
    made.figures = {
        "num_messages": dict(found.num_messages),
        "num_messages_total": found.num_messages.total(),
        "ways": ways,
        "answers": {kind: dict(counts.most_common()) for kind, counts in found.answers.items()},
        "num_refused_compared": found.num_compared,
        "growth_bytes_per_million": growth,
        "rss_bytes": found.rss[:: max(1, len(found.rss) // 50)],
        "seconds": round(seconds, 1),
        "faults": found.faults[:_MOST_FAULTS],
    }
    rows = [
        (
            kind,
            f"{count:,}",
            ", ".join(f"{what} {n:,}" for what, n in found.answers.get(kind, Counter()).most_common(5)),
        )
        for kind, count in found.num_messages.items()
    ]
    made.tables.append(Table("hostile input", ("way in", "messages", "most frequent answers"), rows))
    asked = QUICK_MESSAGES if options.quick else options.messages
    made.bars += [
        Bar("faults: crashes, hangs, wrong statuses, changes by a refused call", len(found.faults), 0),
        Bar("messages", found.num_messages.total(), asked, at_least=True),
        Bar("refused calls before and after which everything was compared", found.num_compared, 1, at_least=True),
        Bar(
            "growth of memory per million messages, second half",
            growth and growth / 2**20,
            MAX_GROWTH_BYTES / 2**20,
            " MiB",
        ),
    ]
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code. A quick run judges everything except memory."""
    options = parse(arguments)
    num_messages = QUICK_MESSAGES if options.quick else options.messages
    found, started_s = Found(), time.monotonic()
    if find_spec("atheris") is None:
        print("atheris is not installed (pip install radixkv[fuzz]): no search by coverage", file=sys.stderr)
    else:
        run_coverage(options.seed, round(COVERAGE_SHARE * num_messages), found)
    with running_target() as (target, victim):
        target.fill_bounded_stores()
        run = Run(options.seed, options.first, target, victim, found)
        progress = Progress("rounds", -(-(num_messages - found.num_messages.total()) // ROUND_MESSAGES))
        until_s = started_s + 60 * options.minutes
        while (
            time.monotonic() < until_s
            and found.num_messages.total() < num_messages
            and len(found.faults) < _MOST_FAULTS
        ):
            run.round()
            progress.advance()
        run.close()
        run.ways["leases lost by starvation"] = target.num_lost_leases
    for fault in found.faults[:_MOST_FAULTS]:
        print(fault)
    path = options.json or (None if options.quick else RESULTS_DIR / "bad_input.json")
    made = report(found, run.ways, options, time.monotonic() - started_s)
    code = made.finish(path, is_quick=options.quick)
    return 1 if found.faults else code

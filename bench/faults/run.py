"""Every process of a deployment is killed, stopped for a while or restarted, repeatedly, under load: the effects on clients.

The processes are started by the CLI: a cache service, two workers with a pool each, a gateway in front of the first. Clients
play scripts that branch (chats, streams, drafts, stored responses and continuations of them, kept conversations, forks over
gRPC), retry failed requests, and compare every reply with the one recorded before any fault. Ended processes are restarted
after a tenth of a second, as with systemd's Restart=always. Faults come at random moments, each once all clients are
served again after the previous one.

    answers            every finished reply equals the undisturbed one, token by token; every failure is retryable, and no
                       request hangs
    failed             failed tries by kind; none by a broken connection unless the gateway itself was killed or its host,
                       which a service shares, was cut off; and none at all if the service, or the gateway's worker, was
                       restarted by SIGTERM
    first answer       from the fault to the first response to a request started after it
    all clients        from the fault until each client that depends on that process has one
    at the end         the trees hold their invariants, no sequence is open, free + cached blocks = pool, no connection is half
                       closed, memory has not grown, no log has a traceback, every process exits with 0

    python -m bench.faults                     200 faults, a tiny model
    python -m bench.faults --cluster           three gateways over PostgreSQL and Redis, two services, three workers; also
                                               hosts cut off from all, gateways or PostgreSQL, and wrong clocks
    python -m bench.faults --quick             10, as in CI; 6 of a cluster
    python -m bench.faults --model smollm2     with SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, percentile
from bench.faults.asker import GIVE_UP_S, Asker, Failure, Ledger
from bench.faults.clients import Client
from bench.faults.cluster import Cluster, missing_program
from bench.faults.fault import CLUSTER_QUICK, CUT, RESTART, Fault, cluster_faults, faults
from bench.faults.scripts import Script
from bench.faults.stack import GATEWAY, HTTP, ROUTES, SERVICE, WORKER_A, WORKER_B, Deployment, Stack
from bench.faults.typewriter import save_typewriter
from radixkv.client import connect
from radixkv.core.errors import RadixKVError
from radixkv.worker.loading.default_model import resolve_model

__all__ = [
    "Injury",
    "end_clients",
    "inspect",
    "main",
    "record",
    "start_clients",
    "strike",
]

CLIENTS = (
    ("chat", "stream"),
    ("responses", "leaver", "conversation"),
    ("drafts", "stream", "chat"),
    ("conversation", "responses"),
    ("forks",),
    ("forks",),
)
"""Scripts of each client."""
CLUSTER_CLIENTS = (
    ("chat", "stream", "leaver"),
    ("responses", "drafts"),
    ("background",),
    ("conversation",),
    ("background", "conversation", "responses"),
)
SCRIPTS_PER_KIND = 4
RECOVERED_S = 90.0
JUDGED_POINTS = 100
QUICK_LEASE_TTL_S = 5.0
"""A machine that runs tests has others on it: no stall of its ends a lease."""
MAX_GROWTH = 1.25
_WARM_S = 2.0
_LOOK_S = 0.01
_IDLE_S = 20.0


@dataclass(slots=True)
class Injury:
    """An injected fault, and its effects. Seconds of the monotonic clock; None if it never came."""

    fault: Fault
    at_s: float
    first_s: float | None = None
    all_s: float | None = None
    failures: list[Failure] = field(default_factory=list)


def record(
    stack: Deployment, clients: Sequence[Sequence[str]] = CLIENTS, scripts_per_kind: int = SCRIPTS_PER_KIND
) -> dict[Script, list[str]]:
    """Record the undisturbed replies to every script."""
    asker = Asker(stack.urls, stack.worker, Ledger(), 0, lambda: True)
    try:
        kinds = dict.fromkeys(kind for kinds in clients for kind in kinds)
        scripts = [Script(kind, number) for kind in kinds for number in range(scripts_per_kind)]
        return {script: script.play(asker) for script in scripts}
    finally:
        asker.close()


def start_clients(
    stack: Deployment,
    answers: dict[Script, list[str]],
    ledger: Ledger,
    clients: Sequence[Sequence[str]] = CLIENTS,
) -> list[Client]:
    """Start clients that play until they are stopped."""
    started = [Client(number, kinds, answers, stack.urls, stack.worker, ledger) for number, kinds in enumerate(clients)]
    for client in started:
        client.start()
    return started


def end_clients(clients: Sequence[Client], ledger: Ledger) -> None:
    """Let each complete its script; one that does not return hangs."""
    for client in clients:
        client.leave()
    deadline_s = time.monotonic() + 2 * GIVE_UP_S
    for client in clients:
        client.join(max(0.0, deadline_s - time.monotonic()))
        if client.is_alive():
            ledger.went_wrong(f"client {client.number} hangs")


def strike(stack: Deployment, fault: Fault, clients: Sequence[Client], ledger: Ledger, ttl_s: float) -> Injury:
    """Inject one fault and wait until every affected client is served again."""
    injury = Injury(fault, time.monotonic())
    role, num_before = stack.roles[fault.target], len(ledger.done)
    num_starts = role.num_starts
    num_failures = len(ledger.failures)
    waiting = {client.number for client in clients if client.routes & set(ROUTES.get(fault.target, (HTTP,)))}
    striking = threading.Thread(target=fault.strike, args=(stack, ttl_s), daemon=True)
    striking.start()
    deadline_s = injury.at_s + RECOVERED_S
    while waiting and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
        num_now = len(ledger.done)
        for done in ledger.done[num_before:num_now]:
            if done.client in waiting and done.begun_s > injury.at_s:
                waiting.discard(done.client)
                injury.first_s = injury.first_s or done.ended_s - injury.at_s
                injury.all_s = done.ended_s - injury.at_s
        num_before = num_now
    striking.join()
    while fault.ends and role.num_starts == num_starts and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)  # failures until its end are of this fault
    if waiting:
        injury.all_s = None
    stack.wait_ready()
    injury.failures = ledger.failures[num_failures:]
    return injury


def inspect(stack: Deployment) -> list[str]:
    """Faults of an idle deployment: broken invariants, leaks; empty if there are none."""
    found: list[str] = []
    for service, pool in stack.pools:
        with connect(service, pool_name=pool) as reader:
            deadline_s = time.monotonic() + _IDLE_S
            while (stats := reader.stats()).num_sequences and time.monotonic() < deadline_s:
                time.sleep(_LOOK_S)
            try:
                reader.check()
            except RadixKVError as error:
                found.append(f"pool {pool}: {error}")
            if stats.num_sequences:
                found.append(f"pool {pool}: {stats.num_sequences} sequences are open")
            if stats.num_free_blocks + stats.num_cached_blocks != stats.num_blocks:
                found.append(f"pool {pool}: {stats.num_free_blocks} free + {stats.num_cached_blocks} cached blocks")
    for name, count in stack.num_half_closed().items():
        if count:
            found.append(f"{name}: {count} connections are half closed")
    for name, role in stack.roles.items():
        if "Traceback" in role.log:
            found.append(f"{name}: its log has a traceback, which ends: {_end_of_trace(role.log)}")
    return found


def _end_of_trace(log: str) -> str:
    """The last frames of a log's first traceback, and its error."""
    lines = log[log.index("Traceback") :].splitlines()
    end = next((at for at, line in enumerate(lines) if at and not line.startswith(" ")), len(lines))
    return "\n".join(lines[max(0, end - 16) : end + 1])


class Outcome(NamedTuple):
    """Result of a whole run. `growth`: memory at the end over that after the warm-up, the greatest of all processes."""

    injuries: list[Injury]
    ledger: Ledger
    faults_found: list[str]
    growth: float
    num_files: dict[str, int]
    exits: dict[str, int]


def run(stack: Deployment, options: argparse.Namespace) -> Outcome:
    """Inject all faults, then inspect the deployment."""
    kinds, struck = CLIENTS, faults(options.seed)
    if isinstance(stack, Cluster):
        kinds, struck = CLUSTER_CLIENTS, cluster_faults(options.seed, stack.hosts is not None)
    answers = record(stack, kinds, 2 if options.quick else SCRIPTS_PER_KIND)
    ledger, source, injuries = Ledger(), random.Random(options.seed), []
    clients = start_clients(stack, answers, ledger, kinds)
    progress = Progress("faults", options.points)
    try:
        time.sleep(_WARM_S)
        before = stack.rss_bytes()
        for _, fault in zip(range(options.points), struck, strict=False):
            time.sleep(source.uniform(0.1, 0.7))
            injuries.append(strike(stack, fault, clients, ledger, options.lease_ttl))
            progress.advance()
    finally:
        end_clients(clients, ledger)
    after = stack.rss_bytes()
    found = inspect(stack)
    growth = max(after[name] / before[name] for name in before)
    num_files = stack.num_files()
    exits = stack.stop()
    found += [f"{name}: ended with {code}" for name, code in exits.items() if code]
    return Outcome(injuries, ledger, found, growth, num_files, exits)


def bars(outcome: Outcome) -> list[Bar]:
    injuries, ledger = outcome.injuries, outcome.ledger
    mute = [
        failure.what
        for injury in injuries
        if injury.fault.kind not in (GATEWAY, WORKER_B) and (injury.fault.kind, injury.fault.action) != (SERVICE, CUT)
        for failure in injury.failures
        if not failure.is_reported
    ]
    restarts = [
        failure.what
        for injury in injuries
        if injury.fault.kind in (WORKER_A, SERVICE, "worker") and injury.fault.action == RESTART
        for failure in injury.failures
    ]
    lost = sum(injury.all_s is None for injury in injuries)
    return [
        Bar("wrong answers, lasting failures, hangs", len(ledger.wrong), 0, reason="; ".join(ledger.wrong[:2])[:1500]),
        Bar(f"faults not recovered from in {RECOVERED_S:g} s", lost, 0),
        Bar("tries that broke without a word", len(mute), 0, reason="; ".join(sorted(set(mute))[:3])),
        Bar("tries that failed at a restart by SIGTERM", len(restarts), 0, reason="; ".join(sorted(set(restarts))[:3])),
        Bar(
            "broken invariants, leaks, tracebacks", len(outcome.faults_found), 0, reason="; ".join(outcome.faults_found)
        ),
        Bar("memory at the end / after the warm-up", outcome.growth, MAX_GROWTH, "x"),
    ]


def _seconds(values: Sequence[float | None]) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    return (f"{percentile(known, 0.5):.2f}", f"{percentile(known, 0.99):.2f}") if known else ("-", "-")


def tables(outcome: Outcome) -> list[Table]:
    rows: list[tuple[str, ...]] = []
    grouped: dict[Fault, list[Injury]] = {}
    for injury in outcome.injuries:
        grouped.setdefault(Fault(injury.fault.kind, injury.fault.action), []).append(injury)
    for fault in sorted(grouped):
        injuries = grouped[fault]
        rows.append(
            (
                f"{fault.target}: {fault.action}",
                str(len(injuries)),
                *_seconds([injury.first_s for injury in injuries]),
                *_seconds([injury.all_s for injury in injuries]),
                str(sum(len(injury.failures) for injury in injuries)),
            )
        )
    columns = ("fault", "times", "first answer s p50", "p99", "all clients s p50", "p99", "failed tries")
    failures = Counter(failure.what for failure in outcome.ledger.failures)
    by_message: list[tuple[str, ...]] = [(what, str(count)) for what, count in failures.most_common(20)]
    return [Table("recovery", columns, rows), Table("how tries failed", ("message", "times"), by_message)]


def figures(outcome: Outcome, options: argparse.Namespace) -> dict[str, Any]:
    ledger = outcome.ledger
    return {
        "model": options.model,
        "points": len(outcome.injuries),
        "lease_ttl_s": options.lease_ttl,
        "num_tries": ledger.num_tries,
        "num_finished": len(ledger.done),
        "num_retried": sum(done.num_tries > 1 for done in ledger.done),
        "num_cancelled": ledger.num_cancelled,
        "wrong": ledger.wrong,
        "failures": dict(Counter(failure.what for failure in ledger.failures).most_common()),
        "injuries": [
            {
                "target": injury.fault.target,
                "action": injury.fault.action,
                "first_answer_s": injury.first_s,
                "all_clients_s": injury.all_s,
                "num_failed_tries": len(injury.failures),
            }
            for injury in outcome.injuries
        ],
        "open_files_at_the_end": outcome.num_files,
        "exit_codes": outcome.exits,
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", type=int, default=200, help="faults (default: 200)")
    parser.add_argument("--cluster", action="store_true", help="several gateways over PostgreSQL and Redis")
    parser.add_argument("--quick", action="store_true", help="10 faults, of a cluster 6, and no JSON")
    parser.add_argument("--lease-ttl", type=float, default=1.0, help="of the service, seconds (default: 1)")
    parser.add_argument("--num-blocks", type=int, default=512, help="of each pool, 16 tokens each (default: 512)")
    parser.add_argument("--model", default="tiny", choices=("tiny", "smollm2"), help="default: tiny")
    parser.add_argument("--seed", type=int, default=0, help="of times and order of faults (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: from 100 faults in bench/results)")
    options = parser.parse_args(arguments)
    if options.points < 1:
        parser.error(f"--points is {options.points}; it must be at least 1: without a fault every bar is met")
    if options.quick:
        options.points = CLUSTER_QUICK if options.cluster else 10
        options.lease_ttl = max(options.lease_ttl, QUICK_LEASE_TTL_S)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    if options.cluster and (missing := missing_program()):
        print(f"skipped: a cluster needs {missing}", file=sys.stderr)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that none of our processes is left
    try:
        with tempfile.TemporaryDirectory(prefix="radixkv-") as name:
            folder = Path(name)
            model = save_typewriter(folder / "model") if options.model == "tiny" else str(resolve_model())
            with (Cluster if options.cluster else Stack)(
                folder, model, lease_ttl_s=options.lease_ttl, num_blocks=options.num_blocks, dtype="float32"
            ) as stack:
                if isinstance(stack, Cluster) and stack.hosts is None:
                    print("skipped: faults that cut a host off need `ip` and root's rights", file=sys.stderr)
                outcome = run(stack, options)
    except KeyboardInterrupt:
        print("interrupted; every process that was started is gone", file=sys.stderr)
        return 130
    name = "faults_cluster" if options.cluster else "faults"
    report = Report(name, options.seed, figures(outcome, options), bars(outcome), tables(outcome))
    is_kept = options.points >= JUDGED_POINTS and options.model == "tiny"
    return report.finish(options.json or (RESULTS_DIR / f"{name}.json" if is_kept else None))

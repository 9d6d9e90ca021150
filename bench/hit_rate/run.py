"""Hit rates of every eviction policy on real loads, through the real core, compared with libcachesim's and the optimum.

Each load is replayed from an empty cache, one request after another; the second half of its requests is counted. The few
constants of `hit-density` were tuned on Mooncake's trace, the two thresholds of the default policy on these loads, on the
figures of both halves. Capacities are shares of a load's distinct blocks. See `bench.hit_rate.workloads` for the loads
and their orders, `bench.hit_rate.libcachesim` for the peer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.common.conversations import default_workloads
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.hit_rate.libcachesim import LIBCACHESIM_VERSION, default_peer_dir, fetch_peer, peer_rates
from bench.hit_rate.libcachesim import POLICIES as PEER_POLICIES
from bench.hit_rate.optimum import optimal_rate
from bench.hit_rate.workloads import MOONCAKE, WORKLOADS, read_workload
from bench.tree.wheel import PeerMissingError
from radixkv.core.eviction import DEFAULT_POLICY, POLICIES
from radixkv.simulate import LIMITS, Trace, replay

CAPACITIES = (0.01, 0.05, 0.10)
WARM_UP = 0.5
FIXED = ("lru", "lfu", "slru", "priority")
"""The policies without a learned order."""

MOST_BELOW_FIXED = 0.001
LEAST_LOADS_AHEAD = 3
GAP_SHARE = 1 / 3
LEAST_AHEAD = 0.0001
OPTIMUM = "optimum over blocks"
PEER = "libcachesim "

NUM_ORDERS = {"coding agent, shuffled": 6, "chat trees, shuffled": 6}
"""For so few requests one order is not enough: the mean over as many is reported."""

QUICK_WORKLOADS = (MOONCAKE, "chat trees, tree by tree")
QUICK_REQUESTS = 600
QUICK_PEER_POLICIES = ("MQ", "LRU")

Rates = dict[str, dict[str, list[float]]]
"""By workload and policy, one rate per capacity."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("hit_rate", __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="two loads, their first requests; nothing is written unless --json is"
    )
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument(
        "--peer",
        choices=["use", "fetch", "none"],
        default="use",
        help="use: the wheel fetched before (default); fetch: fetch it if it is missing; none: without the peer",
    )
    parser.add_argument(
        "--peer-dir", type=Path, default=default_peer_dir(), help="folder of the wheel (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the shuffled orders (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/hit_rate.json on a full run)")
    return parser.parse_args(arguments)


def measure(
    trace: Trace, peer_dir: Path | None, peer_policies: Sequence[str], progress: Progress
) -> dict[str, list[float]]:
    """Every policy's rates on one order of a load, at every capacity."""
    sizes = [max(1, int(trace.num_blocks * share)) for share in CAPACITIES]
    rates: dict[str, list[float]] = {}
    for policy in (*POLICIES, *LIMITS):
        rates[policy] = [replay(trace, policy, size, warm_up=WARM_UP).rate for size in sizes]
        progress.advance()
    rates[OPTIMUM] = [optimal_rate(trace, size, WARM_UP) for size in sizes]
    progress.advance()
    if peer_dir is not None:
        for rate in peer_rates(trace, sizes, WARM_UP, peer_dir, peer_policies):
            row = rates.setdefault(PEER + rate.policy, [])
            row.append(rate.rate)
            if len(row) == len(sizes):
                progress.advance()
    return rates


def mean(of_orders: Sequence[dict[str, list[float]]]) -> dict[str, list[float]]:
    """By policy and capacity the mean over the orders."""
    return {
        policy: [sum(column) / len(of_orders) for column in zip(*(rates[policy] for rates in of_orders), strict=True)]
        for policy in of_orders[0]
    }


def bars(rates: Rates, why_no_peer: str) -> list[Bar]:
    """The bounds on the default policy."""
    found = []
    mooncake = rates[MOONCAKE]
    for index, share in enumerate(CAPACITIES):
        ours = mooncake[DEFAULT_POLICY][index]
        rivals = {name: row[index] for name, row in mooncake.items() if name in FIXED or name.startswith(PEER)}
        best = max(rivals, key=lambda name: rivals[name])
        found.append(
            Bar(
                f"{MOONCAKE}, {share:.0%}: {DEFAULT_POLICY} above the best other policy",
                None if why_no_peer else ours - rivals[best],
                LEAST_AHEAD,
                at_least=True,
                reason=why_no_peer or f"{ours:.4f} against {rivals[best]:.4f} of {best}",
            )
        )
    for index, share in enumerate(CAPACITIES):
        ours, lru, optimum = (mooncake[name][index] for name in (DEFAULT_POLICY, "lru", OPTIMUM))
        closed = (ours - lru) / (optimum - lru)
        reason = f"LRU {lru:.4f}, {DEFAULT_POLICY} {ours:.4f}, optimum {optimum:.4f}"
        found.append(
            Bar(
                f"{MOONCAKE}, {share:.0%}: share closed of the gap from LRU",
                closed,
                GAP_SHARE,
                at_least=True,
                reason=reason,
            )
        )
    leads = {workload: leads_over_fixed(by_policy) for workload, by_policy in rates.items()}
    for workload, lead in leads.items():
        found.append(
            Bar(f"{workload}: {DEFAULT_POLICY} below the best fixed policy at most", -min(lead), MOST_BELOW_FIXED)
        )
    num_ahead = sum(sum(lead) / len(lead) > MOST_BELOW_FIXED for lead in leads.values())
    what = f"loads on which {DEFAULT_POLICY} is ahead of the best fixed policies by more than {MOST_BELOW_FIXED} in the mean"
    found.append(Bar(what, num_ahead, LEAST_LOADS_AHEAD, at_least=True))
    return found


def leads_over_fixed(by_policy: dict[str, list[float]]) -> list[float]:
    """At each capacity the lead of the default policy over the fixed one that is best there."""
    best = [max(column) for column in zip(*(by_policy[name] for name in FIXED if name in by_policy), strict=True)]
    return [ours - fixed for ours, fixed in zip(by_policy[DEFAULT_POLICY], best, strict=True)]


def table(rates: Rates) -> Table:
    """All policies, loads and capacities."""
    rows = [
        (workload, policy, *(f"{rate:.4f}" for rate in row))
        for workload, by_policy in rates.items()
        for policy, row in by_policy.items()
    ]
    return Table("hit rate on the second half", ("load", "policy", *(f"{share:.0%}" for share in CAPACITIES)), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    peer_dir, why_no_peer = options.peer_dir, ""
    if options.peer == "none":
        peer_dir, why_no_peer = None, "the peer was left out by --peer none"
    else:
        try:
            if options.peer == "fetch":
                fetch_peer(peer_dir)
            elif not (peer_dir / "libcachesim").is_dir():
                raise PeerMissingError(f"libcachesim {LIBCACHESIM_VERSION} is not in {peer_dir}; --peer fetch gets it")
        except PeerMissingError as error:
            peer_dir, why_no_peer = None, str(error)
    if why_no_peer:
        print(f"no peer: {why_no_peer}", file=sys.stderr)
    names = QUICK_WORKLOADS if options.quick else tuple(WORKLOADS)
    workloads = {name: 1 if options.quick else NUM_ORDERS.get(name, 1) for name in names}
    peer_policies = QUICK_PEER_POLICIES if options.quick else PEER_POLICIES
    num_peers = len(peer_policies) if peer_dir is not None else 0
    progress = Progress("policies on loads", sum(workloads.values()) * (len(POLICIES) + len(LIMITS) + 1 + num_peers))
    report = Report("hit_rate", options.seed)
    rates: Rates = {}
    loads = {}
    for workload, num_orders in workloads.items():
        of_orders = []
        for order in range(num_orders):
            trace = read_workload(workload, options.workloads, options.seed + order)
            if options.quick:
                trace = Trace(trace.name, trace.requests[:QUICK_REQUESTS], trace.block_size, trace.tokens_per_block)
            of_orders.append(measure(trace, peer_dir, peer_policies, progress))
        loads[workload] = {
            "num_requests": len(trace.requests),
            "num_distinct_blocks": trace.num_blocks,
            "num_orders": num_orders,
        }
        rates[workload] = mean(of_orders)
    report.figures = {
        "peer": f"libcachesim {LIBCACHESIM_VERSION}" if peer_dir is not None else None,
        "capacities": list(CAPACITIES),
        "warm_up": WARM_UP,
        "loads": loads,
        "hit_rates": rates,
    }
    report.tables.append(table(rates))
    report.bars = bars(rates, why_no_peer)
    return report.finish(
        options.json or (None if options.quick else RESULTS_DIR / "hit_rate.json"), is_quick=options.quick
    )

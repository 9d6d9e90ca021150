"""Which pool gets a request: our rule and others', through real trees and the real `choose`.

    conversations   Mooncake's, on 1, 8 and 64 pools. Weak scaling: 64 pools get all of them, 8 an eighth, one a 64th
    chats           OpenAssistant's trees, a branch at a time, on 8 pools
    few-shot        BIG-Bench Hard, questions of all tasks in turns at random, on 8 pools
    one prompt      the first of these questions again and again, on 8 pools, as fast as 85% of their places take them

Other requests come at 85% of the speed (`--offered`) at which the pools compute if nothing is cached. A pool computes 10,000
tokens per second. With conversations it holds 524,288 tokens, else an eighth of the load's distinct ones. Replies take 20 ms
per token and hold their blocks and one of 64 places. Several gateways: each request comes to one of them at random, and they
share nothing. Reports of load are as old as the last tenth of a second.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import default_workloads
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, percentile
from bench.hit_rate.workloads import MOONCAKE, read_workload
from bench.routing.load import Arrival, arrivals
from bench.routing.policies import OURS, ROUTERS, our_router
from bench.routing.pools import MAX_RUNNING, REPLY_TOKEN_S, TOKENS_PER_S, Events, SimulatedPool
from radixkv.simulate import Trace

GATEWAYS = (1, 8)
SMALL = 8
"""Pools of the quick run, and of loads with few requests."""

OFFERED = 0.85
WEIGHTS = (2.0, 3.0, 8.0)
QUICK_REQUESTS = 150
ONE = "one prompt"


class Load(NamedTuple):
    """A workload, the numbers of pools that it is played on, and the tokens that one holds; None: its part of all."""

    workload: str
    pools: tuple[int, ...]
    pool_tokens: int | None


LOADS = {
    "conversations": Load(MOONCAKE, (1, SMALL, 64), 524_288),
    "chats": Load("chat trees, shuffled", (SMALL,), None),
    "few-shot": Load("BIG-Bench Hard, shuffled", (SMALL,), None),
    ONE: Load("BIG-Bench Hard, shuffled", (SMALL,), None),
}


class Run(NamedTuple):
    """One load under one rule."""

    load: str
    pools: int
    gateways: int
    rule: str


class Outcome(NamedTuple):
    """One run. `hit_rate`: cached share of the prompt tokens. `busiest`: time of the busiest pool over the mean."""

    hit_rate: float
    mean_first_token_s: float
    p99_first_token_s: float
    busiest: float


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("routing", __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="up to 8 pools, the first requests; nothing is written unless --json is"
    )
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=LOADS, metavar="NAME", help="default: all")
    parser.add_argument(
        "--offered",
        type=float,
        default=OFFERED,
        metavar="SHARE",
        help="prompt tokens that arrive, as a share of those that pools without a cache compute (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="processes (default: 2); figures do not depend on it"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of samples and ties (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/routing.json on a full run)")
    return parser.parse_args(arguments)


def play(trace: Trace, load: Sequence[Arrival], pool_tokens: int, run: Run, seed: int) -> Outcome:
    """One load under one rule."""
    _, num_pools, num_gateways, name = run
    events, drawn = Events(), random.Random(seed)
    id_tokens = trace.tokens_per_block // trace.block_size
    num_blocks = pool_tokens // trace.tokens_per_block
    pools = [SimulatedPool(f"pool {n}", num_blocks, trace.block_size, id_tokens, events) for n in range(num_pools)]
    make = ROUTERS[name] if name in ROUTERS else our_router(float(name.rpartition("=")[2]))
    gateways = [make(pools, events, random.Random(drawn.random())) for _ in range(num_gateways)]
    for arrival in load:
        gateway = drawn.choice(gateways)
        events.after(arrival.time_s, lambda arrival=arrival, gateway=gateway: gateway.route(arrival).give(arrival))  # type: ignore[misc]
    events.run()
    done = [work for pool in pools for work in pool.done]
    assert len(done) == len(load), f"{len(load)} requests came, {len(done)} were answered"
    for pool in pools:
        pool.cache.check()
    first_s = [work.first_token_s for work in done]
    num_hits = sum(min(work.num_cached * id_tokens, work.arrival.length) for work in done)
    busy_s = [pool.busy_s for pool in pools]
    return Outcome(
        num_hits / sum(work.arrival.length for work in done),
        sum(first_s) / len(first_s),
        percentile(first_s, 0.99),
        max(busy_s) * num_pools / sum(busy_s),
    )


def again_and_again(load: Sequence[Arrival], num_full_pools: float) -> list[Arrival]:
    """The first request in place of every one, as fast as the replies of so many full pools end."""
    per_s = num_full_pools * MAX_RUNNING / (load[0].num_generated * REPLY_TOKEN_S)
    return [load[0]._replace(time_s=number / per_s) for number in range(len(load))]


def bars(found: dict[Run, Outcome]) -> list[Bar]:
    """The bounds on our rule, at more pools than one."""
    told = []
    for load, pools, gateways in sorted({run[:3] for run in found if run.pools > 1}):
        of = {run.rule: outcome for run, outcome in found.items() if run[:3] == (load, pools, gateways)}
        ours, where = of[OURS], f"{load}, {pools} pools, {gateways} gateways"
        first_s = ours.mean_first_token_s
        trees = min(of[name].mean_first_token_s for name in of if name.startswith("approximate"))
        told.append(Bar(f"{where}: busiest pool of the mean", ours.busiest, 1.1 if gateways == 1 else 1.2))
        if load == ONE:  # there is nothing to choose but a place
            continue
        told += [
            Bar(
                f"{where}: hits of the session hash's", ours.hit_rate / of["session hash"].hit_rate, 0.9, at_least=True
            ),
            Bar(f"{where}: first token of round robin's", first_s / of["round robin"].mean_first_token_s, 0.35),
            Bar(f"{where}: first token of the best approximate tree's", first_s / trees, 0.6),
            Bar(f"{where}: first token of least backlog's", first_s / of["least backlog"].mean_first_token_s, 1.0),
        ]
        if gateways > 1:
            ratio = first_s / found[Run(load, pools, 1, OURS)].mean_first_token_s
            told.append(Bar(f"{where}: first token of one gateway's", ratio, 1.15))
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    weights = [f"{OURS}, W={weight:g}" for weight in WEIGHTS]
    most = QUICK_REQUESTS if options.quick else None
    traces: dict[str, Trace] = {}
    arrived: dict[tuple[str, int], list[Arrival]] = {}
    runs: list[Run] = []
    for name in options.loads:
        load, trace = LOADS[name], read_workload(LOADS[name].workload, options.workloads, options.seed)
        traces[name] = trace
        for pools in load.pools:
            if options.quick and pools > SMALL:
                continue
            offered = options.offered * pools * TOKENS_PER_S
            came = arrivals(trace, pools / max(load.pools), offered, options.seed, most)
            arrived[name, pools] = again_and_again(came, options.offered * pools) if name == ONE else came
            for gateways in GATEWAYS:
                more = weights if gateways == 1 and pools > 1 and not options.quick else ()
                runs += [Run(name, pools, gateways, rule) for rule in (*ROUTERS, *more)]
    pool_tokens = {
        name: LOADS[name].pool_tokens or trace.num_blocks * trace.tokens_per_block // SMALL
        for name, trace in traces.items()
    }
    progress = Progress("rules on loads", len(runs))
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as processes:
        playing = {
            run: processes.submit(
                play, traces[run.load], arrived[run.load, run.pools], pool_tokens[run.load], run, options.seed
            )
            for run in sorted(runs, key=lambda run: -run.pools)  # the longest first
        }
        for _ in as_completed(playing.values()):
            progress.advance()
        found = {run: playing[run].result() for run in runs}
    report = Report("routing", options.seed)
    report.figures = {
        "tokens_per_s": TOKENS_PER_S,
        "pool_tokens": pool_tokens,
        "offered": options.offered,
        "num_requests": {f"{name}, {pools} pools": len(each) for (name, pools), each in arrived.items()},
        "runs": [run._asdict() | outcome._asdict() for run, outcome in found.items()],
    }
    columns = ("rule", "hits", "first token, s", "p99, s", "busiest / mean")
    for name in options.loads:
        rows = [
            (
                f"{run.pools} pools, {run.gateways} gateways: {run.rule}",
                f"{outcome.hit_rate:.3f}",
                f"{outcome.mean_first_token_s:.2f}",
                f"{outcome.p99_first_token_s:.1f}",
                f"{outcome.busiest:.2f}",
            )
            for run, outcome in found.items()
            if run.load == name
        ]
        report.tables.append(Table(f"{name}: requests to pools", columns, rows))
    report.bars = bars(found)
    return report.finish(
        options.json or (None if options.quick else RESULTS_DIR / "routing.json"), is_quick=options.quick
    )

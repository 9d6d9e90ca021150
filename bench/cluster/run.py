"""The cost of choosing a worker: of `Route` at the services, of a gateway's ranking, for Steps, and to the first token.

    Route       one service with 1, 8 and 64 pools, a prompt of 8,192 tokens that all of them have, or one: the others have its
                first 1,024. In turns with an echo of the same messages on the same gRPC and protobuf stack
    ranking     the gateway's own code asks 1, 4 and 16 services at once and ranks all their workers
    Steps       that acquire and release the prompt, on one of 64 pools, in turns with and without 64 Routes a second
    CPU time    of a service and of its caller, for a Step and for a ranking of its pools: how many a core can do
    first token of cold and warm chats, through two gateways over two services, in turns with one gateway of one worker

    python -m bench.cluster             5 minutes on two cores
    python -m bench.cluster --quick     up to 8 pools and 4 services, 2 chats: a smoke test

All services run on this machine: with more of them than cores, a ranking takes as long as their work in turn, not at once.
Every answer is checked: tokens found, and the text of chats, which is the same both ways. Exit code of a full run: 0 if the
bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cluster.first_token import CHOOSING, KINDS, ONE, FirstTokens
from bench.cluster.routes import (
    ALONE,
    BESIDE,
    COMMON,
    RARE,
    TRANSPORT,
    RouteTimes,
    StepTimes,
    cpu_of_rankings,
    cpu_of_steps,
    time_routes,
    time_steps,
)
from bench.cluster.services import PROMPT_TOKENS, Prompts, open_cell
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from radixkv.gateway.backend.members import ANSWER_S
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["main"]

ROUTE_BOUND_MS = 0.5
FIRST_TOKEN_BOUND = 1.05
POOLS, SERVICES = (1, 8, 64), (1, 4, 16)
QUICK_POOLS, QUICK_SERVICES = (1, 8), (1, 4)
ROUTE_ROUNDS, STEP_PERIODS, CHATS, CPU_CALLS = 200, 30, 24, 200
QUICK_ROUTE_ROUNDS, QUICK_STEP_PERIODS, QUICK_CHATS = 20, 2, 2
ROUTES_PER_S = 64.0
"""As if each of 64 workers got a request a second."""

PARTS = ("routes", "first-token")
S_TO_MS = 1e3


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("cluster", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--part", choices=PARTS, help="only this part, and no JSON (default: both)")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and chats (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/cluster.json on a full run)")
    return parser.parse_args(arguments)


def add_routes(report: Report, is_quick: bool) -> None:
    """Measure Routes, rankings and Steps."""
    pools, services = (QUICK_POOLS, QUICK_SERVICES) if is_quick else (POOLS, SERVICES)
    prompts, times, cpu_s = Prompts.draw(report.seed), dict[int, RouteTimes](), dict[str, tuple[float, float]]()
    progress = Progress("parts", len(pools) + 1)
    with open_cell(max(services), prompts) as cell:
        for num_pools in pools:
            cell.grow(num_pools)
            num_rounds = QUICK_ROUTE_ROUNDS if is_quick else ROUTE_ROUNDS
            times[num_pools] = time_routes(cell, num_pools, services, prompts, num_rounds)
            cpu_s[f"ranking, {num_pools} pools"] = cpu_of_rankings(cell, prompts.rare, CPU_CALLS)
            progress.advance()
        cpu_s["Step"] = cpu_of_steps(cell, 10 * CPU_CALLS)
        steps = time_steps(cell, prompts, QUICK_STEP_PERIODS if is_quick else STEP_PERIODS, ROUTES_PER_S)
        progress.advance()
    _report_routes(report, times)
    _report_rankings(report, times)
    _report_steps(report, steps, max(pools))
    _report_cpu(report, cpu_s)


def _report_routes(report: Report, times: dict[int, RouteTimes]) -> None:
    rows, figures = [], {}
    for num_pools, (calls, _) in times.items():
        summaries = {kind: summarise(samples, S_TO_MS) for kind, samples in calls.items()}
        beyond = {kind: summaries[kind].p50 - summaries[TRANSPORT].p50 for kind in (COMMON, RARE)}
        row = [str(num_pools), f"{summaries[TRANSPORT].p50:.2f}"]
        for kind in (COMMON, RARE):
            row += [f"{summaries[kind].p50:.2f}", f"{summaries[kind].p99:.2f}", f"{beyond[kind]:.2f}"]
            if num_pools == max(times):
                name = f"Route of {num_pools} pools, {PROMPT_TOKENS:,} tokens {kind}, beyond the transport"
                report.bars.append(Bar(name, beyond[kind], ROUTE_BOUND_MS, " ms"))
        rows.append(tuple(row))
        figures[num_pools] = {kind: summary._asdict() for kind, summary in summaries.items()} | {"beyond": beyond}
    columns = ("pools", "transport", f"{COMMON}, p50", "p99", "beyond", f"{RARE}, p50", "p99", "beyond")
    report.tables.append(Table(f"Route of {PROMPT_TOKENS:,} tokens at one service, ms", columns, rows))
    report.figures["route_ms"] = figures


def _report_rankings(report: Report, times: dict[int, RouteTimes]) -> None:
    rows: list[tuple[str, ...]] = []
    figures: list[dict[str, Any]] = []
    for num_pools, (_, rankings) in times.items():
        for num_services, samples in rankings.items():
            summary, num_late = summarise(samples, S_TO_MS), sum(sample > ANSWER_S for sample in samples)
            late = num_late / len(samples)
            row = (str(num_pools), str(num_services), f"{summary.p50:.1f}", f"{summary.p99:.1f}", f"{late:.1%}")
            rows.append(row)
            figures.append({"pools": num_pools, "services": num_services, "late": late} | summary._asdict())
    columns = ("pools of each", "services", "p50", "p99", f"over {ANSWER_S * S_TO_MS:g} ms")
    report.tables.append(Table("A gateway ranks all workers, ms", columns, rows))
    report.figures["ranking_ms"] = figures


def _report_steps(report: Report, times: StepTimes, num_pools: int) -> None:
    summaries = {kind: summarise(samples, S_TO_MS) for kind, samples in times.steps.items()}
    rows = [(kind, f"{each.p50:.2f}", f"{each.p99:.2f}", str(each.n)) for kind, each in summaries.items()]
    title = f"Steps next to {times.routes_per_s:.0f} Routes per second of {num_pools} pools, ms"
    report.tables.append(Table(title, ("Steps", "p50", "p99", "n"), rows))
    report.figures["step_ms"] = {kind: each._asdict() for kind, each in summaries.items()} | {
        "routes_per_s": times.routes_per_s,
        "pools": num_pools,
        "p50_ratio": summaries[BESIDE].p50 / summaries[ALONE].p50,
    }


def _report_cpu(report: Report, cpu_s: dict[str, tuple[float, float]]) -> None:
    rows = [
        (kind, *(cell for each in of_both for cell in (f"{each * S_TO_MS:.2f}", f"{1 / each:,.0f}")))
        for kind, of_both in cpu_s.items()
    ]
    columns = ("CPU time", "service, ms", "a core can do, per second", "caller, ms", "a core can do, per second")
    report.tables.append(Table("CPU time at one service and its caller", columns, rows))
    report.figures["cpu_ms"] = {
        kind: {"service": service_s * S_TO_MS, "caller": caller_s * S_TO_MS}
        for kind, (service_s, caller_s) in cpu_s.items()
    }


def add_first_token(report: Report, options: argparse.Namespace) -> None:
    """Measure first tokens."""
    num_rounds = QUICK_CHATS if options.quick else CHATS
    model = resolve_model(options.model)
    with FirstTokens.open(model, options.dtype, num_rounds, options.seed) as chats:
        chats.run(num_rounds)
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {"model": Path(model).name, "dtype": options.dtype}
    for kind in KINDS:
        summaries = {way: summarise(chats.samples[kind, way], S_TO_MS) for way in (ONE, CHOOSING)}
        ratio = summaries[CHOOSING].p50 / summaries[ONE].p50
        cells = [f"{summaries[way].p50:.1f} / {summaries[way].p99:.1f}" for way in (ONE, CHOOSING)]
        rows.append((kind, *cells, f"{ratio:.3f}"))
        report.bars.append(Bar(f"first token of a {kind} chat, {CHOOSING} / {ONE}", ratio, FIRST_TOKEN_BOUND, "x"))
        figures[kind] = {way: each._asdict() for way, each in summaries.items()} | {"ratio": ratio}
    report.tables.append(Table("First token, ms, p50 / p99", ("chat", ONE, CHOOSING, "ratio of p50"), rows))
    report.figures["first_token"] = figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    report = Report("cluster", options.seed)
    if options.part != "first-token":
        add_routes(report, options.quick)
    if options.part != "routes":
        add_first_token(report, options)
    is_full = not options.quick and options.part is None
    path = options.json or (RESULTS_DIR / "cluster.json" if is_full else None)
    return report.finish(path, is_quick=options.quick)

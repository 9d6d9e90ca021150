"""Measurements of attention itself on a GPU: ceilings, decode, trees, prefill, cache formats, latents, peers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from bench.common.report import Bar, Table
from bench.gpu.common.clock import Calls, copy_bandwidth
from bench.gpu.common.inputs import Case, Pool
from bench.gpu.peers import FlashInferBuild, PeerError, peer_calls
from bench.gpu.run import FORMATS, Run
from bench.gpu.workloads import DTYPE, Machine, Tree, short

__all__ = [
    "measure_decode",
    "measure_formats",
    "measure_latents",
    "measure_machine",
    "measure_peers",
    "measure_prefill",
    "measure_trees",
]

MAX_SETS = 96
LARGE_TOKENS = 256 * 1024
PEER_COLUMNS = ("SDPA", "cuDNN", "FI decode", "FI tensor", "FI cascade", "FI prefill", "flex")


def measure_machine(run: Run) -> Machine:
    """Copy bandwidth, read and written, and the rate of a bf16 product of random matrices."""
    sizes, device = run.sizes, run.clock.device
    run.clock.begin_section(0.1)
    copy = copy_bandwidth(run.clock, sizes.copy_bytes)
    a, b = (torch.randn(sizes.matmul_size, sizes.matmul_size, device=device).to(DTYPE) for _ in range(2))
    product = torch.empty_like(a)
    time_us = run.clock.microseconds({"matmul": [lambda: torch.mm(a, b, out=product)]})["matmul"].p50
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size if run.clock.is_real else 0
    matmul = 2 * sizes.matmul_size**3 / time_us * 1e6
    run.machine = Machine(copy, matmul, l2_bytes)
    run.report.figures["ceilings"] = dataclasses.asdict(run.machine)
    rows = [("copy, read and written", f"{copy / 1e12:.2f} TB/s"), ("bf16 product", f"{matmul / 1e12:.0f} TFLOP/s")]
    run.report.tables.append(Table("ceilings of this run", ("", "measured"), rows))
    return run.machine


def measure_decode(run: Run, pool: Pool) -> None:
    """Independent sequences: shares of the copy's bandwidth."""
    shares: dict[tuple[int, int], float] = {}
    with run.section("decode", 0.22) as figures:
        for tree in run.trees("decode", run.sizes.decode):
            with run.guarded(f"decode {tree.name}"):
                case = _case(run, pool, tree)
                if run.is_right(f"decode {tree.name}", case):
                    time_us = run.clock.microseconds({"ours": case.calls()})["ours"]
                    share = run.machine.copy_share(tree, pool.layer, time_us.p50)
                    shares[tree.branches, tree.context] = share
                    figures.append({**_record(run, case), "us": time_us._asdict(), "copy_share": share})
    contexts = sorted({context for _, context in shares})
    rows = [
        (str(batch), *(_percent(shares.get((batch, context))) for context in contexts))
        for batch in sorted({batch for batch, _ in shares})
    ]
    columns = ("B", *map(short, contexts))
    run.report.tables.append(Table(f"decode {pool.layer.name}, share of copy bandwidth, by context", columns, rows))
    large = {size: share for size, share in shares.items() if size[0] * size[1] >= LARGE_TOKENS}
    worst = min(large, key=large.__getitem__, default=None)
    run.report.bars.append(
        Bar(
            "decode of 256k tokens and more, least share of copy bandwidth",
            None if worst is None else large[worst],
            0.85,
            at_least=True,
            reason="" if worst is None else f"at {worst[0]} x {short(worst[1])}",
        )
    )


def measure_trees(run: Run, pool: Pool) -> None:
    """Shared blocks read once, compared with the same kernels without sharing, the bound and the roofline."""
    rows, ratios = [], {}
    with run.section("trees", 0.22) as figures:
        for tree in run.trees("tree", run.sizes.trees):
            name = f"tree {tree.name}"
            with run.guarded(name):
                case = _case(run, pool, tree)
                paged = _case(run, pool, tree, shares=False)
                if not (run.is_right(name, case) and run.is_right(f"paged {name}", paged)):
                    continue
                times_us = run.clock.microseconds({"tree": case.calls(), "paged": paged.calls()})
                ours, gain = times_us["tree"].p50, times_us["paged"].p50 / times_us["tree"].p50
                least = run.machine.roofline_us(tree, pool.layer)
                ratios[tree.name] = ours / least
                figures.append(
                    {
                        **_record(run, case),
                        "us": {key: summary._asdict() for key, summary in times_us.items()},
                        "gain": gain,
                        "bound": tree.bound,
                    }
                )
                cells = (f"{times_us['paged'].p50:.1f}", f"{ours:.1f}", f"{least:.1f}", f"{ours / least:.2f}")
                rows.append((tree.name, *cells, f"{gain:.1f}", f"{tree.bound:.1f}", f"{gain / tree.bound:.0%}"))
    columns = ("branches x lengths", "paged us", "tree us", "roofline", "tree/roof", "gain", "bound", "of bound")
    run.report.tables.append(Table(f"trees {pool.layer.name}", columns, rows))
    worst = max(ratios, key=ratios.__getitem__, default="")
    reason = f"at {worst}" if worst else ""
    run.report.bars.append(Bar("trees, time over the roofline, the most", ratios.get(worst), 1.5, reason=reason))


def measure_formats(run: Run, pool: Pool) -> None:
    """Decode of quantised caches: shares of the bandwidth on their bytes, and times compared with bf16."""
    rows = []
    with run.section("formats", 0.15) as figures:
        for format in FORMATS:
            layer = dataclasses.replace(pool.layer, format=format)
            largest = max(tree.num_blocks for tree in run.sizes.formats)
            quantised = Pool(layer, largest, run.clock.device)
            for tree in run.trees(format.value, run.sizes.formats):
                name = f"{format.value} {tree.name}"
                with run.guarded(name):
                    case, plain = _case(run, quantised, tree), _case(run, pool, tree)
                    if not (run.is_right(name, case) and run.is_right(f"{name}, paged_attention", case, publicly=True)):
                        continue
                    calls: dict[str, Calls] = {"ours": case.calls(), "bf16": plain.calls()}
                    calls["call"] = [case.attend_publicly]
                    times_us = run.clock.microseconds(calls)
                    ours = times_us["ours"].p50
                    share = run.machine.copy_share(tree, layer, ours)
                    times = {key: summary._asdict() for key, summary in times_us.items()}
                    figures.append({**_record(run, case), "us": times, "copy_share": share})
                    cells = (f"{ours:.1f}", f"{share:.0%}", f"{times_us['call'].p50:.1f}")
                    rows.append((format.value, tree.name, *cells, f"{times_us['bf16'].p50 / ours:.2f}"))
    columns = ("cache", "B x L", "us", "of copy", "with rotations", "bf16/it")
    run.report.tables.append(Table("quantised caches, decode", columns, rows))


def measure_latents(run: Run) -> None:
    """Decode over latents, which is bound by products because of its many heads, in each format."""
    rows = []
    num_blocks = 2 * max(tree.num_blocks for tree in run.sizes.latent)
    with run.section("latents", 0.08) as figures:
        for format in (None, *FORMATS):
            layer = dataclasses.replace(run.sizes.latents, format=format)
            pool = Pool(layer, num_blocks, run.clock.device)
            for tree in run.trees(f"latents {layer.name}", run.sizes.latent):
                name = f"latents {layer.name} {tree.name}"
                with run.guarded(name):
                    case = _case(run, pool, tree)
                    if not (run.is_right(name, case) and run.is_right(f"{name}, paged_attention", case, publicly=True)):
                        continue
                    time_us = run.clock.microseconds({"ours": case.calls()})["ours"]
                    figures.append({**_record(run, case), "us": time_us._asdict()})
                    least = run.machine.roofline_us(tree, layer)
                    of_copy, of_matmul = (
                        share(tree, layer, time_us.p50) for share in (run.machine.copy_share, run.machine.matmul_share)
                    )
                    times = (f"{time_us.p50:.1f}", f"{least:.1f}", f"{time_us.p50 / least:.2f}")
                    rows.append((layer.name, tree.name, *times, _percent(of_copy), _percent(of_matmul)))
    columns = ("cache", "B x L", "us", "roofline", "us/roof", "of copy", "of matmul")
    run.report.tables.append(Table("latents, decode", columns, rows))


def measure_prefill(run: Run, pool: Pool, build: FlashInferBuild) -> None:
    """Prompts in chunks: shares of the product's rate, compared with torch's and FlashInfer's."""
    names = ("SDPA", "cuDNN", "FI prefill")
    rows = []
    with run.section("prefill", 0.2) as figures:
        build.wait(run.clock.left_s * 0.7)
        for tree in run.trees("prefill", run.sizes.prefill):
            with run.guarded(f"prefill {tree.name}"):
                figure = _beside_peers(run, _case(run, pool, tree), names, build)
                if figure is None:
                    continue
                figures.append(figure)
                shares = {
                    name: run.machine.matmul_share(tree, pool.layer, times["p50"])
                    for name, times in figure["us"].items()
                }
                history = short(tree.context - tree.queries)
                cells = (_percent(shares.get(name)) for name in ("ours", *names))
                rows.append((f"{short(tree.queries)} after {history}", f"{figure['us']['ours']['p50']:.0f}", *cells))
    columns = ("new tokens", "us", "ours", *names)
    run.report.tables.append(Table(f"prefill {pool.layer.name}, share of the bf16 product's rate", columns, rows))
    _tell_reasons(run, figures)


def measure_peers(run: Run, pool: Pool, build: FlashInferBuild) -> None:
    """Decode, of sequences and of trees: microseconds compared with other kernels'."""
    rows = []
    with run.section("peers", 0.55) as figures:
        build.wait(run.clock.left_s * 0.4)
        run.report.figures["flashinfer_build_s"] = build.seconds
        for tree in run.trees("peers", run.sizes.peers):
            names = [name for name in PEER_COLUMNS if name not in ("FI prefill", "flex")]
            if len(tree.levels) == 1:
                names.remove("FI cascade")
            if tree in run.sizes.flex or not run.clock.is_real:
                names.append("flex")
            with run.guarded(f"peers {tree.name}"):
                figure = _beside_peers(run, _case(run, pool, tree), names, build)
                if figure is not None:
                    figures.append(figure)
                    times = {name: f"{each['p50']:.1f}" for name, each in figure["us"].items()}
                    columns = ("ours", *(name for name in PEER_COLUMNS if name != "FI prefill"))
                    rows.append((tree.name, *(times.get(name, "-") for name in columns)))
    columns = ("branches x lengths", "ours", *(name for name in PEER_COLUMNS if name != "FI prefill"))
    run.report.tables.append(Table(f"decode {pool.layer.name} beside peers, us", columns, rows))
    _tell_reasons(run, figures)


def _case(run: Run, pool: Pool, tree: Tree, *, shares: bool = True) -> Case:
    sets = run.machine.num_sets(tree.num_blocks * 16 * pool.layer.token_bytes, MAX_SETS)
    return Case(pool, tree, shares, sets)


def _record(run: Run, case: Case) -> dict[str, Any]:
    tree, layer = case.tree, case.pool.layer
    return {
        "layer": layer.name,
        "levels": tree.levels,
        "queries": tree.queries,
        "bytes": tree.num_bytes(layer),
        "flops": tree.flops(layer),
        "roofline_us": run.machine.roofline_us(tree, layer),
        "sets": case.num_sets,
    }


def _beside_peers(run: Run, case: Case, names: list[str] | tuple[str, ...], build: FlashInferBuild) -> Any:
    """The case's figure with every peer's time or the reason for its absence; None: our own result is wrong."""
    name = f"peers {case.tree.name}"
    if not run.is_right(name, case):
        return None
    expected = case.attend(case.tables[0]).clone()
    calls: dict[str, Calls] = {"ours": case.calls()}
    reasons = {}
    for peer in names:
        try:
            if peer in build.failures:
                raise PeerError(build.failures[peer])
            calls[peer] = peer_calls(peer, case, expected)
            run.clock.microseconds({peer: calls[peer]})  # to check that it can be captured
        except Exception as failure:
            calls.pop(peer, None)
            reasons[peer] = str(failure).split("\n", maxsplit=1)[0][:200]
    times_us = run.clock.microseconds(calls)
    times = {key: summary._asdict() for key, summary in times_us.items()}
    return {**_record(run, case), "us": times, "missing": reasons}


def _tell_reasons(run: Run, figures: list[dict[str, Any]]) -> None:
    """Add a line for every peer and reason."""
    reasons = {(peer, reason) for figure in figures for peer, reason in figure["missing"].items()}
    told = run.report.figures.setdefault("missing_peers", {})
    for peer, reason in sorted(reasons):
        told.setdefault(peer, [])
        if reason not in told[peer]:
            told[peer].append(reason)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"

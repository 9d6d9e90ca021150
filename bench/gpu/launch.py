"""GPU measurements around the kernels: launches, planning on the host, and the best launch parameters for the chip."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from bench.common.report import Table, percentile
from bench.gpu.common.clock import eager_us, host_us
from bench.gpu.common.inputs import Case, Pool
from bench.gpu.run import Run
from bench.gpu.workloads import BLOCK_SIZE, LATENTS, Layer, Tree, sequences
from radixkv.kernels.gpu import device_work, launch
from radixkv.kernels.gpu.device_work import advance, work_limits
from radixkv.kernels.gpu.launch import Forms, LayerShape, TileConfig
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.work_list import WorkLimits, make_work_list

__all__ = ["ROWS", "VARIANTS", "Variant", "measure_cases", "measure_launches", "measure_planning", "measure_tiles"]

EAGER_CALLS = 100
MIN_GAIN = 0.03


def measure_launches(run: Run, pool: Pool) -> None:
    """A step's attention of one layer: launched, and replayed with its advance in a graph."""
    rows = []
    with run.section("launches", 0.25) as figures:
        for tree in run.trees("launches", (sequences(count, run.sizes.launch_context) for count in run.sizes.launches)):
            with run.guarded(f"launches {tree.name}"):
                case = Case(pool, tree)
                if not run.is_right(f"launches {tree.name}", case):
                    continue
                figure = {"sequences": tree.branches, **_launch_us(run, case)}
                figures.append(figure)
                rows.append((tree.name, *(f"{figure[name]:.1f}" for name in list(figure)[1:])))
    columns = ("B x L", "paged_attention", "its launches", "on the device", "advance", "replayed with advance")
    run.report.tables.append(Table("a layer's attention, us per call", columns, rows))


def _launch_us(run: Run, case: Case) -> dict[str, float]:
    """Times by kind of call. Changes the case's positions."""
    device, attend = run.clock.device, case.calls()[0]
    move_on = partial(advance, case.work, case.spec)

    def step() -> None:
        attend()
        move_on()

    times_us = {
        "paged_attention_us": eager_us(case.attend_publicly, device, EAGER_CALLS),
        "launches_us": eager_us(attend, device, EAGER_CALLS),
        "device_us": run.clock.microseconds({"ours": [attend]})["ours"].p50,
        "advance_us": eager_us(move_on, device, EAGER_CALLS),
    }
    case.work.load(make_work_list(case.batch, case.spec, case.pool.layer.group, _limits(case)))
    return {**times_us, "replay_us": eager_us(captured(step, run), device, EAGER_CALLS)}


def captured(step: Callable[[], Any], run: Run) -> Callable[[], Any]:
    """A graph's replay; without a GPU the step itself."""
    step()
    if not run.clock.is_real:
        return step
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure_planning(run: Run, pool: Pool) -> None:
    """A step's plan on the host: the batch, its work list, loading it, and advancing a list by a token."""
    rows = []
    with run.section("planning", 0.2) as figures:
        for tree in run.trees("planning", run.sizes.planned):
            with run.guarded(f"planning {tree.name}"):
                figure = _planning_us(run, Case(pool, tree))
                figures.append({"levels": tree.levels, **figure})
                rows.append((tree.name, *(f"{value:.0f}" for value in figure.values())))
    columns = ("branches x lengths", "items", "batch", "list", "load", "or advance")
    run.report.tables.append(Table("planning a step on the host, us", columns, rows))


def _planning_us(run: Run, case: Case) -> dict[str, float]:
    """Times by kind of work, after the number of items."""
    tables, count = case.batch.host_tables, 20 if run.clock.is_real else 1
    make = partial(make_work_list, case.batch, case.spec, case.pool.layer.group, _limits(case))
    work_list = make()
    moved = make()  # advancing changes the list
    move_on = partial(moved.advance, case.batch, case.plan(tables, more=1), case.spec)
    assert move_on(), "a token more in every branch is the same list"
    return {
        "items": len(work_list.items),
        "batch_us": host_us(partial(case.plan, tables), count),
        "list_us": host_us(make, count),
        "load_us": host_us(partial(case.work.load, work_list), count),
        "advance_us": host_us(move_on, count),
    }


def _limits(case: Case) -> WorkLimits:
    """Limits with which a step's work is planned."""
    layer = case.pool.layer
    return work_limits(layer.group, case.work.limits, layer.num_heads, case.pool.device)


@dataclass(frozen=True)
class Variant:
    """Launch parameters other than the current ones; None: the current ones."""

    name: str
    programs: int | None = None
    split_keys: int | None = None
    narrow: TileConfig | None = None
    wide: TileConfig | None = None
    parts: int | None = None

    @contextmanager
    def applied(self, case_layer: Any, device: torch.device) -> Iterator[None]:
        """Within the context, plans and launches use these."""
        with ExitStack() as stack:
            if self.programs is not None:
                most = launch.num_processors(device) * self.programs
                stack.enter_context(
                    patch.object(launch.Grids, "size", lambda _, __, units, *___, **____: max(1, min(units, most)))
                )
            if self.split_keys is not None:
                stack.enter_context(patch.object(device_work, "LEAST_SPLITS", (self.split_keys,) * 2))
                stack.enter_context(patch.object(device_work, "MOST_SPLIT", self.split_keys))
            if self.parts is not None:
                stack.enter_context(patch.object(launch, "_MOST_MERGED", self.parts))
            if self.narrow or self.wide:
                table = launch._forms(launch.launch_target(device))
                row = case_layer.row
                narrow, wide = table[row]
                stack.enter_context(patch.dict(table, {row: Forms(self.narrow or narrow, self.wide or wide)}))
            yield


def _tiles(narrow: str, wide: str) -> tuple[Variant, ...]:
    """A variant per tile, written rows/keys/warps/stages."""
    cells = [("narrow", cell) for cell in narrow.split()] + [("wide", cell) for cell in wide.split()]
    return tuple(
        Variant(f"{form} {cell}", **{form: TileConfig(*map(int, cell.split("/")))})  # type: ignore[arg-type]
        for form, cell in cells
    )


AS_IT_IS = Variant("as it is")
VARIANTS = (
    AS_IT_IS,
    *(Variant(f"{count} programs", programs=count) for count in (2, 4)),
    *(Variant(f"split {keys}", split_keys=keys) for keys in (256, 512, 1024)),
    *(Variant(f"{count} parts", parts=count) for count in (4, 16)),
    *_tiles("16/64/4/1 16/64/4/5", "64/64/4/5"),
)
"""For plain caches of two bytes and heads of 128 columns on sm_90."""

ROWS = (
    (Layer(32, 8, 64, 64), _tiles("16/64/4/2 16/128/4/2", "64/64/4/5 128/128/8/3")),
    (Layer(16, 8, 256, 256), _tiles("16/32/4/2 16/64/4/2", "64/32/4/5 64/64/8/3")),
    (Layer(32, 8, 128, 128, KVFormat.FP8), _tiles("16/64/4/1 16/128/4/2 16/128/8/2", "64/64/4/5 128/64/8/2")),
    (Layer(32, 8, 128, 128, KVFormat.INT8), _tiles("16/64/4/1 16/128/4/2 16/128/8/2", "64/64/4/5 128/64/8/2")),
    (Layer(32, 8, 128, 128, KVFormat.INT4), _tiles("16/64/4/1 16/64/8/2", "64/64/4/5 128/64/8/2")),
    (LATENTS, _tiles("", "64/32/8/5 64/64/8/3")),
)
"""Other rows of the table, and what might be better there."""


def measure_cases(run: Run, pool: Pool) -> None:
    """Times of the variants over the current ones, and which of them to use."""
    with run.section("cases", 0.9) as figures:
        for tree in run.trees("cases", run.sizes.cases):
            figures.append(_case_figure(run, pool, tree, VARIANTS))
    _tell(run, "", figures, VARIANTS)


def measure_tiles(run: Run) -> None:
    """As `measure_cases`, other rows of the table by their tiles."""
    rows = ROWS if run.clock.is_real else ()
    if rows:
        _compile_beside(range(len(rows)))
    with run.section("tiles", 0.9) as figures:
        for layer, variants in rows:
            pool = Pool(layer, 3 * max(tree.num_blocks for tree in run.sizes.tiled), run.clock.device)
            both = AS_IT_IS, *variants
            found = [_case_figure(run, pool, tree, both) for tree in run.trees(f"tiles {layer.name}", run.sizes.tiled)]
            figures.extend(found)
            _tell(run, f" {layer.name}", found, both)


def _compile_beside(rows: Iterable[int]) -> None:
    """Compile all variants of these rows, in as many processes as there are processors, into Triton's cache."""
    jobs = [(row, number) for row in rows for number in range(len(ROWS[row][1]) + 1)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2), spawn) as processes:
        list(processes.map(_compile, jobs))


def _compile(job: tuple[int, int]) -> None:
    row, number = job
    layer, variants = ROWS[row]
    device = torch.device("cuda")
    pool = Pool(layer, 64, device)
    variant = (AS_IT_IS, *variants)[number]
    with torch.inference_mode(), suppress(Exception), variant.applied(_layer_row(pool), device):
        for tree in (sequences(2, 64), sequences(1, 128, 64)):
            Case(pool, tree).error()


def _case_figure(run: Run, pool: Pool, tree: Tree, variants: Sequence[Variant]) -> dict[str, Any]:
    times_us = _times_by_variant(run, pool, tree, variants)
    figure = {
        "layer": pool.layer.name,
        "levels": tree.levels,
        "queries": tree.queries,
        "name": tree.name,
        "roofline_us": run.machine.roofline_us(tree, pool.layer),
        "us": times_us,
    }
    with run.guarded(f"kernels of {tree.name}"):
        figure["kernels_us"] = _kernels_us(run, pool, tree)
    return figure


def _kernels_us(run: Run, pool: Pool, tree: Tree) -> dict[str, float]:
    """Each launch of a layer's attention alone, by the profiler."""
    if not run.clock.is_real:
        return {}
    from torch.profiler import ProfilerActivity, profile

    case = Case(pool, tree, num_sets=run.machine.num_sets(tree.num_bytes(pool.layer), 8))
    for call in case.calls():
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for call in case.calls():
            call()
        torch.cuda.synchronize()
    events = sorted(
        (each for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda each: each.time_range.start,
    )
    names = [name for name in ("wide", "narrow", "merge") if getattr(case.work.launches, name)]
    kernels = [each for each in events if "_attend_items" in each.name or "_merge_parts" in each.name]
    taken = {
        name: [each.time_range.elapsed_us() for each in kernels[at :: len(names)]] for at, name in enumerate(names)
    }
    return {name: percentile(each, 0.5) for name, each in taken.items() if each}


def _tell(run: Run, layer: str, figures: Sequence[dict[str, Any]], variants: Sequence[Variant]) -> None:
    """Add the table of these figures, and what to try."""
    known = [each for each in figures if AS_IT_IS.name in each["us"]]
    rows = []
    for index, label in enumerate(("us as it is", "roofline us", "share of it")):
        cells = [_floor_cells(each)[index] for each in known]
        rows.append((label, *cells, ""))
    for name in ("narrow", "wide", "merge"):
        rows.append(
            (f"{name} alone us", *(f"{each.get('kernels_us', {}).get(name, math.nan):.1f}" for each in known), "")
        )
    means = {}
    for variant in variants:
        ratios = [each["us"].get(variant.name, math.nan) / each["us"][AS_IT_IS.name] for each in known]
        right = [ratio for ratio in ratios if not math.isnan(ratio)]
        means[variant.name] = math.exp(sum(map(math.log, right)) / len(right)) if right else math.nan
        rows.append((variant.name, *map(_ratio, ratios), _ratio(means[variant.name])))
    gains = {name: 1 - mean for name, mean in means.items() if 1 - mean > MIN_GAIN}
    best = max(gains, key=gains.__getitem__, default="")
    advice = f"try {best}: {gains[best]:.0%} less time in the mean" if best else "keep what is in force"
    run.report.figures[f"advice{layer}"] = advice
    columns = ("parameter", *(each["name"] for each in known), "mean")
    run.report.tables.append(Table(f"time over that in force{layer}; {advice}", columns, rows))


def _floor_cells(figure: dict[str, Any]) -> tuple[str, str, str]:
    base, least = figure["us"][AS_IT_IS.name], figure["roofline_us"]
    return f"{base:.1f}", f"{least:.1f}", f"{least / base:.0%}"


def _times_by_variant(run: Run, pool: Pool, tree: Tree, variants: Sequence[Variant]) -> dict[str, float]:
    """Microseconds by variant, for those that run with right results."""
    device, calls = run.clock.device, {}
    sets = run.machine.num_sets(tree.num_bytes(pool.layer), 16)
    shape = _layer_row(pool)
    for variant in variants:
        with run.guarded(f"{variant.name}, {tree.name}"):
            with variant.applied(shape, device):
                case = Case(pool, tree, num_sets=sets)
                if not run.is_right(f"{variant.name}, {tree.name}", case):
                    continue
            calls[variant.name] = [_applied(variant, shape, device, call) for call in case.calls()]
    return {name: summary.p50 for name, summary in run.clock.microseconds(calls).items()} if calls else {}


def _applied(variant: Variant, shape: Any, device: torch.device, call: Callable[[], Any]) -> Callable[[], Any]:
    def within() -> Any:
        with variant.applied(shape, device):
            return call()

    return within


def _layer_row(pool: Pool) -> LayerShape:
    layer = pool.layer
    return LayerShape(
        layer.group,
        layer.head_dim,
        layer.v_head_dim,
        BLOCK_SIZE,
        2,
        "plain" if layer.format is None else layer.format.value,
        layer.is_latent,
    )


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"

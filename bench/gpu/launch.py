"""GPU measurements around the kernels: launches, planning on the host, and the best launch parameters for the chip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from bench.common.report import Table
from bench.gpu.common.clock import eager_us, host_us
from bench.gpu.common.inputs import Case, Pool
from bench.gpu.run import Run
from bench.gpu.workloads import sequences
from radixkv.kernels.gpu import device_work, launch
from radixkv.kernels.gpu.device_work import advance, work_limits
from radixkv.kernels.gpu.launch import Forms, TileConfig
from radixkv.kernels.work_list import WorkLimits, make_work_list

__all__ = ["VARIANTS", "Variant", "measure_cases", "measure_launches", "measure_planning"]

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

    @contextmanager
    def applied(self, case_layer: Any, device: torch.device) -> Iterator[None]:
        """Within the context, plans and launches use these."""
        with ExitStack() as stack:
            if self.programs is not None:
                most = launch.num_processors(device) * self.programs
                stack.enter_context(
                    patch.object(launch.Grids, "size", lambda _, __, units, ___: max(1, min(units, most)))
                )
            if self.split_keys is not None:
                stack.enter_context(patch.object(device_work, "LEAST_SPLITS", (self.split_keys,) * 2))
                stack.enter_context(patch.object(device_work, "MOST_SPLIT", self.split_keys))
            if self.narrow or self.wide:
                table = launch._forms(launch.launch_target(device))
                row = case_layer.row
                narrow, wide = table[row]
                stack.enter_context(patch.dict(table, {row: Forms(self.narrow or narrow, self.wide or wide)}))
            yield


VARIANTS = (
    Variant("as it is"),
    Variant("one buffer", narrow=TileConfig(16, 64, 4, 3), wide=TileConfig(64, 64, 4, 3)),
    Variant("2 programs", programs=2),
    Variant("3 programs", programs=3),
    Variant("4 programs", programs=4),
    Variant("split 128", split_keys=128),
    Variant("split 256", split_keys=256),
    Variant("split 512", split_keys=512),
    Variant("split 1024", split_keys=1024),
    Variant("narrow 16/64/4/2", narrow=TileConfig(16, 64, 4, 2)),
    Variant("narrow 16/32/4/5", narrow=TileConfig(16, 32, 4, 5)),
    Variant("narrow 16/64/4/7", narrow=TileConfig(16, 64, 4, 7)),
    Variant("wide 128/64/8/5", wide=TileConfig(128, 64, 8, 5)),
)
"""For plain caches of two bytes and heads of 128 columns on sm_90; all compile there without a spill."""


def measure_cases(run: Run, pool: Pool) -> None:
    """Times of the variants over the current ones, and which of them to use."""
    rows = []
    ratios: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    names, floors = [], []
    with run.section("cases", 0.9) as figures:
        for tree in run.trees("cases", run.sizes.cases):
            times_us = _times_by_variant(run, pool, tree)
            if VARIANTS[0].name not in times_us:
                continue
            names.append(tree.name)
            base = times_us[VARIANTS[0].name]
            for name, each in ratios.items():
                each.append(times_us.get(name, math.nan) / base)
            least = run.machine.roofline_us(tree, pool.layer)
            figures.append({"levels": tree.levels, "queries": tree.queries, "roofline_us": least, "us": times_us})
            floors.append((f"{base:.1f}", f"{least:.1f}", f"{least / base:.0%}"))
    means = {}
    for name, each in ratios.items():
        known = [ratio for ratio in each if not math.isnan(ratio)]
        means[name] = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
        rows.append((name, *(_ratio(ratio) for ratio in each), _ratio(means[name])))
    best = min(means, key=lambda name: math.inf if math.isnan(means[name]) else means[name])
    gains = {name: 1 - mean for name, mean in means.items() if 1 - mean > MIN_GAIN}
    advice = "keep what is in force" if not gains else f"try {best}: {gains[best]:.0%} less time in the mean"
    run.report.figures["advice"] = advice
    for index, label in enumerate(("us as it is", "roofline us", "share of it")):
        rows.insert(index, (label, *(each[index] for each in floors), ""))
    run.report.tables.append(Table(f"time over that in force; {advice}", ("parameter", *names, "mean"), rows))


def _times_by_variant(run: Run, pool: Pool, tree: Any) -> dict[str, float]:
    """Microseconds by variant, for those that run with right results."""
    device, calls = run.clock.device, {}
    sets = run.machine.num_sets(tree.num_bytes(pool.layer), 16)
    shape = None
    for variant in VARIANTS:
        with run.guarded(f"{variant.name}, {tree.name}"):
            shape = shape or _layer_row(pool)
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


def _layer_row(pool: Pool) -> launch.LayerShape:
    layer = pool.layer
    return launch.LayerShape(layer.group, layer.head_dim, layer.v_head_dim, 16, 2, "plain", False)


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"

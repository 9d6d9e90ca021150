"""Attention on a GPU: paged decode, trees, prefill, cache formats, launches; as shares of this GPU's limits in the same run.

    decode      one new token per sequence, blocks of 16 in random order: share of the copy's bandwidth
    trees       branches of common prompts, read once, against the same kernels without sharing, the bound and the roofline
    formats     fp8, int8 and int4 caches, and latents
    prefill     2,048 new tokens after a history: share of the rate of a bf16 product
    peers       torch's SDPA and flex_attention, FlashInfer if it is installed, in turns with ours
    launches    a layer's call launched and replayed in a graph; planning on the host
    cases       thirteen cases by some other launch parameters, and whether to use one of them
    tiles       other rows of the table of tiles, likewise

Every case's result is compared with float64 before timing, with outputs and parts NaN beforehand; a wrong one has no times.
Times are medians on the device, of graphs replayed in turns, over input sets larger than the L2.

    python -m bench.gpu.attention             seven minutes
    python -m bench.gpu.attention --quick     a minute or two, a smoke test
    python -m bench.gpu.attention --only cases,decode    some of the sections
    TRITON_INTERPRET=1 python -m bench.gpu.attention --interpret    all of its code on tiny inputs, without a GPU

Figures are written every few seconds, so that an aborted run keeps its measurements; tables are printed as each section ends.
An error that ends the CUDA context ends the run, exit code 3.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_STARTED_S = time.monotonic()

import torch  # noqa: E402

from bench.common.report import RESULTS_DIR, Bar, Report, Table  # noqa: E402
from bench.gpu.common.clock import Clock  # noqa: E402
from bench.gpu.common.inputs import Pool  # noqa: E402
from bench.gpu.launch import measure_cases, measure_launches, measure_planning, measure_tiles  # noqa: E402
from bench.gpu.peers import FlashInferBuild  # noqa: E402
from bench.gpu.run import FULL, QUICK, TINY_SIZES, DeadContextError, Run, device_record  # noqa: E402
from bench.gpu.sections import (  # noqa: E402
    measure_decode,
    measure_formats,
    measure_latents,
    measure_machine,
    measure_peers,
    measure_prefill,
    measure_trees,
)
from bench.gpu.workloads import blocks_of  # noqa: E402

SEED = 0
SECTIONS = ("decode", "trees", "formats", "latents", "prefill", "peers", "launches", "planning", "cases", "tiles")
FULL_S, QUICK_S = 0.12, 0.06
"""Seconds of timing per comparison."""


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.attention", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few cases, written only with --json")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(SECTIONS), help="default: all sections"
    )
    parser.add_argument("--minutes", type=float, default=7.0, help="the run ends by then (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where to write the figures (default: of a full run, bench/results)")
    parser.add_argument("--interpret", action="store_true", help="tiny inputs on a CPU, with TRITON_INTERPRET=1 set")
    options = parser.parse_args()
    if unknown := set(options.only) - set(SECTIONS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(SECTIONS)}")
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if options.interpret != is_interpreted:
        print("--interpret and TRITON_INTERPRET=1 go together: the environment is read when Triton is imported")
        return 2
    if not options.interpret and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--interpret runs the code without one)")
        return 2
    torch.manual_seed(SEED)
    device = torch.device("cpu" if options.interpret else "cuda")
    sizes = TINY_SIZES if options.interpret else QUICK if options.quick else FULL
    is_full = sizes is FULL and options.only == list(SECTIONS)
    report = Report("gpu_attention", SEED)
    report.figures = {"device": device_record(device), "minutes": options.minutes}
    clock = Clock(device, FULL_S if sizes is FULL else QUICK_S, options.minutes, _STARTED_S)
    run = Run(report, clock, sizes, options.json or (RESULTS_DIR / "gpu_attention.json" if is_full else None))
    try:
        with torch.inference_mode():
            measure(run, options.only)
    except DeadContextError:
        finish(run, is_quick=not is_full)
        return 3
    except Exception as failure:  # measurements until then are reported all the same
        run.note_wrong("the run", failure)
    return finish(run, is_quick=not is_full)


def measure(run: Run, names: list[str]) -> None:
    """Run these sections."""
    build = FlashInferBuild() if {"prefill", "peers"} & {*names} else None  # compiles during the other measurements
    try:
        measure_machine(run)
        pool = Pool(run.sizes.layer, blocks_of(run.sizes.pool_tokens), run.clock.device)
        sections: dict[str, Callable[[], None]] = {
            "decode": partial(measure_decode, run, pool),
            "trees": partial(measure_trees, run, pool),
            "formats": partial(measure_formats, run, pool),
            "latents": partial(measure_latents, run),
            "launches": partial(measure_launches, run, pool),
            "planning": partial(measure_planning, run, pool),
            "cases": partial(measure_cases, run, pool),
            "tiles": partial(measure_tiles, run),
        }
        if build is not None:
            sections["prefill"] = partial(measure_prefill, run, pool, build)
            sections["peers"] = partial(measure_peers, run, pool, build)
        for name in (each for each in SECTIONS if each in names):
            sections[name]()
            run.print_tables()
    finally:
        if build is not None:
            build.stop()


def finish(run: Run, *, is_quick: bool) -> int:
    """Print the results. Returns the exit code."""
    report = run.report
    device = report.figures["device"]
    missing = [(name, "; ".join(why)) for name, why in report.figures.get("missing_peers", {}).items()]
    if missing:
        report.tables.append(Table("peers without a time in some case", ("peer", "why"), missing))
    if not run.clock.is_real:
        report.bars.clear()
        print("interpreted: the code runs and its answers are right; no time means anything")
    run.print_tables()
    report.tables.clear()
    report.bars.append(Bar("cases with a wrong answer or none", len(run.wrong), 0))
    report.figures["run_s"] = round(time.monotonic() - _STARTED_S, 1)
    print(f"{device['name']}, driver {device.get('driver', '-')}, torch {torch.__version__}")
    code = report.finish(run.path, is_quick=is_quick)
    if run.skipped:
        print(f"no time for {len(run.skipped)}: {', '.join(run.skipped)}")
    for line in run.wrong:
        print(f"WRONG {line}")
    print(f"{report.figures['run_s']:.0f} s")
    return 1 if run.wrong else code


if __name__ == "__main__":
    sys.exit(main())

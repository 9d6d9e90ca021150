"""Draws of a whole batch on a GPU: time of the kernels, and from the launch to the tokens on the host.

    greedy, plain, top-p, top-k and top-p, from rows of 128,256 logits, peaked as of a chat model or flat as of random weights

Before it is timed, each is compared with the definition, on the device and, up to 32 rows, on the host: all tokens are equal.

    python -m bench.gpu.draws           ten seconds
    python -m bench.gpu.draws --tiny    all of its code on small inputs by the interpreter; no time means anything
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

_STARTED_S = time.monotonic()
if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from bench.common.report import Bar, Report, Table, summarise  # noqa: E402
from bench.gpu.run import device_record  # noqa: E402
from radixkv.generation.params import SamplingParams  # noqa: E402
from radixkv.kernels.draw_reference import draw_reference  # noqa: E402
from radixkv.kernels.gpu.draw import draw  # noqa: E402
from radixkv.worker.sampling.device_sampler import LaunchedDraws  # noqa: E402
from radixkv.worker.sampling.sampler import SamplerRow, draw_options  # noqa: E402

SEED = 0
MOST_MS = 0.2
MOST_CHECKED = 32
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "T 0.7": SamplingParams(temperature=0.7),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-k 50, top-p 0.95": SamplingParams(top_k=50, top_p=0.95),
}


def make_logits(kind: str, count: int, num_entries: int, device: torch.device) -> Tensor:
    """[count, num_entries]: normal, or with a few entries far above the others."""
    logits = torch.randn(count, num_entries, device=device)
    return logits if kind == "flat" else logits * 2 + 12 * torch.exp(torch.randn_like(logits) - 3)


def measure(logits: Tensor, params: SamplingParams, repeats: int) -> dict[str, Any]:
    """Tokens that differ from the definition; milliseconds of the kernels, by kernel, and of whole draws."""
    rows = [SamplerRow(params, SEED, 0, position) for position in range(len(logits))]
    options = [draw_options(row, index) for index, row in enumerate(rows)]
    found = draw(logits, options)
    num_wrong = int((found != draw_reference(logits, options)).sum())
    checked = options[:MOST_CHECKED]
    num_wrong += int((found.cpu()[: len(checked)] != draw_reference(logits[: len(checked)].cpu(), checked)).sum())
    whole_ms = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        LaunchedDraws(logits, rows, range(len(rows))).tokens()
        whole_ms.append((time.perf_counter() - began_s) * 1e3)
    kernels = _kernel_ms(partial(draw, logits, options), repeats) if logits.device.type == "cuda" else {}
    whole = summarise(whole_ms).p50
    return {"wrong": num_wrong, "device_ms": sum(kernels.values()), "whole_ms": whole, "kernels_ms": kernels}


def _kernel_ms(work: Any, repeats: int) -> dict[str, float]:
    """Mean device time by kernel."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    return {each.key[:60]: each.self_device_time_total / 1e3 / repeats for each in profiler.key_averages()}


def main() -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.draws", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small inputs by the interpreter on a CPU: times nothing")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--tiny runs the code without one)")
        return 2
    torch.manual_seed(SEED)
    device = torch.device("cpu" if options.tiny else "cuda")
    batches, num_entries, repeats = ((1, 3), 5000, 1) if options.tiny else ((1, 32, 256), 128_256, 20)
    report = Report("gpu_draws", SEED)
    figures: list[dict[str, Any]] = []
    for kind in ("peaked", "flat"):
        for batch in batches:
            logits = make_logits(kind, batch, num_entries, device)
            for name, params in PARAMS.items():
                figures.append({"logits": kind, "rows": batch, "draw": name, **measure(logits, params, repeats)})
                print(figures[-1], file=sys.stderr, flush=True)
    report.figures = {"device": device_record(device), "draws": figures}
    rows = [
        (each["logits"], str(each["rows"]), each["draw"], f"{each['device_ms']:.3f}", f"{each['whole_ms']:.3f}")
        for each in figures
    ]
    report.tables.append(
        Table(f"draws from {num_entries:,} logits, ms", ("logits", "rows", "draw", "kernels", "whole"), rows)
    )
    if options.tiny:
        print("tiny: the code runs and its tokens are right; no time means anything")
    else:
        most = max((each["device_ms"] for each in figures if each["logits"] == "peaked"), default=None)
        report.bars.append(Bar("kernels of a draw from peaked logits, ms, the most", most, MOST_MS))
    report.bars.append(Bar("tokens that differ from the definition", sum(each["wrong"] for each in figures), 0))
    code = report.finish(options.json, is_quick=options.tiny)
    print(f"{time.monotonic() - _STARTED_S:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())

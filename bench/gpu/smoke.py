"""One small case of each GPU kernel, by name: whether it compiles, runs, and is right.

    python -m bench.gpu.smoke                      every kernel, a line each; tracebacks on standard error
    python -m bench.gpu.smoke --only narrow,wide   some of them
    python -m bench.gpu.smoke --after narrow       those that come after it
    python -m bench.gpu.smoke --large wide         one on a large case, for a profiler of counters
    TRITON_INTERPRET=1 python -m bench.gpu.smoke --interpret    on a CPU

Exit code 1: some kernel failed. 3: the last one's error ended the CUDA context, so the kernels after it were not run.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.common.report import write_json
from bench.gpu.common.inputs import MAX_ERROR, Case, Pool, relative_error
from bench.gpu.workloads import DTYPE, LATENTS, LLAMA, TINY, TINY_LATENTS, Layer, branches_of, sequences
from radixkv.kernels import HostBlocks, allocate_kv, write_kv
from radixkv.kernels.gpu.device_work import ALL_LAUNCHES, DeviceWork, advance, plan_work
from radixkv.kernels.gpu.expert_rows import order_by_expert
from radixkv.kernels.gpu.grouped_weight import quantise_grouped, stack_grouped
from radixkv.kernels.gpu.merge_parts import merge_parts, merge_parts_reference
from radixkv.kernels.gpu.rounded_linear import linear_experts, linear_grouped, linear_grouped_reference
from radixkv.kernels.kv.block_copy import copy_blocks
from radixkv.kernels.kv.kv_cache import KVCache, Layout
from radixkv.kernels.kv.kv_format import KVFormat

__all__ = ["KERNELS", "Smoke", "main"]

POOL_BLOCKS = 256
DEAD_CONTEXT = 3


@dataclass
class Smoke:
    """Inputs of the cases, which return their error: 0 for exact ones."""

    device: torch.device
    layer: Layer
    latents: Layer

    def pool(self, **changes: Any) -> Pool:
        return Pool(replace(self.layer, **changes), POOL_BLOCKS, self.device)

    def cache(self) -> KVCache:
        sizes = 8, 16, self.layer.num_kv_heads, self.layer.head_dim, DTYPE, self.device
        cache = allocate_kv(*sizes, layout=Layout.HEAD_MAJOR)
        for tensor in cache.tensors:
            tensor.normal_()
        return cache

    def write(self) -> float:
        cache = self.cache()
        rows = [
            torch.randn(3, self.layer.num_kv_heads, self.layer.head_dim, device=self.device).to(DTYPE) for _ in "kv"
        ]
        slots = torch.tensor([35, -1, 90], device=self.device)
        write_kv(rows[0], rows[1], cache, slots)
        stored = [torch.stack([tensor[slot // 16, :, slot % 16] for slot in (35, 90)]) for tensor in cache.tensors]
        return max(relative_error(found, new[[0, 2]]) for found, new in zip(stored, rows, strict=True))

    def merge(self) -> float:
        case = Case(self.pool(), branches_of(3, 160, 20))
        limits, heads = case.work.limits, self.layer.num_heads
        work_list = plan_work(case.batch, case.spec, self.layer.group, limits, heads)
        case.work.narrow_parts.zero_()  # as if all were wide
        case.work.parts.normal_()
        case.work.lse.normal_()
        expected = torch.zeros(case.out.shape, dtype=torch.float64)
        merge_parts_reference(work_list, case.work.parts.cpu().double(), case.work.lse.cpu().double(), None, expected)
        merge_parts(case.work, None, case.out)
        merged = work_list.tokens[np.diff(work_list.part_starts) > 0]
        return relative_error(case.out.cpu()[merged], expected[merged])

    def advance(self) -> float:
        case = Case(self.pool(), sequences(5, 40))
        advance(case.work, case.spec)
        return float((case.work.positions[:5] - 40).abs().max())

    def narrow(self) -> float:
        return Case(self.pool(), sequences(5, 40)).error()

    def wide(self) -> float:
        return Case(self.pool(), sequences(1, 90, queries=70)).error()

    def tree(self) -> float:
        return Case(self.pool(), branches_of(9, 160, 20)).error()

    def rounded(self, format: KVFormat) -> float:
        return Case(self.pool(format=format), branches_of(3, 160, 20)).error()

    def latent(self) -> float:
        return Case(Pool(self.latents, POOL_BLOCKS, self.device), branches_of(3, 160, 20)).error()

    def linear(self, bits: int) -> float:
        """A step that is split and one that is not, of few and of many rows."""
        errors = []
        for num_rows, num_outputs in ((3, 96), (40, 96), (70, 200)):
            x = torch.randn(num_rows, 320, device=self.device).to(DTYPE)
            exact = torch.randn(num_outputs, 320, device=self.device).to(DTYPE)
            weight = quantise_grouped(exact, bits)
            expected = linear_grouped_reference(x, weight)
            errors.append(relative_error(linear_grouped(x, weight), expected))
        return max(errors)

    def experts(self) -> float:
        """Of a step of few tokens and one of many."""
        stack = stack_grouped(
            (quantise_grouped(torch.randn(96, 320, device=self.device).to(DTYPE), 4) for _ in range(5)), 5
        )
        errors = []
        for num_tokens in (3, 60):
            chosen = torch.stack([torch.randperm(5)[:2] for _ in range(num_tokens)]).to(self.device)
            x = torch.randn(num_tokens, 320, device=self.device).to(DTYPE)
            found = linear_experts(x, stack, order_by_expert(chosen, 5, DTYPE), 2)
            weights = [stack._replace(codes=stack.codes[e], scales=stack.scales[e]) for e in chosen.flatten().tolist()]
            expected = [linear_grouped_reference(x[s // 2], each) for s, each in enumerate(weights)]
            errors.append(relative_error(found, torch.stack(expected)))
        return max(errors)

    def copy(self) -> float:
        cache = self.cache()
        expected = [tensor.clone() for tensor in cache.tensors]
        for tensor in expected:
            tensor[3, :, :7] = tensor[1, :, :7]
        copy_blocks([cache], *(torch.tensor([value], device=self.device) for value in (1, 3, 7)))
        return max(relative_error(found, kept) for found, kept in zip(cache.tensors, expected, strict=True))

    def move(self) -> float:
        cache = self.cache()
        expected = [tensor[5].clone() for tensor in cache.tensors]
        host = HostBlocks(2, [cache])
        host.save([5], [1])
        host.load([1], [2])
        return max(relative_error(tensor[2], kept) for tensor, kept in zip(cache.tensors, expected, strict=True))

    def replay(self) -> float:
        """A graph over an empty list, replayed over one that is loaded after its capture."""
        case = Case(self.pool(), branches_of(9, 160, 20))
        work_list = plan_work(case.batch, case.spec, self.layer.group, case.work.limits, self.layer.num_heads)
        case.work = DeviceWork(
            case.work.capacity, case.work.limits, self.layer.num_heads, self.layer.v_head_dim, self.device
        )
        run: Callable[[], Any] = partial(case.attend, case.tables[0], ALL_LAUNCHES)
        run()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        case.work.load(work_list)
        for tensor in (case.out, case.work.parts, case.work.lse):
            tensor.fill_(torch.nan)
        run()
        return case.error_of(case.out)


KERNELS: dict[str, Callable[[Smoke], float]] = {
    "write": Smoke.write,
    "merge": Smoke.merge,
    "advance": Smoke.advance,
    "narrow": Smoke.narrow,
    "wide": Smoke.wide,
    "tree": Smoke.tree,
    "replay": Smoke.replay,
    "copy": Smoke.copy,
    "move": Smoke.move,
    "fp8": lambda smoke: smoke.rounded(KVFormat.FP8),
    "int8": lambda smoke: smoke.rounded(KVFormat.INT8),
    "int4": lambda smoke: smoke.rounded(KVFormat.INT4),
    "latents": Smoke.latent,
    "linear8": lambda smoke: smoke.linear(8),
    "linear4": lambda smoke: smoke.linear(4),
    "experts": Smoke.experts,
}
"""Simple ones first: `tree` and what comes after it use several kernels."""

LARGE = {"narrow": sequences(32, 4096), "wide": branches_of(64, 8192, 16)}


def run_large(smoke: Smoke, name: str) -> None:
    """Attend twice: a profiler skips the first, which compiles."""
    tree = LARGE[name]
    case = Case(Pool(smoke.layer, tree.num_blocks, smoke.device), tree)
    for _ in range(2):
        case.attend(case.tables[0])
    if smoke.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    """Run, print, and write. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.smoke", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KERNELS), help="default: all")
    parser.add_argument("--after", choices=KERNELS, help="only kernels after this one")
    parser.add_argument("--large", choices=LARGE, help="one kernel on a large case, without a check")
    parser.add_argument("--interpret", action="store_true", help="on a CPU, with TRITON_INTERPRET=1 set")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not options.interpret and not torch.cuda.is_available():
        print("no CUDA device: nothing was run (--interpret runs the code without one)")
        return 2
    torch.manual_seed(0)
    device = torch.device("cpu" if options.interpret else "cuda")
    smoke = Smoke(device, *((TINY, TINY_LATENTS) if options.interpret else (LLAMA, LATENTS)))
    if options.large:
        run_large(smoke, options.large)
        return 0
    names = list(KERNELS)[list(KERNELS).index(options.after) + 1 if options.after else 0 :]
    figures: dict[str, Any] = {}
    code = 0
    for name in (each for each in names if each in options.only):
        figures[name] = found = run_one(smoke, name)
        if options.json is not None:
            write_json(options.json, {"kernels": figures})
        if "failure" in found:
            code = DEAD_CONTEXT if "CUDA error" in found["failure"] else 1
        if code == DEAD_CONTEXT:
            break
    return max(code, int(any("failure" in found for found in figures.values())))


def run_one(smoke: Smoke, name: str) -> dict[str, Any]:
    """Run a kernel's case and print its line."""
    start_s = time.perf_counter()
    found: dict[str, Any] = {}
    try:
        with torch.inference_mode():
            error = KERNELS[name](smoke)
        if error < MAX_ERROR:
            found["error"] = error
        else:
            found["failure"] = f"relative error {error:.1e}"
    except Exception as failure:
        traceback.print_exc()
        found["failure"] = f"{type(failure).__name__}: {failure}"
    found["s"] = round(time.perf_counter() - start_s, 2)
    verdict = (
        f"FAIL {found['failure'].splitlines()[0][:150]}" if "failure" in found else f"ok   error {found['error']:.1e}"
    )
    print(f"{name:8s} {found['s']:6.2f} s  {verdict}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())

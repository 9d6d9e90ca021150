"""Linear layers of 8 and of 4 bits next to torch's of bfloat16, at the matrices of an 8B model and the experts of a 30B-A3B.

    python -m bench.gpu.linear            twenty seconds
    python -m bench.gpu.linear --tiles    other tiles than the kernel's own as well
    TRITON_INTERPRET=1 python -m bench.gpu.linear --tiny    all of its code on a CPU; no time means anything

Every result is compared with float64 first; a wrong one has no times. Times are medians on the device, of graphs replayed in
turns, over as many weights as the L2 cannot hold. A share is that of a copy's bandwidth on the bytes of weight and rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

_STARTED_S = time.monotonic()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from bench.common.report import Bar, Report, Table, print_table  # noqa: E402
from bench.gpu.common.clock import Calls, Clock, copy_bandwidth  # noqa: E402
from bench.gpu.common.inputs import MAX_ERROR, relative_error  # noqa: E402
from bench.gpu.run import device_record  # noqa: E402
from bench.gpu.workloads import DTYPE, Machine  # noqa: E402
from radixkv.kernels.gpu.expert_rows import order_by_expert  # noqa: E402
from radixkv.kernels.gpu.grouped_weight import (  # noqa: E402
    GroupedWeight,
    quantise_grouped,
    restore_grouped,
    stack_grouped,
)
from radixkv.kernels.gpu.linear_tiles import Tile  # noqa: E402
from radixkv.kernels.gpu.rounded_linear import linear_experts, linear_grouped, multiply_grouped  # noqa: E402

SEED = 0
SECONDS, MINUTES = 0.03, 1.0
BITS = (8, 4)
CHECKED_OUTPUTS = 256
COLUMNS = tuple(f"int{bits} {what}" for bits in BITS for what in ("us", "share", "gain"))


class Sizes(NamedTuple):
    """Inputs and outputs of the matrices, and numbers of rows."""

    shapes: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    copy_bytes: int
    experts: tuple[int, int, int, int]
    """Inputs, outputs, experts, and those that a token chooses."""


FULL = Sizes(
    ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)),
    (1, 16, 32, 64, 128, 2048),
    1 << 30,
    (2048, 1536, 128, 8),
)
TINY = Sizes(((192, 96), (256, 130)), (1, 20, 70), 1 << 12, (192, 96, 5, 2))
TILES = {
    1: (Tile(16, 64, 2, 4, 8), Tile(16, 64, 2, 3, 4), Tile(16, 32, 2, 4, 8), Tile(16, 128, 4, 3, 4)),
    16: (Tile(16, 64, 2, 4, 8), Tile(16, 64, 2, 3, 4), Tile(16, 32, 2, 4, 8), Tile(16, 128, 4, 3, 4)),
    32: (Tile(32, 64, 4, 3, 4), Tile(32, 128, 4, 4, 2), Tile(32, 256, 8, 3, 2), Tile(64, 128, 4, 3, 2)),
    64: (Tile(64, 64, 4, 3, 3), Tile(64, 128, 8, 3, 2), Tile(64, 128, 4, 3, 2), Tile(32, 128, 4, 3, 3)),
    128: (Tile(64, 128, 4, 3, 2), Tile(128, 64, 4, 3, 2), Tile(128, 128, 4, 3, 1), Tile(128, 128, 8, 3, 1)),
}
"""Next to those in force; more rows than 128 are multiplied by the library."""


class Matrix:
    """Copies of one random matrix, exact and rounded."""

    def __init__(self, num_inputs: int, num_outputs: int, machine: Machine, device: torch.device) -> None:
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        self.exact = [self._draw(device) for _ in range(machine.num_sets(2 * num_inputs * num_outputs, 32))]
        self.rounded: dict[int, list[GroupedWeight]] = {}
        for bits in BITS:
            count = machine.num_sets(num_inputs * num_outputs * bits // 8, 32)
            first = quantise_grouped(self.exact[0], bits)
            more = [first._replace(codes=first.codes.clone(), scales=first.scales.clone()) for _ in range(count - 1)]
            self.rounded[bits] = [first, *more]

    def _draw(self, device: torch.device) -> Tensor:
        return torch.randn(self.num_outputs, self.num_inputs, device=device, dtype=DTYPE) * 0.02

    def row_bytes(self, num_rows: int) -> int:
        """Of inputs and outputs."""
        return 2 * num_rows * (self.num_inputs + self.num_outputs)


def error_of(found: Tensor, x: Tensor, weight: GroupedWeight) -> float:
    """Of some outputs of the first and the last rows."""
    some = [0, -1]
    expected = x[some].double() @ restore_grouped(weight)[:CHECKED_OUTPUTS].double().T
    return relative_error(found[some, :CHECKED_OUTPUTS], expected)


def _with_tile(x: Tensor, weight: GroupedWeight, tile: Tile) -> Tensor:
    out = torch.empty(len(x), weight.num_outputs, dtype=x.dtype, device=x.device)
    multiply_grouped(out, x, weight, None, tile)
    return out


class LinearBench:
    """The report and its measurements so far."""

    def __init__(self, sizes: Sizes, clock: Clock) -> None:
        self.sizes, self.clock = sizes, clock
        self.report = Report("gpu_linear", SEED)
        self.wrong: list[str] = []
        copy = copy_bandwidth(clock, sizes.copy_bytes)
        l2_bytes = torch.cuda.get_device_properties(clock.device).L2_cache_size if clock.is_real else 0
        self.machine = Machine(copy, 0.0, l2_bytes)
        self.report.figures = {"device": device_record(clock.device), "copy": copy, "cases": []}

    def run(self, *, has_tiles: bool) -> None:
        """Measure all matrices, and print a table for each."""
        for num_inputs, num_outputs in self.sizes.shapes:
            matrix = Matrix(num_inputs, num_outputs, self.machine, self.clock.device)
            rows = [self._measure(matrix, num_rows) for num_rows in self.sizes.rows]
            columns = ("rows", "bf16 us", "share", *COLUMNS)
            title = f"{num_inputs} x {num_outputs}"
            tables = [Table(f"{title}; copy {self.machine.copy / 1e12:.2f} TB/s", columns, rows)]
            if has_tiles:
                found = [row for num_rows in self.sizes.rows for row in self._measure_tiles(matrix, num_rows)]
                tables.append(Table(f"{title}, other tiles", ("rows", "bits", "tile", "us", "own us"), found))
            for table in tables:
                print_table(table)

    def run_experts(self) -> None:
        """Measure the products of a stack, by pairs in order and with the ordering, and print a table."""
        num_inputs, num_outputs, num_experts, num_chosen = self.sizes.experts
        device, rows = self.clock.device, []
        exact = torch.randn(num_experts, num_outputs, num_inputs, device=device, dtype=DTYPE) * 0.02
        stacks = {bits: stack_grouped((quantise_grouped(each, bits) for each in exact), num_experts) for bits in BITS}
        for num_tokens in self.sizes.rows:
            x = torch.randn(num_tokens, num_inputs, device=device).to(DTYPE)
            chosen = torch.rand(num_tokens, num_experts, device=device).topk(num_chosen).indices
            order = order_by_expert(chosen, num_experts, DTYPE)
            pairs = chosen.flatten()[order.order]
            ends = (pairs[None] <= torch.arange(num_experts, device=device)[:, None]).sum(1).int()
            sorted_x = x[order.order // num_chosen]
            calls: dict[str, Calls] = {
                "bf16": [partial(torch.nn.functional.grouped_mm, sorted_x, exact.transpose(1, 2), offs=ends)],
                "order": [partial(order_by_expert, chosen, num_experts, DTYPE)],
            }
            for bits, stack in stacks.items():
                one = stack._replace(codes=stack.codes[pairs[0]], scales=stack.scales[pairs[0]])
                first = int(order.order[0])
                found = linear_experts(x, stack, order, num_chosen)[first]
                error = relative_error(found, restore_grouped(one).double() @ x[first // num_chosen].double())
                if not error < MAX_ERROR:
                    self.wrong.append(f"experts int{bits}, {num_tokens} tokens: relative error {error:.1e}")
                calls[f"int{bits}"] = [partial(linear_experts, x, stack, order, num_chosen)]
            times_us = {name: each.p50 for name, each in self.clock.microseconds(calls).items()}
            read = len(chosen.unique()) / num_experts
            shares = {
                bits: read
                * sum(each.nbytes for each in stack.tensors)
                / self.machine.copy
                * 1e6
                / times_us[f"int{bits}"]
                for bits, stack in stacks.items()
            }
            self.report.figures["cases"].append({"experts": num_tokens, "us": times_us, "read": read, "shares": shares})
            cells = [str(num_tokens), f"{read:.0%}", f"{times_us['order']:.1f}", f"{times_us['bf16']:.1f}"]
            for bits in BITS:
                us = times_us[f"int{bits}"]
                cells += [f"{us:.1f}", f"{shares[bits]:.0%}", f"{times_us['bf16'] / us:.2f}"]
            rows.append(tuple(cells))
        title = f"{num_chosen} of {num_experts} experts of {num_inputs} x {num_outputs}"
        print_table(Table(title, ("tokens", "experts read", "order us", "bf16 us", *COLUMNS), rows))

    def _measure(self, matrix: Matrix, num_rows: int) -> tuple[str, ...]:
        x = torch.randn(num_rows, matrix.num_inputs, device=self.clock.device).to(DTYPE)
        calls: dict[str, Calls] = {"bf16": [partial(torch.nn.functional.linear, x, each) for each in matrix.exact]}
        for bits, weights in matrix.rounded.items():
            if self._is_right(f"int{bits}", linear_grouped, x, weights[0]):
                calls[f"int{bits}"] = [partial(linear_grouped, x, each) for each in weights]
        times_us = {name: each.p50 for name, each in self.clock.microseconds(calls).items()}
        num_bytes = {"bf16": matrix.exact[0].nbytes}
        num_bytes |= {
            f"int{bits}": sum(each.nbytes for each in found[0].tensors) for bits, found in matrix.rounded.items()
        }
        shares = {
            name: (num_bytes[name] + matrix.row_bytes(num_rows)) / self.machine.copy * 1e6 / time_us
            for name, time_us in times_us.items()
        }
        shape = [matrix.num_inputs, matrix.num_outputs]
        self.report.figures["cases"].append({"shape": shape, "rows": num_rows, "us": times_us, "shares": shares})
        cells = [str(num_rows), f"{times_us['bf16']:.1f}", f"{shares['bf16']:.0%}"]
        for name in (f"int{bits}" for bits in BITS):
            if name in times_us:
                cells += [f"{times_us[name]:.1f}", f"{shares[name]:.0%}", f"{times_us['bf16'] / times_us[name]:.2f}"]
            else:
                cells += ["wrong"] * 3
        return tuple(cells)

    def _measure_tiles(self, matrix: Matrix, num_rows: int) -> list[tuple[str, ...]]:
        x = torch.randn(num_rows, matrix.num_inputs, device=self.clock.device).to(DTYPE)
        rows = []
        for bits, weights in matrix.rounded.items():
            calls: dict[str, Calls] = {"own": [partial(linear_grouped, x, each) for each in weights]}
            for tile in TILES.get(num_rows, ()):
                multiply = partial(_with_tile, tile=tile)
                if self._is_right(f"int{bits} {tuple(tile)}", multiply, x, weights[0]):
                    calls["/".join(map(str, tile))] = [partial(multiply, x, each) for each in weights]
            times_us = {name: each.p50 for name, each in self.clock.microseconds(calls).items()}
            own_us = times_us.pop("own")
            rows += [(str(num_rows), str(bits), name, f"{us:.1f}", f"{own_us:.1f}") for name, us in times_us.items()]
            self.report.figures["cases"].append({"rows": num_rows, "bits": bits, "own": own_us, "tiles": times_us})
        return rows

    def _is_right(self, name: str, multiply: Any, x: Tensor, weight: GroupedWeight) -> bool:
        try:
            error = error_of(multiply(x, weight), x, weight)
        except Exception as failure:  # a compiler's
            self.wrong.append(f"{name}, {len(x)} rows of {tuple(weight.codes.shape)}: {str(failure)[:200]}")
            return False
        if not error < MAX_ERROR:
            self.wrong.append(f"{name}, {len(x)} rows of {tuple(weight.codes.shape)}: relative error {error:.1e}")
        return error < MAX_ERROR


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.linear", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small matrices on a CPU, with TRITON_INTERPRET=1 set")
    parser.add_argument("--tiles", action="store_true", help="measure other tiles as well")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if options.tiny != (os.environ.get("TRITON_INTERPRET") == "1"):
        print("--tiny and TRITON_INTERPRET=1 go together: the environment is read when Triton is imported")
        return 2
    if not options.tiny and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--tiny runs the code without one)")
        return 2
    torch.manual_seed(SEED)
    device = torch.device("cpu") if options.tiny else torch.device("cuda", torch.cuda.current_device())
    clock = Clock(device, SECONDS, MINUTES, _STARTED_S)
    bench = LinearBench(TINY if options.tiny else FULL, clock)
    with torch.inference_mode():
        bench.run(has_tiles=options.tiles)
        try:
            bench.run_experts()
        except Exception as failure:  # of torch's grouped product, which not every GPU has: the other figures are kept
            bench.wrong.append(f"experts: {type(failure).__name__}: {str(failure)[:200]}")
    report = bench.report
    report.figures["wrong"] = bench.wrong
    report.bars.append(Bar("products with a wrong answer or none", len(bench.wrong), 0))
    code = report.finish(options.json, is_quick=options.tiny)
    for line in bench.wrong:
        print(f"WRONG {line}")
    print(f"{time.monotonic() - _STARTED_S:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())

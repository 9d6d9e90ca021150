"""A model of the time of attention and of a whole step, from the compiled code and the work lists, next to measurements.

    tile      with two buffers and more: max(latency / (buffers - 1), work); with one: their sum
              work: instructions of the inner loop x warps x programs per processor / issued per second, and its products
    form      the slowest program's units: tiles, and a latency each for what is loaded before and stored after them; at least
              the keys and values that it reads over the L2's bandwidth
    case      both forms, at least the distinct bytes over the copy's bandwidth; the merge of parts, which waits for four loads
              in turn; and a launch for each
    step      layers x (case + launches + weights over the bandwidth) + head + draw

    python -m bench.gpu.predict                     of a chip in the table of assumptions, by kernels compiled here for it
    python -m bench.gpu.predict --measured FOLDER   next to cases.json and model.json there, as `bench.gpu.all` writes them

It needs no GPU. Where a measurement is far off, the column that bounds the prediction names the assumption that is wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from bench.common.report import RESULTS_DIR, Report, Table
from bench.gpu.common.inputs import numbered_tables
from bench.gpu.compile_gate import FORMS, Configuration
from bench.gpu.compiled_kernels import Measured
from bench.gpu.model_cases import FULL as MODEL
from bench.gpu.run import FULL
from bench.gpu.workloads import BLOCK_SIZE, LLAMA, Layer, Machine, Tree, sequences
from radixkv.kernels import plan_attention
from radixkv.kernels.gpu import device_work
from radixkv.kernels.gpu.launch import TileConfig
from radixkv.kernels.gpu.tree_attention import form_limits
from radixkv.kernels.spec import AttentionSpec

__all__ = ["Assumptions", "Form", "Prediction", "main", "predict_case", "predict_step_ms"]

CPU = torch.device("cpu")
CONFIGURATION = "D 128"
MERGE_LOADS = 4


@dataclass(frozen=True)
class Assumptions:
    """Of a chip; times in microseconds, rates per second."""

    target: str = "sm_90"
    processors: int = 132
    copy: float = 4.3e12
    matmul: float = 790e12
    l2: float = 5.5e12
    latency_us: float = 0.9
    launch_us: float = 1.5
    launches_per_layer: int = 9
    issued: float = 4 * 1.7e9 * 0.6


class Form(NamedTuple):
    """A form's tile, and its compiled code."""

    tile: TileConfig
    measured: Measured

    def tile_us(self, chip: Assumptions) -> tuple[float, str]:
        """Time of a tile of keys in one of the programs of a full processor, and what bounds it."""
        issued_s = self.measured.loop_instructions * self.tile.num_warps / chip.issued
        products_s = 4 * self.tile.block_m * self.tile.block_n * LLAMA.head_dim * chip.processors / chip.matmul
        work = (issued_s + products_s) * self.measured.programs * 1e6
        if self.measured.buffers < 2:
            return work + chip.latency_us, "latency and work"
        ahead = chip.latency_us / (self.measured.buffers - 1)
        return max(work, ahead), "work" if work > ahead else "latency"


class Prediction(NamedTuple):
    """Microseconds of a case, and what bounds the form that takes longest."""

    us: float
    bound: str


def predict_case(tree: Tree, layer: Layer, forms: tuple[Form, Form], chip: Assumptions) -> Prediction:
    """One layer's attention of a step, as replayed in a graph."""
    shape = Configuration(CONFIGURATION, "bf16", (layer.group, layer.head_dim, layer.v_head_dim), FORMS[0]).shape(
        chip.target
    )
    limits = form_limits(shape, CPU)
    rows = [np.ascontiguousarray(row) for row in numbered_tables(tree)]
    lens = [tree.queries] * tree.branches, [tree.context] * tree.branches
    batch = plan_attention(*lens, [_array(row) for row in rows], BLOCK_SIZE, CPU)
    with patch.object(device_work, "num_processors", lambda _: chip.processors):
        work = device_work.plan_work(batch, AttentionSpec(1.0), layer.group, limits, layer.num_heads)
    items = work.items
    last = np.maximum.reduceat(np.append(work.positions, 0), items[:, 0]) if len(items) else items[:, 0]
    keys = np.minimum(items[:, 4], last + 1) - items[:, 3]
    is_wide = items[:, 1] - items[:, 0] > limits.narrow_entries
    forms_us, longest = 0.0, Prediction(0.0, "")
    for form, chosen in zip(forms, (~is_wide, is_wide), strict=True):
        found = _form_us(np.repeat(keys[chosen], layer.num_kv_heads), form, layer, chip)
        forms_us += found.us
        longest = max(longest, found)
    least_us = tree.num_bytes(layer) / chip.copy * 1e6
    part_bytes = 2 * 4 * work.num_part_rows * layer.num_heads * (layer.v_head_dim + 1)
    chain_us = MERGE_LOADS * chip.latency_us if work.num_part_rows else 0.0
    num_launches = int(is_wide.any()) + int(not is_wide.all() or work.num_part_rows > 0)  # narrow, or a merge apart
    more_us = part_bytes / chip.l2 * 1e6 + chain_us + num_launches * chip.launch_us
    bound = "bandwidth" if least_us > forms_us else longest.bound
    return Prediction(max(least_us, forms_us) + more_us, bound)


def _array(row: Any) -> Any:
    from array import array

    return array("i", row.tobytes())


def _form_us(keys: Any, form: Form, layer: Layer, chip: Assumptions) -> Prediction:
    if not len(keys):
        return Prediction(0.0, "")
    grid = min(len(keys), chip.processors * form.measured.programs)
    tile_us, bound = form.tile_us(chip)
    unit_us = -(-keys // form.tile.block_n) * tile_us + 2 * chip.latency_us
    rounds = np.zeros(-(-len(keys) // grid) * grid)
    rounds[: len(keys)] = unit_us
    slowest_us = float(rounds.reshape(-1, grid).sum(0).max())
    bytes_us = float(keys.sum()) * layer.token_bytes / layer.num_kv_heads / chip.l2 * 1e6
    if bytes_us > slowest_us:
        return Prediction(bytes_us, "L2")
    return Prediction(slowest_us, bound)


def predict_step_ms(batch: int, forms: tuple[Form, Form], chip: Assumptions) -> Prediction:
    """A decode step of the whole model, a token drawn greedily in each row; in milliseconds."""
    layer = Layer(MODEL.heads, MODEL.kv_heads, MODEL.head_dim, MODEL.head_dim)
    attention = predict_case(sequences(batch, MODEL.context), layer, forms, chip)
    widths = (MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim, MODEL.heads * MODEL.head_dim, 3 * MODEL.ffn
    layer_weights = MODEL.hidden * sum(widths)
    products_us = _product_us(layer_weights, batch, chip)
    glue_us = (chip.launches_per_layer - 1) * chip.launch_us  # attention's is in its time
    us = MODEL.layers * (attention.us + products_us + glue_us) + _product_us(MODEL.hidden * MODEL.vocab, batch, chip)
    shares = {attention.bound: attention.us, "weights": products_us, "launches": glue_us}
    return Prediction(us / 1e3, max(shares, key=shares.__getitem__))


def _product_us(num_weights: int, rows: int, chip: Assumptions) -> float:
    return max(2 * num_weights / chip.copy, 2 * num_weights * rows / chip.matmul) * 1e6


def compiled_forms(layer: Layer, chip: Assumptions) -> tuple[Form, Form]:
    """Both forms of a layer, compiled for the chip."""
    heads = layer.group, layer.head_dim, layer.v_head_dim
    both = [Configuration(CONFIGURATION, "bf16", heads, form) for form in FORMS]
    narrow, wide = both[0].shape(chip.target).forms(chip.target)
    return Form(narrow, both[0].compile_for(chip.target)), Form(wide, both[1].compile_for(chip.target))


def _measured(folder: Path | None, name: str) -> Any:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))["figures"] if folder else {}
    except (OSError, ValueError, KeyError):
        return {}


def make_report(folder: Path | None) -> Report:
    """Predict the cases and the steps, next to the measurements in `folder`."""
    cases, model = _measured(folder, "cases.json"), _measured(folder, "model.json")
    chip = _with_ceilings(Assumptions(), cases)
    forms = compiled_forms(LLAMA, chip)
    machine = Machine(chip.copy, chip.matmul, 0)
    report = Report("gpu_prediction", 0)
    times = {json.dumps([each["levels"], each["queries"]]): each["us"] for each in cases.get("cases", ())}
    rows, figures = [], {}
    for tree in FULL.cases:
        found = predict_case(tree, LLAMA, forms, chip)
        least = machine.roofline_us(tree, LLAMA)
        measured = times.get(json.dumps([tree.levels, tree.queries]), {}).get("as it is")
        figures[tree.name] = {"us": found.us, "bound": found.bound, "roofline_us": least, "measured_us": measured}
        rows.append(
            (
                tree.name,
                f"{least:.1f}",
                f"{found.us:.1f}",
                f"{least / found.us:.0%}",
                found.bound,
                *_beside(found.us, measured),
            )
        )
    columns = ("case", "roofline us", "predicted us", "share", "bound by", "measured us", "measured/predicted")
    report.tables.append(Table(f"attention of one layer, {LLAMA.name}", columns, rows))
    rows = []
    for batch in MODEL.batches:
        found = predict_step_ms(batch, forms, chip)
        measured = model.get("steps", {}).get(str(batch), {}).get("graph")
        figures[f"step {batch}"] = {"ms": found.us, "bound": found.bound, "measured_ms": measured}
        rows.append((str(batch), f"{found.us:.2f}", found.bound, *_beside(found.us, measured)))
    columns = ("B", "predicted ms", "most by", "measured ms", "measured/predicted")
    report.tables.append(Table(f"a decode step at {MODEL.context} tokens", columns, rows))
    report.tables.append(
        Table("assumptions", ("", "value"), [(name, f"{value}") for name, value in asdict(chip).items()])
    )
    report.figures = {"assumptions": asdict(chip), "predictions": figures}
    return report


def _with_ceilings(chip: Assumptions, cases: Any) -> Assumptions:
    """With the rates that were measured in the same run, if any."""
    found = {name: cases["ceilings"][name] for name in ("copy", "matmul")} if "ceilings" in cases else {}
    return Assumptions(**{**asdict(chip), **found})


def _beside(predicted: float, measured: float | None) -> tuple[str, str]:
    if measured is None or math.isnan(measured):
        return "-", "-"
    return f"{measured:.1f}", f"{measured / predicted:.2f}"


def main() -> int:
    """Print and write. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.predict", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path, help="folder with the figures of a run on a GPU")
    parser.add_argument(
        "--json", type=Path, help="where to write the figures (default: bench/results/gpu_prediction.json)"
    )
    options = parser.parse_args()
    if options.measured is not None and not options.measured.is_dir():
        parser.error(f"--measured: {options.measured} is no folder; give one with cases.json and model.json")
    return make_report(options.measured).finish(options.json or RESULTS_DIR / "gpu_prediction.json")


if __name__ == "__main__":
    sys.exit(main())

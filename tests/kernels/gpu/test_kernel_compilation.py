"""The compile gate calls bad kernels bad, and every kind of Triton kernel compiles well for its chips, without one of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from triton_device import INTERPRETED

from bench.gpu import compile_gate  # only where Triton is installed
from bench.gpu.compile_gate import (
    FULL,
    LATENT,
    LLAMA,
    SMALL,
    Configuration,
    LinearConfiguration,
    faults,
    make_report,
)
from bench.gpu.compiled_kernels import SHARED_LIMITS, Measured, compile_kernel, measure
from radixkv.kernels.gpu import (
    device_work,
    draw,
    draw_bounds,
    expert_rows,
    glue,
    launch,
    rounded_linear,
    tree_attention,
)
from radixkv.kernels.kv import block_copy, kv_write
from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS

compiles = pytest.mark.skipif(INTERPRETED, reason="this process interprets the kernels")
TARGETS = [pytest.param(target, marks=() if target == "gfx942" else pytest.mark.thorough) for target in launch.TARGETS]

WIDE = Configuration("D 128", "bf16", LLAMA, "wide")
NARROW = Configuration("D 128", "bf16", LLAMA, "narrow")
MERGE = Configuration("D 128", "bf16", LLAMA, None)
LINEAR = LinearConfiguration(4, 2048)
EXACT = Configuration("D 128", "fp32", LLAMA, "wide")
GOOD = Measured(128, 0, 0, 0, 1024, {"wgmma": 4}, 1.0, programs=3, buffers=2, waits=3, loop_instructions=400)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles afresh, and leaves nothing in the user's cache folder."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.mark.parametrize(
    ("configuration", "target", "flaw", "fault"),
    [
        (WIDE, "sm_90", {"stack_bytes": 8, "loop_spills": 2}, "2 registers spilled, 8 bytes of stack"),
        (WIDE, "gfx942", {"spills": 3}, "3 registers spilled"),
        (MERGE, "sm_80", {"stack_bytes": 4, "loop_instructions": 0}, "4 bytes of stack"),
        *((WIDE, target, {"shared_bytes": limit + 1}, "shared memory") for target, limit in SHARED_LIMITS.items()),
        (WIDE, "sm_90", {"instructions": {"mma.sync": 64}}, "no wgmma"),
        (NARROW, "gfx1201", {"instructions": {}}, "no matrix instruction"),
        (NARROW, "sm_90", {"buffers": 1}, "1 buffers"),
        (NARROW, "sm_120", {"waits": 0}, "waits for all but 0"),
        (WIDE, "sm_120", {"buffers": 1}, "1 buffers"),
        (LINEAR, "sm_90", {"instructions": {"mma.sync": 64}}, "no wgmma"),
        (LINEAR, "sm_90", {"waits": 0}, "waits for all but 0"),
        (LinearConfiguration(8, 1), "sm_120", {"loop_spills": 1}, "1 registers spilled"),
    ],
)
def test_a_flaw_is_a_fault(
    configuration: Configuration | LinearConfiguration, target: str, flaw: dict[str, Any], fault: str
) -> None:
    found = faults(configuration, target, GOOD._replace(**flaw))
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    ("configuration", "target", "measured"),
    [
        (WIDE, "sm_90", GOOD),
        (NARROW, "sm_90", GOOD._replace(instructions={"mma.sync": 16})),
        (WIDE, "sm_80", GOOD._replace(instructions={"mma.sync": 16}, shared_bytes=SHARED_LIMITS["sm_80"])),
        (WIDE, "gfx942", GOOD._replace(instructions={"mfma": 16}, scalar_spills=4)),
        (EXACT, "sm_90", GOOD._replace(instructions={})),
        (EXACT, "sm_90", GOOD._replace(instructions={}, buffers=1, waits=0)),
        (WIDE, "gfx942", GOOD._replace(buffers=0, waits=0)),
        (MERGE, "sm_90", GOOD._replace(instructions={}, buffers=0)),
        (WIDE, "sm_90", GOOD._replace(stack_bytes=8, waits=0)),
        (NARROW, "sm_90", GOOD._replace(instructions={"mma.sync": 16}, programs=4, buffers=1, waits=0)),
    ],
)
def test_what_is_as_it_should_be_is_none(configuration: Configuration, target: str, measured: Measured) -> None:
    assert faults(configuration, target, measured) == []


@pytest.mark.parametrize("outcome", [GOOD._replace(loop_spills=1), "CompilationError: no such type"])
def test_one_fault_fails_the_gate(outcome: Measured | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_gate, "_compile_all", lambda *_: [GOOD, outcome])
    report = make_report([WIDE, NARROW], ["sm_90"])
    assert report.finish(None) == 1
    monkeypatch.setattr(compile_gate, "_compile_all", lambda *_: [GOOD, GOOD])
    assert make_report([WIDE, NARROW], ["sm_90"]).finish(None) == 0


def test_the_full_gate_has_every_row_of_the_table_in_both_forms() -> None:
    rows = {(kind, size, width) for target in launch.TARGETS for kind, size, width in launch._forms(target)}
    assert 2 * len(rows) <= 40
    compiled = {(each.shape(TARGETS[0]).row, each.form) for each in FULL if each.form is not None}
    assert compiled == {(row, form) for row in rows for form in compile_gate.FORMS}


@compiles
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("configuration", "target", "tile", "fault"),
    [
        (WIDE, "sm_90", (64, 256, 4, 2), "stack"),
        (WIDE, "sm_90", (16, 64, 4, 2), "no wgmma"),
        (NARROW, "sm_90", (16, 64, 8, 4), "1 buffers, waits for all but 0"),
        (WIDE, "gfx1201", (64, 128, 4, 1), "spilled"),
    ],
)
def test_a_tile_that_is_too_large_or_too_small_is_found_out(
    configuration: Configuration, target: str, tile: tuple[int, int, int, int], fault: str
) -> None:
    found = faults(configuration, target, configuration.compile_with(launch.TileConfig(*tile), target))
    assert any(fault in each for each in found)


@compiles
@pytest.mark.parametrize(
    ("configuration", "target"),
    [
        (Configuration("D 64", "fp32", SMALL, "narrow"), "gfx1201"),
        (MERGE, "sm_90"),
        (LinearConfiguration(8, 1), "sm_90"),
        (LINEAR, "sm_90"),
        pytest.param(
            Configuration("D 64", "bf16", SMALL, "narrow", cache="fp8", has_variants=True),
            "sm_80",
            marks=pytest.mark.thorough,
        ),
        pytest.param(LinearConfiguration(4, 1, is_stacked=True), "sm_90", marks=pytest.mark.thorough),
        pytest.param(LinearConfiguration(4, 1), "sm_120", marks=pytest.mark.thorough),
        pytest.param(LinearConfiguration(4, 1, "fp16"), "gfx942", marks=pytest.mark.thorough),
        pytest.param(WIDE, "sm_90", marks=pytest.mark.thorough),
        pytest.param(Configuration("D 64", "fp16", SMALL, "wide", cache="int8"), "gfx942", marks=pytest.mark.thorough),
        pytest.param(Configuration("latent 576", "bf16", form="wide", **LATENT), "sm_90", marks=pytest.mark.thorough),
        pytest.param(
            Configuration("latent 576", "bf16", form="wide", cache="int4", **LATENT),
            "sm_90",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_configuration_of_each_kind_passes(configuration: Configuration | LinearConfiguration, target: str) -> None:
    assert faults(configuration, target, configuration.compile_for(target)) == []


@compiles
def test_batches_of_any_number_of_blocks_are_one_compiled_kernel() -> None:
    """Triton compiles an integer that is 1, or a multiple of 16, anew."""
    kernel = tree_attention._attend_items_kernel
    assert [each.name for each in kernel.params if each.do_not_specialize] == ["stride_table"]


@compiles
@pytest.mark.parametrize("target", TARGETS)
def test_block_movement_and_advance_compile(target: str) -> None:
    element = dict.fromkeys(("p_k", "p_v", "p_k_cache", "p_v_cache"), "*bf16")
    shape = {
        "HKV": 8,
        "D": 128,
        "DV": 128,
        "BLOCK_SIZE": 16,
        "BLOCK_H": 8,
        "BLOCK_D": 128,
        "SCALES": False,
    }
    ids = dict.fromkeys(("p_tensors", "p_runs", "p_widths", "p_src", "p_dst", "p_num_tokens"), "*i64")
    kernels: list[tuple[Any, dict[str, str], dict[str, Any]]] = [
        (kv_write._write_kv_kernel, {**element, "p_slots": "*i64"}, shape),
        (kv_write._write_kv_kernel, {**element, "p_slots": "*i64"}, {**shape, "D": 16, "DV": 16, "SCALES": True}),
        (block_copy._copy_blocks_kernel, {**ids, "p_element": "*i16"}, {"HKV": 8, "BLOCK_SIZE": 16, "RUN": 1024}),
        (device_work._advance_kernel, {}, {"BLOCK": 256, "HAS_WINDOW": True}),
    ]
    for kernel, types, constants in kernels:
        assert faults(MERGE, target, measure(kernel, target, types, constants, PLAIN_OPTIONS)) == []


@compiles
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_around_rounded_products_compile(target: str) -> None:
    order = {"EXPERTS": 128, "BLOCK_ROWS": 16, "ORDERED": 32, "COMPARED": 128}
    total = {"BLOCK": 256, "HAS_BIAS": True}
    kernels: list[tuple[Any, dict[str, Any], dict[str, str]]] = [
        (expert_rows._order_kernel, order, {"p_chosen": "*i64"}),
        (rounded_linear._sum_kernel, total, {"p_out": "*bf16", "p_parts": "*fp32", "p_bias": "*fp32"}),
    ]
    for kernel, constants, types in kernels:
        assert faults(MERGE, target, measure(kernel, target, types, constants, PLAIN_OPTIONS)) == []


@compiles
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_between_products_compile(target: str) -> None:
    norm = {"WIDTH": 4096, "BLOCK": 4096, "HAS_DELTA": True}
    heads = {"HQ": 32, "HKV": 8, "D": 128, "DV": 128, "BLOCK_SIZE": 16, "BLOCK_H": 8, "BLOCK_HALF": 64, "BLOCK_DV": 128}
    kernels: list[tuple[Any, dict[str, Any], set[str]]] = [
        (glue._add_norm_kernel, norm, set()),
        (glue._embed_heads_kernel, {**heads, "HAS_NORM": True, "WRITES": True}, {"p_slots"}),
        (glue._gate_kernel, {"WIDTH": 14336, "BLOCK": 1024}, set()),
    ]
    for kernel, constants, ids in kernels:
        types = {name: "*i64" if name in ids else "*bf16" for name in kernel.arg_names if name.startswith("p_")}
        measured = measure(kernel, target, {**types, "epsilon": "fp32"}, constants, {**PLAIN_OPTIONS, "num_warps": 8})
        assert faults(MERGE, target, measured) == []


@compiles
@pytest.mark.parametrize("target", TARGETS)
def test_draws_compile_without_a_fused_multiply_add(target: str) -> None:
    types = dict.fromkeys(("p_logits", "p_highest", "p_block_highest"), "*fp32") | {"p_options": "*fp64"}
    types |= dict.fromkeys(("p_state", "p_kept", "p_token_ids"), "*i64")
    chunks = {"CHUNK": draw_bounds.CHUNK, "CHUNKS": 64}
    blocks = {"BLOCK": draw_bounds.BLOCK, "HAS_BOUNDS": True}
    collect = {"CHUNK": draw_bounds.CHUNK, "NUM_CANDIDATES": draw_bounds.NUM_CANDIDATES}
    kernels: list[tuple[Any, dict[str, Any], dict[str, int | bool]]] = [
        (draw._highest_kernel, {"CHUNK": draw_bounds.CHUNK, **blocks}, draw_bounds.OPTIONS),
        (
            draw_bounds._suggest_kernel,
            {**chunks, "BLOCK": draw_bounds.BLOCK, **draw_bounds.KEYS},
            draw_bounds.RANK_OPTIONS,
        ),
        (draw_bounds._collect_kernel, collect, draw_bounds.RANK_OPTIONS),
        (draw_bounds._bound_kernel, draw_bounds.BOUND_SIZES, draw_bounds.RANK_OPTIONS),
        (draw._weigh_kernel, {**chunks, "HAS_BOUNDS": True}, draw_bounds.OPTIONS),
        (draw._pick_kernel, {**chunks, "HAS_BOUNDS": True}, draw_bounds.OPTIONS),
    ]
    for kernel, constants, options in kernels:
        assert faults(MERGE, target, measure(kernel, target, types, constants, options)) == []
        if target.startswith("sm_"):
            ptx = compile_kernel(kernel, target, types, constants, options).asm["ptx"]
            assert not re.search(r"\bfma\.\w+\.f32", ptx)

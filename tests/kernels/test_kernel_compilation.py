"""Every Triton kernel compiles for sm_90 without a GPU, spills nothing and fits its shared memory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402  # only where Triton is installed
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from radixkv.kernels import block_copy, decode, kv_write, launch, prefill  # noqa: E402

SHARED_MEMORY_BYTES = 227 * 1024
SM_90 = GPUTarget("cuda", 90, 32)
ELEMENT = {"fp16": 2, "bf16": 2, "fp32": 4}
PLAIN = {"HAS_WINDOW": False, "HAS_SOFTCAP": False, "UPCAST": False}
EVERYTHING = {"HAS_WINDOW": True, "HAS_SOFTCAP": True, "UPCAST": False}


def compile_kernel(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int | bool] = launch.PLAIN_OPTIONS
) -> Any:
    """Compiles for sm_90 as a launch with aligned pointers would; unnamed arguments are int32."""
    if not isinstance(kernel, JITFunction):
        pytest.skip("this process interprets the kernels")
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*i32" if name.startswith("p_") else "i32")
        for name in kernel.arg_names
    }
    aligned: dict[Any, Any] = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(signature)
        if name.startswith(("p_", "stride_"))
    }
    return triton.compile(ASTSource(kernel, signature, constants, aligned), target=SM_90, options=options)


def attention_types(dtype: str) -> dict[str, str]:
    element = dict.fromkeys(("p_out", "p_q", "p_k", "p_v", "p_sinks"), f"*{dtype}")
    return {**element, "p_state": "*fp32", "p_lse": "*fp32", "scale": "fp32", "softcap": "fp32"}


def attention_constants(
    config: launch.TileConfig, group: int, width: int, v_width: int, variant: Any
) -> dict[str, Any]:
    return {
        "GROUP": group,
        "D": width,
        "DV": v_width,
        "BLOCK_SIZE": 16,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_D": launch.next_power_of_2(width),
        "BLOCK_DV": launch.next_power_of_2(v_width),
        **variant,
    }


def compile_prefill(dtype: str, group: int, width: int, v_width: int, variant: Any) -> Any:
    config = launch.prefill_config(ELEMENT[dtype], width, v_width, group)
    constants = attention_constants(config, group, width, v_width, variant)
    return compile_kernel(
        prefill._prefill_kernel,
        attention_types(dtype),
        {**constants, "HAS_SINKS": variant["HAS_WINDOW"]},
        config.options,
    )


def compile_decode(dtype: str, group: int, width: int, v_width: int, variant: Any) -> Any:
    config = launch.decode_config(ELEMENT[dtype], width, v_width, group)
    constants = attention_constants(config, group, width, v_width, variant)
    return compile_kernel(
        decode._decode_split_kernel,
        attention_types(dtype),
        {**constants, "SPLIT": launch.SPLIT_TOKENS},
        config.options,
    )


def assert_lean(compiled: Any, tmp_path: Path) -> None:
    """No stack frame, which is where spilled registers go, and no more shared memory than a block may have."""
    assert compiled.metadata.shared <= SHARED_MEMORY_BYTES
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = triton.knobs.nvidia.cuobjdump.path
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\bSTACK:0\b", usage), usage


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles afresh, and leaves nothing in the user's cache folder."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


COMPILERS = {"prefill": compile_prefill, "decode": compile_decode}


@pytest.mark.parametrize("family", COMPILERS)
@pytest.mark.parametrize(
    ("dtype", "group", "width", "v_width", "variant"),
    [("bf16", 3, 64, 64, PLAIN), ("bf16", 4, 128, 128, EVERYTHING), ("fp32", 3, 80, 80, PLAIN)],
)
def test_attention_compiles_for_sm_90(
    family: str, dtype: str, group: int, width: int, v_width: int, variant: Any, tmp_path: Path
) -> None:
    assert_lean(COMPILERS[family](dtype, group, width, v_width, variant), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", COMPILERS)
@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize("variant", [PLAIN, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("widths", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("group", [1, 3, 8])
def test_every_configuration_compiles_for_sm_90(
    family: str, dtype: str, variant: Any, widths: tuple[int, int], group: int, tmp_path: Path
) -> None:
    assert_lean(COMPILERS[family](dtype, group, *widths, variant), tmp_path)


def test_merge_compiles_for_sm_90(tmp_path: Path) -> None:
    constants = {"DV": 128, "SPLIT": launch.SPLIT_TOKENS, "BLOCK_S": 16, "BLOCK_DV": 128}
    flags = {"HAS_WINDOW": True, "HAS_SINKS": True}
    compiled = compile_kernel(decode._decode_merge_kernel, attention_types("bf16"), {**constants, **flags})
    assert_lean(compiled, tmp_path)


def test_block_movement_compiles_for_sm_90(tmp_path: Path) -> None:
    element = dict.fromkeys(("p_k", "p_v", "p_k_cache", "p_v_cache"), "*bf16")
    shape = {"HKV": 8, "D": 128, "DV": 128, "BLOCK_SIZE": 16, "BLOCK_H": 8, "BLOCK_D": 128}
    written = compile_kernel(kv_write._write_kv_kernel, {**element, "p_slots": "*i64"}, shape)
    assert_lean(written, tmp_path)
    ids = dict.fromkeys(("p_caches", "p_widths", "p_src", "p_dst", "p_num_tokens"), "*i64")
    constants = {"HKV": 8, "BLOCK_SIZE": 16, "RUN": 1024}
    copied = compile_kernel(block_copy._copy_blocks_kernel, {**ids, "p_element": "*i16"}, constants)
    assert_lean(copied, tmp_path)

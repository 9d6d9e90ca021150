"""What needs a process of its own: the interpreter is chosen before Triton is imported, and Triton may be missing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(1800)  # a process interprets kernels, next to others

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from array import array
import torch
from radixkv.core.errors import RadixKVError
from radixkv.kernels import allocate_kv, paged_attention, plan_attention, write_kv
from radixkv.kernels.kv.kv_cache import Layout
cache = allocate_kv(2, 8, 1, 16, torch.float32, "cpu")
new = torch.ones(1, 1, 16)
write_kv(new, new, cache, torch.tensor([8]))
out = paged_attention(new, cache, plan_attention([1], [1], [array("i", [1])], 8, "cpu"), scale=1.0)
assert torch.equal(out, new)
try:
    head_major = allocate_kv(2, 8, 1, 16, torch.float32, "cpu", layout=Layout.HEAD_MAJOR)
    write_kv(new, new, head_major, torch.tensor([8]))
except RadixKVError as error:
    assert "pip install triton" in str(error)
else:
    raise AssertionError("launched without Triton")
"""


def run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )


def test_the_cpu_path_works_where_triton_is_not_installed() -> None:
    result = run(["-c", WITHOUT_TRITON])
    assert result.returncode == 0, result.stderr


def test_importing_the_kernels_needs_no_gpu_and_no_interpreter() -> None:
    result = run(["-c", "import radixkv.kernels"], CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr


QUICK_CASES = (
    "gpu/test_attention_by_triton.py::test_branches_that_share_blocks_agree_with_the_reference",
    "gpu/test_attention_by_triton.py::test_latents_agree_with_the_reference",
    "gpu/test_attention_by_triton.py::test_quantised_caches_are_written_and_read_as_on_a_cpu",
    "kv/test_block_movement.py",
    "gpu/test_draws_by_triton.py::test_kernels_draw_what_is_defined[1000-8-normal]",
    "gpu/test_draws_by_triton.py::test_kernels_draw_what_is_defined[9000-6-ties]",
    "kv/test_host_blocks.py::test_triton_moves_whole_blocks_of_all_layers_in_one_launch",
    "gpu/test_quantised_by_triton.py::test_what_is_written_is_what_the_format_says_in_its_slots_and_nowhere_else",
    "gpu/test_tree_by_triton.py::test_the_merge_agrees_with_its_reference",
)
BLOCKS_AND_TREES = (
    "gpu/test_attention_by_triton.py",
    "kv/test_block_movement.py",
    "kv/test_host_blocks.py",
    "cpu/test_steady_attention.py",
    "gpu/test_tree_by_triton.py",
)
STEPS_AND_CODES = (
    "gpu/test_decode_steps_by_triton.py",
    "gpu/test_draws_by_triton.py",
    "gpu/test_quantised_by_triton.py",
)


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(QUICK_CASES, id="quick cases"),
        pytest.param(BLOCKS_AND_TREES, id="blocks and trees", marks=pytest.mark.thorough),
        pytest.param(STEPS_AND_CODES, id="steps and codes", marks=pytest.mark.thorough),  # as long as the other
    ],
)
def test_triton_kernels_pass_under_the_interpreter(tests: tuple[str, ...]) -> None:
    pytest.importorskip("triton")
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-k", "triton"]
    core = (
        {"OPENBLAS_CORETYPE": "Nehalem"} if platform.machine() == "x86_64" else {}
    )  # later ones' rows differ by their place
    result = run(["-m", "pytest", *options, *(str(HERE / test) for test in tests)], TRITON_INTERPRET="1", **core)
    assert result.returncode == 0, result.stdout
    assert [test for test in tests if test not in result.stdout] == [], "nothing of it was run"
    assert "skipped" not in result.stdout

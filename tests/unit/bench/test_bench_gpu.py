"""What bench.gpu.attention calls the least possible, and that all of its code runs where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.common.report import Report
from bench.gpu import all as gpu_runs
from bench.gpu import compile_gate
from bench.gpu.all import PARTS, TINY, Part, Runs
from bench.gpu.common.clock import Clock
from bench.gpu.common.inputs import numbered_tables
from bench.gpu.compile_gate import Configuration, faults
from bench.gpu.compiled_kernels import Measured
from bench.gpu.launch import VARIANTS, Variant
from bench.gpu.predict import Assumptions, Form, predict_case
from bench.gpu.run import TINY_SIZES, Run
from bench.gpu.workloads import LATENTS, LLAMA, Machine, Tree, branches_of, sequences
from radixkv.kernels.gpu.launch import TileConfig

pytestmark = pytest.mark.thorough

H200 = Machine(copy=4.3e12, matmul=790e12, l2_bytes=60 << 20)


@pytest.mark.parametrize(
    ("tree", "paged_us", "tree_us", "bound"),
    [
        (branches_of(8, 4096, 128), 32.2, 4.9, 6.6),
        (branches_of(32, 4096, 128), 129, 7.8, 16.5),
        (branches_of(32, 16384, 256), 507, 23.4, 22),
        (branches_of(64, 1024, 512), 94, 32, 2.9),
    ],
    ids=lambda value: value.name if isinstance(value, Tree) else "",
)
def test_rooflines_and_bounds_are_those_that_others_report(
    tree: Tree, paged_us: float, tree_us: float, bound: float
) -> None:
    (_, prompt), (count, own) = tree.levels
    assert tree.bound == pytest.approx((prompt + own) / (prompt / count + own))
    assert tree.bound == pytest.approx(bound, rel=0.02)
    assert H200.roofline_us(tree.paged, LLAMA) == pytest.approx(paged_us, rel=0.02)
    assert H200.roofline_us(tree, LLAMA) == pytest.approx(tree_us, rel=0.05)


def test_what_many_branches_share_is_bound_by_products() -> None:
    tree = branches_of(128, 32768, 128)
    assert H200.roofline_us(tree, LLAMA) == pytest.approx(tree.flops(LLAMA) / H200.matmul * 1e6)
    assert H200.matmul_share(tree, LLAMA, H200.roofline_us(tree, LLAMA)) == pytest.approx(1.0)
    few = branches_of(8, 32768, 128)
    assert H200.copy_share(few, LLAMA, H200.roofline_us(few, LLAMA)) == pytest.approx(1.0)


def test_a_prompt_s_products_are_those_of_the_keys_that_it_sees() -> None:
    tree = sequences(3, 50, queries=20)
    pairs = 3 * sum(range(31, 51))
    assert tree.flops(LLAMA) == pairs * 32 * 4 * 128
    assert sequences(1, 10).flops(LATENTS) == 10 * 128 * 2 * (576 + 512)


def test_branches_hold_their_ancestors_blocks_and_their_own() -> None:
    assert numbered_tables(Tree(((1, 32), (2, 16), (4, 5)))).tolist() == [
        [0, 1, 2, 4],
        [0, 1, 2, 5],
        [0, 1, 3, 6],
        [0, 1, 3, 7],
    ]


def test_inputs_that_the_l2_would_hold_take_turns() -> None:
    assert H200.num_sets(20 << 20, 96) == 9
    assert H200.num_sets(1 << 10, 96) == 96
    assert H200.num_sets(1 << 30, 96) == 1


@pytest.mark.parametrize(("error", "is_right"), [(9e-3, True), (1.1e-2, False), (float("nan"), False)])
def test_a_wrong_answer_is_noted_and_not_to_be_timed(error: float, is_right: bool) -> None:
    run = Run(Report("x", 0), Clock(torch.device("cpu"), 0.0, 1.0, 0.0), TINY_SIZES, None)
    case: Any = SimpleNamespace(error=lambda: error)
    assert run.is_right("some case", case) == is_right
    assert bool(run.wrong) != is_right


@pytest.mark.slow
@pytest.mark.parametrize("variant", [each for each in VARIANTS if each.narrow or each.wide], ids=lambda each: each.name)
def test_tiles_to_try_compile_without_a_fault(variant: Variant) -> None:
    for form, tile in (("narrow", variant.narrow), ("wide", variant.wide)):
        if tile is not None:
            configuration = Configuration("D 128", "bf16", compile_gate.LLAMA, form)
            assert faults(configuration, "sm_90", configuration.compile_with(tile, "sm_90")) == []


def bench(*arguments: str, module: str = "gpu.attention", **environment: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[3]
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", f"bench.{module}", *arguments],
        cwd=root,
        env={**own, **environment},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("module", ["gpu.attention", "gpu.model", "gpu.linear"])
def test_without_a_gpu_it_says_so_in_a_line(module: str) -> None:
    ended = bench(module=module)
    assert ended.returncode == 2
    assert ended.stdout.startswith("no CUDA device")
    assert ended.stdout.count("\n") == 1


def test_a_part_that_fails_or_hangs_changes_no_other_and_its_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process(subprocess.Popen[bytes]):
        """Its time begins when it hangs, however long it takes to come to that."""

        def wait(self, timeout: float | None = None) -> int:
            while timeout == 0.5 and "begun" not in (tmp_path / "hanging.log").read_text(encoding="utf-8"):
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(gpu_runs.subprocess, "Popen", Process)
    monkeypatch.setattr(gpu_runs, "KILL_AFTER_S", 300)

    def part(name: str, code: str, seconds: float = 300.0) -> Part:
        return Part(name, seconds, ((sys.executable, "-c", code, "{json}"),))

    write = "import sys, json; json.dump({'figures': {'x': 1}}, open(sys.argv[1], 'w'))"
    runs = Runs(tmp_path)
    for each in (
        part("broken", "raise ValueError('a long story')"),
        part("hanging", "import time; print('begun', flush=True); time.sleep(600)", 0.5),
        Part("absent", 300.0, (("no-such-program",),)),
        part("late", f"{write}; raise SystemExit(1)"),
        part("good", write),
    ):
        runs.run(each)
    parts = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["figures"]
    codes = {name: found["exit_codes"] for name, found in parts.items()}
    assert codes == {"broken": [1], "hanging": [124], "absent": [127], "late": [1], "good": [0]}
    assert [name for name, found in parts.items() if found["figures"] == {"x": 1}] == ["late", "good"]
    logs = {name: (tmp_path / f"{name}.log").read_text(encoding="utf-8") for name in codes}
    assert "Traceback" in logs["broken"]
    assert "a long story" in logs["broken"]
    assert "begun" in logs["hanging"]
    assert "KeyboardInterrupt" in logs["hanging"]


def test_kernels_after_one_that_ends_its_context_are_run_all_the_same(tmp_path: Path) -> None:
    """Emulated: the second of four ends it, and fails again alone."""
    script = tmp_path / "smoke.py"
    script.write_text(
        "import json, sys\n"
        "words = sys.argv[1:]\n"
        "names = ['a', 'b', 'c', 'd']\n"
        "if '--after' in words: names = names[names.index(words[words.index('--after') + 1]) + 1 :]\n"
        "if '--only' in words: names = [words[words.index('--only') + 1]]\n"
        "found = {}\n"
        "for name in names:\n"
        "    print('ran', name)\n"
        "    found[name] = {'failure': 'CUDA error'} if name == 'b' else {'error': 0.0}\n"
        "    if name == 'b': break\n"
        "if '--json' in words: json.dump({'kernels': found}, open(words[words.index('--json') + 1], 'w'))\n"
        "sys.exit(3 if 'b' in found else 0)\n"
    )
    runs = Runs(tmp_path / "out")
    runs.run(Part("smoke", 300.0, ((sys.executable, str(script), "--json", "{json}"),)))
    kernels = runs.parts["smoke"]["figures"]["kernels"]
    assert {name: "failure" in found for name, found in kernels.items()} == {
        "a": False,
        "b": True,
        "c": False,
        "d": False,
    }
    log = (tmp_path / "out" / "smoke.log").read_text(encoding="utf-8")
    assert [line.split()[1] for line in log.splitlines() if line.startswith("ran")] == ["a", "b", "c", "d", "b"]


def predicted(tree: Tree, buffers: int = 2, programs: int = 3, **chip: Any) -> float:
    measured = Measured(168, 0, 0, 0, 72192, {}, 0.0, programs=programs, buffers=buffers, loop_instructions=600)
    forms = (Form(TileConfig(16, 64, 4, 5), measured), Form(TileConfig(64, 64, 4, 5), measured))
    return predict_case(tree, LLAMA, forms, Assumptions(**chip)).us


def test_a_prediction_is_above_the_roofline_and_falls_with_what_makes_a_chip_faster() -> None:
    few, many = sequences(1, 4096), sequences(64, 8192)
    for tree in (few, many, branches_of(32, 8192, 128), sequences(1, 4096, queries=512)):
        assert predicted(tree) >= tree.num_bytes(LLAMA) / H200.copy * 1e6
    assert predicted(few, buffers=1) > predicted(few)
    assert predicted(few, processors=20) > predicted(few)
    assert predicted(many, copy=2e12) == pytest.approx(predicted(many) * 4.3 / 2, rel=0.05)
    assert predicted(branches_of(32, 8192, 128)) < predicted(branches_of(32, 8192, 128).paged) / 2


def test_every_part_of_the_whole_run_has_its_tiny_one() -> None:
    assert [part.name for part in TINY] == [part.name for part in PARTS]
    assert sum(part.seconds for part in PARTS) < 11 * 60


def test_all_sections_run_interpreted_and_what_has_no_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = bench("--interpret", "--json", str(path), TRITON_INTERPRET="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    sections = ["decode", "trees", "formats", "latents", "prefill", "peers", "launches", "planning", "cases"]
    assert [name for name in sections if not figures[name]] == []
    assert figures["wrong"] == figures["skipped"] == []
    assert "SDPA" in figures["peers"][0]["us"]
    assert figures["missing_peers"]["FI cascade"]
    assert len(figures["cases"][0]["us"]) > 1
    hurried = bench("--interpret", "--minutes", "0", "--json", str(path), TRITON_INTERPRET="1")
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert hurried.returncode == 0, hurried.stdout + hurried.stderr
    assert [name for name in sections if figures[name]] == []
    assert {line.split()[0] for line in figures["skipped"]} >= {"decode", "tree", "fp8", "peers", "cases"}


def test_products_of_few_bits_run_tiny_and_are_right(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = bench("--tiny", "--json", str(path), module="gpu.linear", TRITON_INTERPRET="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert figures["wrong"] == []
    assert all(each["us"].keys() == {"bf16", "int8", "int4"} for each in figures["cases"] if "shape" in each)
    assert [each["us"].keys() for each in figures["cases"] if "experts" in each] == [
        {"bf16", "order", "int8", "int4"}
    ] * 3


def test_a_model_s_steps_run_tiny_on_a_cpu_and_are_right(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = bench("--tiny", "--json", str(path), module="gpu.model")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert figures["wrong"] == figures["skipped"] == []
    assert set(figures["steps"]) == set(figures["transformers"]) == {"1", "2", "4"}
    assert all(found.keys() == {"dynamic", "static"} for found in figures["transformers"].values())
    assert figures["fan_out"]["64"].keys() == {"floor", "tree", "paged", "error"}
    assert sum(figures["breakdown"]["2"]["kinds"].values()) > 0
    hurried = bench("--tiny", "--minutes", "0", "--json", str(path), module="gpu.model")
    assert hurried.returncode == 0, hurried.stdout + hurried.stderr
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert set(figures["skipped"]) >= {"copy", "check", "steps", "fan-out", "breakdown", "transformers"}

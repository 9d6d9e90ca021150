"""The core compiled by mypyc against the uncompiled core: whether to ship a compiled build.

A copy of `radixkv` is compiled in a temporary folder; both run the same calls in separate processes, in turns. Nothing is
installed. It needs a C compiler, and two minutes to compile.

    python -m bench.tree.compiled_core             seven turns
    python -m bench.tree.compiled_core --quick     one

Exit code of a full run: 0 if every bar is met, in which case a compiled build is to be shipped; otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import radixkv
from bench.common.report import RESULTS_DIR, Bar, Report, Table
from radixkv import AcquireOp, ExtendOp, InsertOp, PrefixCache, ReleaseOp, pack_tokens

__all__ = ["main"]

NUM_PROMPTS, PROMPT_TOKENS, SYSTEM_TOKENS = 300, 8192, 2048
NUM_LEAVES, NUM_EVICTIONS = 100_000, 3000
STEP_OPS = 64
LEFT_OUT = ("api.py", "__init__.py")  # overloads of a protocol, which mypyc does not take
ROWS = ("a == b", "match", "acquire", "release", "a Step of 64 ops", "evict one leaf of 100,000")


def measure() -> dict[str, float]:
    """Microseconds of each of `ROWS`, medians, for the core of this process."""
    source = random.Random(0)
    system = [source.randrange(50_000) for _ in range(SYSTEM_TOKENS)]
    own = PROMPT_TOKENS - SYSTEM_TOKENS
    prompts = [pack_tokens(system + [source.randrange(50_000) for _ in range(own)]) for _ in range(NUM_PROMPTS)]
    copies = dict(zip(prompts, [bytes(bytearray(prompt)) for prompt in prompts], strict=True))
    cache = PrefixCache(2 * NUM_PROMPTS * PROMPT_TOKENS // 16)
    for prompt in prompts:
        opened = cache.acquire(prompt)
        cache.insert(opened.seq_id, PROMPT_TOKENS)
        cache.release(opened.seq_id)
    open_ids: list[int] = []
    figures = {
        "a == b": _median_us(lambda prompt: prompt == copies[prompt], prompts),
        "match": _median_us(cache.match, prompts),
        "acquire": _median_us(lambda prompt: open_ids.append(cache.acquire(prompt).seq_id), prompts),
        "release": _median_us(cache.release, open_ids),
    }
    sequences = range(1, STEP_OPS // 2 + 1)
    cache.step([AcquireOp(prompts[seq_id], seq_id=10**6 + seq_id) for seq_id in sequences])

    def decode(length: int) -> None:
        ops = [InsertOp(10**6 + seq_id, length - 1, pack_tokens([7])) for seq_id in sequences]
        results = cache.step([*ops, *(ExtendOp(10**6 + seq_id, length) for seq_id in sequences)])
        assert not any(isinstance(result, Exception) for result in results), results

    figures["a Step of 64 ops"] = _median_us(decode, range(PROMPT_TOKENS + 1, PROMPT_TOKENS + 200))
    cache.step([ReleaseOp(10**6 + seq_id) for seq_id in sequences])
    leaves = PrefixCache(NUM_LEAVES + 64)
    for index in range(NUM_LEAVES):
        opened = leaves.acquire(pack_tokens([index] + [3] * 15))
        leaves.insert(opened.seq_id, 16)
        leaves.release(opened.seq_id)
    figures["evict one leaf of 100,000"] = _median_us(lambda _: leaves.evict(1), range(NUM_EVICTIONS))
    return figures


def _median_us(call: Callable[[Any], object], items: Iterable[Any]) -> float:
    taken = []
    for item in items:
        start = time.perf_counter_ns()
        call(item)
        taken.append(time.perf_counter_ns() - start)
    return median(taken) / 1000


def _compile(folder: Path) -> None:
    """Put a copy of `radixkv` in the folder, with its core compiled."""
    shutil.copytree(
        Path(radixkv.__file__).parent, folder / "radixkv", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    sources = sorted((folder / "radixkv" / "core").rglob("*.py"))
    chosen = [str(path.relative_to(folder)) for path in sources if path.name not in LEFT_OUT]
    command = [sys.executable, "-m", "mypyc", "--ignore-missing-imports", *chosen]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"mypyc does not take the core:\n{finished.stdout[-2000:]}{finished.stderr[-2000:]}")


def _measure_in(folder: Path) -> dict[str, float]:
    """Result of `measure` with the `radixkv` of that folder."""
    where = os.pathsep.join((str(folder), str(Path(__file__).resolve().parents[2])))
    command = [sys.executable, "-P", "-m", "bench.tree.compiled_core", "--measure"]
    finished = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": where}, capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(finished.stdout)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tree.compiled_core", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="one turn; nothing is written")
    parser.add_argument("--measure", action="store_true", help="print the figures of this process's own core as JSON")
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure()))
        return 0
    turns: dict[str, list[dict[str, float]]] = {"pure": [], "compiled": []}
    with tempfile.TemporaryDirectory(prefix="radixkv-") as name:
        print("compiling …", flush=True)
        _compile(Path(name))
        for turn in range(1 if options.quick else 7):
            print(f"turn {turn + 1} …", flush=True)
            turns["pure"].append(_measure_in(Path(radixkv.__file__).parents[1]))
            turns["compiled"].append(_measure_in(Path(name)))
    medians = {build: {row: median(turn[row] for turn in told) for row in ROWS} for build, told in turns.items()}
    pure, compiled = medians["pure"], medians["compiled"]
    report = Report("compiled_core", seed=0, figures={"unit": "microseconds", **medians})
    rows = [(row, f"{pure[row]:.2f}", f"{compiled[row]:.2f}", f"{compiled[row] / pure[row]:.2f}") for row in ROWS]
    report.tables.append(Table("median µs per call", ("", "pure", "compiled", "ratio"), rows))
    report.bars += [
        Bar("compiled: acquire of 8,192 tokens / a == b", compiled["acquire"] / compiled["a == b"], 3, "x"),
        Bar("compiled: match of 8,192 tokens / a == b", compiled["match"] / compiled["a == b"], 1.5, "x"),
        Bar("compiled: evict one leaf of 100,000", compiled["evict one leaf of 100,000"], 5, " us"),
        Bar("a Step of 64 ops: compiled / pure", compiled["a Step of 64 ops"] / pure["a Step of 64 ops"], 0.5, "x"),
    ]
    return report.finish(None if options.quick else RESULTS_DIR / "compiled_core.json", is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

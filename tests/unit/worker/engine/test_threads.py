"""The model gets as many threads as cores are free, and what the user has set stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from own_threads import own_threads

from radixkv.worker.threads import count_free_cores, run_on_passing_thread

USABLE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SCRIPT = "from radixkv.worker.threads import configure_threads; print(*configure_threads())"


def configured(**environ: str) -> list[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=kept | environ, capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_a_fresh_process_gets_threads_that_spin_a_bounded_count() -> None:
    num_threads, spin_count = configured()
    assert 1 <= int(num_threads) <= USABLE
    assert 0 < int(spin_count) < 1_000_000


def test_what_the_user_has_set_stays() -> None:
    assert configured(OMP_NUM_THREADS="7", GOMP_SPINCOUNT="3") == ["7", "3"]


def test_an_idle_machine_gives_every_usable_core(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 0 0 0 100 0 0 0 0 0 0\n")
    assert count_free_cores(tmp_path / "stat", tmp_path / "none", sample_s=0) in (USABLE, os.cpu_count())


def test_a_quota_below_the_cores_bounds_the_threads(tmp_path: Path) -> None:
    (tmp_path / "quota").write_text("100000 100000\n")
    assert count_free_cores(tmp_path / "none", tmp_path / "quota", sample_s=0) == 1
    (tmp_path / "quota").write_text("max 100000\n")
    assert count_free_cores(tmp_path / "none", tmp_path / "quota", sample_s=0) == USABLE


def test_a_function_on_a_passing_thread_answers_and_raises_and_leaves_no_thread() -> None:
    before = own_threads()
    assert run_on_passing_thread(threading.current_thread) not in threading.enumerate()
    with pytest.raises(ZeroDivisionError):
        run_on_passing_thread(lambda: 1 // 0)
    assert own_threads() <= before

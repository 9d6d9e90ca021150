"""One system in a separate process, with its best thread settings; the measuring process sends it workloads.

    with Driver("radixkv", config) as driver:
        run = driver.run(workload)

Messages are pickled, over the child's standard input and output: a workload in, a `Run` or the text of an error out.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bench.serving.llama_files import LlamaFiles
from bench.serving.plan import Workload
from bench.serving.play import play
from bench.serving.system import Run, System

__all__ = ["NUM_WORKERS", "Driver", "DriverConfig", "DriverError"]

NUM_WORKERS = {"radixkv": 1, "radixkv, 3 workers": 3}
"""Of the systems that are radixkv's."""

SPIN_COUNT = "20000"
STOP_S = 60.0


class DriverError(RuntimeError):
    """The system could not be started, or failed during a measurement."""


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Parameters for starting the systems."""

    model: str
    kv_token_bytes: int
    llama: LlamaFiles | None = None


class Driver:
    """A running system, from entering this to leaving it."""

    def __init__(self, name: str, config: DriverConfig) -> None:
        self.name = name
        self._config = config
        self.described: dict[str, Any] = {}

    def __enter__(self) -> Driver:
        project = Path(__file__).resolve().parents[2]
        environment = os.environ | {"PYTHONPATH": str(project)} | thread_settings()
        command = [sys.executable, "-P", "-m", "bench.serving.driver", self.name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.described = self._tell(self._config)
        return self

    def run(self, workload: Workload) -> Run:
        """Play a workload with an empty cache.

        Raises:
            DriverError: the error of the system or the player.
        """
        run: Run = self._tell(workload)
        return run

    def _tell(self, message: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
            answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise DriverError(f"the process of {self.name} ended with exit code {self._process.wait()}") from error
        if isinstance(answer, str):
            raise DriverError(f"{self.name}: {answer}")
        return answer

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def thread_settings() -> dict[str, str]:
    """Environment of a system's process: a thread per core, which spins for a while before it sleeps. Found best for all of
    them; radixkv's worker chooses the same by itself if no other program keeps a core busy. The user's own settings stay.
    """
    chosen = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "GOMP_SPINCOUNT": SPIN_COUNT}
    return {key: value for key, value in chosen.items() if key not in os.environ}


def measure(name: str, system: System, workload: Workload) -> Run:
    """One run with an empty cache."""
    with system.session(workload) as session:
        _forget_peak_rss()
        start_s = time.monotonic()
        outcomes = play(workload, session.ask)
        wall_s = time.monotonic() - start_s
        return Run(name, workload.name, outcomes, wall_s, session.counts(), _peak_rss_bytes())


def _family() -> Iterator[Path]:
    """`/proc` folders of this process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        yield Path("/proc") / str(process)
        waiting += parents.get(process, [])


def _forget_peak_rss() -> None:
    for folder in _family():
        try:
            (folder / "clear_refs").write_text("5")
        except OSError:
            continue


def _peak_rss_bytes() -> int | None:
    total = 0
    for folder in _family():
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total or None


def _open(name: str, config: DriverConfig) -> Any:
    if name in NUM_WORKERS:
        from bench.serving.radixkv_side import RadixKV

        return RadixKV(config.model, config.kv_token_bytes, NUM_WORKERS[name])
    if name == "llama.cpp":
        from bench.serving.llama_side import LlamaCpp

        assert config.llama is not None, "llama.cpp is started with its files"
        return LlamaCpp(config.llama, config.kv_token_bytes)
    from bench.serving.transformers_side import TransformersCB

    return TransformersCB(config.model, config.kv_token_bytes)


def _serve(name: str, told: IO[bytes], answers: IO[bytes]) -> None:
    system: Any = None
    try:
        while True:
            try:
                message = pickle.load(told)
            except EOFError:
                return
            try:
                if system is None:
                    system = _open(name, message)
                    answer: object = system.describe()
                else:
                    answer = measure(name, system, message)
            except Exception:
                answer = traceback.format_exc()
            pickle.dump(answer, answers)
            answers.flush()
    finally:
        if hasattr(system, "__exit__"):
            system.__exit__(None, None, None)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which ends this process
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # any output of the systems goes to standard error
    _serve(sys.argv[1], sys.stdin.buffer, _answers)

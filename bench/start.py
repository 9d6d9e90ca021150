"""From `radixkv up` to its first reply over HTTP, and the time of each stage.

Cold: with an empty cache folder, so that the model is fetched and converted once, and the CPU's kernels are compiled. Warm:
with the folder of the cold start. A chat of one token is requested from the beginning, every hundredth of a second, until it
gets a reply; the stages are those shown to a person at a terminal.

    python -m bench.start             one cold start, five warm ones (two minutes)
    python -m bench.start --quick     a made-up small model, one of each: a smoke test; nothing is written
    python -m bench.start --model PATH.gguf --flags=--quantization=int8
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.made_gguf import SHAPES, write_made
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser

__all__ = ["main"]

WARM_BOUND_S = 4.0
NUM_WARM = 5
NAME = "any"
POLL_S = 0.01
PATIENCE_S = 600.0
STAGE = re.compile(r"\d s  ([^\x1b\r]+)\r?$")
FIRST, LAST = "interpreter and command line", "first answer"


class Start(NamedTuple):
    """One start: seconds to the first reply, and the start of each stage, in order."""

    answered_s: float
    stages: list[tuple[str, float]]

    def durations_s(self) -> dict[str, float]:
        """Durations of the stages, each until the start of the next."""
        ends = [begun_s for _, begun_s in self.stages[1:]] + [self.answered_s]
        return {name: end - begun_s for (name, begun_s), end in zip(self.stages, ends, strict=True)}


def start(cache: Path, arguments: Sequence[str]) -> Start:
    """Start `radixkv up`, send requests until one gets a reply, and stop it."""
    with socket.socket() as probe, tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        command = [
            sys.executable,
            "-P",
            "-m",
            "radixkv",
            "up",
            "--no-chat",
            "--http",
            address,
            *arguments,
            "--model-name",
            NAME,
        ]
        command += ["--listen", f"unix:{folder}/worker", "--service-listen", f"unix:{folder}/service"]
        command += ["--state", f"{folder}/state.sqlite"]
        master, slave = pty.openpty()
        begun_s = time.monotonic()
        stages = [(FIRST, 0.0)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=slave,
            env=os.environ | {"RADIXKV_CACHE": str(cache)},
        ) as process:
            os.close(slave)
            reader = threading.Thread(target=_read_stages, args=(master, begun_s, stages))
            reader.start()
            try:
                answered_s = _wait_for_answer(address, process, begun_s)
            finally:
                process.terminate()
                process.wait()
                reader.join()
                os.close(master)
    return Start(answered_s, stages)


def _read_stages(terminal: int, begun_s: float, stages: list[tuple[str, float]]) -> None:
    unread = ""
    while True:
        try:
            unread += os.read(terminal, 65536).decode("utf-8", "replace")
        except OSError:  # the process has ended
            return
        *lines, unread = unread.split("\n")
        now_s = time.monotonic() - begun_s
        stages += [(match[1], now_s) for match in map(STAGE.search, lines) if match]


def _wait_for_answer(address: str, process: subprocess.Popen[bytes], begun_s: float) -> float:
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    request = urllib.request.Request(
        f"http://{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    while time.monotonic() - begun_s < PATIENCE_S:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                usage = json.load(response)["usage"]
        except ConnectionRefusedError:
            pass
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
        else:
            if usage["completion_tokens"] != 1:
                raise AssertionError(f"one token was asked for: {usage}")
            return time.monotonic() - begun_s
        if process.poll() is not None:
            raise RuntimeError(f"radixkv up ended with exit code {process.returncode} before it answered")
        time.sleep(POLL_S)
    raise TimeoutError(f"no answer within {PATIENCE_S:g} s")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("start", __doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, one warm start; nothing is written")
    parser.add_argument("--warm", type=int, help=f"how many warm starts (default: {NUM_WARM})")
    parser.add_argument("--model", help="as of radixkv up (default: its own)")
    parser.add_argument("--flags", nargs="*", default=[], metavar="FLAG", help="further ones of radixkv up")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/start.json on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_warm = options.warm or (1 if options.quick else NUM_WARM)
    progress = Progress("starts", 1 + num_warm)
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        model = options.model
        if options.quick:
            model = f"{folder}/tiny.gguf"
            write_made(SHAPES["tiny"], Path(model))
        flags = [*(["--model", model] if model else []), *options.flags]
        starts = []
        for _ in range(1 + num_warm):
            starts.append(start(Path(folder) / "cache", flags))
            progress.advance()
    cold, *warm = starts
    warm_s = statistics.median(each.answered_s for each in warm)
    report = Report("start", 0)
    durations = [each.durations_s() for each in warm]
    medians = {stage: statistics.median(each.get(stage, 0.0) for each in durations) for stage in durations[0]}
    first = cold.durations_s()
    rows = [
        (stage, *(f"{each[stage]:.2f}" if stage in each else "" for each in (first, medians)))
        for stage in dict.fromkeys([*first, *medians])
    ]
    rows.append((LAST, f"{cold.answered_s:.2f}", f"{warm_s:.2f}"))
    report.tables.append(Table("from `radixkv up` to its first answer, seconds", ("stage", "cold", "warm"), rows))
    report.figures = {
        "model": model or "default",
        "cold": {"answered_s": cold.answered_s, "stages_s": first},
        "warm": {"answered_s": [each.answered_s for each in warm], "median_s": warm_s, "stages_s": medians},
    }
    report.bars.append(Bar("the first answer of a warm start", warm_s, WARM_BOUND_S, " s"))
    path = options.json or (None if options.quick or model else RESULTS_DIR / "start.json")
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

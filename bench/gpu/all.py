"""Every GPU test and bench, each in its own process with its own time limit, the most informative ones first.

    environment    the GPU, driver, kernel and versions
    smoke          one small case of each kernel, by name; a failed one once more with blocking launches and a memory checker
    cases          thirteen cases of attention by some launch parameters
    counters       the profiler's counters of the two forms of the attention kernel, where there is `ncu`
    model          whole decode steps and their breakdown
    serving        requests served by the engine; draws from a batch's logits
    attention      all other sections of the attention bench but the peers'
    linear         layers of 8 and of 4 bits next to torch's of bfloat16
    peers          other kernels; FlashInfer is compiled first
    predict        a model of these times by the compiled code, next to them
    tests          the kernels' GPU tests

    python -m bench.gpu.all                      ten minutes at most; `bench/gpu/all.sh` sets up a bare machine for it
    python -m bench.gpu.all --only smoke,cases   some of the parts
    python -m bench.gpu.all --tiny               all of it on tiny inputs, by the interpreter, without a GPU

All output and full tracebacks go to PART.log in $OUT, otherwise in bench/results, with --tiny in a temporary folder; tables are
printed as well. `gpu.json` there has the exit codes and figures of the parts so far. A part that fails, hangs or ends its CUDA
context changes no other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.report import RESULTS_DIR, environment, write_json

__all__ = ["PARTS", "Part", "Runs", "main"]

DEAD_CONTEXT = 3
KILL_AFTER_S = 10
TAIL_LINES = 40
SEED = 0

ENVIRONMENT = """
import json, sys, torch, triton, transformers, numpy
found = {"python": sys.version, "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
         "transformers": transformers.__version__, "numpy": numpy.__version__}
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found["gpu"] = {name: str(getattr(properties, name)) for name in dir(properties) if not name.startswith("_")}
print(json.dumps(found, indent=1))
"""
COUNTERS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis")


class Part(NamedTuple):
    """Commands of a part, each with its time limit in seconds; `{json}` is the path of its figures, `{folder}` that of all."""

    name: str
    seconds: float
    commands: tuple[tuple[str, ...], ...]


def python(module: str, *arguments: str) -> tuple[str, ...]:
    return sys.executable, "-m", module, *arguments


def counters(form: str) -> tuple[str, ...]:
    """A launch of the attention kernel in this form, after one that has compiled it."""
    sections = [word for section in COUNTERS for word in ("--section", section)]
    skipped = "1" if form == "narrow" else "2"  # a tree's attention also launches the narrow form
    chosen = ("--kernel-name", "regex:_attend_items", "--launch-skip", skipped, "--launch-count", "1")
    return ("ncu", "--clock-control", "none", *sections, *chosen, *python("bench.gpu.smoke", "--large", form))


def pytest(*arguments: str) -> tuple[str, ...]:
    options = ("-v", "--tb=short", "-rf", "-m", "gpu", "-W", "default", "--continue-on-collection-errors")
    return python("pytest", *options, "-p", "no:cacheprovider", *arguments, "tests/kernels")


MACHINE = (
    ("uname", "-a"),
    ("nvidia-smi",),
    (
        "nvidia-smi",
        "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current",
        "--format=csv",
    ),
    (sys.executable, "-c", ENVIRONMENT),
)
PARTS = (
    Part("environment", 30, MACHINE),
    Part("smoke", 60, (python("bench.gpu.smoke", "--json", "{json}"),)),
    Part("cases", 90, (python("bench.gpu.attention", "--only", "cases", "--minutes", "1.3", "--json", "{json}"),)),
    Part("counters", 30, (counters("narrow"), counters("wide"))),
    Part("model", 85, (python("bench.gpu.model", "--batches", "1,32,256", "--minutes", "1.3", "--json", "{json}"),)),
    Part(
        "serving",
        60,
        (
            python("bench.gpu.serving", "--minutes", "0.8", "--json", "{json}"),
            python("bench.gpu.draws", "--json", "{folder}/draws.json"),
        ),
    ),
    Part(
        "attention",
        80,
        (
            python(
                "bench.gpu.attention",
                "--only",
                "decode,trees,formats,latents,launches,planning,tiles",
                "--minutes",
                "1.3",
                "--json",
                "{json}",
            ),
        ),
    ),
    Part("linear", 30, (python("bench.gpu.linear", "--json", "{json}"),)),
    Part(
        "peers",
        70,
        (python("bench.gpu.attention", "--only", "prefill,peers", "--minutes", "1.0", "--json", "{json}"),),
    ),
    Part("predict", 30, (python("bench.gpu.predict", "--measured", "{folder}", "--json", "{json}"),)),
    Part("tests", 90, (pytest(),)),
)
TINY = (
    Part("environment", 60, (("uname", "-a"), (sys.executable, "-c", ENVIRONMENT))),
    Part("smoke", 300, (python("bench.gpu.smoke", "--interpret", "--json", "{json}"),)),
    Part("cases", 300, (python("bench.gpu.attention", "--interpret", "--only", "cases", "--json", "{json}"),)),
    Part("counters", 10, (("ncu", "--version"),)),
    Part("model", 300, (python("bench.gpu.model", "--tiny", "--json", "{json}"),)),
    Part(
        "serving",
        300,
        (
            python("bench.gpu.serving", "--tiny", "--json", "{json}"),
            python("bench.gpu.draws", "--tiny", "--json", "{folder}/draws.json"),
        ),
    ),
    Part(
        "attention",
        300,
        (python("bench.gpu.attention", "--interpret", "--only", "decode,planning", "--json", "{json}"),),
    ),
    Part("linear", 300, (python("bench.gpu.linear", "--tiny", "--json", "{json}"),)),
    Part("peers", 300, (python("bench.gpu.attention", "--interpret", "--only", "peers", "--json", "{json}"),)),
    Part("predict", 60, (python("bench.gpu.predict", "--help"),)),
    Part("tests", 120, (pytest("--collect-only", "-q"),)),
)


class Runs:
    """Runs parts, and keeps their outputs and figures in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: dict[str, dict[str, Any]] = {}
        self._started_s = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, part: Part) -> None:
        """Run a part's commands and note what came of them."""
        print(f"== {part.name}", flush=True)
        log = self.folder / f"{part.name}.log"
        log.unlink(missing_ok=True)
        figures_path = self.folder / f"{part.name}.json"
        figures_path.unlink(missing_ok=True)
        start_s = time.monotonic()
        codes = [self._command(self._filled(command, figures_path), log, part.seconds) for command in part.commands]
        found: dict[str, Any] = {"exit_codes": codes, "figures": _figures(figures_path)}
        if part.name == "smoke" and codes[0] not in (0, 127):
            self._look_closer(part, codes[0], figures_path, log, found)
        found["s"] = round(time.monotonic() - start_s, 1)
        self.parts[part.name] = found
        self._tell(part.name, log)
        self.save()

    def _filled(self, command: Sequence[str], figures_path: Path) -> list[str]:
        return [word.replace("{json}", str(figures_path)).replace("{folder}", str(self.folder)) for word in command]

    def save(self) -> None:
        """Write `gpu.json`."""
        whole = {
            "environment": environment(SEED),
            "s": round(time.monotonic() - self._started_s, 1),
            "figures": self.parts,
        }
        write_json(self.folder / "gpu.json", whole)

    def _look_closer(self, part: Part, code: int, figures_path: Path, log: Path, found: dict[str, Any]) -> None:
        """Run the kernels after one that ended the context, and failed ones once more with blocking launches."""
        (command,) = part.commands
        kernels = dict((found["figures"] or {}).get("kernels", {}))
        while code == DEAD_CONTEXT and kernels:
            figures_path.unlink(missing_ok=True)
            after = ["--after", list(kernels)[-1]]
            code = self._command(self._filled(command, figures_path) + after, log, part.seconds)
            more = (_figures(figures_path) or {}).get("kernels", {})
            kernels |= more
            if not more:
                break
        found["figures"] = {"kernels": kernels}
        failed = [name for name, each in kernels.items() if "failure" in each]
        blocking = {"CUDA_LAUNCH_BLOCKING": "1", "TRITON_FRONT_END_DEBUGGING": "1"}
        for name in failed[:3]:
            again = [*command[: command.index("--json")], "--only", name]
            self._command(again, log, part.seconds, blocking)
            if shutil.which("compute-sanitizer"):
                self._command(["compute-sanitizer", "--tool", "memcheck", *again], log, part.seconds)

    def _command(self, command: Sequence[str], log: Path, seconds: float, more: dict[str, str] | None = None) -> int:
        """Exit code; 127: there is no such program, 124: it ran out of time, and was interrupted so that it reports so far."""
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command[:12])}\n")
            file.flush()
            try:
                process = subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(more or {})},
                    start_new_session=True,
                )
            except OSError as error:
                file.write(f"not run: {error}\n")
                return 127
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                file.write(f"out of time after {seconds:g} s\n")
                for number, wait_s in ((signal.SIGINT, KILL_AFTER_S), (signal.SIGKILL, KILL_AFTER_S)):
                    try:
                        os.killpg(process.pid, number)
                        process.wait(wait_s)
                    except (ProcessLookupError, subprocess.TimeoutExpired):
                        continue
                    break
                return 124

    def _tell(self, name: str, log: Path) -> None:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = [line for line in lines if not line.startswith(("$ ", "Traceback", "  "))][-TAIL_LINES:]
        print("\n".join(shown))
        print(f"-- {name}: exit codes {self.parts[name]['exit_codes']}, {self.parts[name]['s']} s", flush=True)


def _figures(path: Path) -> Any:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return read.get("figures", read)


def main() -> int:
    """Run, print, and write. Returns the exit code: 1 if any part but the counters failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.all", description=(__doc__ or "").splitlines()[0])
    names = [part.name for part in PARTS]
    parser.add_argument("--only", type=lambda text: text.split(","), default=names, help="default: all parts")
    parser.add_argument("--tiny", action="store_true", help="tiny inputs by the interpreter")
    options = parser.parse_args()
    if unknown := set(options.only) - set(names):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(names)}")
    os.environ["RADIXKV_CPU_KERNELS"] = "torch"  # nothing compiled for the CPU: a bare machine lacks what that needs
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    usual = Path(tempfile.mkdtemp(prefix="radixkv-gpu-")) if options.tiny else RESULTS_DIR
    runs = Runs(Path(os.environ.get("OUT") or usual))
    for part in TINY if options.tiny else PARTS:
        if part.name in options.only:
            runs.run(part)
    failed = [name for name, each in runs.parts.items() if any(each["exit_codes"]) and name != "counters"]
    print(f"failed: {', '.join(failed) or 'none'}; {runs.folder / 'gpu.json'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

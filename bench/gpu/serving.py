"""The engine on a GPU: requests at once over the model of `bench.gpu.model`, and where the engine's thread spends its time.

decode      1 to 256 requests, each of its own prompt: milliseconds per step, next to the same steps without an engine
drawn       the most of these with temperature 0.7 and top_p 0.9
fan-out     64 branches of one prompt
arrivals    32 requests decode while prompts come one after the other: the time between two tokens

python -m bench.gpu.serving           a minute and a half
python -m bench.gpu.serving --tiny    all of its code on a tiny model and a CPU; no time means anything
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

_STARTED_S = time.monotonic()

import torch  # noqa: E402

from bench.common.report import Bar, Report, Table, percentile, write_json  # noqa: E402
from bench.gpu.model_cases import FULL, TINY, WARM_STEPS, Crowd, ModelSizes, make_model, time_ms  # noqa: E402
from bench.gpu.run import device_record  # noqa: E402
from radixkv.core.cache.prefix_cache import PrefixCache  # noqa: E402
from radixkv.core.errors import RadixKVError  # noqa: E402
from radixkv.generation.params import SamplingParams  # noqa: E402
from radixkv.generation.request import GenerateParams  # noqa: E402
from radixkv.generation.stream import Delta, GenerationStream  # noqa: E402
from radixkv.worker.engine.engine import Engine  # noqa: E402
from radixkv.worker.model.model import ModelRunner  # noqa: E402
from radixkv.worker.scheduling.limits import SchedulerLimits  # noqa: E402

SEED = 0
BLOCK_SIZE = 16
MOST_OVER_GRAPH = 1.15
SAMPLE_S = 0.002
NUM_SITES = 12
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.7, top_p=0.9, ignore_eos=True)
LIMITS = SchedulerLimits(max_running=256, max_batch_tokens=8192, chunk_tokens=2048)


class Served:
    """Tokens of requests as they come, with their times.

    Attributes:
        times_s: per request and branch, when each of its tokens was emitted.
        errors: that ended requests.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.times_s: dict[tuple[int, int], list[float]] = {}
        self.errors: list[str] = []
        self._ended: list[threading.Event] = []

    def ask(self, token_ids: list[int], sampling: SamplingParams) -> int:
        """Submit one. Returns its number."""
        number, ended = len(self._ended), threading.Event()
        self._ended.append(ended)
        stream = self._engine.generate(GenerateParams(token_ids=token_ids, sampling=sampling))
        stream.listen(partial(self._take, stream, number, ended))
        return number

    def _take(self, stream: GenerationStream, number: int, ended: threading.Event) -> None:
        now_s = time.perf_counter()
        try:
            for item in stream.take():
                if isinstance(item, Delta):
                    self.times_s.setdefault((number, item.branch), []).extend([now_s] * len(item.token_ids))
        except RadixKVError as error:
            self.errors.append(str(error))
        if stream.has_ended:
            ended.set()

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until all have ended."""
        end_s = time.monotonic() + timeout_s
        if not all(ended.wait(max(0.0, end_s - time.monotonic())) for ended in self._ended):
            raise TimeoutError(f"{sum(not each.is_set() for each in self._ended)} requests did not end")
        if self.errors:
            raise ValueError(self.errors[0])

    def between_ms(self, first_s: float, last_s: float) -> list[float]:
        """Times between two tokens of a branch within these bounds."""
        return [
            (after - before) * 1e3
            for times in self.times_s.values()
            for before, after in itertools.pairwise(times)
            if first_s <= before and after <= last_s
        ]


class ServingBench:
    """One run. Failed loads are recorded, and the run continues."""

    def __init__(self, sizes: ModelSizes, device: torch.device, minutes: float, path: Path | None) -> None:
        self.sizes, self.device, self.path = sizes, device, path
        self._end_s = _STARTED_S + minutes * 60
        self.report = Report("gpu_serving", SEED)
        self.report.figures = {"device": device_record(device), "minutes": minutes}
        self.wrong: list[str] = []
        self._rows: list[tuple[str, ...]] = []
        self._generator = torch.Generator().manual_seed(SEED)

    def run(self) -> None:
        """Load, capture, and run all loads."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        started_s = time.monotonic()
        model = make_model(self.sizes, self.device, dtype)
        self.runner = ModelRunner(
            model, num_blocks=None, device=str(self.device), dtype=str(dtype).removeprefix("torch.")
        )
        made_s = time.monotonic()
        batches = self.sizes.batches
        lengths = self.sizes.context + 4 * self.sizes.steps
        self.num_blocks = 2 * max(batches) * -(-lengths // BLOCK_SIZE) + max(self.sizes.prefixes) // BLOCK_SIZE
        self.runner.allocate_pool(self.num_blocks, BLOCK_SIZE)
        self.runner.prepare(LIMITS.max_batch_tokens)
        found = {"model_s": made_s - started_s, "prepare_s": time.monotonic() - made_s}
        self.report.figures |= found
        print(", ".join(f"{name} {value:.1f}" for name, value in found.items()), file=sys.stderr, flush=True)
        for batch in batches:
            self._guarded(f"decode {batch}", partial(self._decode, "decode", batch, GREEDY))
        self._guarded("drawn", partial(self._decode, "drawn", max(batches), DRAWN))
        self._guarded("fan-out", self._fan_out)
        self._guarded("arrivals", self._arrivals)
        self.tell()

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        if time.monotonic() > self._end_s:
            self.wrong.append(f"{name}: no time")
            return
        try:
            work()
        except Exception as failure:
            traceback.print_exception(failure)
            self.wrong.append(f"{name}: {type(failure).__name__}: {(str(failure).splitlines() or [''])[0][:200]}")
        self.save()

    def save(self) -> None:
        """Write the figures so far."""
        self.report.figures["wrong"] = self.wrong
        if self.path is not None:
            write_json(self.path, self.report.as_dict())

    def _prompt(self, length: int) -> list[int]:
        ids: list[int] = torch.randint(3, self.sizes.vocab, (length,), generator=self._generator).tolist()
        return ids

    @contextmanager
    def _engine(self) -> Iterator[Served]:
        """A new cache over the pool."""
        overlaps = self.device.type == "cuda"
        with Engine(self.runner, PrefixCache(self.num_blocks, BLOCK_SIZE), limits=LIMITS, overlaps=overlaps) as engine:
            yield Served(engine)

    def _note(self, name: str, began_s: float, served: Served, between: list[float], graph_ms: float | None) -> None:
        first = [times[0] - began_s for times in served.times_s.values()]
        found = {
            "first_s": percentile(first, 0.5),
            "last_first_s": max(first),
            "between_ms": percentile(between, 0.5) if between else None,
            "between_p99_ms": percentile(between, 0.99) if between else None,
            "graph_ms": graph_ms,
        }
        self.report.figures.setdefault("loads", {})[name] = found
        cells = ("-" if value is None else f"{value:.3g}" for value in found.values())
        self._rows.append((name, *cells))
        print(self._rows[-1], file=sys.stderr, flush=True)

    def _decode(self, kind: str, batch: int, drawn: SamplingParams) -> None:
        steps = 4 * self.sizes.steps
        with self._engine() as served:
            prompts = [self._prompt(self.sizes.context) for _ in range(batch)]
            began_s = time.perf_counter()
            sampling = replace(drawn, max_tokens=steps)
            with _sampled("radixkv-engine") as sites:
                for prompt in prompts:
                    served.ask(prompt, sampling)
                served.wait()
        first_s = max(times[0] for times in served.times_s.values())
        last_s = min(times[-1] for times in served.times_s.values())
        crowd = Crowd(self.runner, batch, 0, self.sizes.context, WARM_STEPS + self.sizes.steps)
        graph_ms, _ = time_ms(partial(crowd.forward, self.runner), self.sizes.steps, self.device)
        self._note(f"{kind} {batch}", began_s, served, served.between_ms(first_s, last_s), graph_ms)
        self.report.figures.setdefault("sites", {})[f"{kind} {batch}"] = sites.most_common(4 * NUM_SITES)
        for site, count in sites.most_common(NUM_SITES):
            print(f"    {count / max(1, sites.total()):.0%}  {site}", file=sys.stderr)

    def _fan_out(self) -> None:
        with self._engine() as served:
            began_s = time.perf_counter()
            sampling = SamplingParams(
                temperature=1, max_tokens=2 * self.sizes.steps, ignore_eos=True, n=self.sizes.branches
            )
            served.ask(self._prompt(self.sizes.prefixes[0]), sampling)
            served.wait()
        first_s = max(times[0] for times in served.times_s.values())
        self._note(
            f"fan-out {self.sizes.branches}", began_s, served, served.between_ms(first_s, time.perf_counter()), None
        )

    def _arrivals(self) -> None:
        batch = min(32, max(self.sizes.batches))
        with self._engine() as served:
            sampling = SamplingParams(temperature=0, max_tokens=8 * self.sizes.steps, ignore_eos=True)
            began_s = time.perf_counter()
            for _ in range(batch):
                served.ask(self._prompt(self.sizes.context), sampling)
            while len(served.times_s) < batch and not served.errors:
                time.sleep(0.001)
            first_s = time.perf_counter()
            for _ in range(8):
                served.ask(self._prompt(self.sizes.context), SamplingParams(temperature=0, max_tokens=1))
                time.sleep(0.05)
            last_s = time.perf_counter()
            served.wait()
        self._note("arrivals", began_s, served, served.between_ms(first_s, last_s), None)

    def tell(self) -> None:
        """Add the table and the bar."""
        columns = ("load", "first token s", "the last", "between ms", "p99", "graph ms")
        self.report.tables.append(Table("served by the engine", columns, self._rows))
        loads = self.report.figures.get("loads", {}).values()
        ratios = [each["between_ms"] / each["graph_ms"] for each in loads if each["graph_ms"] and each["between_ms"]]
        self.report.bars.append(
            Bar("time between tokens over a replayed step, the most", max(ratios, default=None), MOST_OVER_GRAPH)
        )


@contextmanager
def _sampled(thread_name: str) -> Iterator[Counter[str]]:
    """Counts where this thread is, every few milliseconds: functions of this project and what they call, innermost last."""
    sites: Counter[str] = Counter()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(SAMPLE_S):
            idents = [each.ident for each in threading.enumerate() if each.name == thread_name]
            for ident in idents:
                frame = sys._current_frames().get(ident or 0)
                names: list[str] = []
                while frame is not None and len(names) < 4:
                    names.append(frame.f_code.co_name)
                    frame = frame.f_back
                sites[" < ".join(names)] += 1

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield sites
    finally:
        is_over.set()
        looker.join()


def main() -> int:
    """Run, print the tables, and write the JSON. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.serving", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU: runs all code, times nothing")
    parser.add_argument("--minutes", type=float, default=1.5, help="no load starts after (default: %(default)s)")
    parser.add_argument("--batches", type=lambda text: [int(each) for each in text.split(",")], default=[1, 32, 256])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--tiny runs the code without one)")
        return 2
    torch.manual_seed(SEED)
    device = torch.device("cpu") if options.tiny else torch.device("cuda", torch.cuda.current_device())
    sizes = TINY if options.tiny else replace(FULL, batches=tuple(options.batches))
    bench = ServingBench(sizes, device, options.minutes, options.json)
    try:
        bench.run()
    except Exception as failure:
        traceback.print_exception(failure)
        bench.wrong.append(f"the run: {type(failure).__name__}: {failure}")
    bench.save()
    if options.tiny:
        bench.report.bars.clear()
        print("tiny: the code runs; no time means anything")
    bench.report.bars.append(Bar("loads without an end", len(bench.wrong), 0))
    code = bench.report.finish(options.json, is_quick=options.tiny)
    for line in bench.wrong:
        print(f"WRONG {line}")
    print(f"{time.monotonic() - _STARTED_S:.0f} s")
    return 1 if bench.wrong else code


if __name__ == "__main__":
    sys.exit(main())

"""Long histories: the time of each call of the cache by length, and one history end to end through a worker's engine.

    calls         on a history of 1,024 to 131,072 tokens, in process and over gRPC (a unix socket): acquire finds all but the
                  last token, fork parts in the middle, insert publishes one more; block tables of 8,192 entries at the longest
    end to end    the engine: prefill in chunks, decode, the same prompt again, and a fork in the middle; with a model of hashes
                  that checks every slot it reads, and with a real one of one small layer and a window of 131,072 tokens

    python -m bench.sizing.long_context             up to 131,072 tokens
    python -m bench.sizing.long_context --quick     up to 16,384, as in CI

With hashes a step includes no attention: its time grows by bookkeeping alone. The real model's replies, greedy in float32, must
be the same cold and cached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.byte_model import save_byte_model
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser, percentile
from radixkv import PoolShape, PrefixCache, connect, pack_tokens
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta, GenerationStream, Started, Usage
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.scheduling.limits import SchedulerLimits

__all__ = ["main"]

LENGTHS = (1024, 4096, 16_384, 32_768, 65_536, 131_072)
QUICK_LENGTHS = (1024, 4096, 16_384)
BLOCK_SIZE = 16
CHUNK = 4096
NUM_CALLS = 40
HASHES = "hashes"
CALLS = ("match", "acquire", "insert", "extend", "fork", "release")
GROWTH_BOUND = 4.0
"""Times that a call may take more per token at the longest than at 4,096 tokens."""


@contextmanager
def holders(num_blocks: int) -> Iterator[dict[str, Any]]:
    """A cache in this process, and one of a service over a unix socket."""
    with (
        tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder,
        ServiceThread(ServiceConfig(addresses=(f"unix:{folder}/service",))) as service,
        connect(service.addresses[0], PoolShape(num_blocks, BLOCK_SIZE)) as remote,
    ):
        yield {"in process": PrefixCache(num_blocks, BLOCK_SIZE), "over gRPC": remote}


def time_calls(holder: Any, length: int) -> dict[str, float]:
    """Median microseconds of each call on a cached history of so many tokens."""
    prompt = pack_tokens(range(1, length + 1))
    first = holder.acquire(prompt)
    holder.insert(first.seq_id, num_computed=length)
    holder.release(first.seq_id)
    samples: dict[str, list[float]] = {name: [] for name in CALLS}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begun_ns = time.perf_counter_ns()
        result = call()
        samples[name].append((time.perf_counter_ns() - begun_ns) / 1000)
        return result

    for number in range(NUM_CALLS):
        assert timed("match", lambda: holder.match(prompt)).num_tokens == length
        seq = timed("acquire", lambda: holder.acquire(prompt, reserve=BLOCK_SIZE))
        assert seq.num_stored_tokens == length
        assert len(seq.block_table) == -(-length // BLOCK_SIZE)
        timed("extend", lambda seq=seq: holder.extend(seq.seq_id, num_tokens=length + 1))
        new = pack_tokens([200_000 + number])
        timed("insert", lambda seq=seq, new=new: holder.insert(seq.seq_id, num_computed=length + 1, new_tokens=new))
        middle = length // 2 + BLOCK_SIZE // 2
        (child,) = timed("fork", lambda seq=seq, middle=middle: holder.fork(seq.seq_id, position=middle))
        assert child.num_stored_tokens == middle
        holder.release(child.seq_id)
        timed("release", lambda seq=seq: holder.release(seq.seq_id))
    holder.check()
    holder.clear()
    return {name: percentile(found, 0.5) for name, found in samples.items()}


class EndToEnd(NamedTuple):
    """Seconds of the first token, cold and again, and of the process on the CPU until then, cold; tokens found by the second
    request and by a fork in the middle; whether the cached reply was the cold one.
    """

    cold_s: float
    warm_s: float
    cold_cpu_s: float
    num_warm: int
    num_forked: int
    is_same: bool


class _Read(NamedTuple):
    first_s: float
    cpu_s: float
    usage: Usage
    generation_id: str
    token_ids: list[int]


@contextmanager
def engine_of(length: int, model: str) -> Iterator[Engine]:
    """An engine for a history of `length` tokens. `model`: a folder, or ``"hashes"``."""
    num_blocks = 2 * (length // BLOCK_SIZE) + 64
    limits = SchedulerLimits(max_batch_tokens=CHUNK, chunk_tokens=CHUNK)
    if model == HASHES:
        runner = HashRunner(num_blocks, BLOCK_SIZE, max_model_len=length)
        with Engine(runner, PrefixCache(num_blocks, BLOCK_SIZE), limits=limits) as engine:
            yield engine
        return
    from radixkv.worker.run import Worker, WorkerConfig

    config = WorkerConfig(
        model=model,
        listen=None,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype="float32",
        quantization="none",
        max_model_len=length,
        limits=limits,
    )
    with Worker(config) as worker:
        yield worker.engine


def end_to_end(length: int, model: str) -> EndToEnd:
    """One history of `length` tokens, reply included, through an engine.

    Raises:
        AssertionError: with hashes: a kernel would have read a wrong slot.
    """
    reply = 8
    sampling = SamplingParams(max_tokens=reply, temperature=0, ignore_eos=True)
    prompt = [number % 31 for number in range(length - reply)]
    with engine_of(length, model) as engine:
        _read(engine.generate(GenerateParams(token_ids=[1, 2, 3], sampling=sampling, sharing="off")))
        cold = _read(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)))
        warm = _read(engine.generate(GenerateParams(token_ids=prompt, sampling=sampling)))
        position = length // 2 + BLOCK_SIZE // 2
        asked = ForkParams(generation_id=cold.generation_id, position=position, token_ids=[7], sampling=sampling)
        forked = _read(engine.fork(asked))
        engine.call(lambda holder: holder.check())
    assert cold.usage.num_cached_tokens == 0
    found = warm.usage.num_cached_tokens, forked.usage.num_cached_tokens
    return EndToEnd(cold.first_s, warm.first_s, cold.cpu_s, *found, cold.token_ids == warm.token_ids)


def _read(stream: GenerationStream) -> _Read:
    begun_s, cpu_s, first_s, generation_id = time.perf_counter(), time.process_time(), 0.0, ""
    token_ids: list[int] = []
    for event in stream:
        if isinstance(event, Started):
            generation_id = event.generation_id
        if isinstance(event, Delta):
            if not first_s:
                first_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
            token_ids += event.token_ids
    assert stream.usage is not None, "it has completed"
    return _Read(first_s, cpu_s, stream.usage, generation_id, token_ids)


def add_end_to_end(report: Report, name: str, model: str, lengths: Sequence[int]) -> None:
    """Run a model at every length, and add its table, figures and bars."""
    found = {}
    for length in lengths:
        found[length] = each = end_to_end(length, model)
        print(f"{name}, {length:,}: {each}", file=sys.stderr, flush=True)
        missed = (length - 8 - 1 - each.num_warm) + (length // 2 + BLOCK_SIZE // 2 - each.num_forked)
        report.bars.append(Bar(f"{name}, {length:,} tokens: cached tokens that were not found", missed, 0))
        report.bars.append(Bar(f"{name}, {length:,} tokens: replies that differ when cached", int(not each.is_same), 0))
    rows = [
        (
            f"{length:,}",
            f"{each.cold_s:.2f}",
            f"{each.cold_cpu_s:.2f}",
            f"{each.warm_s * 1000:.1f}",
            f"{each.num_warm:,}",
            f"{each.num_forked:,}",
        )
        for length, each in found.items()
    ]
    columns = ("tokens", "first token, s", "on the CPU, s", "again, ms", "found again", "found by a fork in the middle")
    report.tables.append(Table(f"end to end, {name}", columns, rows))
    report.figures[f"end_to_end, {name}"] = {str(length): each._asdict() for length, each in found.items()}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("sizing.long_context", __doc__)
    parser.add_argument("--quick", action="store_true", help="up to 16,384 tokens; nothing written")
    parser.add_argument(
        "--longest", type=int, default=LENGTHS[-1], help="tokens for the real model (default: %(default)s)"
    )
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/long_context.json on a full run)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    report = Report("long_context", seed=0)
    times: dict[str, dict[int, dict[str, float]]] = {}
    with holders(2 * (lengths[-1] // BLOCK_SIZE) + 64) as both:
        for where, holder in both.items():
            times[where] = {length: time_calls(holder, length) for length in lengths}
            rows = [
                (f"{length:,}", *(f"{found[name]:,.1f}" for name in CALLS)) for length, found in times[where].items()
            ]
            report.tables.append(Table(f"µs of a call, {where}", ("tokens", *CALLS), rows))
            for name in CALLS:
                growth = (times[where][lengths[-1]][name] / times[where][4096][name]) / (lengths[-1] / 4096)
                report.bars.append(
                    Bar(f"{name}, {where}: per token, the longest over 4,096", growth, GROWTH_BOUND, "x")
                )
    report.figures = {
        "calls_us": {where: {str(length): each for length, each in by.items()} for where, by in times.items()},
    }
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        small = save_byte_model(Path(folder), max_length=lengths[-1], num_layers=1)
        for name, model in ((HASHES, HASHES), ("one layer", small)):
            add_end_to_end(
                report, name, model, [each for each in lengths if model == HASHES or each <= options.longest]
            )
    is_full = not options.quick and arguments is None
    path = options.json or (RESULTS_DIR / "long_context.json" if is_full else None)
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

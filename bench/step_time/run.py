"""The parts of a decode step's time, with 1, 8 and 32 chats at once, compared with the machine's limits.

The parts of a step, one after another on the engine's thread; the cache service is a separate process:

    linear                the matrices
    attention             over the blocks, and writing K and V
    glue                  norms, rotation and activations; planning the forward, embedding
    sampling              a token of each chat from its logits
    service               messages to the cache and applying its responses; waiting for them
    scheduler             choice of running requests, ends of replies; passing tokens to the streams
    between               from one round to the next: messages; other threads that hold the GIL

The floor is the longer of two: reading the weights and the KV of all chats at this run's rate of reading memory, and the
matrices' operations at the rate of torch's bfloat16 product, both medians with all threads. `a step` is the sum of the parts,
`a token` the time between two tokens of one chat over gRPC, with the worker in a separate process too.

    python -m bench.step_time            3 replies of 128 tokens for each number of chats (2 minutes on two cores)
    python -m bench.step_time --quick    one of 16: a smoke test; figures not worth quoting

Milliseconds; means over the middle half, by their length, of the steps in which all chats decode. Exit code of a full run: 0
if the bar is met, otherwise 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.common.stacks import engine_beside_service, separate_processes
from bench.step_time.stopwatch import PARTS, Stopwatch
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.threads import run_on_passing_thread

if TYPE_CHECKING:
    from radixkv.generation.request import Generator

__all__ = ["main"]

NUM_CHATS = (1, 8, 32)
FULL_REPLIES, QUICK_REPLIES = 3, 1
FULL_TOKENS, QUICK_TOKENS = 128, 16
PROMPT_TOKENS = 40
NUM_BLOCKS = 2048
NUM_PROBES = 10
FLOOR_BOUND = 1.5


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("step_time", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the token ids (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/step_time.json on a full run)"
    )
    return parser.parse_args(arguments)


class Chats:
    """Users who each request a reply at the same moment."""

    def __init__(self, generator: Generator, options: argparse.Namespace) -> None:
        self._generator = generator
        self._source = random.Random(options.seed)
        self._num_tokens = QUICK_TOKENS if options.quick else FULL_TOKENS

    def reply(self, num_chats: int) -> float:
        """Milliseconds from one token of a chat to its next, on average over all of them."""
        prompts = [self._source.choices(range(1_000, 40_000), k=PROMPT_TOKENS) for _ in range(num_chats)]
        with ThreadPoolExecutor(num_chats) as users:
            return statistics.mean(users.map(self._reply, prompts))

    def _reply(self, prompt: list[int]) -> float:
        from radixkv.generation.params import SamplingParams
        from radixkv.generation.request import GenerateParams
        from radixkv.generation.stream import Delta

        sampling = SamplingParams(max_tokens=self._num_tokens, temperature=1.0, seed=0, ignore_eos=True)
        stream = self._generator.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        arrivals_s = [perf_counter() for event in stream if isinstance(event, Delta)]
        if stream.usage is None or stream.usage.num_generated_tokens != self._num_tokens:
            raise AssertionError(f"{stream.usage}: {self._num_tokens} tokens were asked for")
        return (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1) * 1e3


class Machine:
    """Limits of this machine with all threads, medians of many samples between the replies, since the machine is shared."""

    def __init__(self, num_bytes: int) -> None:
        import torch

        from radixkv.kernels.runtime.huge_pages import HugePages

        self._memory = HugePages(num_bytes).take((num_bytes // 8,), torch.int64)
        self._memory.fill_(1)
        self._factors = [torch.randn(1024, 1024).bfloat16() for _ in range(2)]
        self._bytes_per_s: list[float] = []
        self._flops_per_s: list[float] = []

    def look(self) -> None:
        import torch

        for _ in range(NUM_PROBES):
            started_s = perf_counter()
            self._memory.sum()
            self._bytes_per_s.append(self._memory.nbytes / (perf_counter() - started_s))
            started_s = perf_counter()
            torch.mm(*self._factors)
            self._flops_per_s.append(2 * 1024**3 / (perf_counter() - started_s))

    @property
    def bytes_per_s(self) -> float:
        return statistics.median(self._bytes_per_s)

    @property
    def flops_per_s(self) -> float:
        return statistics.median(self._flops_per_s)


class Timed(NamedTuple):
    """Times for one number of chats, in milliseconds; `floor_ms` is the longer of `read_ms` and `multiply_ms`."""

    parts: dict[str, float]
    token_ms: float
    read_ms: float
    multiply_ms: float

    @property
    def step_ms(self) -> float:
        return sum(self.parts.values())

    @property
    def floor_ms(self) -> float:
        return max(self.read_ms, self.multiply_ms)


def measure(options: argparse.Namespace, model: str) -> dict[int, Timed]:
    num_replies = QUICK_REPLIES if options.quick else FULL_REPLIES
    progress = Progress("replies", 2 * num_replies * len(NUM_CHATS))
    watches = {num_chats: Stopwatch(num_chats) for num_chats in NUM_CHATS}
    tokens_ms: dict[int, float] = {}
    with engine_beside_service(model, NUM_BLOCKS, options.dtype) as (engine, runner):
        chats, token_bytes, weight_bytes = Chats(engine, options), runner.token_bytes, runner.weight_bytes
        machine = run_on_passing_thread(lambda: Machine(weight_bytes))
        chats.reply(1)
        for num_chats, watch in watches.items():
            for _ in range(num_replies):
                run_on_passing_thread(machine.look)
                with watch.watching():
                    chats.reply(num_chats)
                progress.advance()
    with separate_processes(model, NUM_BLOCKS, options.dtype) as stack:
        chats = Chats(stack.generator, options)
        chats.reply(1)
        for num_chats in NUM_CHATS:
            replies_ms = []
            for _ in range(num_replies):
                replies_ms.append(chats.reply(num_chats))
                progress.advance()
            tokens_ms[num_chats] = statistics.median(replies_ms)
    found = {}
    for num_chats, watch in watches.items():
        linear_bytes = watch.linear_bytes or weight_bytes
        kv_bytes = watch.num_context_tokens / len(watch.steps) * token_bytes
        read_ms = (linear_bytes + kv_bytes) / machine.bytes_per_s * 1e3
        multiply_ms = 2 * linear_bytes * num_chats / machine.flops_per_s * 1e3
        found[num_chats] = Timed(watch.parts_ms(), tokens_ms[num_chats], read_ms, multiply_ms)
    return found


def make_report(found: dict[int, Timed], options: argparse.Namespace, model: str) -> Report:
    columns = ("chats", *PARTS, "a step", "floor", "over floor", "a token, processes apart", "tokens/s")
    rows = [
        (
            f"{num_chats}",
            *(f"{timed.parts[part]:.2f}" for part in PARTS),
            f"{timed.step_ms:.2f}",
            f"{timed.floor_ms:.2f}",
            f"{timed.step_ms / timed.floor_ms:.2f}x",
            f"{timed.token_ms:.2f}",
            f"{num_chats / timed.token_ms * 1e3:,.0f}",
        )
        for num_chats, timed in found.items()
    ]
    one = found[1]
    report = Report("step_time", options.seed)
    report.tables = [Table(f"{Path(model).name}, milliseconds", columns, rows)]
    report.bars = [
        Bar("one chat: a step / its floor", one.step_ms / one.floor_ms, FLOOR_BOUND, "x"),
    ]
    report.figures = {
        "unit": "milliseconds",
        "model": Path(model).name,
        "dtype": options.dtype,
        "steps": {
            str(num_chats): timed._asdict() | {"step_ms": timed.step_ms, "floor_ms": timed.floor_ms}
            for num_chats, timed in found.items()
        },
    }
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    model = str(resolve_model(options.model))
    path = options.json or (None if options.quick else RESULTS_DIR / "step_time.json")
    return make_report(measure(options, model), options, model).finish(path, is_quick=options.quick)

"""Where the time of a plain chat goes: one user, a short prompt, one token after another; no branch, nothing to share.

The parts of a token, in the order in which the chat pays for them:

    linear layers         beside them what reading their weights alone takes on this machine, which is the limit
    attention             over the blocks, and the writing of K and V
    norms and the like    norms, activations, rotated heads; by a model's own code, all modules but linear layers
    rest of the forward   planning the step, embedding its token; by a model's own code, all between its modules too
    round                 planning a batch, drawing the token, telling the stream; the engine in one process with its caller
    processes apart       what a token takes more through `radixkv worker` with a service: gRPC, and its threads on these cores

    python -m bench.chat_time            5 replies of 128 tokens each way (1 minute on two cores)
    python -m bench.chat_time --quick    1 reply of 16: a smoke test

Milliseconds per token; medians over the replies. The parts are timed in further replies of the same run, which the stopwatch
makes a little slower: they are scaled to the replies without it. There is no bar: the distance to peers is in `bench.serving`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.report import RESULTS_DIR, Progress, Report, Table, summarise
from bench.stacks import engine_in_process, separate_processes
from radixkv.worker.default_model import resolve_model

if TYPE_CHECKING:
    from radixkv.kernels.native_decoder import NativeDecoder
    from radixkv.worker.model import ForwardRow, ModelRunner
    from radixkv.worker.request import Generator

__all__ = ["main"]

LINEAR, ATTENTION, MODULES, FORWARD = "linear layers", "attention", "norms and the like", "rest of the forward"
ROUND, APART = "round", "processes apart"
FULL_REPLIES, QUICK_REPLIES = 5, 1
FULL_TOKENS, QUICK_TOKENS = 128, 16
PROMPT_TOKENS = 40
NUM_BLOCKS = 1024
NUM_READS = 20


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chat_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the token ids (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/chat_time.json on a full run)"
    )
    return parser.parse_args(arguments)


class Stopwatch:
    """Seconds spent in calls of a kind, without those of another kind within them, in forwards of one token."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.num_forwards = 0
        self._is_running = self._is_native = False
        self._linear_bytes: dict[int, int] = {}
        self._within = [0.0]  # per call under way, what its inner calls took

    def timed(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, counted under `kind`."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            if not self._is_running:
                return call(*arguments, **keywords)
            self._within.append(0.0)
            started_s = perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                taken_s = perf_counter() - started_s
                self._add(kind, taken_s - self._within.pop())
                self._within[-1] += taken_s

        return run

    def _counted(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(runner: ModelRunner, rows: Sequence[ForwardRow]) -> Any:
            self._is_running, self._is_native = len(rows[0].token_ids) == 1, runner.is_native
            self.num_forwards += self._is_running
            return forward(runner, rows)

        return run

    def _of_decoder(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The native decoder tells its parts by itself."""
        import numpy as np

        def run(decoder: NativeDecoder, *arguments: Any) -> Any:
            if not self._is_running:
                return call(decoder, *arguments)
            decoder.seconds = np.zeros(3)
            self._linear_bytes[id(decoder)] = decoder.linear_bytes
            answer = call(decoder, *arguments)
            for kind, taken_s in zip((LINEAR, ATTENTION, MODULES), decoder.seconds, strict=True):
                self._add(kind, float(taken_s))
            self._within[-1] += float(decoder.seconds.sum())
            decoder.seconds = None
            return answer

        return run

    def _add(self, kind: str, seconds: float) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    @property
    def linear_bytes(self) -> int:
        """Of the weights of all linear layers that ran, as they lie in memory."""
        return sum(self._linear_bytes.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it, the parts of a forward are timed, whichever model it is of."""
        import torch

        from radixkv.kernels.native_decoder import NativeDecoder
        from radixkv.worker.attention import StepAttention
        from radixkv.worker.model import ModelRunner
        from radixkv.worker.packed_linear import Int8Linear, PackedLinear

        plain_call = torch.nn.Module.__call__
        linear, other = self.timed(LINEAR, plain_call), self.timed(MODULES, plain_call)

        def call(module: torch.nn.Module, *arguments: Any, **keywords: Any) -> Any:
            if isinstance(module, (Int8Linear, PackedLinear, torch.nn.Linear)):
                self._linear_bytes[id(module)] = sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
                return linear(module, *arguments, **keywords)
            is_part = next(module.children(), None) is None and not self._is_native
            return (other if is_part else plain_call)(module, *arguments, **keywords)

        with ExitStack() as stack:
            stack.enter_context(_replaced(torch.nn.Module, "__call__", call))
            stack.enter_context(_replaced(StepAttention, "attend", self.timed(ATTENTION, StepAttention.attend)))
            stack.enter_context(_replaced(NativeDecoder, "run", self._of_decoder(NativeDecoder.run)))
            stack.enter_context(
                _replaced(ModelRunner, "forward", self._counted(self.timed(FORWARD, ModelRunner.forward)))
            )
            yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Chat:
    """One user's replies."""

    def __init__(self, generator: Generator, options: argparse.Namespace) -> None:
        self._generator = generator
        self._source = random.Random(options.seed)
        self._num_tokens = QUICK_TOKENS if options.quick else FULL_TOKENS

    def reply(self) -> float:
        """Milliseconds from one token to the next, on average over a reply."""
        from radixkv.worker.request import Delta, GenerateParams
        from radixkv.worker.sampling import SamplingParams

        prompt = self._source.choices(range(1_000, 40_000), k=PROMPT_TOKENS)
        sampling = SamplingParams(max_tokens=self._num_tokens, temperature=1.0, seed=0, ignore_eos=True)
        stream = self._generator.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        arrivals_s = [perf_counter() for event in stream if isinstance(event, Delta)]
        if stream.usage is None or stream.usage.num_generated_tokens != self._num_tokens:
            raise AssertionError(f"{stream.usage}: {self._num_tokens} tokens were asked for")
        return (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1) * 1e3


def milliseconds_to_read(num_bytes: int) -> float:
    """What reading so much memory takes all threads, at best."""
    import torch

    memory = torch.ones(num_bytes // 8, dtype=torch.int64)
    times: list[float] = []
    for _ in range(NUM_READS):
        started_s = perf_counter()
        memory.sum()
        times.append(perf_counter() - started_s)
    return min(times) * 1e3


class Timed(NamedTuple):
    """Milliseconds per token of every reply: in this process, and with processes apart; then the parts, per token."""

    together: list[float]
    apart: list[float]
    parts: dict[str, float]
    linear_bytes: int


def measure(options: argparse.Namespace, model: str) -> Timed:
    """Both ways of serving, one after the other: they would share the cores."""
    num_replies = QUICK_REPLIES if options.quick else FULL_REPLIES
    progress = Progress("replies", 3 * num_replies)
    stopwatch = Stopwatch()
    with engine_in_process(model, NUM_BLOCKS, options.dtype) as stack:
        chat = Chat(stack.generator, options)
        chat.reply()
        together: list[float] = []
        watched: list[float] = []
        for _ in range(num_replies):
            together.append(chat.reply())
            progress.advance()
            with stopwatch.watching():
                watched.append(chat.reply())
            progress.advance()
    with separate_processes(model, NUM_BLOCKS, options.dtype) as stack:
        chat = Chat(stack.generator, options)
        chat.reply()
        apart: list[float] = []
        for _ in range(num_replies):
            apart.append(chat.reply())
            progress.advance()
    forwards_ms = 1e3 / stopwatch.num_forwards
    parts = {kind: seconds * forwards_ms for kind, seconds in stopwatch.seconds.items()}
    parts[ROUND] = statistics.mean(watched) - sum(parts.values())
    scale = statistics.median(together) / statistics.mean(watched)
    parts = {kind: parts[kind] * scale for kind in (LINEAR, ATTENTION, MODULES, FORWARD, ROUND)}
    parts[APART] = statistics.median(apart) - statistics.median(together)
    return Timed(together, apart, parts, stopwatch.linear_bytes)


def make_report(timed: Timed, options: argparse.Namespace, model: str) -> Report:
    whole_ms = statistics.median(timed.apart)
    limit_ms = milliseconds_to_read(timed.linear_bytes)
    rows = [
        (kind, f"{part_ms:.1f}", f"{part_ms / whole_ms:.0%}", f"{limit_ms:.1f}" if kind == LINEAR else "")
        for kind, part_ms in timed.parts.items()
    ]
    rows.append(("a token", f"{whole_ms:.1f}", "100%", ""))
    title = f"{Path(model).name}, one user: {1e3 / whole_ms:.0f} tokens/s, {timed.linear_bytes / 1e6:,.0f} MB of weights each"
    report = Report("chat_time", options.seed)
    report.tables = [Table(title, ("part", "ms", "share", "to read its weights"), rows)]
    report.figures = {
        "unit": "milliseconds per token",
        "model": Path(model).name,
        "dtype": options.dtype,
        "processes_apart": summarise(timed.apart)._asdict(),
        "in_process": summarise(timed.together)._asdict(),
        "parts": timed.parts,
        "linear_bytes": timed.linear_bytes,
        "to_read_them": limit_ms,
    }
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code."""
    options = parse(arguments)
    model = resolve_model(options.model)
    path = options.json or (None if options.quick else RESULTS_DIR / "chat_time.json")
    return make_report(measure(options, model), options, model).finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

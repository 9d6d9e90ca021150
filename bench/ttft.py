"""Time to the first token of a chat that is continued, regenerated or edited, compared with its uncached suffix alone.

Each round has a new history, 256 random token ids, so that nothing of an earlier round is found (the prompts of real
conversation trees have 169 tokens on average, 313 at most: see bench.faithful):

    cold           the history, new
    warm           the history and its reply, and a new turn of the user after them
    regenerated    the same prompt again
    edited         the first half of the history, and a new turn instead of the rest

Each of the last three is compared with its *suffix alone*: a prompt of exactly as many tokens as that request had to
compute, in an empty tree (a separate namespace). The two take turns within every round; figures are medians. Time
is from the call of generate to the first token at the caller.

    python -m bench.ttft             15 rounds, engine in this process (2 minutes on two cores)
    python -m bench.ttft --quick     3 rounds, a smoke test
    python -m bench.ttft --separate  through `radixkv serve` and `radixkv worker` in separate processes

The suffix of a warm request also attends to the whole history, which the suffix alone does not: the longer the history,
the more of the ratio is attention (try --history-tokens 2048).

The numbers of found and computed tokens are checked on every request. Exit code of a full run: 0 if the bar is met,
otherwise 1.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from bench.common.stacks import BLOCK_SIZE, engine_in_process, separate_processes
from radixkv.worker.loading.default_model import resolve_model

if TYPE_CHECKING:
    from radixkv.generation.request import Generator

__all__ = ["main"]

WARM_BOUND = 1.2
COLD, WARM, REGENERATED, EDITED = "cold", "warm", "regenerated", "edited at half"
CACHED_KINDS = (WARM, REGENERATED, EDITED)
FULL_ROUNDS, QUICK_ROUNDS = 15, 3
SMALLEST_ID, LARGEST_ID = 1_000, 40_000  # ordinary tokens in the vocabulary of any chat model


class Timed(NamedTuple):
    """One request: seconds to the first token, prompt positions computed, tokens generated."""

    seconds: float
    num_computed: int
    token_ids: list[int]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("ttft", __doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds; written only with --json")
    parser.add_argument("--rounds", type=int, help=f"how many rounds (default: {FULL_ROUNDS})")
    parser.add_argument("--history-tokens", type=int, default=256, help="length of a history (default: 256)")
    parser.add_argument("--reply-tokens", type=int, default=16, help="length of a reply (default: 16)")
    parser.add_argument("--turn-tokens", type=int, default=24, help="length of a new turn (default: 24)")
    parser.add_argument("--separate", action="store_true", help="service and worker in processes of their own")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the token ids (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/ttft.json on a full run)")
    return parser.parse_args(arguments)


class Bench:
    """Rounds of requests against one generator."""

    def __init__(self, generator: Generator, options: argparse.Namespace) -> None:
        self._generator = generator
        self._options = options
        self._source = random.Random(options.seed)
        self._num_namespaces = 0
        self.samples: dict[str, list[float]] = {}
        self.num_computed: dict[str, int] = {}

    def _random_ids(self, num_tokens: int) -> list[int]:
        return self._source.choices(range(SMALLEST_ID, LARGEST_ID), k=num_tokens)

    def _request(self, prompt: list[int], num_cached: range, namespace: str, max_tokens: int = 1) -> Timed:
        """Generate, and check the number of prompt tokens found."""
        from radixkv.generation.params import SamplingParams
        from radixkv.generation.request import GenerateParams
        from radixkv.generation.stream import Delta

        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        params = GenerateParams(token_ids=prompt, sampling=sampling, namespace=namespace)
        started_s = perf_counter()
        first_s = None
        token_ids: list[int] = []
        stream = self._generator.generate(params)
        for event in stream:
            if isinstance(event, Delta):
                first_s = first_s or perf_counter()
                token_ids.extend(event.token_ids)
        if first_s is None or stream.usage is None or stream.usage.num_cached_tokens not in num_cached:
            raise AssertionError(f"{stream.usage}: {num_cached} of {len(prompt)} prompt tokens should be cached")
        return Timed(first_s - started_s, len(prompt) - stream.usage.num_cached_tokens, token_ids)

    def _alone(self, num_tokens: int) -> float:
        """Seconds to the first token of a prompt of that length in an empty tree."""
        self._num_namespaces += 1
        prompt = self._random_ids(num_tokens)
        return self._request(prompt, range(1), f"alone-{self._num_namespaces}").seconds

    def warm_up(self) -> None:
        """Set up once: threads, buffers, the first steps of every shape."""
        self._alone(self._options.history_tokens)
        self._alone(self._options.turn_tokens)
        self._alone(1)

    def round(self, number: int) -> None:
        """Run every kind once on a new history, each with its suffix alone, in rotating order."""
        options = self._options
        history = self._random_ids(options.history_tokens)
        half = len(history) // 2  # a random id may equal the replaced one: hence the ranges of 2
        cold = self._request(history, range(2), "chat", options.reply_tokens)
        self._note(COLD, cold.seconds, cold.num_computed)
        grown = len(history) + len(cold.token_ids)
        cases = {
            # The last sampled token of a reply has no KV yet.
            WARM: (history + cold.token_ids + self._random_ids(options.turn_tokens), range(grown - 1, grown + 1)),
            REGENERATED: (history, range(len(history) - 1, len(history))),
            EDITED: (history[:half] + self._random_ids(options.turn_tokens), range(half, half + 2)),
        }
        for turn in range(len(CACHED_KINDS)):
            kind = CACHED_KINDS[(number + turn) % len(CACHED_KINDS)]
            prompt, num_cached = cases[kind]
            alone_first = self.num_computed.get(kind) if number % 2 else None
            if alone_first is not None:
                self._note(f"{kind}, suffix alone", self._alone(alone_first), alone_first)
            timed = self._request(prompt, num_cached, "chat")
            self._note(kind, timed.seconds, timed.num_computed)
            if alone_first is None:
                self._note(f"{kind}, suffix alone", self._alone(timed.num_computed), timed.num_computed)

    def _note(self, kind: str, seconds: float, num_computed: int) -> None:
        self.samples.setdefault(kind, []).append(seconds)
        self.num_computed[kind] = num_computed


def blocks_needed(options: argparse.Namespace, num_rounds: int) -> int:
    """Size of a pool without evictions."""
    per_round: int = options.history_tokens + options.reply_tokens + 4 * options.turn_tokens + 16 * BLOCK_SIZE
    return (num_rounds + 2) * per_round // BLOCK_SIZE


def make_report(bench: Bench, options: argparse.Namespace, model: str) -> Report:
    summaries = {kind: summarise(samples, 1e3) for kind, samples in bench.samples.items()}
    ratios = {kind: summaries[kind].p50 / summaries[f"{kind}, suffix alone"].p50 for kind in CACHED_KINDS}
    rows: list[tuple[str, ...]] = []
    for kind in (COLD, *CACHED_KINDS):
        alone = summaries.get(f"{kind}, suffix alone")
        cells = ("-", "-") if alone is None else (f"{alone.p50:.1f}", f"{ratios[kind]:.2f}")
        row = (
            kind,
            f"{bench.num_computed[kind]:,}",
            f"{summaries[kind].p50:.1f}",
            f"{summaries[kind].p99:.1f}",
            *cells,
        )
        rows.append(row)
    columns = ("request", "computed", "ms to first token p50", "p99", "suffix alone p50", "ratio")
    title = f"{options.history_tokens:,} tokens of history, a turn of {options.turn_tokens}, {summaries[COLD].n} rounds"
    report = Report("ttft", options.seed, tables=[Table(title, columns, rows)])
    note = f"{summaries[WARM].p50:.1f} ms"
    report.bars = [Bar("warm / its uncached suffix alone", ratios[WARM], WARM_BOUND, "x", reason=note)]
    report.figures = {
        "unit": "milliseconds",
        "model": Path(model).name,
        "dtype": options.dtype,
        "way": "service + worker" if options.separate else "in process",
        "history_tokens": options.history_tokens,
        "reply_tokens": options.reply_tokens,
        "turn_tokens": options.turn_tokens,
        "num_computed": bench.num_computed,
        "times": {kind: summary._asdict() for kind, summary in summaries.items()},
        "ratio_to_suffix_alone": ratios,
    }
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    num_rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    model = resolve_model(options.model)
    open_stack = separate_processes if options.separate else engine_in_process
    with open_stack(model, blocks_needed(options, num_rounds), options.dtype) as stack:
        bench = Bench(stack.generator, options)
        bench.warm_up()
        progress = Progress("rounds", num_rounds)
        for number in range(num_rounds):
            bench.round(number)
            progress.advance()
        if stack.num_evicted_blocks():
            raise AssertionError("blocks were evicted: the pool is too small for this run")
    is_full = not options.quick and options.rounds is None
    path = options.json or (RESULTS_DIR / "ttft.json" if is_full else None)
    return make_report(bench, options, model).finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

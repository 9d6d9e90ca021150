"""The cost of trying grammars in a separate process, and its protection, with the tokenizer of SmolLM2-135M-Instruct.

Grammars that programs request, in turns on one thread:

    direct        validated and compiled in the worker's process, without bounds on time and memory
    first use     tried, compiled, and instantiated as a matcher
    second use    a matcher of the kept grammar

Grammars made to be costly: time until one is accepted or refused, growth of the worker's process during it, and the slowest
mask of random replies for accepted ones.

    python -m bench.grammar            a minute on an idle machine
    python -m bench.grammar --quick    3 rounds and 8 of the costly ones; judges nothing

Milliseconds of wall time, medians; for masks CPU time.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, summarise
from bench.grammar.hostile_grammars import HONEST, HOSTILE
from radixkv.core.errors import RadixKVError
from radixkv.generation.params import Grammar
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.sampling.grammar import CompiledMatcher, GrammarCompiler
from radixkv.worker.sampling.grammar_source import grammar_source, new_matcher

__all__ = ["main"]

SEED = 1
VOCAB_SIZE, EOS = 49152, 2
NUM_ROUNDS, QUICK_ROUNDS = 30, 3
NUM_QUICK_HOSTILE = 8
NUM_REPLIES, NUM_TOKENS = 4, 100
FIRST_BOUND_MS, SECOND_BOUND_MS = 30.0, 1.0
VERDICT_BOUND_S, GROWTH_BOUND_MIB, MASK_BOUND_MS = 15.0, 64.0, 50.0

_NOT_ZERO = re.compile(rb"[^\0]")


class Met(NamedTuple):
    """A costly grammar: seconds until the verdict, the verdict, growth of the process; the slowest mask if it was accepted."""

    verdict_s: float
    verdict: str
    growth_mib: float
    slowest_mask_ms: float | None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("grammar", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/grammar.json on a full run)")
    return parser.parse_args(arguments)


def measure_honest(compiler: GrammarCompiler, trie: Any, num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples in ms by grammar and way. A separate namespace per round makes its first use a first one."""
    from llguidance import LLMatcher

    def direct(grammar: Grammar) -> None:
        source = grammar_source(grammar)
        assert not LLMatcher.validate_grammar(source, trie)
        assert not new_matcher(source, trie).is_error()

    samples: dict[str, dict[str, list[float]]] = {name: {"direct": [], "first": [], "second": []} for name in HONEST}
    for grammar in HONEST.values():
        compiler.matcher(grammar, "before")  # one run of each way before timing
        direct(grammar)
    progress = Progress("honest", num_rounds * len(HONEST))
    for number in range(num_rounds):
        for name, grammar in HONEST.items():
            namespace = f"round {number}"
            ways: list[tuple[str, Callable[[], Any]]] = [
                ("direct", partial(direct, grammar)),
                ("first", partial(compiler.matcher, grammar, namespace)),
            ]
            for way, call in ways if number % 2 else reversed(ways):
                samples[name][way].append(_timed_ms(call))
            samples[name]["second"].append(_timed_ms(partial(compiler.matcher, grammar, namespace)))
            progress.advance()
    return samples


def _timed_ms(call: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e3


def meet(compiler: GrammarCompiler, grammar: Grammar) -> Met:
    """Request a costly grammar, and follow it if it is accepted."""
    before_mib = _resident_mib()
    began_s = time.perf_counter()
    try:
        matcher = compiler.matcher(grammar, "costly")
    except RadixKVError as error:
        verdict_s = time.perf_counter() - began_s
        verdict = str(error).rpartition("it must be ")[2].partition(":")[0]
        return Met(verdict_s, verdict[:60], _resident_mib() - before_mib, None)
    verdict_s = time.perf_counter() - began_s
    slowest_ms = max(_slowest_mask_ms(matcher.copy(), random.Random(seed)) for seed in range(NUM_REPLIES))
    return Met(verdict_s, "taken", _resident_mib() - before_mib, slowest_ms)


def _slowest_mask_ms(matcher: CompiledMatcher, rng: random.Random) -> float:
    slowest_ms = 0.0
    for _ in range(NUM_TOKENS):
        began_s = time.thread_time()
        mask = matcher.allowed()
        slowest_ms = max(slowest_ms, (time.thread_time() - began_s) * 1e3)
        found = _NOT_ZERO.search(mask, rng.randrange(len(mask))) or _NOT_ZERO.search(mask)
        if matcher.fault or found is None:
            break
        place = found.start()
        token_id = place * 8 + rng.choice([bit for bit in range(8) if mask[place] >> bit & 1])
        if token_id == EOS or not matcher.take(token_id) or matcher.is_over:
            break
    return slowest_ms


def _resident_mib() -> float:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def report_honest(report: Report, samples: dict[str, dict[str, list[float]]]) -> None:
    """The table, and the judged value: the largest difference of medians."""
    rows, more_ms, second_ms = [], [], []
    for name, of_name in samples.items():
        by_way = {way: summarise(values) for way, values in of_name.items()}
        report.figures[name] = {way: summary._asdict() for way, summary in by_way.items()}
        more_ms.append(by_way["first"].p50 - by_way["direct"].p50)
        second_ms.append(by_way["second"].p50)
        rows.append((name, *(f"{by_way[way].p50:.2f}" for way in ("direct", "first", "second")), f"{more_ms[-1]:+.2f}"))
    report.tables.append(
        Table("what programs ask for, ms", ("grammar", "direct", "first use", "second use", "first - direct"), rows)
    )
    report.bars.append(Bar("first use, more than direct", max(more_ms), FIRST_BOUND_MS, " ms"))
    report.bars.append(Bar("second use", max(second_ms), SECOND_BOUND_MS, " ms"))


def report_hostile(report: Report, met: dict[str, Met]) -> None:
    """The table and its bars."""
    report.figures["hostile"] = {name: one._asdict() for name, one in met.items()}
    rows: list[tuple[str, ...]] = [
        (
            name,
            f"{one.verdict_s:.2f}",
            f"{one.growth_mib:+.0f}",
            "-" if one.slowest_mask_ms is None else f"{one.slowest_mask_ms:.1f}",
            one.verdict,
        )
        for name, one in met.items()
    ]
    columns = ("grammar", "verdict after s", "worker MiB", "slowest mask ms", "verdict")
    report.tables.append(Table("what is made to cost much", columns, rows))
    masks = [one.slowest_mask_ms for one in met.values() if one.slowest_mask_ms is not None]
    report.bars += [
        Bar("longest until a verdict", max(one.verdict_s for one in met.values()), VERDICT_BOUND_S, " s"),
        Bar("growth of the worker with one", max(one.growth_mib for one in met.values()), GROWTH_BOUND_MIB, " MiB"),
        Bar("slowest mask", max(masks), MASK_BOUND_MS, " ms"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write; see the module."""
    from llguidance import LLTokenizer

    told = parse(arguments)
    tokenizer = ChatText(resolve_model(None)).tokenizer
    trie = LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=VOCAB_SIZE, eos_token=[EOS])
    report = Report("grammar", SEED)
    with closing(GrammarCompiler(tokenizer, VOCAB_SIZE, [EOS])) as compiler:
        report_honest(report, measure_honest(compiler, trie, QUICK_ROUNDS if told.quick else NUM_ROUNDS))
        costly = list(HOSTILE.items())[: NUM_QUICK_HOSTILE if told.quick else None]
        met = {}
        progress = Progress("costly", len(costly))
        for name, grammar in costly:
            met[name] = meet(compiler, grammar)
            progress.advance()
        report_hostile(report, met)
    path = told.json or (None if told.quick else RESULTS_DIR / "grammar.json")
    return report.finish(path, is_quick=told.quick)

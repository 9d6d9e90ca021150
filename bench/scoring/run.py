"""Multiple choice under one few-shot prefix, as in lm_eval: questions a second, compared with llama.cpp and transformers.

Every choice of every question is a separate request for its likelihood after the prefix and the question:

    radixkv         lm_eval's `local-completions`: whole token ids, echo, logprobs 1, max_tokens 1, over HTTP
    llama.cpp       its server reports no log probability of a prompt (echo is refused): a grammar of token ids forces it to
                    generate the choice, and it reports each token's probability without the grammar
    transformers    lm_eval's `hf`: whole sequences in padded batches, in this process, no cache across requests

First a few questions are scored in fp32, and compared with transformers in fp32. Then the systems take turns, a slice of the
questions each, with the default model in each system's best form: radixkv by default, llama.cpp from 8 bits, transformers in
bf16. The slower ones score a share of each slice, and rates are compared. Each server scores some other questions first, so
that all its slots have the shots in the cache.

    python -m bench.scoring --peer fetch         1,000 questions, llama.cpp fetched if missing: some ten minutes
    python -m bench.scoring --questions 100      fewer
    python -m bench.scoring --quick              a few, without llama.cpp: a minute
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.scoring.systems import CONCURRENCY, Choice, Plain, Score, llama, radixkv
from bench.serving.llama_files import LlamaFiles, find_llama
from bench.tree.wheel import PeerMissingError

__all__ = ["main"]

OURS, LLAMA, TRANSFORMERS = "radixkv", "llama.cpp", "transformers"
NUM_QUESTIONS, NUM_SHOTS, NUM_CHOICES = 1000, 12, 4
NUM_SLICES, LEAST_SLICE = 5, 20
"""Slices, and the fewest questions of one that is worth a turn."""

NUM_COMPARED = 6
NUM_WARMING = 2 * CONCURRENCY // NUM_CHOICES
"""Questions scored first by a server: enough for each of its slots."""

SHARES = {OURS: 1, LLAMA: 10, TRANSFORMERS: 50}
"""A system scores one of so many questions of a slice; transformers computes the prefix again for each choice."""

MOST_APART = 1e-3
LEAST_RATIO = 5.0
WORDS = (
    *("river", "stone", "cloud", "lamp", "bread", "paper", "seven", "quiet", "north", "garden", "letter", "winter"),
    *("the", "a", "of", "under", "behind", "holds", "reads", "carries", "finds", "an old", "a green", "many"),
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("scoring", __doc__)
    parser.add_argument("--questions", type=int, default=NUM_QUESTIONS, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="few questions, without llama.cpp")
    parser.add_argument("--peer", choices=("use", "fetch"), default="use", help="whether llama.cpp may be fetched")
    parser.add_argument("--seed", type=int, default=7, help="of the questions (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/scoring.json on a full run)")
    return parser.parse_args(arguments)


def make_questions(model: str, count: int, seed: int) -> tuple[list[int], list[list[Choice]]]:
    """The shots, and per question its choices after them."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    draws = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(draws.choices(WORDS, k=draws.randint(least, most)))

    def question() -> str:
        return f"Question: {words(20, 40)}?\nAnswer:"

    shots = tokenizer.encode("".join(f"{question()} {words(2, 5)}.\n\n" for _ in range(NUM_SHOTS)))
    questions = []
    for _ in range(count):
        context = [*shots, *tokenizer.encode(question())]
        questions.append([Choice(context, tokenizer.encode(f" {words(2, 5)}")) for _ in range(NUM_CHOICES)])
    return shots, questions


def compare(model: str, questions: Sequence[Sequence[Choice]]) -> float:
    """Largest difference of log-likelihoods in fp32 from those of transformers; each is requested twice, cold and warm."""
    choices = [choice for question in questions for choice in question]
    expected = Plain(model, "float32").score(choices)
    apart = 0.0
    with radixkv(model, "--dtype", "float32", "--quantization", "none", "--num-blocks", "512") as ask:
        for _ in range(2):
            for choice, wanted in zip(choices, expected, strict=True):
                apart = max(apart, abs(ask(choice).logprob - wanted.logprob))
    return apart


class Run:
    """One system's questions so far."""

    def __init__(self) -> None:
        self.scores: dict[int, list[Score]] = {}
        self.seconds = 0.0

    def take(self, numbers: Sequence[int], answer: Callable[[Sequence[int]], list[list[Score]]]) -> None:
        start_s = time.perf_counter()
        scores = answer(numbers)
        self.seconds += time.perf_counter() - start_s
        self.scores.update(zip(numbers, scores, strict=True))

    @property
    def rate(self) -> float:
        """Questions a second."""
        return len(self.scores) / self.seconds

    @property
    def num_computed(self) -> int:
        return sum(score.num_computed or 0 for scores in self.scores.values() for score in scores)

    def alike(self, other: Run) -> float:
        """Share of the common questions to which both systems give the same answer."""
        shared = self.scores.keys() & other.scores.keys()
        same = [_best(self.scores[number]) == _best(other.scores[number]) for number in shared]
        return sum(same) / len(same)


def _best(scores: Sequence[Score]) -> int:
    return max(range(len(scores)), key=lambda index: scores[index].logprob)


def measure(
    model: str, questions: Sequence[Sequence[Choice]], files: LlamaFiles | None, num_slices: int
) -> dict[str, Run]:
    """Run the systems in turn, slice by slice; the last `NUM_WARMING` questions only put the shots into the servers' caches."""
    plain = Plain(model, "bfloat16")
    asked, warming = len(questions) - NUM_WARMING, range(len(questions) - NUM_WARMING, len(questions))
    size = -(-asked // num_slices)
    with ExitStack() as stack, ThreadPoolExecutor(CONCURRENCY) as threads:
        asks = {OURS: stack.enter_context(radixkv(model))}
        if files is not None:
            asks[LLAMA] = stack.enter_context(llama(files))
        runs = {name: Run() for name in (*asks, TRANSFORMERS)}
        progress = Progress("slices", num_slices * len(runs))

        def over_http(name: str, numbers: Sequence[int]) -> list[list[Score]]:
            found = list(threads.map(asks[name], [choice for number in numbers for choice in questions[number]]))
            return [found[at : at + NUM_CHOICES] for at in range(0, len(found), NUM_CHOICES)]

        def in_process(numbers: Sequence[int]) -> list[list[Score]]:
            return [plain.score(questions[number]) for number in numbers]

        answers = {name: partial(over_http, name) for name in asks} | {TRANSFORMERS: in_process}
        for name in asks:
            over_http(name, warming)
        for start in range(0, asked, size):
            numbers = range(start, min(start + size, asked))
            for name, answer in answers.items():
                runs[name].take(numbers[: -(-len(numbers) // SHARES[name])], answer)
                progress.advance()
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    from radixkv.worker.loading.default_model import resolve_model

    model = resolve_model(None, progress=True)
    count = 4 if options.quick else options.questions
    num_slices = max(1, min(NUM_SLICES, count // LEAST_SLICE))
    files, why_missing = None, "left out by --quick"
    if not options.quick:
        try:
            files, why_missing = find_llama(options.peer == "fetch"), ""
        except PeerMissingError as error:
            why_missing = str(error)
            print(f"without {LLAMA}: {error}", file=sys.stderr)
    shots, questions = make_questions(model, count + NUM_WARMING, options.seed)
    apart = compare(model, questions[: max(2, min(NUM_COMPARED, count // 10))])
    runs = measure(model, questions, files, num_slices)
    num_own = sum(
        len(question[0].context) - len(shots) + sum(len(choice.continuation) for choice in question)
        for question in questions[:count]
    )
    bars = [
        Bar("log-likelihoods apart from transformers' in fp32", apart, MOST_APART),
        Bar(
            "prompt tokens computed, by those of the questions and choices and one for each request",
            runs[OURS].num_computed / (num_own + NUM_CHOICES * count),
            1.0,
        ),
    ]
    ratio = runs[OURS].rate / runs[LLAMA].rate if LLAMA in runs else None
    bars.append(Bar("questions a second, by llama.cpp's", ratio, LEAST_RATIO, at_least=True, reason=why_missing))
    rows = [
        (
            name,
            f"{len(run.scores):,}",
            f"{run.rate:.2f}",
            f"{run.num_computed / len(run.scores):,.1f}",
            f"{run.alike(runs[TRANSFORMERS]):.0%}",
        )
        for name, run in runs.items()
    ]
    columns = ("system", "questions", "questions a second", "tokens computed for one", "best as by transformers")
    title = f"{count:,} questions, {NUM_CHOICES} choices each, behind {len(shots):,} tokens of shots"
    figures = {
        "questions": count,
        "shots_tokens": len(shots),
        "own_tokens": num_own,
        "apart": apart,
        "systems": {
            name: {"questions": len(r.scores), "seconds": r.seconds, "rate": r.rate} for name, r in runs.items()
        },
    }
    report = Report("scoring", options.seed, figures, bars, [Table(title, columns, rows)])
    is_full = not options.quick and options.questions == NUM_QUESTIONS
    return report.finish(options.json or (RESULTS_DIR / "scoring.json" if is_full else None), is_quick=options.quick)

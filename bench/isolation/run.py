"""Does the time of a reply reveal to one tenant what another has cached, or what another was answered?

Two paths: the worker's `Generate` with two namespaces, and the gateway over HTTP with two keys. Each pair has new prompts of
random tokens. Tenant A has one of them computed; then, in random order,

    known     tenant B sends A's prompt
    fresh     tenant B sends a new prompt of the same length
    own       tenant A sends its own prompt again: a hit that the same test must detect

    difference    known - fresh, pair by pair: 0 if nothing is revealed
    gap           fresh - own: the gain of a hit

A reply is one token. With `--replies` prompts are short and replies long, drawn with one seed: A's own reply comes again from
drafts of its first one, and B, which gets the very same reply, must have none of them.

The criterion was fixed before any measurement: the mean of the differences without a fifth at either end, and its 95% interval
by bootstrap over the pairs; both ends must be within 1% of the gap, and the gap's interval above half of it. Noise of the
machine widens the interval: the table has the number of pairs that would have been enough. The shorter the prompts, the less
slow changes of the machine affect a pair; and the worker computes on one core, unless OMP_NUM_THREADS is set, so that the
clients have another.

    python -m bench.isolation             600 pairs each way, prompts of 256 tokens (half an hour on two quiet cores)
    python -m bench.isolation --replies   600 pairs each way, prompts and replies of 32 tokens
    python -m bench.isolation --quick     3 pairs, a smoke test

With `--neighbour` the question is another: does a tenant's first token come late because of another tenant, possibly a hostile
one? See `bench.hostile`.

    python -m bench.isolation --neighbour [--quick]

The number of computed tokens is checked on every request: all of B's prompts, only the last token of A's own. Exit code of a
full run: 0 if the bars are met, otherwise 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.common.stacks import BLOCK_SIZE, separate_services
from bench.isolation.ways import TENANTS, Ask, gateway, over_grpc, over_http
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["interval", "main", "trimmed_mean"]

FULL_PAIRS, QUICK_PAIRS = 600, 3
PROMPT_TOKENS = 256
SHORT_TOKENS, REPLY_TOKENS = 32, 32
"""Of prompts and replies, with `--replies`."""
BOUND = 0.01
TRIMMED = 0.2
NUM_RESAMPLES = 4000
SMALLEST_ID, LARGEST_ID = 1_000, 40_000


class Pair(NamedTuple):
    """Seconds to the last token of the three probes, and their tokens that were drafted."""

    known_s: float
    fresh_s: float
    own_s: float
    known_drafted: int
    fresh_drafted: int
    own_drafted: int


def trimmed_mean(samples: Sequence[float]) -> float:
    """The mean without the lowest and the highest fifth."""
    ordered = sorted(samples)
    cut = int(TRIMMED * len(ordered))
    kept = ordered[cut : len(ordered) - cut]
    return sum(kept) / len(kept)


def interval(samples: Sequence[float], seed: int) -> tuple[float, float]:
    """The 95% interval of the trimmed mean, by bootstrap."""
    source = random.Random(seed)
    means = sorted(trimmed_mean(source.choices(samples, k=len(samples))) for _ in range(NUM_RESAMPLES))
    return means[int(0.025 * NUM_RESAMPLES)], means[int(0.975 * NUM_RESAMPLES) - 1]


class Prompts:
    """Prompts of `num_tokens` random ids, with distinct first ids, so that no two share a prefix by chance."""

    def __init__(self, source: random.Random, num_tokens: int) -> None:
        self.source = source
        self.num_tokens = num_tokens
        self._firsts = iter(source.sample(range(SMALLEST_ID, LARGEST_ID), LARGEST_ID - SMALLEST_ID))

    def draw(self) -> list[int]:
        """Draw the next one."""
        more = (self.source.randint(SMALLEST_ID, LARGEST_ID) for _ in range(self.num_tokens - 1))
        return [next(self._firsts), *more]


def measure(ask: Ask, prompts: Prompts) -> Pair:
    """Measure one pair."""
    source, num_tokens = prompts.source, prompts.num_tokens
    owner, prober = source.sample(TENANTS, 2)
    known, fresh = prompts.draw(), prompts.draw()
    ask(owner, known)
    probes = {"known": (prober, known), "fresh": (prober, fresh), "own": (owner, known)}
    seconds, drafted = {}, {}
    for name in source.sample(sorted(probes), 3):
        tenant, prompt = probes[name]
        seconds[f"{name}_s"], num_cached, drafted[f"{name}_drafted"] = ask(tenant, prompt)
        expected = num_tokens - 1 if name == "own" else 0
        if num_cached != expected:
            raise AssertionError(f"{name}: {num_cached} tokens were found in the cache, expected {expected}")
    return Pair(**seconds, **drafted)


def judge(way: str, pairs: list[Pair], made: Report) -> tuple[str, ...]:
    """Add bars and figures of one path. Returns its row of the table."""
    differences = [pair.known_s - pair.fresh_s for pair in pairs]
    gaps = [pair.fresh_s - pair.own_s for pair in pairs]
    gap, (gap_low, gap_high) = trimmed_mean(gaps), interval(gaps, made.seed)
    low, high = interval(differences, made.seed)
    farthest = max(abs(low), abs(high)) / gap
    needed = len(pairs) * ((high - low) / 2 / (BOUND * gap)) ** 2
    made.figures[way] = {
        "num_pairs": len(pairs),
        "gap_s": gap,
        "gap_interval_s": [gap_low, gap_high],
        "difference_s": trimmed_mean(differences),
        "difference_interval_s": [low, high],
        "farthest_of_gap": farthest,
        "pairs_for_half_width": round(needed),
        **{
            name: sum(getattr(pair, name) for pair in pairs)
            for name in ("known_drafted", "fresh_drafted", "own_drafted")
        },
        "pairs": pairs,
    }
    made.bars += [
        Bar(f"{way}: farthest end of the difference's interval / gap", farthest, BOUND),
        Bar(f"{way}: lower end of the gap's interval / gap", gap_low / gap, 0.5, at_least=True),
    ]
    cells = (
        f"{1000 * gap:.0f}",
        f"{1000 * low:+.2f} to {1000 * high:+.2f}",
        f"{100 * farthest:.2f}%",
        f"{needed:,.0f}",
    )
    return (way, str(len(pairs)), *cells)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("isolation", __doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test; written only with --json")
    parser.add_argument("--pairs", type=int, help=f"each way (default: {FULL_PAIRS})")
    parser.add_argument("--replies", action="store_true", help="long replies, which drafts shorten")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        help=f"length of a prompt (default: {PROMPT_TOKENS}, with --replies {SHORT_TOKENS})",
    )
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="auto", help="as of radixkv worker (default: auto)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and order (default: 0)")
    parser.add_argument("--json", type=Path, help="where to write (default: in bench/results on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--neighbour" in given:
        from bench.hostile.run import main as attack_neighbour

        return attack_neighbour([each for each in given if each != "--neighbour"])
    options = parse(given)
    num_pairs = options.pairs or (QUICK_PAIRS if options.quick else FULL_PAIRS)
    num_tokens = options.prompt_tokens or (SHORT_TOKENS if options.replies else PROMPT_TOKENS)
    num_reply_tokens = REPLY_TOKENS if options.replies else 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    model = resolve_model(None if options.model == "default" else options.model)
    num_blocks = 16 * ((num_tokens + num_reply_tokens) // BLOCK_SIZE + 2)
    source = random.Random(options.seed)
    prompts = Prompts(source, num_tokens)
    found: dict[str, list[Pair]] = {"gRPC": [], "HTTP": []}
    with (
        separate_services(model, num_blocks, options.dtype) as (client, reader),
        gateway(client.address) as address,
    ):
        ways = {
            "gRPC": over_grpc(client, num_reply_tokens),
            "HTTP": over_http(address, client.model().name, num_reply_tokens),
        }
        for ask in ways.values():
            measure(ask, prompts)  # the first forward of a process takes longer
        progress = Progress("pairs", num_pairs)
        for _ in range(num_pairs):
            for way in source.sample(sorted(ways), 2):
                found[way].append(measure(ways[way], prompts))
                for usage in reader.usage():  # so that nothing is evicted, and the pool is equally full for each pair
                    reader.clear(usage.namespace)
            progress.advance()
    name = "isolation_replies" if options.replies else "isolation"
    made = Report(name, options.seed)
    made.figures |= {"num_prompt_tokens": num_tokens, "num_reply_tokens": num_reply_tokens}
    rows = [judge(way, pairs, made) for way, pairs in found.items()]
    columns = ("way in", "pairs", "gap ms", "difference ms, 95%", "farthest / gap", "pairs that 1% takes")
    made.tables.append(Table("time of the reply to another tenant's prompt, compared with a fresh one", columns, rows))
    path = options.json or (None if options.quick else RESULTS_DIR / f"{name}.json")
    return made.finish(path, is_quick=options.quick)

"""Whether caching changes a model's replies: real conversation trees against transformers' `generate` without our code.

Every root-to-leaf path of the trees is one request: the path's messages in the model's chat template, then 24 greedy
tokens in fp32 (the end-of-reply token does not end them). Requests come one after another in an order that branches:
shuffled over the paths of a tree, the trees taking turns. Nothing is evicted.

    tokens     Each must equal the reference's. After a difference both continue from the reference's token, and the gap of
               the reference's two largest logits there is printed: a small gap is a tie decided by rounding.
    computed   Positions of a prompt run through the model: those missing in every earlier history, and at most 1 more (the
               last sampled token of a history has no KV yet). A dictionary of all prefixes has the expected counts.

Both are reported twice: engine and cache in this process, and through a separate `radixkv serve` and `radixkv worker`,
which must give the same tokens and the same counts.

    python -m bench.faithful              20 trees, both ways: some 15 minutes on two cores, including the reference, whose
                                          results are kept in the user's cache folder
    python -m bench.faithful --trees 1    a smoke test

Exit code: 0 if every bar is met, otherwise 1; 2 if the conversation trees are missing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from bench.common.conversations import Histories, WorkloadMissingError, branching_order, default_workloads, read_trees
from bench.common.reference import ReferenceAnswers
from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser
from bench.common.stacks import BLOCK_SIZE, Stack, engine_in_process, generate_greedy, separate_processes
from bench.faithful.follow import NUM_TOKENS, Outcome, Request, follow
from radixkv.util.folders import cache_folder
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["main"]

MAX_DIFFERING_PERCENT = 0.1
IN_PROCESS, SEPARATE = "in process", "service + worker"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("faithful", __doc__)
    parser.add_argument(
        "--trees", type=int, default=20, help="how many trees, those of short paths first (default: 20)"
    )
    parser.add_argument("--max-path-tokens", type=int, default=1024, help="leave longer paths out (default: 1,024)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--model", default="default", help="Hugging Face id or folder (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--only", choices=[IN_PROCESS, SEPARATE], help="one of the two ways alone")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of requests (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/faithful.json with 20+ trees)"
    )
    return parser.parse_args(arguments)


def choose_requests(options: argparse.Namespace, text: ChatText) -> tuple[list[Request], int, int]:
    """Requests in order, the number of their trees, and the number of paths left out as too long."""
    trees = []
    for tree in read_trees(options.workloads):
        prompts = [text.prompt_ids(path) for path in tree.paths]
        trees.append((max(map(len, prompts)), tree.tree_id[:8], prompts))
    chosen = sorted(trees)[: options.trees]
    order = branching_order([len(prompts) for _, _, prompts in chosen], random.Random(options.seed))
    requests = [Request(f"{chosen[tree][1]}/{path}", chosen[tree][2][path]) for tree, path in order]
    kept = [request for request in requests if len(request.prompt) <= options.max_path_tokens]
    return kept, len(chosen), len(requests) - len(kept)


def blocks_needed(requests: Sequence[Request]) -> int:
    """A pool without evictions: the distinct prompt tokens, and per request its reply, twice, in separate blocks."""
    prompts = Histories()
    for request in requests:
        prompts.add(request.prompt)
    per_request = 2 * (NUM_TOKENS // BLOCK_SIZE + 3)
    return len(prompts) // BLOCK_SIZE + len(requests) * per_request + 64


def run(opened: AbstractContextManager[Stack], way: str, requests: Sequence[Request], reference: Any) -> Outcome:
    """Run all requests, one after another."""
    outcome, held = Outcome(), Histories()
    with opened as stack:
        progress = Progress(way, len(requests))
        started_s = time.monotonic()
        generate = partial(generate_greedy, stack.generator)
        for request in requests:
            follow(generate, request, reference[request.prompt], held, outcome)
            progress.advance()
        outcome.seconds = time.monotonic() - started_s
        outcome.num_evicted = stack.num_evicted_blocks()
    return outcome


def bars(outcomes: dict[str, Outcome]) -> list[Bar]:
    found = []
    for way, outcome in outcomes.items():
        percent = 100 * len(outcome.differences) / outcome.num_tokens
        note = f"{len(outcome.differences)} of {outcome.num_tokens:,}"
        found.append(Bar(f"{way}: tokens that differ", percent, MAX_DIFFERING_PERCENT, "%", reason=note))
        found.append(Bar(f"{way}: requests that computed other than what was new", len(outcome.miscounted), 0))
        found.append(Bar(f"{way}: blocks evicted", outcome.num_evicted, 0))
    if len(outcomes) == 2:
        one, other = outcomes[IN_PROCESS].answers, outcomes[SEPARATE].answers
        num_unequal = sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
        found.append(Bar("generations whose tokens or counts differ between the two ways", num_unequal, 0))
    return found


def table(outcomes: dict[str, Outcome]) -> Table:
    rows = []
    for way, outcome in outcomes.items():
        cached = sum(answer.num_cached for answer in outcome.answers)
        computed = sum(answer.num_computed for answer in outcome.answers)
        counts = [outcome.num_tokens, len(outcome.differences), cached, computed, outcome.num_new]
        rows.append((way, *(f"{count:,}" for count in counts), f"{outcome.seconds:.0f}"))
    columns = ("way", "tokens compared", "differ", "prompt cached", "computed", "new", "seconds")
    return Table("prompt tokens cached, computed, and new to every earlier history", columns, rows)


def print_findings(way: str, outcome: Outcome) -> None:
    for difference in outcome.differences:
        print(
            f"{way}: {difference.request} token {difference.position}: {difference.token_id} in place of "
            f"{difference.reference_id}, top-two logit gap {difference.gap:.2e}"
        )
    for line in outcome.miscounted:
        print(f"{way}: {line}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    model = resolve_model(options.model)
    try:
        requests, num_trees, num_left_out = choose_requests(options, ChatText(model))
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    num_prompt_tokens = sum(len(request.prompt) for request in requests)
    print(
        f"{num_trees} trees, {len(requests)} paths, {num_prompt_tokens:,} prompt tokens, "
        f"{num_left_out} paths left out as longer than {options.max_path_tokens:,} tokens",
        file=sys.stderr,
    )
    prompts = [request.prompt for request in requests]
    reference = ReferenceAnswers(model, NUM_TOKENS, cache_folder(os.environ) / "bench")
    missing = reference.missing(prompts)
    reference.compute(missing, Progress("reference", len(missing)).advance)

    num_blocks = blocks_needed(requests)
    stacks = {IN_PROCESS: engine_in_process, SEPARATE: separate_processes}
    outcomes: dict[str, Outcome] = {}
    for way in [options.only] if options.only else stacks:
        outcomes[way] = run(stacks[way](model, num_blocks, "float32"), way, requests, reference)
        print_findings(way, outcomes[way])

    report = Report("faithful", options.seed, bars=bars(outcomes), tables=[table(outcomes)])
    report.figures = {
        "model": Path(model).name,
        "dtype": "float32",
        "num_trees": num_trees,
        "num_paths": len(requests),
        "num_paths_left_out": num_left_out,
        "num_prompt_tokens": num_prompt_tokens,
        "ways": {
            way: {
                "num_tokens": outcome.num_tokens,
                "differences": [difference._asdict() for difference in outcome.differences],
                "miscounted": outcome.miscounted,
                "num_cached": sum(answer.num_cached for answer in outcome.answers),
                "num_computed": sum(answer.num_computed for answer in outcome.answers),
                "num_new": outcome.num_new,
                "seconds": outcome.seconds,
            }
            for way, outcome in outcomes.items()
        },
    }
    is_full = num_trees >= 20 and options.only is None
    return report.finish(options.json or (RESULTS_DIR / "faithful.json" if is_full else None))

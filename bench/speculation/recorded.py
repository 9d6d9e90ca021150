"""Tokens a step where replies are given: GPT-4's recorded replies to games of 24, as if the model had drawn them.

A model computes every step, then the logits of the recorded token are raised. Requests come one after the other, the replies of
all games in turns, to engines without drafts, with drafts from a reply's own text, and with those from the namespace's recent
replies too. Where the model is SmolLM2-135M-Instruct, so many tokens are drafted as pay; a tiny model drafts all 16 that are
found, since it does not matter there how long a step takes. Times are CPU time of one thread.

    python -m bench.speculation.recorded            30 replies to each of 12 games, some minutes
    python -m bench.speculation.recorded --quick    2 replies to each of 3; judges nothing
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.common.conversations import default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.gpu.model_cases import TINY, make_model
from bench.serving.material import Material, WorkloadMissingError
from bench.speculation.loads import SEED
from bench.speculation.run import Run, joined, play
from radixkv import PrefixCache
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.worker.engine.engine import Engine
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.speculation.settings import SpeculationSettings

PLAIN, OWN, ALL = "without drafts", "own text", "own text and recent replies"
WHOLE_OWN, WHOLE_ALL = f"{OWN}, 16 tokens", f"{ALL}, 16 tokens"
LEAST_A_STEP = {WHOLE_OWN: 1.5, WHOLE_ALL: 4.5}
NUM_BLOCKS, BLOCK_SIZE = 256, 16
_RAISED = 1e6


class RecordedRunner(ModelRunner):
    """A model that draws a given text. `text`: token ids of prompt and reply of the only request."""

    text: Sequence[int] = ()

    @torch.inference_mode()
    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        """See `ModelRunner`."""
        logits, at = super().forward(rows, drawn_ids), 0
        for row in rows:
            end = row.start + len(row.token_ids)
            for position in range(end - row.num_logits, end):
                if position + 1 < len(self.text):
                    logits[at, self.text[position + 1]] = _RAISED
                at += 1
        return logits


def replay(replies: Sequence[tuple[list[int], list[int]]], num_each: int, engines: dict[str, Any]) -> dict[str, Run]:
    """Play prompts with their replies to each engine, given with its runner."""
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for number, (prompt, reply) in enumerate(replies):
        for name, (engine, runner) in engines.items():
            runner.text = [*prompt, *reply]
            sources = "own" if name in (OWN, WHOLE_OWN) else "all"
            sampling = SamplingParams(max_tokens=len(reply), temperature=0, speculation=sources)
            run = play(engine, [GenerateParams(token_ids=prompt, sampling=sampling)], 1)
            assert run.replies == [reply], name
            runs[name].append(run)
        if (number + 1) % num_each == 0:
            print(f"{number + 1} of {len(replies)} replies", file=sys.stderr, flush=True)
    return {name: joined(of_it) for name, of_it in runs.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print the table, and write the JSON. Returns the exit code."""
    parser = bench_parser("speculation.recorded", __doc__)
    parser.add_argument("--quick", action="store_true", help="a few replies; nothing is written")
    parser.add_argument("--games", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--replies", type=int, default=30, help="to each game (default: %(default)s)")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num_games, num_each = (3, 2) if options.quick else (options.games, options.replies)
    model = str(resolve_model(None))
    text = ChatText(model)
    try:
        games = Material(options.workloads).game_replies[:num_games]
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    asked = [(text.encode(f"Make 24 of four numbers with + - * /.\nInput: {numbers}\n"), ys) for numbers, ys in games]
    replies = [(prompt, text.encode(ys[number])) for number in range(num_each) for prompt, ys in asked]

    def engine(settings: SpeculationSettings | None) -> tuple[Engine, RecordedRunner]:
        of = model
        if settings is not None and settings.always:
            sizes = replace(TINY, vocab=1 + max(max(prompt + reply) for prompt, reply in replies), max_length=2048)
            of = make_model(sizes, torch.device("cpu"), torch.float32)
        runner = RecordedRunner(of, num_blocks=None, device="cpu")
        runner.allocate_pool(NUM_BLOCKS, BLOCK_SIZE)
        return Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), speculation=settings), runner

    engines = {PLAIN: engine(None)}
    engines |= {name: engine(SpeculationSettings()) for name in (OWN, ALL)}
    engines |= {name: engine(SpeculationSettings(always=True)) for name in (WHOLE_OWN, WHOLE_ALL)}
    try:
        runs = replay(replies, len(games), engines)
    finally:
        for one, _ in engines.values():
            one.close()
    report = Report("speculation_recorded", SEED)
    rows = []
    for name, run in runs.items():
        num_tokens = sum(map(len, run.replies))
        a_step = num_tokens / run.num_draws
        gain = None if name in LEAST_A_STEP else runs[PLAIN].cpu_s / run.cpu_s
        report.figures[name] = {
            "tokens": num_tokens,
            "tokens_a_step": a_step,
            "gain": gain,
            "drafted": run.num_drafted,
            "accepted": run.num_accepted,
        }
        if name in LEAST_A_STEP:
            report.bars.append(Bar(f"{name}: tokens a step, at least", a_step, LEAST_A_STEP[name], at_least=True))
        drawn = f"{run.num_accepted:,} of {run.num_drafted:,}"
        rows.append((name, f"{num_tokens:,}", f"{a_step:.2f}", "-" if gain is None else f"{gain:.2f}", drawn))
    columns = ("drafts", "tokens", "tokens a step", "gain", "guesses drawn")
    report.tables.append(Table(f"{num_each} replies to each of {len(games)} games of 24", columns, rows))
    is_kept = not options.quick and (options.games, options.replies) == (12, 30)
    path = options.json or (RESULTS_DIR / "speculation_recorded.json" if is_kept else None)
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

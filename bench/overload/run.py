"""Four times the work that fits the pool, for minutes: failures, longest waits, and the cost in throughput.

Outstanding requests are kept such that their possible need (prompt and longest reply) is always a multiple of the pool: once
(load that fits), twice, and four times with preemption by recompute and by swap. The loads take turns, so that other work on
the machine affects them alike. Requests come in groups that share a prefix. After every 96 requests the replies change between
short ones, which end at random, and ones of full length: a request's need is not known when it starts, and estimates from the
requests before it are wrong. All loads get the same requests in the same order.

    nothing fails       every request completes, and the cache's invariants hold
    longest wait        to a first token, against `max_wait_s` + the time to complete the outstanding work: a due request is
                        never overtaken, so only older ones are served first
    throughput          tokens per second, of replies as they arrive and of prompts with their first token, against the best of
                        the other loads; recomputed tokens do not count
    empty slots         for every row that draws a token, at every step: at most block_size - 1, and a block of look-ahead

    python -m bench.overload                     10 minutes per load, a tiny model
    python -m bench.overload --minutes 0.25      as in CI, a minute in all
    python -m bench.overload --model default     with SmolLM2-135M-Instruct
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.common.report import RESULTS_DIR, Bar, Progress, Report, Table, bench_parser, percentile
from bench.overload.load import VOCAB_SIZE, Load, Player, Requests
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.threads import configure_threads

if TYPE_CHECKING:
    from radixkv.worker.engine.engine import Engine

__all__ = ["main"]

FITS, TWICE, RECOMPUTE, SWAP = "fits", "2x, recompute", "4x, recompute", "4x, swap"
OVERLOAD = 4.0
JUDGED_MINUTES = 1.0
"""With less time there are too few requests to judge the throughput, or to expect a preemption."""
THROUGHPUT_BOUND = 0.9
EOS = 2
TURN_S = 15.0


def tiny_model(folder: Path) -> str:
    """A two-layer Llama with random weights, saved to `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def _checked_runner(load: Load) -> Any:
    """A model runner that counts the empty slots after every row that draws a token."""
    from radixkv.worker.model.model import ModelRunner

    class CheckedRunner(ModelRunner):
        def forward(self, rows: Any, drawn_ids: Any = None) -> Any:
            load.num_steps += 1
            for row in rows:
                load.num_computed += len(row.token_ids)
                if row.num_logits:
                    room = len(row.block_table) * self.pool.block_size
                    load.max_empty = max(load.max_empty, room - row.start - len(row.token_ids))
            return super().forward(rows, drawn_ids)

    return CheckedRunner


@contextmanager
def loaded(name: str, model: str, options: argparse.Namespace, load: Load) -> Iterator[Engine]:
    """Run an engine with a separate pool; its cache is checked at the end."""
    from radixkv.core.cache.prefix_cache import PrefixCache
    from radixkv.worker.engine.engine import Engine
    from radixkv.worker.scheduling.limits import SchedulerLimits

    num_blocks = options.slots // options.block_size
    num_host = num_blocks if name == SWAP else 0
    runner = _checked_runner(load)(model, num_blocks=None, block_size=options.block_size)
    runner.allocate_pool(num_blocks, options.block_size, num_host)
    limits = SchedulerLimits(
        max_wait_s=options.max_wait, preemption="swap" if num_host else "recompute", swap_blocks=num_host
    )
    with Engine(runner, PrefixCache(num_blocks, options.block_size), limits=limits) as engine:
        yield engine
        engine.call(lambda holder: holder.check())
        stats = engine.stats().engine
        load.num_preemptions = stats.num_preemptions
        load.num_saved_blocks = stats.num_saved_blocks
        if stats.num_generations or stats.num_running_branches:
            load.failures.append(f"{stats.num_generations} generations are left over")


def run(model: str, options: argparse.Namespace) -> dict[str, Load]:
    """Run all loads, one turn each in sequence."""
    loads = {FITS: Load(1.0), TWICE: Load(2.0), RECOMPUTE: Load(OVERLOAD), SWAP: Load(OVERLOAD)}
    num_turns = max(1, round(60 * options.minutes / TURN_S))
    turn_s = 60 * options.minutes / num_turns
    progress = Progress("turns", num_turns * len(loads))
    with ExitStack() as stack:
        players = {}
        for name, load in loads.items():
            engine = stack.enter_context(loaded(name, model, options, load))
            requests = Requests(options.seed, options.longest_prompt, options.longest_reply)
            players[name] = Player(engine, load, requests, options.slots)
        for _ in range(num_turns):
            for player in players.values():
                player.play(turn_s)
                progress.advance()
    return loads


def wait_bound_s(load: Load, options: argparse.Namespace) -> float:
    """`max_wait_s`, and the time to complete the outstanding work at the measured rate."""
    return float(options.max_wait + load.multiple * options.slots / max(load.useful_per_s, 1e-9))


def bars(loads: dict[str, Load], options: argparse.Namespace) -> list[Bar]:
    found = []
    most_empty = options.block_size - 1 + options.block_size
    peak = max(loads[FITS].useful_per_s, loads[TWICE].useful_per_s)
    for name, load in loads.items():
        note = "; ".join(sorted(set(load.failures))[:3])
        found.append(Bar(f"{name}: requests that failed", len(load.failures), 0, reason=note))
        empty = f"block_size - 1, and a block of look-ahead; {load.num_steps:,} steps"
        found.append(Bar(f"{name}: most empty slots behind a sequence", load.max_empty, most_empty, reason=empty))
        if load.multiple < OVERLOAD:
            continue
        if options.minutes < JUDGED_MINUTES:
            continue
        longest = max(load.waits_s, default=None)
        found.append(Bar(f"{name}: longest wait", longest, wait_bound_s(load, options), " s"))
        share = load.useful_per_s / max(peak, 1e-9)
        found.append(Bar(f"{name}: throughput / the best with less load", share, THROUGHPUT_BOUND, "x", at_least=True))
        preempted = load.num_saved_blocks if name == SWAP else load.num_preemptions
        what = "blocks swapped out" if name == SWAP else "preemptions"
        found.append(Bar(f"{name}: {what} (none would prove nothing)", preempted, 1, at_least=True))
    return found


def table(loads: dict[str, Load]) -> Table:
    columns = ("load", "requests", "failed", "tokens/s", "wait s p50", "p99", "longest", "preemptions", "most empty")
    rows = []
    for name, load in loads.items():
        waits = load.waits_s or [float("nan")]
        rows.append(
            (
                name,
                f"{load.num_finished:,}",
                str(len(load.failures)),
                f"{load.useful_per_s:,.0f}",
                *(f"{value:.2f}" for value in (percentile(waits, 0.5), percentile(waits, 0.99), max(waits))),
                f"{load.num_preemptions:,}",
                str(load.max_empty),
            )
        )
    return Table("offered load against the pool", columns, rows)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("overload", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each of the four loads (default: 10)")
    parser.add_argument("--slots", type=int, default=4096, help="token slots of the pool (default: 4096)")
    parser.add_argument("--block-size", type=int, default=16, help="token slots of a block (default: 16)")
    parser.add_argument("--longest-prompt", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--longest-reply", type=int, default=256, help="tokens (default: 256)")
    parser.add_argument("--max-wait", type=float, default=10.0, help="seconds until a request is due (default: 10)")
    parser.add_argument("--model", default="tiny", help="tiny, default, a folder or a hub id (default: tiny)")
    parser.add_argument("--seed", type=int, default=0, help="of the requests (default: 0)")
    parser.add_argument(
        "--json", type=Path, help="where to write (default: bench/results/overload.json from 10 minutes on)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    configure_threads()
    with tempfile.TemporaryDirectory(prefix="radixkv-bench-") as folder:
        model = tiny_model(Path(folder)) if options.model == "tiny" else resolve_model(options.model)
        loads = run(model, options)
    report = Report("overload", options.seed, bars=bars(loads, options), tables=[table(loads)])
    report.figures = {
        "model": Path(options.model).name,
        "minutes": options.minutes,
        "slots": options.slots,
        "block_size": options.block_size,
        "max_wait_s": options.max_wait,
        "loads": {
            name: {
                "multiple": load.multiple,
                "num_finished": load.num_finished,
                "num_failed": len(load.failures),
                "useful_tokens_per_s": load.useful_per_s,
                "num_computed": load.num_computed,
                "longest_wait_s": max(load.waits_s, default=None),
                "wait_bound_s": wait_bound_s(load, options),
                "num_preemptions": load.num_preemptions,
                "num_saved_blocks": load.num_saved_blocks,
                "num_steps": load.num_steps,
                "max_empty": load.max_empty,
            }
            for name, load in loads.items()
        },
    }
    return report.finish(options.json or (RESULTS_DIR / "overload.json" if options.minutes >= 10 else None))

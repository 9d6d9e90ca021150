"""What outlives a worker's pool and its process: SmolLM2-135M, `radixkv serve` and `radixkv worker --disk-cache` as separate
processes, the same requests token by token with and without the store.

    next-day     100 OpenAssistant conversations, 5 mini-swe-agent sessions and 20 texts of 2,000 tokens; 60 s later the
                 worker is killed with SIGKILL and started again: blocks found, first tokens, replies. With the default
                 settings; in fp32, where replies must be those of a cold worker; with --deterministic, the log
                 probabilities too
    small-pool   users come back in turns to a pool of 5% of their histories: tokens found, tokens per second
    llama        two conversations in turns on one slot, and restarts, compared with llama.cpp's server
    break-even   a worker that loads from a server through links of 1, 10 and 100 MB/s, compared with loading and computing
    second-worker    turns that come to two workers alternately, one killed before each turn of the other: each loads from a
                 server the turns that it has not computed
    damage       kill -9 in the midst of saves; slots flipped, cut, swapped, the index overwritten

    python -m bench.tiers --peer fetch      all of it, files of llama.cpp fetched if missing: less than an hour
    python -m bench.tiers --part llama      one part
    python -m bench.tiers --quick           small sizes

Ratios are within one run: the compared requests follow each other. Medians. Exit code of a full run: 0 if every bar is met,
otherwise 1. A quick run judges replies and blocks found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Report
from bench.serving.driver import thread_settings
from bench.serving.llama_files import LLAMA_PACKAGE, find_llama
from bench.serving.material import Material
from bench.serving.system import kv_token_bytes
from bench.serving.workloads import Ingredients
from bench.tiers.break_even import play_break_even, report_break_even
from bench.tiers.damage import DAMAGES, play_damage, report_damage
from bench.tiers.llama import play_beside_llama, report_beside_llama
from bench.tiers.next_day import NextDay, Part, play_next_day, report_next_day
from bench.tiers.second_worker import play_second_worker, report_second_worker
from bench.tiers.slow_link import SERVER
from bench.tiers.small_pool import Load, play_small_pool, report_small_pool
from bench.tiers.stories import conversations, growing_sessions, long_texts, sessions
from bench.tree.wheel import PeerMissingError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model

__all__ = ["main"]

EXACT = ("--dtype", "float32", "--quantization", "none")
LONGEST = 6000
TEXT_TOKENS = 2000
REPLY_TOKENS = 16
AGENT_STEP = 100


class Sizes:
    """Sizes of all parts: of the full run, or of the quick one."""

    def __init__(self, *, is_quick: bool) -> None:
        self.num_conversations, self.num_sessions, self.num_texts = (3, 1, 2) if is_quick else (100, 5, 20)
        self.num_deterministic = (2, 0) if is_quick else (20, 1)
        self.num_calls, self.longest = (3, 1700) if is_quick else (6, LONGEST)
        self.idle_s = 0.0 if is_quick else 60.0
        self.num_users, self.num_agents, self.num_repeats = (6, 3, 1) if is_quick else (100, 20, 3)
        self.num_visits = 2 if is_quick else 3
        self.agent_tokens = 700 if is_quick else 2048
        self.llama_tokens, self.num_turns, self.num_restarts = (500, 2, 1) if is_quick else (TEXT_TOKENS, 5, 4)
        self.link_tokens, self.num_linked, self.num_rounds = (500, 3, 1) if is_quick else (TEXT_TOKENS, 4, 5)
        self.num_damaged, self.num_kills, self.num_damages = (3, 1, 2) if is_quick else (12, 10, len(DAMAGES))


class Bench:
    """All parts with their material."""

    def __init__(self, options: argparse.Namespace) -> None:
        model = Path(resolve_model())
        self._ingredients = Ingredients(Material(options.workloads), ChatText(str(model)), options.seed, options.quick)
        self._sizes = Sizes(is_quick=options.quick)
        self._options = options
        self._token_bytes = kv_token_bytes(model)  # in 16 bits

    def next_day(self) -> list[Part]:
        """The next day in three settings."""
        sizes, from_ = self._sizes, self._ingredients
        users = conversations(from_, sizes.num_conversations, REPLY_TOKENS)
        agents = sessions(from_, sizes.num_sessions, REPLY_TOKENS, sizes.num_calls, sizes.longest)
        texts = long_texts(from_, sizes.num_texts, TEXT_TOKENS, REPLY_TOKENS)
        few = [*users[: sizes.num_deterministic[0]], *agents[: sizes.num_deterministic[1]]]
        wide = 2 * self._token_bytes
        settings = (
            NextDay("default settings", (), [*users, *agents, *texts], self._token_bytes, sizes.idle_s, True, False),
            NextDay("fp32", EXACT, [*users, *agents], wide, sizes.idle_s, False, True),
            NextDay("deterministic", ("--deterministic",), few, wide, sizes.idle_s, False, True),
        )
        return [report_next_day(setting, play_next_day(setting)) for setting in settings]

    def small_pool(self) -> list[Part]:
        """Both loads."""
        sizes, from_ = self._sizes, self._ingredients
        visits = sizes.num_visits
        agents = growing_sessions(from_, sizes.num_agents, REPLY_TOKENS, visits, sizes.agent_tokens, AGENT_STEP)
        loads = (
            Load("conversations", conversations(from_, sizes.num_users, REPLY_TOKENS, visits), 4),
            Load("agents", agents, 1),
        )
        return [
            report_small_pool(load, play_small_pool(load, (), self._token_bytes, sizes.num_repeats)) for load in loads
        ]

    def llama(self) -> list[Part]:
        """Turns and restarts, compared with llama.cpp."""
        sizes = self._sizes
        num_calls = 1 + sizes.num_turns + sizes.num_restarts
        files, why_missing = None, ""
        try:
            files = find_llama(self._options.peer == "fetch")
        except PeerMissingError as error:
            why_missing = str(error)
            print(f"without llama.cpp: {error}", file=sys.stderr)
        found = play_beside_llama(
            long_texts(self._ingredients, 2, sizes.llama_tokens, REPLY_TOKENS, num_calls),
            files,
            num_restarts=sizes.num_restarts,
            num_threads=int(os.environ["OMP_NUM_THREADS"]),
            arguments=(),
            kv_token_bytes=self._token_bytes,
        )
        return [report_beside_llama(found, why_missing)]

    def break_even(self) -> list[Part]:
        """The choice through slow links."""
        sizes = self._sizes
        if SERVER is None:
            print("skipped: break-even needs valkey-server or redis-server", file=sys.stderr)
            return []
        texts = long_texts(self._ingredients, sizes.num_linked, sizes.link_tokens, REPLY_TOKENS)
        return [report_break_even(play_break_even(texts, self._token_bytes, sizes.num_rounds))]

    def second_worker(self) -> list[Part]:
        """Turns that come to two hosts alternately."""
        sizes = self._sizes
        if SERVER is None:
            print("skipped: second-worker needs valkey-server or redis-server", file=sys.stderr)
            return []
        texts = long_texts(self._ingredients, sizes.num_linked, sizes.link_tokens, REPLY_TOKENS, sizes.num_turns)
        return [report_second_worker(play_second_worker(texts, sizes.num_turns, EXACT))]

    def damage(self) -> list[Part]:
        """Mishaps."""
        sizes = self._sizes
        users = conversations(self._ingredients, sizes.num_damaged, REPLY_TOKENS, 2)
        numbers = {"num_kills": sizes.num_kills, "num_damages": sizes.num_damages, "seed": self._options.seed}
        trials = play_damage(users, EXACT, 2 * self._token_bytes, **numbers)
        return [report_damage(trials)]


PARTS: dict[str, Callable[[Bench], list[Part]]] = {
    "next-day": Bench.next_day,
    "small-pool": Bench.small_pool,
    "llama": Bench.llama,
    "break-even": Bench.break_even,
    "second-worker": Bench.second_worker,
    "damage": Bench.damage,
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tiers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="one of them; may be repeated (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--peer", choices=("use", "fetch"), default="use", help="whether llama.cpp may be fetched")
    parser.add_argument(
        "--workloads", type=Path, default=default_workloads(), help="folder of the archives (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the mishaps (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/tiers.json on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    os.environ.update(thread_settings())  # of the worker and of llama.cpp
    report = Report("tiers", options.seed)
    are_right = True
    names = options.part or list(PARTS)
    try:
        bench = Bench(options)
        for name in names:
            parts = PARTS[name](bench)
            figures: dict[str, object] = {}
            for part in parts:
                figures |= part.figures
                report.tables += part.tables
                report.bars += [*part.checks, *part.bars]
                are_right &= all(check.passed for check in part.checks)
            report.figures[name] = figures
    except WorkloadMissingError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 2
    report.figures["llama_package"] = LLAMA_PACKAGE
    report.figures["num_threads"] = int(os.environ["OMP_NUM_THREADS"])
    is_full = not options.quick and options.part is None
    code = report.finish(options.json or (RESULTS_DIR / "tiers.json" if is_full else None), is_quick=options.quick)
    return code if are_right else 1


if __name__ == "__main__":
    sys.exit(main())

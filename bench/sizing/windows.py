"""Layers with a sliding window: hits of a pool in which a share of the blocks has their K and V, in the same memory.

Five of six layers have a window of 512 tokens, as in Gemma 3. Loads as in `bench.sizing.block_size`, and 60 OpenAssistant
trees in turns, whose histories are shorter than a window; with as much memory as half of their distinct tokens take if all
blocks have everything. A request is acquired, resumed where what its window shows is there, computed in chunks and released:
its tokens that are not computed count as found.

    python -m bench.sizing.windows              every share (a minute on one core)
    python -m bench.sizing.windows --quick      two shares, few requests, as in CI
"""

from __future__ import annotations

import argparse
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.common.conversations import WorkloadMissingError, default_workloads
from bench.common.report import RESULTS_DIR, Bar, Report, Table, bench_parser
from bench.hit_rate.workloads import chat_trees, in_turns
from bench.sizing.block_size import LOADS, LONGEST, distinct
from radixkv import PrefixCache, pack_tokens
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import resolve_model
from radixkv.worker.model.rows import ForwardRow
from radixkv.worker.model.window_rows import WindowRows

__all__ = ["main"]

SHARES = (1.0, 0.5, 0.25, 0.125)
QUICK_SHARES = (1.0, 0.25)
WINDOW = 512
WINDOWED = 5 / 6
"""Of a block's bytes."""
BLOCK_SIZE, CHUNK = 16, 256


class Found(NamedTuple):
    """Blocks of the pool, those with windows, and percent of the prompts' tokens: matched, and not computed."""

    num_blocks: int
    num_windowed: int
    matched_percent: float
    found_percent: float


def _in_turns(folder: Path) -> list[str]:
    return in_turns(chat_trees(folder)[:60])


def run(requests: Sequence[bytes], num_slots: int, share: float) -> Found:
    """Send requests through a pool with the memory of so many slots. O(requests · nodes)."""
    num_blocks = int(num_slots // BLOCK_SIZE / (1 - WINDOWED + share * WINDOWED))
    num_windowed = max(int(share * num_blocks), (WINDOW + CHUNK) // BLOCK_SIZE + 1)  # for a part of a prompt at least
    cache = PrefixCache(num_blocks, BLOCK_SIZE)
    windows = WindowRows(num_blocks, num_windowed, BLOCK_SIZE, WINDOW) if share < 1 else None
    num_asked = num_matched = num_found = 0
    for request in requests:
        length = len(request) // 4
        seq = cache.acquire(request)
        start = seq.num_cached_tokens
        num_asked, num_matched = num_asked + length, num_matched + start
        if windows is not None:
            windows.copied(seq.ops)
            start = _compute(windows, seq.block_table, start, length, seq.num_stored_tokens)
        num_found += start
        cache.insert(seq.seq_id, num_computed=length)
        cache.release(seq.seq_id)
    return Found(num_blocks, num_windowed, 100 * num_matched / num_asked, 100 * num_found / num_asked)


def _compute(windows: WindowRows, table: array[int], position: int, length: int, num_stored: int) -> int:
    """Compute a history from `position` on, or from before; returns from where."""
    first = start = windows.resumable(table, position)
    while start < length:
        end = min(length, start - start % CHUNK + CHUNK)
        rows = [ForwardRow(range(end - start), start, table, num_stored, 0, resumes_at=first)]
        windows.take(rows)
        windows.written(rows)
        start = end
    return first


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = bench_parser("sizing.windows", __doc__)
    parser.add_argument("--quick", action="store_true", help="two shares, few requests; nothing written")
    parser.add_argument("--workloads", type=Path, default=default_workloads(), help="folder of the archives")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/windows.json on a full run)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = parse(arguments)
    shares = QUICK_SHARES if options.quick else SHARES
    report = Report("windows", seed=0)
    tokenizer = ChatText(str(resolve_model(None, progress=False)))
    loads = [*((name, read, number) for name, (read, number, _) in LOADS.items()), ("chats in turns", _in_turns, 400)]
    for name, read, number in loads:
        try:
            texts = read(options.workloads)[: number // 10 if options.quick else number]
        except WorkloadMissingError as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 2
        requests = [pack_tokens(tokenizer.encode(text, special=False)[:LONGEST]) for text in texts]
        num_slots = max(distinct(requests), max(map(len, requests)) * 3 // 4) // 2
        found = {share: run(requests, num_slots, share) for share in shares}
        rows = [
            (f"{share:g}", f"{one.num_blocks:,}", f"{one.matched_percent:.1f}", f"{one.found_percent:.1f}")
            for share, one in found.items()
        ]
        columns = ("share with windows", "blocks", "% of prompts matched", "% not computed")
        report.tables.append(Table(name, columns, rows))
        report.figures[name] = {str(share): one._asdict() for share, one in found.items()}
        if name == "long":
            gain = found[0.25].found_percent / found[1.0].found_percent
            report.bars.append(
                Bar("long: found with a quarter of the windows, over found with all", gain, 2.0, at_least=True)
            )
    path = options.json or (None if options.quick or arguments is not None else RESULTS_DIR / "windows.json")
    return report.finish(path, is_quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())

"""The time to the first token of new prompts, while chats decode with drafts, and while they decode without.

python -m bench.speculation --newcomers --batch 8
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from bench.common.report import Bar, Report, percentile
from bench.speculation.loads import Load, unlike_prompts
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.engine.engine import Engine

__all__ = ["COLUMNS", "measure_newcomers"]

COLUMNS = ("load", "new prompts", "first token p50, ms", "p90, ms", "p50, with drafts / without")
MOST_LONGER = 1.02
_PAUSE_S = 0.05


def measure_newcomers(report: Report, load: Load, engines: Sequence[Engine], at_once: int) -> tuple[str, ...]:
    """Add a load's figures and bars to the report. Returns its row. `engines`: without drafts, and with them."""
    first_s: list[list[float]] = [[], []]
    fresh = iter(unlike_prompts(1 << 14, 1, seed=2))
    for start in range(0, len(load.asked), at_once):
        asked = load.asked[start : start + at_once]
        for side in (0, 1) if start // at_once % 2 == 0 else (1, 0):
            first_s[side] += _beside(engines[side], asked, fresh)
    p50_s, p90_s = ([percentile(side, share) for side in first_s] for share in (0.5, 0.9))
    longer = p50_s[1] / p50_s[0]
    report.bars.append(Bar(f"{load.name}: first token of others, with drafts / without", longer, MOST_LONGER, "x"))
    report.figures[load.name] = {"first_p50_s": p50_s, "first_p90_s": p90_s, "num_prompts": [*map(len, first_s)]}
    shown = (" -> ".join(f"{1000 * one_s:.1f}" for one_s in side) for side in (p50_s, p90_s))
    return load.name, " and ".join(str(len(side)) for side in first_s), *shown, f"{longer:.3f}"


def _beside(engine: Engine, asked: Sequence[GenerateParams], fresh: Iterator[GenerateParams]) -> list[float]:
    """Seconds to the first tokens of fresh prompts, one after the other until the chats end."""
    with ThreadPoolExecutor(len(asked)) as readers:
        chats = [readers.submit(list, engine.generate(params)) for params in asked]
        found: list[float] = []
        while not all(chat.done() for chat in chats):
            began_s = time.perf_counter()
            stream = engine.generate(next(fresh))
            found += [time.perf_counter() - began_s for event in stream if isinstance(event, Delta)]
            wait(chats, _PAUSE_S)
    return found

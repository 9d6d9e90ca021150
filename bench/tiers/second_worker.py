"""A second worker, of another host, loads the blocks that the first has computed from their common remote level.

Two hosts, each of a cache service and a worker. The turns of every text come to the hosts alternately. Before a host gets one
the other host's worker is killed, so that nothing but the server has the earlier turns:

    loaded   the turn at the host that has computed none of the one before
    cold     the same, computed: it uses nothing that is cached
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.common.report import Bar, Progress, Table
from bench.common.stacks import BLOCK_SIZE
from bench.tiers.asking import ask
from bench.tiers.break_even import await_puts
from bench.tiers.deployment import Deployment
from bench.tiers.next_day import Part
from bench.tiers.slow_link import server_in
from bench.tiers.stories import Story

__all__ = ["Turn", "play_second_worker", "report_second_worker"]

LOADED_BOUND = 0.15
_SETTLED_S = 5.0
"""A worker's start goes on in the background for some seconds."""
_LONG = 1000
"""Tokens found from which the time is judged: of few, there is little to save."""


class Turn(NamedTuple):
    """A turn at a host that has not seen the one before. Seconds to the first token; `num_known`: in whole blocks."""

    num_known: int
    num_loaded: int
    loaded_s: float
    cold_s: float
    differs: bool


def play_second_worker(texts: Sequence[Story], num_turns: int, arguments: Sequence[str]) -> list[Turn]:
    """So many turns of each text, all but the first of which find the earlier ones in the server alone."""
    turns: list[Turn] = []
    progress = Progress("second worker", len(texts) * num_turns)
    with tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder, server_in(Path(folder)) as server:
        store = ("--remote", f"unix://{server}", "--store-key", str(Path(folder) / "key"), *arguments)
        with ExitStack() as stack:
            num_blocks = 2 * max(text.num_tokens for text in texts) // BLOCK_SIZE
            hosts = [
                stack.enter_context(Deployment(Path(folder) / name, num_blocks, store, 0)) for name in ("one", "other")
            ]
            for text in texts:
                turns += _play(hosts, text, num_turns, progress)
    return turns


def _play(hosts: Sequence[Deployment], text: Story, num_turns: int, progress: Progress) -> list[Turn]:
    turns: list[Turn] = []
    replies: list[list[int]] = []
    num_known = 0
    for number in range(num_turns):
        here, there = hosts[number % 2], hosts[(number + 1) % 2]
        if number:
            there.kill_worker()
        prompt = text.prompt(number, replies)
        answer = ask(here.client, prompt, text.calls[number].num_tokens)
        cold = ask(here.client, prompt, text.calls[number].num_tokens, sharing="off")
        replies.append(answer.reply)
        here.rest()
        await_puts(here, 1)
        if number:
            differs = answer.reply != cold.reply
            turns.append(Turn(num_known, answer.num_loaded, answer.first_s, cold.first_s, differs))
            there.start_worker()
            ask(there.client, prompt[:_LONG], 1, sharing="off")  # it knows how fast it computes
            there.rest(_SETTLED_S)
        num_known = (len(prompt) + len(answer.reply) - 1) // BLOCK_SIZE * BLOCK_SIZE
        progress.advance()
    return turns


def report_second_worker(turns: Sequence[Turn]) -> Part:
    """Figures, table and bars."""
    found = sum(turn.num_loaded for turn in turns) / sum(turn.num_known for turn in turns)
    ratios = [turn.loaded_s / turn.cold_s for turn in turns if turn.num_known >= _LONG]
    ratio = median(ratios) if ratios else None
    num_differ = sum(turn.differs for turn in turns)
    seconds = [median(getattr(turn, field) for turn in turns) for field in ("loaded_s", "cold_s")]
    figures = {
        "turns": len(turns),
        "found": found,
        "loaded_by_cold": ratio,
        "replies_that_differ": num_differ,
        "loaded_s": seconds[0],
        "cold_s": seconds[1],
        "load_average": os.getloadavg(),
    }
    cells = (f"{len(turns)}", f"{found:.1%}", *(f"{1e3 * each:,.0f}" for each in seconds))
    row = (*cells, "-" if ratio is None else f"{ratio:.2f}", f"{num_differ}")
    columns = (
        "turns",
        "known tokens loaded",
        "first token ms: loaded",
        "cold",
        f"from {_LONG:,} tokens on",
        "replies differ",
    )
    checks = [Bar("second worker: replies that differ from cold ones", num_differ, 0)]
    bars = [
        Bar(f"second worker: first token by cold, from {_LONG:,} tokens on", ratio, LOADED_BOUND, "x"),
    ]
    return Part({"second-worker": figures}, [Table("what another host has computed", columns, [row])], bars, checks)

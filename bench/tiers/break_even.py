"""Load or recompute: the worker's choice through a link of 1, 10 and 100 MB/s to the remote level.

Texts are computed once, and lie in the server. For each link the worker is started again, so that it knows neither; then, text
after text, in a pool that holds one of them:

    chosen   the text, with what the worker loads
    pool     the same, of which all lies in the pool by now
    cold     the same, computed: it uses nothing that is cached
    again    the same once more: what two equal requests differ by on this machine

Loading alone would take at least the time of its bytes on the link, and that of `pool`. A choice is right that took no longer
than the other way, within a fifth: loading by `cold`, computing by that bound.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.common.report import Bar, Progress, Table
from bench.common.stacks import BLOCK_SIZE
from bench.tiers.asking import ask
from bench.tiers.deployment import Deployment
from bench.tiers.next_day import Part
from bench.tiers.slow_link import SlowLink, slow_link
from bench.tiers.stories import Story

__all__ = ["Trial", "await_puts", "play_break_even", "report_break_even"]

RATES = (1e6, 10e6, 100e6)
POOL_SHARE = 1.4
"""Blocks of the pool, by those of a text: two do not fit."""

NEAR, RIGHT_BOUND, WORST_BOUND = 1.2, 0.95, 1.15
_SAVED_S, _LOOK_S = 300.0, 0.1
_SECONDS = ("link_s", "pool_s", "chosen_s", "cold_s")


class Trial(NamedTuple):
    """One text through one link; times in seconds to the first token. `link_s`: of the bytes of its blocks on the link."""

    bytes_per_s: float
    link_s: float
    num_loaded: int
    chosen_s: float
    pool_s: float
    cold_s: float
    again_s: float
    num_tokens: int

    @property
    def is_right(self) -> bool:
        """Whether the chosen way was the better one, or near it."""
        is_loaded = 2 * self.num_loaded > self.num_tokens
        return self.chosen_s <= NEAR * (self.cold_s if is_loaded else self.link_s + self.pool_s)


def play_break_even(texts: Sequence[Story], kv_token_bytes: int, num_rounds: int) -> list[Trial]:
    """Each text so many times through each link."""
    prompts = [story.prompt(0, []) for story in texts]
    num_blocks = max(map(len, prompts)) // BLOCK_SIZE
    trials: list[Trial] = []
    progress = Progress("break-even", len(RATES) * num_rounds * len(prompts))
    with tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder, slow_link(Path(folder)) as link:
        store = ("--remote", link.url, "--store-key", str(Path(folder) / "key"))
        with Deployment(Path(folder) / "stack", round(POOL_SHARE * num_blocks) + 8, store, 0) as deployment:
            num_put = 0
            for prompt in prompts:
                ask(deployment.client, prompt, 1)
                num_put += len(prompt) // BLOCK_SIZE
                await_puts(deployment, num_put)
            for bytes_per_s in RATES:
                link.bytes_per_s = 1e12
                deployment.kill_worker()
                deployment.start_worker()
                ask(deployment.client, range(1000, 1300), 8, sharing="off")
                link.bytes_per_s = bytes_per_s
                for _ in range(num_rounds):
                    for prompt in prompts:
                        trials.append(_try(deployment, link, prompt, kv_token_bytes))
                        progress.advance()
    return trials


def await_puts(deployment: Deployment, num_blocks: int) -> None:
    """Wait until the server has so many blocks."""
    until_s = time.monotonic() + _SAVED_S
    while True:
        [remote] = [each for each in deployment.client.stats().levels if each.level == "remote"]
        if remote.num_written >= num_blocks:
            return
        if time.monotonic() > until_s:
            raise AssertionError(f"{num_blocks} blocks are to be in the remote level: {remote}")
        time.sleep(_LOOK_S)


def _try(deployment: Deployment, link: SlowLink, prompt: Sequence[int], kv_token_bytes: int) -> Trial:
    client = deployment.client
    chosen = ask(client, prompt, 1)
    pool = ask(client, prompt, 1)
    cold, again = (ask(client, prompt, 1, sharing="off") for _ in range(2))
    num_bytes = len(prompt) // BLOCK_SIZE * BLOCK_SIZE * kv_token_bytes
    return Trial(
        link.bytes_per_s,
        num_bytes / link.bytes_per_s,
        chosen.num_loaded,
        chosen.first_s,
        pool.first_s,
        cold.first_s,
        again.first_s,
        len(prompt),
    )


def report_break_even(trials: Sequence[Trial]) -> Part:
    """Figures, table and bars."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {"load_average": os.getloadavg()}
    for bytes_per_s in RATES:
        group = [trial for trial in trials if trial.bytes_per_s == bytes_per_s]
        right = sum(trial.is_right for trial in group) / len(group)
        by_cold = [trial.chosen_s / trial.cold_s for trial in group]
        by_again = [trial.again_s / trial.cold_s for trial in group]
        num_loaded = median(trial.num_loaded for trial in group)
        seconds = {field: median(getattr(trial, field) for trial in group) for field in _SECONDS}
        name = f"{bytes_per_s / 1e6:.0f} MB/s"
        figures[name] = {
            "trials": len(group),
            "right": right,
            "loaded_tokens": num_loaded,
            "chosen_by_cold": {"p50": median(by_cold), "max": max(by_cold)},
            "again_by_cold": {"p50": median(by_again), "max": max(by_again)},
            "seconds": seconds,
        }
        rows.append(
            (
                name,
                f"{len(group)}",
                f"{num_loaded:,.0f}",
                *(f"{1e3 * each:,.0f}" for each in seconds.values()),
                f"{right:.0%}",
                f"{median(by_cold):.2f}",
                f"{max(by_cold):.2f}",
                f"{median(by_again):.2f}",
                f"{max(by_again):.2f}",
            )
        )
    right = sum(trial.is_right for trial in trials) / len(trials)
    worst = max(trial.chosen_s / trial.cold_s for trial in trials)
    noise = max(trial.again_s / trial.cold_s for trial in trials)
    bars = [
        Bar("break-even: choices of the better way, or of one within a fifth", right, RIGHT_BOUND, at_least=True),
        Bar(
            "break-even: longest first token, by recomputing",
            worst,
            WORST_BOUND,
            "x",
            reason=f"recomputing twice differed by up to {noise:.2f} x",
        ),
    ]
    columns = (
        "link",
        "n",
        "tokens loaded",
        "first token ms: bytes on the link",
        "all in the pool",
        "chosen",
        "cold",
        "right",
        "chosen / cold",
        "longest",
        "cold / cold",
        "longest",
    )
    return Part({"break-even": figures}, [Table("load or recompute", columns, rows)], bars, [])

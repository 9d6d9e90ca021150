"""A pool of a twentieth of what users come back to, with a store and without one.

Every user sends a first call, then every user a second one, and so on: by the time that a user comes back, the pool holds
nothing of him. The first round repeats nothing, so that it shows what saving costs. Both systems run at the same time and are
used in turns, in a namespace of their own per repeat.

Tokens found in pool and store are those that every request's usage reports.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.common.report import Bar, Progress, Table
from bench.common.stacks import BLOCK_SIZE
from bench.tiers.asking import Answer, ask, together
from bench.tiers.deployment import Deployment
from bench.tiers.next_day import Part
from bench.tiers.stories import Story

__all__ = ["Load", "Visits", "play_small_pool", "report_small_pool"]

SHARE = 0.05
FASTER_BOUND, NEVER_REPEATS_BOUND = 2.0, 0.98
WITH, WITHOUT = "with a store", "without one"


class Load(NamedTuple):
    """Users, and how many of them call at once."""

    name: str
    stories: Sequence[Story]
    at_once: int

    @property
    def num_set_tokens(self) -> int:
        """The working set: tokens of all histories at their longest."""
        return sum(story.num_tokens for story in self.stories)

    @property
    def num_blocks(self) -> int:
        """Of the pool: its share of the working set, and at least the longest request with a block to spare."""
        longest = max(story.num_tokens for story in self.stories) // BLOCK_SIZE + 2
        return max(longest, round(SHARE * self.num_set_tokens / BLOCK_SIZE))


class Visits(NamedTuple):
    """One round: `num_tokens` of prompts and replies in `wall_s` seconds; `first_s`: to the first token, median."""

    num_tokens: int
    num_prompt_tokens: int
    num_found_in_pool: int
    num_found_in_store: int
    first_s: float
    wall_s: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.wall_s


Runs = dict[str, list[list[Visits]]]
"""By system, the rounds of each repeat."""


def play_small_pool(load: Load, arguments: Sequence[str], kv_token_bytes: int, num_repeats: int) -> Runs:
    """Play the load to both systems in turns."""
    num_set_blocks = load.num_set_tokens // BLOCK_SIZE + len(load.stories)
    disk_bytes = max(1 << 30, int(1.2 * num_repeats * num_set_blocks * BLOCK_SIZE * kv_token_bytes))
    runs: Runs = {WITH: [], WITHOUT: []}
    progress = Progress(f"small pool, {load.name}", 2 * num_repeats)
    with tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder, ExitStack() as stack:
        systems = {
            name: stack.enter_context(Deployment(Path(folder) / name.split()[0], load.num_blocks, arguments, size))
            for name, size in ((WITH, disk_bytes), (WITHOUT, 0))
        }
        for system in systems.values():
            ask(system.client, range(1000, 1300), 8, sharing="off")
        for repeat in range(num_repeats):
            for name in list(systems)[:: 1 if repeat % 2 else -1]:
                runs[name].append(_play(systems[name], load, f"repeat-{repeat}"))
                systems[name].rest()
                progress.advance()
    return runs


def _play(system: Deployment, load: Load, namespace: str) -> list[Visits]:
    rounds = []
    replies: dict[str, list[list[int]]] = {story.name: [] for story in load.stories}
    for number in range(len(load.stories[0].calls)):

        def visit(story: Story, number: int = number) -> Answer:
            prompt = story.prompt(number, replies[story.name])
            user = f"{namespace}-{story.name.replace(' ', '-')}"  # users of one agent share its instructions, not these
            return ask(system.client, prompt, story.calls[number].num_tokens, namespace=user)

        start_s = time.monotonic()
        answers = together(load.stories, load.at_once, visit)
        wall_s = time.monotonic() - start_s
        for story, answer in zip(load.stories, answers, strict=True):
            replies[story.name].append(answer.reply)
        num_prompt_tokens = sum(len(answer.prompt) for answer in answers)
        rounds.append(
            Visits(
                num_prompt_tokens + sum(len(answer.reply) for answer in answers),
                num_prompt_tokens,
                sum(answer.num_cached - answer.num_loaded for answer in answers),
                sum(answer.num_loaded for answer in answers),
                median(answer.first_s for answer in answers),
                wall_s,
            )
        )
    return rounds


def report_small_pool(load: Load, runs: Runs) -> Part:
    """Figures, table and bars of a load."""
    num_rounds = len(runs[WITH][0])
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    for number in range(num_rounds):
        for name, repeats in runs.items():
            visits = [repeat[number] for repeat in repeats]
            middle = {field: median(getattr(each, field) for each in visits) for field in Visits._fields}
            middle["rate"] = median(each.rate for each in visits)
            figures[f"visit {number + 1}, {name}"] = middle
            shares = [
                f"{middle[field] / middle['num_prompt_tokens']:.1%}"
                for field in ("num_found_in_pool", "num_found_in_store")
            ]
            cells = (f"{middle['first_s'] * 1e3:,.0f}", f"{middle['rate']:,.0f}")
            rows.append((f"visit {number + 1}, {name}", *shares, *cells))
    pairs = list(zip(runs[WITH], runs[WITHOUT], strict=True))
    once = median(ours[0].rate / other[0].rate for ours, other in pairs)
    again = median(_rate(ours[1:]) / _rate(other[1:]) for ours, other in pairs)
    share = load.num_blocks * BLOCK_SIZE / load.num_set_tokens
    name = f"pool of {share:.1%} of {load.num_set_tokens:,} tokens, {load.name}"
    bars = [
        Bar(f"{name}: tokens/s with a store, by without", again, FASTER_BOUND, "x", at_least=True),
        Bar(f"{name}: the same where nothing repeats", once, NEVER_REPEATS_BOUND, "x", at_least=True),
    ]
    columns = (name, "found in the pool", "in the store", "first token, ms", "tokens/s")
    facts = {"share": share, "num_blocks": load.num_blocks, "num_set_tokens": load.num_set_tokens}
    ratios = {"comes_back": again, "never_repeats": once}
    return Part({load.name: facts | ratios | figures}, [Table(name, columns, rows)], bars, [])


def _rate(rounds: Sequence[Visits]) -> float:
    return sum(each.num_tokens for each in rounds) / sum(each.wall_s for each in rounds)

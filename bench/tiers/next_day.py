"""The next day: all conversations are idle, the worker is killed with SIGKILL and started again, and every user comes back.

    day one      every user's first calls, several users at a time; then the worker idles, and saves
    kill -9      the worker, whose pool is lost, starts again; a second time before half of the long texts, with the
                 files' pages dropped from the system's memory
    next day     per user, one after the other:
                   stored   the next turn, whose history lies in the store
                   pool     another turn of the same length, whose history lies in the pool by now
                   whole    another one with the history's whole blocks, which are what a store can have: as many tokens are
                            computed as of the stored turn
                   cold     the first turn again, which neither uses nor leaves anything cached

Replies to the stored and the cold turn are the same model's on the same tokens. In fp32 they must be the same tokens, and with
`--deterministic` the same log probabilities to the bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common.conversations import Histories
from bench.common.report import Bar, Table, summarise
from bench.common.stacks import BLOCK_SIZE
from bench.tiers.asking import Answer, ask, together
from bench.tiers.deployment import Deployment, drop_pages
from bench.tiers.stories import Story
from radixkv.generation.client import GenerationClient

__all__ = ["NextDay", "Part", "Return", "play_next_day", "report_next_day"]

AT_ONCE = 8
FOUND_BOUND, POOL_BOUND, COLD_BOUND = 0.95, 1.3, 0.1
MOSTLY_FOUND = 0.8
"""Also on a busy machine, where a block that comes too late is computed."""

WAYS = ("stored", "pool", "whole", "cold")
LOGPROBS = 5
TEXT = "text"


class NextDay(NamedTuple):
    """One setting of the worker. `is_timed`: whether the pool's first tokens are measured next to the stored one.
    `is_compared`: whether every reply is compared with a cold one; otherwise only long texts have a cold turn, for its time.
    """

    name: str
    arguments: tuple[str, ...]
    stories: Sequence[Story]
    kv_token_bytes: int
    idle_s: float
    is_timed: bool
    is_compared: bool


class Return(NamedTuple):
    """A user's next day. `num_whole`: tokens in whole blocks of the prompt that were computed on day one; `num_found`: tokens
    found of these. `is_dropped`: whether the system had forgotten the files' pages. Seconds to the first token; None: not
    measured.
    """

    story: str
    num_whole: int
    num_found: int
    is_dropped: bool
    stored_s: float
    pool_s: float | None
    whole_s: float | None
    cold_s: float | None
    is_same_reply: bool | None
    is_same_bits: bool | None

    @property
    def share_found(self) -> float:
        return self.num_found / self.num_whole


class Part(NamedTuple):
    """Figures, tables and bars of a part of the bench. `checks`: bars of replies and blocks, that judge a quick run too."""

    figures: dict[str, Any]
    tables: list[Table]
    bars: list[Bar]
    checks: list[Bar]


class _Day(NamedTuple):
    """Replies of a user on day one."""

    story: Story
    replies: list[list[int]]


def play_next_day(setting: NextDay) -> list[Return]:
    """Play both days. Returns the next day by user."""
    # three turns of the next day are computed for each user
    num_blocks = sum(2 * story.num_tokens // BLOCK_SIZE + 4 for story in setting.stories)
    disk_bytes = max(1 << 30, int(1.2 * num_blocks * BLOCK_SIZE * setting.kv_token_bytes))
    with (
        tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder,
        Deployment(Path(folder) / "stack", num_blocks, setting.arguments, disk_bytes) as deployment,
    ):
        days = together(setting.stories, AT_ONCE, lambda story: _first_day(deployment, story))
        texts = [day for day in days if day.story.name.startswith(TEXT)]
        dropped = texts[len(texts) // 2 :]
        deployment.rest(setting.idle_s)
        returns = []
        for group, is_dropped in (([day for day in days if day not in dropped], False), (dropped, True)):
            if not group:
                continue
            deployment.kill_worker()
            if is_dropped:
                drop_pages(deployment.blocks)
            deployment.start_worker()
            ask(deployment.client, range(1000, 1300), 8, sharing="off")  # a first request prepares much
            returns += [_next_day(deployment, day, setting, is_dropped=is_dropped) for day in group]
        cache = deployment.client.stats().cache
        if cache is None or cache.num_evicted_blocks:
            raise AssertionError(f"the pool is too small for this run: {cache}")
        return returns


def _first_day(deployment: Deployment, story: Story) -> _Day:
    replies: list[list[int]] = []
    for number, call in enumerate(story.calls[:-1]):
        replies.append(ask(deployment.client, story.prompt(number, replies), call.num_tokens).reply)
    return _Day(story, replies)


def _next_day(deployment: Deployment, day: _Day, setting: NextDay, *, is_dropped: bool) -> Return:
    story, replies = day
    prompt, num_tokens = story.prompt(len(replies), replies), story.calls[-1].num_tokens
    histories = Histories()
    for number, reply in enumerate(replies):
        histories.add([*story.prompt(number, replies), *reply][:-1])  # the last token has no KV
    held = min(histories.num_held(prompt), len(prompt) - 1)
    num_whole = held // BLOCK_SIZE * BLOCK_SIZE
    client, logprobs = deployment.client, LOGPROBS if setting.is_compared else None
    stored = ask(client, prompt, num_tokens, logprobs=logprobs)
    pool = whole = cold = None
    if setting.is_timed:
        pool, whole = (_ask_another(client, prompt, num_found, num_tokens) for num_found in (held, num_whole))
    if setting.is_compared or story.name.startswith(TEXT):
        cold = ask(client, prompt, num_tokens, logprobs=logprobs, sharing="off")
    return Return(
        story.name,
        num_whole,
        min(stored.num_cached, num_whole),
        is_dropped,
        stored.first_s,
        None if pool is None else pool.first_s,
        None if whole is None else whole.first_s,
        None if cold is None else cold.first_s,
        None if cold is None else stored.reply == cold.reply,
        None if cold is None or not setting.is_compared else stored.logprobs == cold.logprobs,
    )


def _ask_another(client: GenerationClient, prompt: list[int], num_found: int, num_tokens: int) -> Answer:
    """Ask with the same first tokens, which lie in the pool, and others after them."""
    answer = ask(client, [*prompt[:num_found], *reversed(prompt[num_found:])], num_tokens)
    if answer.num_cached < num_found:
        raise AssertionError(f"{answer.num_cached} of {num_found} tokens lay in the pool")
    return answer


def report_next_day(setting: NextDay, returns: Sequence[Return]) -> Part:
    """Figures, table and bars of a setting."""
    name = f"next day, {setting.name}"
    least = min(each.share_found for each in returns)
    share = sum(each.num_found for each in returns) / sum(each.num_whole for each in returns)
    checks = [Bar(f"{name}: tokens of whole blocks found, of all users", share, MOSTLY_FOUND, at_least=True)]
    bars = [Bar(f"{name}: tokens of whole blocks found, least of a user", least, FOUND_BOUND, at_least=True)]
    kinds: dict[str, list[Return]] = {}
    for each in returns:
        kind = each.story.partition(" ")[0] + (", pages dropped" if each.is_dropped else "")
        kinds.setdefault(kind, []).append(each)
    rows: list[tuple[str, ...]] = []
    figures: dict[str, Any] = {}
    for kind, group in kinds.items():
        times = {
            way: summarise(seconds, 1e3)._asdict()
            for way in WAYS
            if (seconds := [s for each in group if (s := getattr(each, f"{way}_s")) is not None])
        }
        ratios = {
            way: summarise([each.stored_s / getattr(each, f"{way}_s") for each in group]).p50
            for way in WAYS[1:]
            if way in times
        }
        found, whole = sum(each.num_found for each in group), sum(each.num_whole for each in group)
        figures[kind] = {
            "users": len(group),
            "tokens_of_whole_blocks": whole,
            "found_tokens": found,
            "first_token_ms": times,
            "stored_by": ratios,
        }
        cells = [f"{times[way]['p50']:,.0f}" if way in times else "" for way in WAYS]
        ratio_cells = [f"{ratios[way]:.3f}" if way in ratios else "" for way in WAYS[1:]]
        rows.append((kind, str(len(group)), f"{found:,} of {whole:,}", *cells, *ratio_cells))
        if "dropped" in kind:
            continue
        for way, what in (("pool", "the pool's"), ("whole", "that of its whole blocks in the pool")):
            if way in ratios:
                bars.append(Bar(f"{name}: first token of {kind}, by {what}, median", ratios[way], POOL_BOUND, "x"))
        if setting.is_timed and "cold" in ratios:
            bars.append(Bar(f"{name}: first token of {kind}, by cold, median", ratios["cold"], COLD_BOUND, "x"))
    compared = {
        "replies": [each.is_same_reply for each in returns if each.is_same_reply is not None],
        "log probabilities to the bit": [each.is_same_bits for each in returns if each.is_same_bits is not None],
    }
    for what, facts in compared.items():
        figures[what] = {"compared": len(facts), "different": facts.count(False)}
        if setting.is_compared and (what == "replies" or "--deterministic" in setting.arguments):
            checks.append(Bar(f"{name}: {what}, different from cold ones", facts.count(False), 0))
    columns = ("users", "n", "tokens found", "first token ms: stored", *WAYS[1:], *(f"/ {way}" for way in WAYS[1:]))
    return Part({setting.name: figures}, [Table(name, columns, rows)], bars, checks)

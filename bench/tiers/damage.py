"""Faults of a worker's block folder: kill -9 in the midst of saves, and damage to its files between two runs.

Every reply afterwards must be that of a worker that caches nothing, and no request may fail. Lost blocks are computed again,
and found again after the next restart.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.common.report import Bar, Table
from bench.common.stacks import BLOCK_SIZE
from bench.tiers.asking import ask, together
from bench.tiers.deployment import Deployment, Stored, stored
from bench.tiers.next_day import FOUND_BOUND, Part
from bench.tiers.stories import Story

__all__ = ["DAMAGES", "Trial", "play_damage", "report_damage"]

AT_ONCE = 4
NAMESPACE = "damaged"
LONGEST_DELAY_S = 1.5


class Trial(NamedTuple):
    """Tokens of whole blocks that all users found after one mishap, and their replies that differ from the expected ones."""

    name: str
    num_whole: int
    num_found: int
    num_replies: int
    num_wrong: int


def flip(content: Stored, source: random.Random) -> None:
    """Flip one bit in every third slot."""
    with content.slots.open("r+b") as file:
        for slot in range(0, content.slots.stat().st_size // content.slot_bytes, 3):
            at = slot * content.slot_bytes + source.randrange(content.slot_bytes - 512)
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes((byte ^ 1 << source.randrange(8),)))


def cut(content: Stored, _source: random.Random) -> None:
    """Cut the slot file in the middle of a slot."""
    with content.slots.open("r+b") as file:
        file.truncate(content.slots.stat().st_size // 2 // content.slot_bytes * content.slot_bytes + 1000)


def swap(content: Stored, source: random.Random) -> None:
    """Put half of the slots' contents into others' slots."""
    num_slots = content.slots.stat().st_size // content.slot_bytes
    chosen = source.sample(range(num_slots), num_slots // 2)
    with content.slots.open("r+b") as file:
        held = []
        for slot in chosen:
            file.seek(slot * content.slot_bytes)
            held.append(file.read(content.slot_bytes))
        for slot, block in zip(chosen, [*held[1:], held[0]], strict=True):
            file.seek(slot * content.slot_bytes)
            file.write(block)


def spoil_index(content: Stored, source: random.Random) -> None:
    """Overwrite a quarter of the index by noise, from its first page on."""
    index = content.slots.with_name("index")
    with index.open("r+b") as file:
        file.write(source.randbytes(index.stat().st_size // 4))


DAMAGES: dict[str, Callable[[Stored, random.Random], None]] = {
    "a bit flipped in every third slot": flip,
    "the slot file cut to half": cut,
    "half of the slots swapped": swap,
    "a quarter of the index overwritten": spoil_index,
}


def play_damage(
    stories: Sequence[Story],
    arguments: Sequence[str],
    kv_token_bytes: int,
    *,
    num_kills: int,
    num_damages: int,
    seed: int,
) -> list[Trial]:
    """Play so many kills, and the first `num_damages` of `DAMAGES`, one after the other."""
    source = random.Random(seed)
    num_blocks = sum(2 * story.num_tokens // BLOCK_SIZE + 4 for story in stories)
    disk_bytes = max(1 << 30, 2 * (num_kills + 2) * num_blocks * BLOCK_SIZE * kv_token_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="radixkv-tiers-") as folder,
        Deployment(Path(folder) / "stack", num_blocks, arguments, disk_bytes) as deployment,
    ):
        users = _Users(deployment, stories)
        trials = []
        for number in range(num_kills):
            namespace = f"killed-{number}"
            users.first_day(namespace)
            time.sleep(source.uniform(0.0, LONGEST_DELAY_S))
            _restart(deployment)
            trials.append(users.next_day("kill -9 in the midst of saves", namespace))
        users.first_day(NAMESPACE)
        for name, damage in list(DAMAGES.items())[:num_damages]:
            _rested_restart(deployment, partial(_damage, deployment, damage, source))
            trials.append(users.next_day(name, NAMESPACE))
            _rested_restart(deployment)
            trials.append(users.next_day(f"the next restart after: {name}", NAMESPACE))
        return trials


def _damage(deployment: Deployment, damage: Callable[[Stored, random.Random], None], source: random.Random) -> None:
    damage(stored(deployment.blocks), source)


def _restart(deployment: Deployment, meanwhile: Callable[[], None] = lambda: None) -> None:
    deployment.kill_worker()
    meanwhile()
    deployment.start_worker()


def _rested_restart(deployment: Deployment, meanwhile: Callable[[], None] = lambda: None) -> None:
    deployment.rest()
    _restart(deployment, meanwhile)


class _Users:
    """The users of a deployment, and the replies that they must get."""

    def __init__(self, deployment: Deployment, stories: Sequence[Story]) -> None:
        self._deployment = deployment
        self._last: list[
            tuple[list[int], list[int], int]
        ] = []  # prompt of day one, of the next day, tokens of its reply
        self._expected: list[list[int]] = []
        for story in stories:
            replies: list[list[int]] = []
            for number, call in enumerate(story.calls):
                prompt = story.prompt(number, replies)
                answer = ask(deployment.client, prompt, call.num_tokens, sharing="off")
                replies.append(answer.reply)
            self._last.append((story.prompt(len(replies) - 2, replies), prompt, call.num_tokens))
            self._expected.append(replies[-1])

    def first_day(self, namespace: str) -> None:
        """All prompts of day one are computed."""
        client = self._deployment.client
        together(self._last, AT_ONCE, lambda last: ask(client, last[0], 1, namespace=namespace))

    def next_day(self, name: str, namespace: str) -> Trial:
        """All users come back; none may fail."""
        client = self._deployment.client
        answers = together(self._last, AT_ONCE, lambda last: ask(client, last[1], last[2], namespace=namespace))
        whole = [len(before) // BLOCK_SIZE * BLOCK_SIZE for before, _, _ in self._last]
        found = [min(answer.num_cached, num) for answer, num in zip(answers, whole, strict=True)]
        wrong = [answer.reply != reply for answer, reply in zip(answers, self._expected, strict=True)]
        return Trial(name, sum(whole), sum(found), len(answers), sum(wrong))


def report_damage(trials: Sequence[Trial]) -> Part:
    """Figures, table and bars."""
    names = list(dict.fromkeys(trial.name for trial in trials))
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    for name in names:
        group = [trial for trial in trials if trial.name == name]
        found, whole = sum(trial.num_found for trial in group), sum(trial.num_whole for trial in group)
        num_replies, num_wrong = sum(trial.num_replies for trial in group), sum(trial.num_wrong for trial in group)
        figures[name] = {
            "times": len(group),
            "found": found,
            "whole": whole,
            "replies": num_replies,
            "wrong": num_wrong,
        }
        rows.append((name, str(len(group)), f"{found:,} of {whole:,}", f"{num_wrong} of {num_replies}"))
    num_wrong = sum(trial.num_wrong for trial in trials)
    again = [trial.num_found / trial.num_whole for trial in trials if trial.name.startswith("the next")]
    checks = [Bar("replies that differ after a mishap", num_wrong, 0)]
    bars = [Bar("tokens of whole blocks found after the next restart, least", min(again), FOUND_BOUND, at_least=True)]
    columns = ("", "times", "tokens found", "replies that differ")
    return Part(figures, [Table("mishaps", columns, rows)], bars, checks)

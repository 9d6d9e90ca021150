"""Histories that a runner computes in random cuts, beside others, from any position on; every answer is checked to the bit."""

from __future__ import annotations

import random
from array import array

import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.worker.model.model import ForwardRow, ModelRunner

__all__ = ["check_random_cuts", "tables"]


def check_random_cuts(
    runner: ModelRunner,
    vocab_size: int,
    length: int,
    shared: tuple[int, int],
    num_plans: int,
    adapters: tuple[str, ...],
) -> None:
    """Logits behind each token of three histories, of which two share the first `shared` tokens of the first: one by one, and
    in plans by chance, from the start and from what another history has computed.

    Args:
        adapters: one name for all, or three; branches share nothing across two.
    """
    source = random.Random(1)
    names = adapters * (3 // len(adapters))
    trunk = source.choices(range(3, vocab_size), k=length)
    own = [trunk[:kept] + source.choices(range(3, vocab_size), k=length - kept) for kept in (length, *shared)]
    histories = list(zip(own, names, strict=True))
    expected = [one_by_one(runner, *history, tables(runner, source, 1, length)[0]) for history in histories]
    for _ in range(num_plans):
        first, *others = tables(runner, source, 3, length)
        run(runner, source, [(*histories[0], first, 0)], expected[:1])
        forked = []
        for (ids, name), table, kept in zip(histories[1:], others, shared, strict=True):
            start = source.choice([0, kept // runner.pool.block_size * runner.pool.block_size, kept])
            start = start if name == names[0] else 0
            forked.append((ids, name, fork(runner, first, table, start), start))
        run(runner, source, forked, expected[1:])


def tables(runner: ModelRunner, source: random.Random, count: int, num_tokens: int) -> list[array[int]]:
    """Tables of as many sequences, of blocks in no order."""
    blocks = list(range(runner.pool.num_blocks))
    source.shuffle(blocks)
    size = num_tokens // runner.pool.block_size + 1
    return [array("i", blocks[index * size : (index + 1) * size]) for index in range(count)]


def one_by_one(runner: ModelRunner, ids: list[int], adapter: str, table: array[int]) -> Tensor:
    """Logits behind every token of a history that is alone and comes token by token, on one thread."""
    torch.set_num_threads(1)
    return torch.cat([runner.forward([ForwardRow([id_], at, table, 0, True, adapter)]) for at, id_ in enumerate(ids)])


def cut(source: random.Random, start: int, end: int) -> list[tuple[int, int]]:
    """A history's positions from `start` to `end` in pieces, of one token or of many."""
    pieces = []
    while start < end:
        stop = min(end, start + source.choice([1, 1, 2, 7, 16, 33, 90]))
        pieces.append((start, stop))
        start = stop
    return pieces


def fork(runner: ModelRunner, parent: array[int], table: array[int], length: int) -> array[int]:
    """A table whose first `length` positions are the parent's: whole blocks shared, the part of one copied."""
    whole, rest = divmod(length, runner.pool.block_size)
    if rest:
        runner.carry_out([Copy(parent[whole], table[whole], rest)])
    return parent[:whole] + table[whole:]


def run(
    runner: ModelRunner,
    source: random.Random,
    histories: list[tuple[list[int], str, array[int], int]],
    expected: list[Tensor],
) -> None:
    """Run histories together, each from a position on and cut anew, in steps that take some of them in any order, on two
    threads.
    """
    torch.set_num_threads(2)
    waiting = [cut(source, start, len(ids)) for ids, _, _, start in histories]
    while any(waiting):
        chosen = [index for index, pieces in enumerate(waiting) if pieces and source.random() < 0.7]
        source.shuffle(chosen)
        rows, ends = [], []
        for index in chosen:
            ids, adapter, table, _ = histories[index]
            start, end = waiting[index].pop(0)
            rows.append(ForwardRow(ids[start:end], start, table, 0, True, adapter))
            ends.append((index, end))
        if not rows:
            continue
        for found, (index, end) in zip(runner.forward(rows), ends, strict=True):
            assert torch.equal(found, expected[index][end - 1]), f"history {index} behind {end} tokens"

"""The block manager of the examples under an engine whose KV are hashes, in a pool that is too small for all."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate

from radixkv import CacheHolder, PoolShape, connect
from radixkv.examples.block_manager import BlockManager, Sequence
from radixkv.service import ServiceConfig
from radixkv.testing.faults import DEFAULT_FAULTS, Fault, RandomFaults
from radixkv.testing.observer import Observer
from radixkv.testing.report import as_text
from radixkv.testing.trial import Trial

NUM_BLOCKS, BLOCK_SIZE = 24, 4


def kv_of(seq: Sequence) -> list[int]:
    return list(accumulate(seq.token_ids, lambda state, token: hash((state, token)), initial=hash(seq.namespace)))[1:]


class Engine:
    """Runs positions as a model would, and reads every slot that attention would read."""

    def __init__(self, cache: CacheHolder | None = None) -> None:
        self.slots: list[int | None] = [None] * (NUM_BLOCKS * BLOCK_SIZE)
        self.num_copies = 0
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, self.copy, cache)

    def copy(self, src: int, dst: int, num_tokens: int) -> None:
        self.num_copies += 1
        at, to = src * BLOCK_SIZE, dst * BLOCK_SIZE
        self.slots[to : to + num_tokens] = self.slots[at : at + num_tokens]

    def run(self, seq: Sequence) -> None:
        kv, start = kv_of(seq), seq.num_cached_tokens
        for position, slot in enumerate(self.manager.slot_mapping(seq, start), start):
            if slot >= 0:
                self.slots[slot] = kv[position]
        size, table = BLOCK_SIZE, seq.block_table
        assert [self.slots[table[p // size] * size + p % size] for p in range(len(kv))] == kv
        self.manager.computed(seq)


def play(engine: Engine, num_rounds: int) -> int:
    """Run sequences, forks and preemptions; returns the least of their counts."""
    draw, manager = random.Random(7), engine.manager
    waiting, running = [], []
    num_preempted = num_forked = num_reused = num_finished = 0
    for _ in range(num_rounds):
        if len(waiting) + len(running) < 6:
            prompt = [draw.randrange(2) for _ in range(draw.randint(1, 14))]
            waiting.append(Sequence(prompt, draw.choice(["a", "b"])))
        if waiting and manager.allocate(waiting[-1]):
            running.append(waiting.pop())
            num_reused += running[-1].num_cached_tokens
        for seq in running:
            engine.run(seq)
            seq.token_ids.append(draw.randrange(2))
        if running and len(running) < 6 and draw.random() < 0.3:
            parent = draw.choice(running)
            child = manager.fork(parent, draw.randint(1, parent.num_cached_tokens))
            child.token_ids.append(draw.randrange(2))
            running.append(child)
            num_forked += 1
        for seq in list(running):
            is_finished = len(seq.token_ids) > 30
            if is_finished or not manager.append(seq):
                manager.free(seq, keep=draw.random() < 0.9)
                running.remove(seq)
                num_finished += is_finished
                num_preempted += not is_finished
                waiting += [] if is_finished else [seq]
        manager.cache.check()
    return min(num_preempted, num_forked, num_reused, num_finished, engine.num_copies)


def test_every_slot_read_is_right_through_preemption_and_forks() -> None:
    assert play(Engine(), 2000) > 50


def test_so_it_is_at_a_service_that_breaks_and_restarts_and_no_rule_of_a_holder_is_broken() -> None:
    async def run() -> Observer:
        faults = [fault for fault in DEFAULT_FAULTS if fault is not Fault.CLEAR]  # which ends what is shared
        config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=8.0, drain_s=0.1)
        async with Trial(RandomFaults(1, faults, (8, 24)), config) as trial:

            def hold() -> None:
                with connect(trial.address, PoolShape(NUM_BLOCKS, BLOCK_SIZE), patience_s=60) as holder:
                    play(Engine(holder), 60)

            await asyncio.to_thread(hold)
            await trial.settle()
            trial.observer.finished(0)
            return trial.observer

    observer = asyncio.run(asyncio.wait_for(run(), 300))
    assert not observer.breaches, as_text(observer)
    assert observer.seen["restarts to adopt after"]
    assert observer.seen["streams resumed"]

"""The block manager of the examples under an engine whose KV are hashes, in a pool that is too small for all."""

from __future__ import annotations

import random
from itertools import accumulate

from radixkv.examples.block_manager import BlockManager, Sequence

NUM_BLOCKS, BLOCK_SIZE = 24, 4


def kv_of(seq: Sequence) -> list[int]:
    return list(accumulate(seq.token_ids, lambda state, token: hash((state, token)), initial=hash(seq.namespace)))[1:]


class Engine:
    """Runs positions as a model would, and reads every slot that attention would read."""

    def __init__(self) -> None:
        self.slots: list[int | None] = [None] * (NUM_BLOCKS * BLOCK_SIZE)
        self.num_copies = 0
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, self.copy)

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


def test_every_slot_read_is_right_through_preemption_and_forks() -> None:
    draw, engine = random.Random(7), Engine()
    manager = engine.manager
    waiting, running = [], []
    num_preempted = num_forked = num_reused = num_finished = 0
    for _ in range(2000):
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
    assert min(num_preempted, num_forked, num_reused, num_finished, engine.num_copies) > 50

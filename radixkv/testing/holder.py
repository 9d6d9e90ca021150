"""A careful holder, as an example and for a test of the kit: `python -m radixkv.testing.holder ADDRESS`.

It branches random histories over a small pool, by `radixkv.connect`, with hashes for KV; it verifies each of its slots.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count

from radixkv.client import RemoteHolder, connect
from radixkv.core.api import AcquireOp, ExtendOp, ForkOp, InsertOp, PoolShape, ReleaseOp, StepOp
from radixkv.core.errors import LeaseError, PoolHeldError, UnavailableError
from radixkv.core.tokens import pack_tokens
from radixkv.testing.hash_kv_worker import HashKvWorker, WorkerSequence

__all__ = ["main", "work"]

MAX_OPEN = 6
MAX_LENGTH = 40
PATIENCE_S = 30.0
PAUSE_S = 0.005
_ALPHABET = 3


def _ops(worker: HashKvWorker, draw: random.Random, seq_ids: count[int]) -> list[StepOp]:
    """The ops of one round: every sequence grows by a token; some are opened, forked and released."""
    ops: list[StepOp] = []
    usable = [sequence for sequence in worker.sequences.values() if sequence.is_usable]
    for sequence in usable:
        ops += _grow(worker, sequence, draw)
    if len(usable) < MAX_OPEN:
        parents = [sequence for sequence in usable if sequence.num_computed and sequence.seq_id is not None]
        if parents and draw.random() < 0.5:
            parent = draw.choice(parents)
            assert parent.seq_id is not None
            ops.append(ForkOp(parent.seq_id, draw.randint(1, parent.num_computed), 1, 4, (next(seq_ids),)))
        else:
            prompt = [draw.randrange(_ALPHABET) for _ in range(draw.randint(1, 12))]
            namespace = draw.choice(["default", "other"])
            for _ in range(draw.choice([1, 1, 2])):  # the second waits for the first
                ops.append(AcquireOp(pack_tokens(prompt), 4, namespace, next(seq_ids), waits=True))
    ops += [
        ReleaseOp(sequence.seq_id, draw.random() < 0.8)
        for sequence in usable
        if sequence.seq_id is not None and (len(sequence.tokens) > MAX_LENGTH or draw.random() < 0.1)
    ]
    return ops


def _grow(worker: HashKvWorker, sequence: WorkerSequence, draw: random.Random) -> list[StepOp]:
    """Compute a sequence as far as its room goes, publish that, append a token, and ask for its room."""
    assert sequence.seq_id is not None
    if sequence.num_uncertain:
        return []
    before = sequence.num_computed
    worker.compute(sequence, len(sequence.tokens))
    new: list[int] = []
    if sequence.num_computed == len(sequence.tokens):
        new = [draw.randrange(_ALPHABET)]
        sequence.tokens += new
    ops: list[StepOp] = []
    if new or sequence.num_computed > before:
        ops.append(InsertOp(sequence.seq_id, sequence.num_computed, pack_tokens(new)))
    if len(sequence.tokens) > sequence.room:
        ops.append(ExtendOp(sequence.seq_id, len(sequence.tokens)))
    return ops


def work(holder: RemoteHolder, pool: PoolShape, seed: int) -> Iterator[None]:
    """Send a Step with each turn."""
    worker, draw = HashKvWorker(holder, pool.num_blocks, pool.block_size), random.Random(seed)
    seq_ids = count(1)
    for number in count():
        for notice in holder.take_notices():
            if notice.kind == "lost" and notice.seq_id in worker.sequences:
                worker.lose(notice.seq_id)
        worker.submit(_ops(worker, draw, seq_ids), may_be_refused=True)
        worker.catch_up(draw.randint(0, 2) if number % 8 else 0)
        worker.verify()
        time.sleep(PAUSE_S)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m radixkv.testing.holder", description="Hold a pool, and branch histories in it."
    )
    parser.add_argument("address", help="of the cache service")
    parser.add_argument(
        "--steps", type=int, default=300, help="how many Steps to send; 0: until SIGTERM (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the same work again (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=24, help="size of the pool (default %(default)s)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    pool = PoolShape(num_blocks=options.blocks, block_size=4)
    num_done = num_lives = 0
    while not options.steps or num_done < options.steps:
        try:
            incarnation = secrets.randbits(64) or 1
            with connect(
                options.address, pool, incarnation=incarnation, wait_s=PATIENCE_S, patience_s=PATIENCE_S
            ) as holder:
                for _ in work(holder, pool, options.seed + num_lives):
                    num_done += 1
                    if num_done == options.steps:
                        break
        except (PoolHeldError, UnavailableError) as error:
            parser.exit(1, f"{error}\n")
        except LeaseError as error:
            print(f"the lease is lost, a new life begins: {error}", file=sys.stderr)
            num_lives += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

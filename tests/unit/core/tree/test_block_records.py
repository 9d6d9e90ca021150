"""Records of blocks: read back as they were written, refused where they are not, and played back in any order."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from radixkv import PrefixCache, Retention
from radixkv.core.api import (
    AcquireOp,
    AdoptBlocksOp,
    AdoptSequenceOp,
    EvictBranchOp,
    ForkOp,
    InsertOp,
    ReleaseOp,
    RetainOp,
    StepOp,
)
from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.core.tokens import pack_tokens
from radixkv.core.tree.block_records import BlockRecord
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.journal import Recorded

SIZE, KEY = 4, 2**63 + 5


class Kept(PrefixCache):
    """A cache whose records are kept."""

    def __init__(self, num_blocks: int = 32, kept: dict[int, bytes] | None = None) -> None:
        super().__init__(num_blocks, SIZE, eviction="lru", clock=lambda: 0.0, record_key=KEY)
        self.kept = {} if kept is None else dict(kept)

    def keep(self) -> None:
        for block_id, record in zip(*self.take_records(), strict=True):
            self.kept.pop(block_id, None)
            if record:
                self.kept[block_id] = record

    def done(self, *ops: StepOp) -> None:
        assert not any(isinstance(result, RadixKVError) for result in self.step(ops))
        self.keep()

    def cached(self, tokens: Sequence[int], namespace: str = "default") -> None:
        self.done(AcquireOp(pack_tokens(tokens), 0, namespace, 9), InsertOp(9, len(tokens)), ReleaseOp(9))

    def played_back(self, *block_ids: int) -> PrefixCache:
        """Another cache, to which these blocks are played back one by one, or all."""
        after = Kept(self.stats().num_blocks, self.kept)
        for block_id in block_ids or self.kept:
            after.adopt_blocks([block_id], [self.kept[block_id]])
        return after


def nodes(cache: PrefixCache) -> set[tuple[str, bytes, tuple[int, ...], int]]:
    """Namespace, whole history, blocks and priority of each block."""
    known: dict[int, tuple[bytes, tuple[int, ...]]] = {0: (b"", ())}
    found = set()
    for node in cache.dump():
        history, blocks = known[node.parent_id]
        known[node.node_id] = history + node.tokens, blocks + tuple(node.block_ids)
        for index in range(len(blocks), len(known[node.node_id][1])):
            end = (index + 1) * SIZE * 4
            told = known[node.node_id][0][:end], known[node.node_id][1][: index + 1]
            found.add((node.namespace, *told, node.priority))
    return found


@pytest.mark.parametrize(
    "tokens", [[1, 2, 3, 65_535], [65_536, 0, 1, 2], [2**24, 5, 6, 7], [2**32 - 1] * 4, [8], [8, 9]]
)
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("namespace", ["default", "ä" * 100], ids=["short", "long"])
def test_a_record_is_read_as_it_was_written(tokens: list[int], depth: int, namespace: str) -> None:
    cache = Kept()
    cache.cached([*range(SIZE * depth), *tokens], namespace)
    block_id = cache.acquire([*range(SIZE * depth), *tokens], namespace=namespace).block_table[depth]
    packed = cache.kept[block_id]
    record = BlockRecord.read(KEY, block_id, packed)
    assert record is not None
    above = (
        namespace_hash(namespace),
        *chained_hashes(namespace_hash(namespace), pack_tokens(range(SIZE * depth)), 16),
    )
    assert record == (above[-1], pack_tokens(tokens), None if depth else namespace, (35, math.inf))


def test_a_record_has_the_retention_of_its_block() -> None:
    cache = Kept()
    cache.cached(range(11))
    cache.done(RetainOp(pack_tokens(range(8)), (Retention(4, 8, priority=90, duration_s=2.5),)))
    read = [BlockRecord.read(KEY, block_id, packed) for block_id, packed in cache.kept.items()]
    said = {record.tokens[0]: record.retention for record in read if record is not None}
    assert said == {0: (35, math.inf), 4: (90, 2.5), 8: (35, math.inf)}


def test_a_damaged_record_is_refused() -> None:
    cache = Kept()
    cache.cached(range(4))
    ((block_id, packed),) = cache.kept.items()
    for at in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[at // 8] ^= 1 << at % 8
        assert BlockRecord.read(KEY, block_id, bytes(flipped)) is None
    for length in range(len(packed)):
        assert BlockRecord.read(KEY, block_id, packed[:length]) is None
    assert BlockRecord.read(KEY + 1, block_id, packed) is None
    assert BlockRecord.read(KEY, block_id + 1, packed) is None


def test_a_forged_record_is_refused_or_fails_the_op_alone() -> None:
    rng, results = random.Random(3), set[str]()
    for _ in range(2000):
        namespace = rng.choice([b"default", b"", b"\xff", b"x" * 300])
        above = namespace_hash("default") if rng.random() < 0.7 else rng.getrandbits(64)
        content = bytes([rng.choice([10, 2, 26, rng.randrange(256)])]) + above.to_bytes(8, "little")
        content += rng.choice([len(namespace), rng.randrange(2**16)]).to_bytes(2, "little") + namespace
        content += rng.randbytes(rng.choice([8, 9, 17, rng.randrange(40)]))
        packed = content + crc32(content, crc32(KEY.to_bytes(8, "little") + bytes(4))).to_bytes(4, "little")
        cache = Kept()
        (result,) = cache.step([AdoptBlocksOp(array("i", [0]), (packed,))])
        results.add(str(result) if isinstance(result, int) else type(result).__name__)
        cache.check()
    assert results == {"0", "1", "InvalidArgumentError"}


@pytest.mark.parametrize("seed", range(20))
def test_blocks_in_any_order_and_in_any_parts_are_the_same_tree(seed: int) -> None:
    rng, cache = random.Random(seed), Kept(40)
    for number in range(1, 40):
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 18))]
        cache.done(AcquireOp(pack_tokens(tokens), 0, rng.choice("ab"), number), InsertOp(number, len(tokens)))
        if rng.random() < 0.4:
            cache.done(ForkOp(number, rng.randint(1, len(tokens)), 1, 0, (1000 + number,)), ReleaseOp(1000 + number))
        cache.done(ReleaseOp(number, rng.random() < 0.8))
        if rng.random() < 0.1:
            cache.done(EvictBranchOp(pack_tokens(tokens[:3]), "a"))
        if rng.random() < 0.2:
            cache.done(RetainOp(pack_tokens(tokens), (Retention(rng.randrange(9), None, rng.randrange(100)),), "b"))
    items = list(cache.kept.items())
    rng.shuffle(items)
    after = Kept(40, cache.kept)
    while items:
        block_id, packed = items.pop()
        alike = [each for each in items if rng.random() < 0.3]
        items = [each for each in items if each not in alike]
        block_ids, records = zip(*[(block_id, packed), *alike], strict=True)
        after.step([AdoptBlocksOp(array("i", block_ids), records)])
    assert not after.take_records().block_ids, "nothing has changed for the holder"
    assert nodes(after) == nodes(cache)
    assert after.kept.keys() == {block_id for node in cache.dump() for block_id in node.block_ids}
    after.check()


def test_a_block_without_the_one_above_it_is_forgotten_with_the_first_block_taken() -> None:
    cache = Kept()
    cache.cached(range(12))
    first, second, third = cache.kept
    after = cache.played_back(first, third)
    assert after.match(range(12)).num_tokens == 4
    assert not after.take_records().block_ids, "the second may still come"
    after.acquire([7])
    assert after.take_records() == Recorded(array("i", [third]), (b"",))
    assert second


def test_what_is_refused_is_refused_alone_and_forgotten() -> None:
    cache = Kept()
    cache.cached(range(8))
    cache.cached([9] * 4)
    first, second, third = cache.kept
    after = Kept(kept=cache.kept)
    packed = after.kept[second][:-1] + bytes([after.kept[second][-1] ^ 1])
    assert after.adopt_blocks([second, third], [packed, after.kept[second]]) == 0  # damaged, and of another block
    assert after.adopt_blocks([third], [after.kept[third]]) == 1
    assert after.adopt_blocks([first], [after.kept[first]]) == 1
    assert after.adopt_blocks([99], [after.kept[first]]) == 0  # no block of the pool
    after.keep()
    assert after.kept.keys() == {first, third}
    assert [after.match(tokens).num_tokens for tokens in (range(8), [9] * 4)] == [4, 4]
    after.check()


def test_a_block_that_an_open_sequence_has_is_not_cached_for_another_history() -> None:
    cache = Kept()
    cache.cached(range(4))
    (block_id,) = cache.kept
    after = Kept(kept=cache.kept)
    after.step([AdoptSequenceOp(1, pack_tokens([5, 6]), array("i", [block_id]), 0, 2)])
    assert after.adopt_blocks([block_id], [after.kept[block_id]]) == 0
    after.keep()
    assert not after.kept
    assert after.match(range(4)).num_tokens == 0


def test_nothing_of_a_namespace_that_was_cleared_meanwhile_comes_back() -> None:
    cache = Kept()
    cache.cached(range(6), "a")
    cache.cached(range(6), "b")
    after = Kept(kept=cache.kept)
    after.clear("a")
    for block_id, packed in cache.kept.items():
        after.adopt_blocks([block_id], [packed])
    after.keep()
    assert [after.match(range(6), namespace=name).num_tokens for name in "ab"] == [0, 6]
    assert after.kept.keys() == {block_id for node in after.dump() for block_id in node.block_ids}


def test_a_clear_forgets_the_blocks_that_open_sequences_go_on_with() -> None:
    cache = Kept()
    cache.done(AcquireOp(pack_tokens(range(8)), seq_id=1), InsertOp(1, 8))
    assert len(cache.kept) == 2
    cache.clear("default")
    cache.keep()
    assert not cache.kept
    cache.done(ReleaseOp(1))
    assert not cache.kept


def test_a_block_that_is_cut_has_the_record_of_what_is_left() -> None:
    cache = Kept()
    cache.done(AcquireOp(pack_tokens(range(8)), seq_id=1), InsertOp(1, 8), ForkOp(1, 6, 1, 0, (2,)))
    cache.done(ReleaseOp(1, keep=False), ReleaseOp(2, keep=False))
    assert cache.match(range(8)).num_tokens == 6
    after = cache.played_back()
    assert after.match(range(8)).num_tokens == 6
    assert nodes(after) == nodes(cache)


def test_a_block_that_is_taken_though_nothing_was_played_back_is_forgotten() -> None:
    cache = Kept()
    cache.cached(range(12))
    after = Kept(kept=cache.kept)
    after.expect_records()
    taken = after.acquire([7] * 6).block_table
    after.keep()
    assert set(taken) & cache.kept.keys(), "blocks that hold a history"
    assert after.kept.keys() == cache.kept.keys() - set(taken)


@pytest.mark.parametrize(
    ("block_ids", "records", "argument"),
    [
        ([], [b"a"], "records"),
        ([1, 2], [b"a"], "records"),
        ([1], b"a", "records"),
        ([1], "x", "records"),
        ("x", [b"a"], "block_ids"),
    ],
)
def test_records_that_are_none_are_refused_by_name(block_ids: Sequence[int], records: Any, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        Kept().adopt_blocks(block_ids, records)
    assert refused.value.argument == argument


def test_a_cache_that_keeps_no_records_takes_none() -> None:
    cache = PrefixCache(8, SIZE)
    cache.step([AcquireOp(pack_tokens(range(4)), seq_id=1), InsertOp(1, 4)])
    assert not cache.take_records().block_ids
    with pytest.raises(InvalidArgumentError, match="keeps records"):
        PrefixCache(8, SIZE).adopt_blocks([1], [b"abc"])


def test_nothing_is_adopted_by_record_once_a_block_was_taken() -> None:
    cache = Kept()
    cache.cached(range(4))
    (block_id,) = cache.kept
    after = Kept()
    after.acquire([1])
    with pytest.raises(InvalidArgumentError, match="before any other call"):
        after.adopt_blocks([block_id], [cache.kept[block_id]])

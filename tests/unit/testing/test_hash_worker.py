"""The worker whose slots hold hashes, and the holder that is an example: nothing to say of a right cache, and of a wrong one
the block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any, cast

import pytest
from desk import LateCache

from radixkv import PrefixCache
from radixkv.client import RemoteHolder
from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    ClearOp,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchOp,
    Notice,
    PoolShape,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import AbortedError
from radixkv.core.tokens import pack_tokens
from radixkv.testing import holder as holder_module
from radixkv.testing.hash_kv_worker import HashKvWorker, kv_of
from radixkv.testing.holder import MAX_LENGTH, MAX_OPEN, work

POOL = PoolShape(24, 4)


class Answering(LateCache):
    """Applies Steps at once; `change` has a look at every answer. Keeps what was said."""

    def __init__(self, change: Callable[[StepOp, StepResult], StepResult] | None = None) -> None:
        super().__init__(POOL.num_blocks, POOL.block_size)
        self._change = change or (lambda _, result: result)
        self.said: list[StepOp] = []

    def submit(self, ops: Sequence[StepOp]) -> Future[list[StepResult]]:
        self.said += ops
        future = super().submit(ops)
        _, results, _ = self.waiting[0]
        results[:] = [self._change(op, result) for op, result in zip(ops, results, strict=True)]
        self.answer()
        return future


def worked(cache: PrefixCache, seed: int, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of turns of the example on a cache."""
    monkeypatch.setattr(holder_module, "PAUSE_S", 0.0)
    return sum(1 for _ in islice(work(cast(RemoteHolder, cache), POOL, seed), num_steps))


@pytest.mark.parametrize("seed", range(4))
def test_the_example_branches_over_a_small_pool_and_finds_nothing_wrong(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Answering()
    assert worked(cache, seed, 250, monkeypatch) == 250
    cache.check()
    kinds = {kind: [op for op in cache.said if isinstance(op, kind)] for kind in (AcquireOp, ForkOp, ReleaseOp)}
    assert min(len(ops) for ops in kinds.values()) > 10
    assert {op.namespace for op in kinds[AcquireOp]} == {"default", "other"}
    assert {op.keep for op in kinds[ReleaseOp]} == {True, False}
    assert {op.n for op in kinds[ForkOp]} == {1}
    seq_ids = [op.seq_id for op in kinds[AcquireOp]] + [op.seq_ids[0] for op in kinds[ForkOp]]
    assert len(set(seq_ids)) == len(seq_ids)
    assert cache.stats().num_sequences <= MAX_OPEN + 2
    assert cache.stats().num_evicted_blocks > 10
    assert max(op.num_tokens for op in cache.said if isinstance(op, ExtendOp)) <= MAX_LENGTH + 2


def test_the_example_goes_on_behind_a_sequence_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Answering()
    monkeypatch.setattr(holder_module, "PAUSE_S", 0.0)
    turns = work(cast(RemoteHolder, cache), POOL, 1)
    for _ in range(30):
        for _ in islice(turns, 8):  # all answers are applied then
            pass
        lost = next(iter(sorted(cache._sequences)))
        cache.release(lost, keep=False)
        cache.told += [Notice("lost", lost, 0), Notice("gone", 10**6, 0), Notice("lost", 10**6, 0)]
    cache.check()


LIES: dict[str, Callable[[StepOp, StepResult], StepResult]] = {}


def lie(change: Callable[[Any, Any], StepResult]) -> Callable[[Any, Any], StepResult]:
    LIES[change.__name__] = change
    return change


@lie
def copies_are_left_out(_: Any, result: Any) -> Any:
    return result._replace(ops=[]) if isinstance(result, (AcquireResult, ExtendResult)) else result


@lie
def copies_are_a_token_short(_: Any, result: Any) -> Any:
    if not isinstance(result, (AcquireResult, ExtendResult)):
        return result
    return result._replace(ops=[Copy(src, dst, max(1, number - 1)) for src, dst, number in result.ops])


@lie
def more_is_said_to_be_stored(op: Any, result: Any) -> Any:
    if isinstance(op, AcquireOp) and isinstance(result, AcquireResult):
        return result._replace(num_stored_tokens=len(op.tokens) // 4)
    return result


@lie
def a_table_begins_with_another_block(_: Any, result: Any) -> Any:
    if isinstance(result, AcquireResult) and result.num_stored_tokens:
        table = array("i", result.block_table)
        table[0] = (table[0] + 1) % POOL.num_blocks
        return result._replace(block_table=table)
    return result


@lie
def room_comes_in_anothers_block(_: Any, result: Any) -> Any:
    if isinstance(result, ExtendResult) and result.block_ids:
        return result._replace(block_ids=array("i", [0] * len(result.block_ids)))
    return result


@lie
def a_fork_gets_an_old_table(op: Any, result: Any) -> Any:
    if isinstance(op, ForkOp) and isinstance(result, list):
        return [child._replace(block_table=array("i", [5] * len(child.block_table))) for child in result]
    return result


@pytest.mark.parametrize("name", LIES)
def test_a_wrong_answer_is_found_by_a_read_of_the_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"position \d+ of .*: block \d+ offset \d holds (nothing|other KV)"):
        worked(Answering(LIES[name]), 0, 300, monkeypatch)


def test_kv_depends_on_the_namespace_and_on_every_token_before() -> None:
    kv = kv_of("a", [1, 2, 3])
    assert len(set(kv)) == 3
    assert min(kv) >= 0
    assert kv_of("a", [1, 2]) == kv[:2]
    assert kv_of("a", [9, 2, 3])[2] != kv[2]
    assert kv_of("b", [1, 2, 3])[0] != kv[0]


def test_answers_are_applied_in_order_and_as_late_as_it_is_told() -> None:
    cache = LateCache(24, 4)
    worker = HashKvWorker(cache, 24, 4)
    for seq_id in (1, 2, 3):
        worker.submit([AcquireOp(pack_tokens([seq_id] * 6), seq_id=seq_id)])
    assert worker.num_behind == 3
    assert not any(sequence.is_usable for sequence in worker.sequences.values())
    cache.answer()
    worker.catch_up(2)
    assert [sequence.is_usable for sequence in worker.sequences.values()] == [True, False, False]
    while cache.answer():
        pass
    worker.catch_up()
    assert worker.num_behind == 0
    assert all(sequence.is_usable for sequence in worker.sequences.values())
    assert [len(sequence.table) for sequence in worker.sequences.values()] == [2, 2, 2]


def opened(*, share_prefix: bool = True) -> tuple[Answering, HashKvWorker]:
    cache = Answering()
    worker = HashKvWorker(cache, POOL.num_blocks, POOL.block_size)
    worker.submit([AcquireOp(pack_tokens(range(6)), seq_id=1, share_prefix=share_prefix)])
    worker.catch_up()
    return cache, worker


def test_no_more_is_computed_than_there_are_tokens_and_room() -> None:
    _, worker = opened()
    sequence = worker.sequences[1]
    worker.sample(sequence, 9)
    worker.compute(sequence, 3)
    assert sequence.num_computed == 3
    worker.compute(sequence, 99)
    assert sequence.num_computed == 6, "there is no room for the seventh"
    worker.compute(sequence, 2)
    assert sequence.num_computed == 6
    worker.submit([ExtendOp(1, 20)])
    worker.catch_up()
    worker.compute(sequence, 99)
    assert sequence.num_computed == 7
    worker.verify()


def test_a_sequence_that_shares_nothing_has_kv_of_its_own() -> None:
    _, alone = opened(share_prefix=False)
    _, shared = opened()
    assert alone.sequences[1].namespace != shared.sequences[1].namespace


def test_a_refused_insert_is_not_reported_and_a_refused_release_leaves_it_open() -> None:
    cache, worker = opened()
    sequence = worker.sequences[1]
    worker.submit([InsertOp(1, 99, pack_tokens([7]))], may_be_refused=True)
    assert (sequence.num_reported, sequence.num_uncertain) == (7, 1)
    worker.catch_up()
    assert (sequence.num_reported, sequence.num_uncertain) == (6, 0)
    cache._change = lambda op, result: AbortedError("an earlier op failed") if isinstance(op, ReleaseOp) else result
    worker.submit([ReleaseOp(1)])
    assert not sequence.is_usable
    worker.catch_up()
    assert sequence.is_usable
    assert worker.sequences == {1: sequence}


def test_a_lost_sequence_is_gone_and_its_late_answers_open_nothing() -> None:
    cache = LateCache(24, 4)
    worker = HashKvWorker(cache, 24, 4)
    worker.submit([AcquireOp(pack_tokens(range(6)), seq_id=1)])
    life = worker.sequences[1]
    worker.lose(1)
    cache.answer()
    worker.catch_up()
    assert not life.is_open
    assert worker.sequences == {}


def test_an_id_may_be_used_again_before_its_release_is_answered() -> None:
    cache = LateCache(24, 4)
    worker = HashKvWorker(cache, 24, 4)
    worker.submit([AcquireOp(pack_tokens([1] * 6), seq_id=1)])
    cache.answer()
    worker.catch_up()
    worker.submit([ReleaseOp(1), AcquireOp(pack_tokens([2] * 6), seq_id=1)])
    second = worker.sequences[1]
    cache.answer()
    worker.catch_up()
    assert worker.sequences == {1: second}
    assert second.tokens == [2] * 6
    assert second.is_usable


def test_a_second_life_that_was_refused_leaves_the_first_one() -> None:
    cache, worker = opened()
    first = worker.sequences[1]
    worker.submit([AcquireOp(pack_tokens([2] * 6), seq_id=1)])
    worker.submit([ForkOp(1, 99, 1, 0, (2,))])
    assert set(worker.sequences) == {1, 2}
    worker.catch_up()
    assert worker.sequences == {1: first}
    assert cache.stats().num_sequences == 1


def test_every_call_of_the_facade_does_what_its_op_does() -> None:
    calls = [
        AcquireOp(pack_tokens(range(6)), 3, "n", 1),
        AcquireOp(pack_tokens(range(6)), 0, "n", 2, share_prefix=False),
        AcquireOp(pack_tokens(range(6)), 0, "n", 3, waits=True),
        MatchOp(pack_tokens(range(6)), "n"),
        ExtendOp(1, 9),
        InsertOp(1, 6),
        InsertOp(1, 6, pack_tokens([7, 8])),
        ForkOp(1, 5, 2, 2, (8, 9)),
        ForkOp(1, 99, 1),
        ReleaseOp(1, False),
        ReleaseOp(77),
        MatchOp(pack_tokens(range(6)), "n"),
    ]
    facade, steps = LateCache(24, 4), LateCache(24, 4)
    worker = HashKvWorker(facade, 24, 4)
    for op in calls:
        (expected,) = steps.step([op])
        answers = worker.submit([op], by_call=True).result()
        assert [str(answer) for answer in answers] == [str(expected)]
    assert str(facade.dump()) == str(steps.dump())
    with pytest.raises(TypeError, match="no call of the façade"):
        worker.submit([ClearOp("n")], by_call=True)

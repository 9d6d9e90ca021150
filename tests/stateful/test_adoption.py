"""A service that is restarted at any moment gets its tree back from the holder, and no slot that anybody reads is wrong."""

from __future__ import annotations

import itertools
import random
from array import array
from collections import Counter
from collections.abc import Sequence

import pytest

from radixkv.core.api import (
    DEFAULT_PRIORITY,
    AcquireOp,
    AdoptOp,
    AdoptResult,
    AdoptSequenceOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    NodeInfo,
    Notice,
    Pending,
    ReleaseOp,
    RetainOp,
    Retention,
    StepOp,
)
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import InvalidArgumentError, StaleIncarnationError, UnknownSequenceError
from radixkv.core.tokens import pack_tokens, unpack_tokens
from radixkv.core.tree.block_records import BlockRecord
from radixkv.testing.hash_kv_worker import HashKvWorker, WorkerSequence, kv_of
from radixkv.v1 import workers_pb2 as workers

from .machine.event_follower import EventFollower
from .oracle.snapshot import read_snapshot
from .wire import BLOCK_SIZE, NUM_BLOCKS, Wire

NAMESPACES = ("default", "other")


class Drive:
    """A worker that does anything at random, over a wire that breaks and a service that is restarted.

    Args:
        clears: whether namespaces are cleared, too.
        is_alike: whether all compute nearly the same history, often at once, so that many blocks hold the same tokens.
        spoils: whether a restarted service refuses some of the sequences.
    """

    def __init__(self, seed: int, *, clears: bool = True, is_alike: bool = False, spoils: bool = False) -> None:
        self.random = random.Random(seed)
        self.clears = clears
        self.is_alike = is_alike
        self.wire = Wire()
        self.wire.carry()
        if spoils:
            self.wire.spoils = lambda: self.random.random() < 0.2
        self.worker = HashKvWorker(self.wire, NUM_BLOCKS, BLOCK_SIZE)  # type: ignore[arg-type]  # it only submits
        self.followed, self.follower = self.wire.pool.cache, EventFollower(BLOCK_SIZE)
        self.next_id, self.spoils = 1, spoils
        self.cleared: set[str] = set()
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        ops: list[StepOp] = []
        for _ in range(self.random.randint(1, 3)):
            ops += self._op({op.seq_id for op in ops if not isinstance(op, AcquireOp)})  # type: ignore[union-attr]
        if ops:
            self.worker.submit(ops)
        fate = self.random.random()
        if fate < 0.05:  # the service dies with Steps on the way, before or after it has applied them
            self.counts["restarts"] += 1
            self.counts["lost"] += self.worker.num_behind
            self.wire.restart()
            self.wire.act()
            self._follow()
            if self.clears and self.random.random() < 0.4:  # on what it is about to be told, or has been told in part
                self.counts["cleared early"] += 1
                self.wire.act()
                if self.random.random() < 0.7:
                    self.wire.hear()
                self._clear()
        elif fate < 0.10:
            self.counts["answers lost"] += 1
            self.wire.act()
            if self.random.random() < 0.5:
                self.wire.restart()
            else:
                self.wire.reconnect()
        elif fate < 0.13 and self.clears:
            self.wire.carry()
            self._clear()
        self.wire.carry()
        for notice in self.wire.notices.take():
            if notice.kind == "lost":
                self.counts["not taken on"] += 1
                assert self.spoils or self._may_be_rejected(notice.seq_id), f"sequence {notice.seq_id} was not taken on"
                self.worker.lose(notice.seq_id)
        if self.random.random() < 0.7:
            self.worker.catch_up(self.random.randint(0, 1))

    def _clear(self) -> None:
        namespace = self.random.choice(NAMESPACES)
        self.cleared.add(namespace)
        self.wire.clear(namespace)

    def _may_be_rejected(self, seq_id: int) -> bool:
        """Whether it shares a partly filled block of a hidden tree in which it has written nothing."""
        self.worker.catch_up()
        lost = self.worker.sequences[seq_id]
        is_hidden = lost.namespace in self.cleared or lost.namespace not in NAMESPACES
        wrote_nothing = lost.num_stored == lost.num_computed == lost.room < len(lost.table) * BLOCK_SIZE
        num_readers = sum(lost.table[-1] in one.table for one in self.worker.sequences.values() if one.is_open)
        return is_hidden and wrote_nothing and num_readers > 1

    def _op(self, named: set[int]) -> list[StepOp]:
        usable = [s for s in self.worker.sequences.values() if s.is_usable and s.seq_id not in named]
        kind = self.random.choices(("acquire", "go on", "fork", "release"), (3, 6, 2, 2))[0]
        if kind == "acquire" or not usable:
            self.next_id += 1
            prompt = [self._draw() for _ in range(self.random.randint(1, 26 if self.is_alike else 22))]
            namespace = self.random.choice(NAMESPACES[: 1 if self.is_alike else None])
            shares = self.random.random() < 0.9
            reserve = self.random.choice((0, 0, 5))
            return [AcquireOp(pack_tokens(prompt), reserve, namespace, self.next_id, share_prefix=shares)]
        sequence = self.random.choice(usable)
        assert sequence.seq_id is not None
        if kind == "fork" and sequence.num_reported >= sequence.num_computed >= 1 and not sequence.num_uncertain:
            self.next_id += 1
            position = self.random.randint(1, sequence.num_computed)
            return [ForkOp(sequence.seq_id, position, 1, self.random.choice((0, 3)), (self.next_id,))]
        if kind == "release":
            return [ReleaseOp(sequence.seq_id, self.random.random() < 0.8)]
        return self._go_on(sequence)

    def _draw(self) -> int:
        return int(self.random.random() < (0.02 if self.is_alike else 0.5))

    def _go_on(self, sequence: WorkerSequence) -> list[StepOp]:
        assert sequence.seq_id is not None
        if sequence.num_uncertain:
            return []
        if self.random.random() < 0.4:
            return [ExtendOp(sequence.seq_id, sequence.room + self.random.randint(1, 6))]
        while len(sequence.tokens) < sequence.room:
            self.worker.sample(sequence, self._draw())
        self.worker.compute(sequence, sequence.num_computed + self.random.randint(1, 7))
        new = sequence.tokens[sequence.num_reported : max(sequence.num_computed, sequence.num_reported)]
        return [InsertOp(sequence.seq_id, sequence.num_computed, pack_tokens(new))]

    def check(self) -> None:
        """The books are right, and whatever is cached or read lies in its slots."""
        if self.worker.num_behind:
            return
        cache = self.wire.pool.cache
        cache.check()
        self.worker.verify()
        self._check_cached(cache.dump())
        self._check_kept(cache.dump())
        self._follow()
        self.follower.check(read_snapshot(cache))

    def _follow(self) -> None:
        cache = self.wire.pool.cache
        if cache is not self.followed:
            self.followed, self.follower = cache, EventFollower(BLOCK_SIZE)
        self.follower.follow(cache.events(self.follower.next_number))

    def _check_kept(self, nodes: Sequence[NodeInfo]) -> None:
        """The records that the holder keeps are the tree: all whole blocks, and no block that may be handed out."""
        kept = {block_id: kept_record(self.wire, block_id) for block_id in self.wire.session.records}
        for node in nodes:
            for index, block_id in enumerate(node.block_ids):
                tokens = node.tokens[index * BLOCK_SIZE * 4 : (index + 1) * BLOCK_SIZE * 4]
                record = kept.pop(block_id, None)
                if record is None:
                    assert len(tokens) < BLOCK_SIZE * 4, f"nothing is kept of the whole block {block_id}"
                    assert self.wire.pool.cache.stats().num_sequences, f"nobody writes block {block_id}"
                else:
                    assert tokens.startswith(record.tokens)
                    assert record.namespace == (None if node.position + index else node.namespace)
        private = {block_id for one in self.worker.sequences.values() if one.is_open for block_id in one.table}
        assert kept.keys() <= private, f"blocks {kept.keys() - private} are not in the tree"

    def _check_cached(self, nodes: Sequence[NodeInfo]) -> None:
        histories: dict[int, list[int]] = {0: []}
        for node in nodes:
            before = histories.get(node.parent_id, [])
            tokens = before + unpack_tokens(node.tokens)
            histories[node.node_id] = tokens
            kv = kv_of(node.namespace, tokens)
            for offset in range(len(before), len(tokens)):
                block_id = node.block_ids[(offset - len(before)) // BLOCK_SIZE]
                slot = block_id * BLOCK_SIZE + offset % BLOCK_SIZE
                assert self.worker.slots[slot] == kv[offset], f"cached block {block_id} holds other KV"


def kept_record(wire: Wire, block_id: int) -> BlockRecord:
    record = BlockRecord.read(wire.pool.incarnation, block_id, wire.session.records[block_id])
    assert record is not None, f"the record of block {block_id} is damaged"
    return record


HISTORIES_PER_PART = 20


def parts(number: int) -> pytest.MarkDecorator:
    """The first part of the histories; the others are thorough."""
    return pytest.mark.parametrize(
        "part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(1, number))]
    )


@parts(8)
@pytest.mark.parametrize("is_alike", [False, True])
def test_restarts_at_any_moment_lose_no_sequence_and_give_no_wrong_slot(part: int, is_alike: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * HISTORIES_PER_PART, (part + 1) * HISTORIES_PER_PART):
        drive = Drive(seed, is_alike=is_alike)
        for _ in range(120):
            drive.step()
            drive.check()
        drive.worker.catch_up()
        drive.check()
        open_ids = {seq_id for seq_id, one in drive.worker.sequences.items() if one.is_open}
        assert drive.wire.pool.cache.stats().num_sequences == len(open_ids)
        assert not drive.counts["not taken on"]
        counts += drive.counts
    assert counts["restarts"] > 50
    assert counts["lost"] > 25
    assert counts["cleared early"] > 15


def test_of_two_hidden_blocks_with_the_same_tokens_each_of_several_sequences_one_keeps_one_sequence() -> None:
    """Which of these sequences a block keeps does not matter: each has written nothing there. The rest ask again."""
    wire = Wire()
    wire.carry()
    wire.submit([AcquireOp(pack_tokens([1, 0]), seq_id=1, share_prefix=False), InsertOp(1, 2)])
    wire.submit([ForkOp(1, 1, 3, 0, (2, 3, 4)), ReleaseOp(1)])
    wire.submit([ExtendOp(2, 2), InsertOp(2, 2, pack_tokens([5])), ForkOp(2, 1, 3, 0, (5, 6, 7)), ReleaseOp(2)])
    wire.carry()
    wire.restart()
    rooms = {seq_id: wire.submit([ExtendOp(seq_id, 4)]) for seq_id in range(3, 8)}
    wire.carry()
    wire.pool.cache.check()
    lost_ids = {notice.seq_id for notice in wire.notices.take()}
    assert lost_ids in [{6, 7}, {4}]
    for seq_id, room in rooms.items():
        (result,) = room.result(0)
        assert isinstance(result, UnknownSequenceError if seq_id in lost_ids else ExtendResult)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("first", range(1000, 21_000, 1000))
def test_so_they_do_in_twenty_thousand_histories(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 1000):
        drive = Drive(seed, is_alike=seed % 2 == 0)
        for _ in range(120):
            drive.step()
            drive.check()
        drive.worker.catch_up()
        drive.check()
        counts += drive.counts
    assert counts["not taken on"] <= counts["restarts"] // 100


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_adoptions_of_histories_drawn_now_lose_no_sequence() -> None:
    counts, first = Counter[str](), random.SystemRandom().randrange(2**40)
    while counts["restarts"] < 10_000:
        seed = first + counts["histories"]
        try:
            drive = Drive(seed, is_alike=seed % 2 == 0)
            for _ in range(120):
                drive.step()
                drive.check()
            drive.worker.catch_up()
            drive.check()
        except AssertionError as error:
            raise AssertionError(f"history {seed}") from error
        counts += drive.counts
        counts["histories"] += 1
    print(dict(counts))
    assert counts["not taken on"] <= counts["restarts"] // 100


def test_a_copy_that_is_promised_stays_so_though_the_block_was_the_sequence_s_own_meanwhile() -> None:
    drive = Drive(14682, is_alike=True)  # of 20,000 histories the one that found it
    for _ in range(79):
        drive.step()
        drive.check()


@parts(2)
@pytest.mark.parametrize("is_alike", [False, True])
def test_a_sequence_that_is_not_taken_on_is_lost_alone(is_alike: bool, part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * HISTORIES_PER_PART, (part + 1) * HISTORIES_PER_PART):
        drive = Drive(seed, is_alike=is_alike, spoils=True)
        for _ in range(120):
            drive.step()
            drive.check()
        drive.worker.catch_up()
        drive.check()
        open_ids = {seq_id for seq_id, one in drive.worker.sequences.items() if one.is_open}
        assert drive.wire.pool.cache.stats().num_sequences == len(open_ids)
        counts += drive.counts
    assert counts["not taken on"] > 25


def test_who_stands_in_a_block_that_another_has_computed_beside_the_tree_goes_on_after_a_restart() -> None:
    for num_known, ask in itertools.product((11, 12, 18), ("fork", "acquire")):
        wire = Wire()
        wire.carry()
        prompt = pack_tokens(range(28))
        wire.submit([AcquireOp(prompt, seq_id=1), AcquireOp(prompt[: 18 * 4], seq_id=2)])
        wire.submit([InsertOp(2, num_known), InsertOp(1, 28)])
        wire.submit([ForkOp(2, 10, 1, 0, (3,)) if ask == "fork" else AcquireOp(prompt[: 10 * 4], seq_id=3)])
        wire.carry()
        wire.restart()
        rooms = [wire.submit([ExtendOp(seq_id, 30)]) for seq_id in (1, 2, 3)]
        wire.carry()
        assert all(isinstance(room.result(0)[0], ExtendResult) for room in rooms)
        wire.pool.cache.check()


def test_a_restarted_service_finds_all_that_was_cached() -> None:
    drive = Drive(3, clears=False)
    for _ in range(60):
        drive.step()
    drive.worker.catch_up()
    for sequence in list(drive.worker.sequences.values()):
        if sequence.is_usable and sequence.seq_id is not None:
            drive.worker.submit([ReleaseOp(sequence.seq_id)])
    drive.wire.carry()
    drive.worker.catch_up()
    before = drive.wire.pool.cache
    drive.wire.restart()
    drive.wire.carry()
    after = drive.wire.pool.cache
    assert before.stats().num_cached_blocks > 5
    histories: dict[int, tuple[str, bytes]] = {0: ("", b"")}
    for node in before.dump():
        histories[node.node_id] = (node.namespace, histories.get(node.parent_id, ("", b""))[1] + node.tokens)
        namespace, tokens = histories[node.node_id]
        assert after.match(tokens, namespace=namespace).num_tokens == len(tokens) // 4


@pytest.mark.parametrize("position", [1, 3, 4, 5, 7, 33])
@pytest.mark.parametrize("way", ["acquire", "fork"])
def test_what_lies_behind_a_block_in_which_a_sequence_stands_is_found_again(way: str, position: int) -> None:
    wire = Wire()
    wire.carry()
    history = pack_tokens(range(40))
    wire.submit([AcquireOp(history, seq_id=1), InsertOp(1, 40)])
    if way == "fork":
        wire.submit([ForkOp(1, position, 1, 0, (2,)), ReleaseOp(1)])
    else:
        wire.submit([ReleaseOp(1), AcquireOp(history[: position * 4], seq_id=2)])
    wire.carry()
    wire.restart()
    grown = wire.submit([ExtendOp(2, position + 1)])
    wire.carry()
    assert isinstance(grown.result(0)[0], ExtendResult)
    assert wire.pool.cache.match(history).num_tokens == 40
    wire.pool.cache.check()


def test_a_stream_that_breaks_before_the_service_is_told_anything_leaves_it_to_be_told() -> None:
    wire = Wire()
    wire.carry()
    wire.submit([AcquireOp(pack_tokens(range(10)), seq_id=1), InsertOp(1, 10)])
    wire.carry()
    wire.restart()
    wire.act()  # the service has taken the holder, who never hears of it
    wire.reconnect()
    room = wire.submit([ExtendOp(1, 20)])
    wire.carry()
    assert isinstance(room.result(0)[0], ExtendResult)
    assert wire.pool.cache.match(pack_tokens(range(10))).num_tokens == 10


def test_whoever_waits_is_told_to_ask_again() -> None:
    wire = Wire()
    wire.carry()
    prompt = pack_tokens(range(20))
    wire.submit([AcquireOp(prompt, seq_id=1)])
    waiting = wire.submit([AcquireOp(prompt, seq_id=2, waits=True)])
    wire.carry()
    (pending,) = waiting.result(0)
    assert isinstance(pending, Pending)
    wire.restart()
    wire.carry()
    assert wire.notices.take() == [Notice("gone", 1, 20)]
    again = wire.submit([AcquireOp(prompt, seq_id=2, waits=True)])
    wire.submit([InsertOp(1, 20)])
    wire.carry()
    assert isinstance(again.result(0)[0], Pending)
    assert wire.notices.take() == [Notice("published", 1, 20)]


def test_what_is_promised_stays_promised() -> None:
    wire = Wire()
    wire.carry()
    wire.submit([AcquireOp(pack_tokens(range(10)), 20, seq_id=1), ExtendOp(1, 13)])
    wire.carry()
    before = wire.pool.cache.stats().num_promised_blocks
    wire.restart()
    wire.carry()
    assert wire.pool.cache.stats().num_promised_blocks == before == 4


def test_of_those_that_read_one_block_the_one_that_may_write_behind_it_keeps_that_right_and_its_promise() -> None:
    wire = Wire()
    wire.carry()
    prompt = pack_tokens(range(10))
    wire.submit([AcquireOp(prompt, seq_id=1)])
    wire.submit([InsertOp(1, 10), ReleaseOp(1)])
    wire.submit([AcquireOp(prompt, seq_id=2), AcquireOp(prompt, 4, seq_id=3)])
    wire.carry()
    before = wire.pool.cache.stats().num_promised_blocks
    wire.restart()
    wire.carry()
    assert wire.pool.cache.stats().num_promised_blocks == before == 1
    grown = wire.submit([ExtendOp(3, 12)])
    wire.carry()
    assert grown.result(0) == [ExtendResult(3, array("i"), ())]


@pytest.mark.parametrize("room", [10, 11, 12, 17])
def test_of_two_that_have_computed_as_much_of_one_block_the_one_told_first_may_write_there(room: int) -> None:
    tokens, table = pack_tokens(range(10)), array("i", range(-(-room // BLOCK_SIZE)))
    reader = AdoptSequenceOp(2, tokens, table[:3], 10, 10)
    writer = AdoptSequenceOp(1, tokens, table, 10, room)
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    first, second = cache.step([reader, writer])
    assert first is None
    assert second is None if room == 10 else isinstance(second, InvalidArgumentError)
    cache.check()
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    assert cache.step([writer, reader]) == [None, None]
    cache.check()
    copied = cache.step([ExtendOp(2, 12), ExtendOp(1, 12)])
    assert [len(each.ops) for each in copied if isinstance(each, ExtendResult)] == [1, 0]
    cache.check()


def test_a_holder_that_cannot_adopt_is_refused_as_before() -> None:
    wire = Wire()
    wire.carry()
    hello = workers.Hello(pool={"name": "old", "num_blocks": 4, "block_size": 4}, incarnation=9, acknowledged_through=5)
    with pytest.raises(StaleIncarnationError, match="restarted"):
        wire.pools.attach(hello, wire.holding)
    hello.can_adopt = True
    assert wire.pools.attach(hello, wire.holding).pool.next_step == 6


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        (AdoptOp(pack_tokens(range(8)), array("i", [1])), "block_ids"),
        (AdoptOp(pack_tokens(range(8)), array("i", [1, 2]), num_kept=4), "num_kept"),
        (AdoptOp(b"", array("i")), "tokens"),
        (AdoptSequenceOp(1, pack_tokens(range(8)), array("i", [1, 1]), 8, 8), "block_table"),
        (AdoptSequenceOp(1, pack_tokens(range(8)), array("i", [1, 99]), 8, 8), "block_table"),
        (AdoptSequenceOp(1, pack_tokens(range(8)), array("i", [1, 2]), 9, 8), "num_computed"),
        (AdoptSequenceOp(1, pack_tokens(range(8)), array("i", [1, 2]), 8, 8, same_tree_as=5), "same_tree_as"),
        (AdoptSequenceOp(1, pack_tokens(range(8)), array("i", [1, 2]), 8, 8, reserve=-1), "reserve"),
    ],
)
def test_a_bad_adoption_is_refused_by_name_and_changes_nothing(op: AdoptOp | AdoptSequenceOp, argument: str) -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    (error,) = cache.step([op])
    assert isinstance(error, InvalidArgumentError)
    assert error.argument == argument
    assert str(error).startswith("sequence 1 is not adopted: ") is isinstance(op, AdoptSequenceOp)
    cache.check()
    assert cache.stats() == PrefixCache(NUM_BLOCKS, BLOCK_SIZE).stats()


def test_nothing_goes_on_from_a_history_that_was_refused() -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    results = cache.step(
        [
            AdoptOp(pack_tokens([1] * 4), array("i", [0])),
            AdoptOp(pack_tokens([2] * 4), array("i", [1, 9])),
            AdoptOp(pack_tokens([3] * 4), array("i", [2]), num_kept=4),
        ]
    )
    assert [type(result) for result in results] == [AdoptResult, InvalidArgumentError, InvalidArgumentError]
    assert cache.match([1] * 4 + [3] * 4).num_tokens == 4


def test_nothing_is_adopted_once_blocks_were_taken() -> None:
    cache = PrefixCache(NUM_BLOCKS, BLOCK_SIZE)
    cache.acquire(range(3))
    (error,) = cache.step([AdoptOp(pack_tokens(range(4)), array("i", [9]))])
    assert isinstance(error, InvalidArgumentError)
    assert "before" in error.bound


@pytest.mark.parametrize("num_restarts", [1, 2])
@pytest.mark.parametrize("when", ["at once", "in part", "whole"])
def test_what_was_said_of_the_worth_of_positions_holds_of_all_that_is_computed_after_a_restart(
    when: str, num_restarts: int
) -> None:
    """Of an open sequence, of a fork and of a fork's fork, and of none that nothing was said of."""
    wire = Wire()
    wire.carry()
    said = (Retention(0, 4, priority=90), Retention(4, None, priority=5))
    num_computed = {"at once": 0, "in part": 4, "whole": 8}[when]
    wire.submit([AcquireOp(pack_tokens(range(8)), seq_id=1, retention=said), AcquireOp(pack_tokens([9] * 4), seq_id=2)])
    if num_computed:
        wire.submit([InsertOp(1, num_computed), ForkOp(1, num_computed, 1, 0, (3,))])
        wire.submit([ForkOp(3, num_computed - 1, 1, 0, (4,))])
    wire.carry()
    for _ in range(num_restarts):
        wire.restart()
        wire.carry()
    ids = (1, 3, 4) if num_computed else (1,)
    for seq_id in ids:
        length = 8 if seq_id == 1 else num_computed - (seq_id == 4)
        wire.submit([ExtendOp(seq_id, length + 4), InsertOp(seq_id, length + 4, pack_tokens([seq_id + 20] * 4))])
    wire.submit([InsertOp(2, 4)])
    wire.submit([ReleaseOp(seq_id) for seq_id in (*ids, 2)])
    wire.carry()
    cache = wire.pool.cache
    cache.check()
    worth = {(node.position, node.priority) for node in cache.dump() if unpack_tokens(node.tokens) != [9] * 4}
    assert {priority for position, priority in worth if position >= 4} == {5}
    assert {priority for position, priority in worth if position < 4} == {90}
    assert [node.priority for node in cache.dump() if unpack_tokens(node.tokens) == [9] * 4] == [DEFAULT_PRIORITY]


def test_a_history_that_two_blocks_hold_keeps_the_retention_of_the_one_in_the_tree() -> None:
    wire = Wire()
    wire.carry()
    prompt = pack_tokens(range(4))
    wire.submit([AcquireOp(prompt, seq_id=1), AcquireOp(prompt, seq_id=2)])
    wire.submit([InsertOp(1, 4), RetainOp(prompt, (Retention(priority=90),))])
    wire.submit([InsertOp(2, 4)])  # its block is its own, and used last
    wire.carry()
    assert [node.priority for node in wire.pool.cache.dump()] == [90]
    wire.restart()
    wire.carry()
    assert [node.priority for node in wire.pool.cache.dump()] == [90]
    wire.pool.cache.check()

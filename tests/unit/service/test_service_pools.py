"""Leases, incarnations and stored answers, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixkv.core.api import (
    AcquireOp,
    AdoptBlocksOp,
    ExtendOp,
    InsertOp,
    Notice,
    PinOp,
    PoolShape,
    ReleaseOp,
    Retention,
    SetQuotaOp,
    StepOp,
)
from radixkv.core.errors import (
    InvalidArgumentError,
    LeaseError,
    LimitError,
    PermissionDeniedError,
    PoolHeldError,
    RadixKVError,
    StaleIncarnationError,
    UnknownPoolError,
)
from radixkv.core.tokens import pack_tokens
from radixkv.service.config import ServiceConfig
from radixkv.service.pools.table import Pool, PoolTable
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.errors import error_from_proto
from radixkv.wire.steps import notices_from_proto, op_to_proto
from radixkv.wire.values import SHAPE, unpack_blocks

TTL_S = 10.0
PROMPT = pack_tokens(range(40))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Stream:
    """A holder's stream that only notes why it was ended, and how often it was to send notices."""

    def __init__(self) -> None:
        self.ending: RadixKVError | None = None
        self.num_asked = 0

    def send_notices(self) -> None:
        self.num_asked += 1

    def end(self, error: RadixKVError) -> None:
        self.ending = error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> PoolTable:
    config = ServiceConfig(
        lease_ttl_s=TTL_S,
        max_unacknowledged_steps=3,
        max_unacknowledged_notices=2,
        max_ops_per_step=4,
        max_children_per_fork=5,
        max_pools=2,
    )
    return PoolTable(config, clock)


def hello(
    incarnation: int = 1, *, acknowledged: int = 0, notices: int = 0, stream_number: int = 0, **shape: object
) -> workers.Hello:
    return workers.Hello(
        pool=SHAPE.to_proto(PoolShape(**({"num_blocks": 64} | shape))),  # type: ignore[arg-type]  # mixed by name
        incarnation=incarnation,
        acknowledged_through=acknowledged,
        notices_acknowledged_through=notices,
        stream_number=stream_number,
    )


def step(number: int, *ops: StepOp | AdoptBlocksOp, acknowledged: int = 0, notices: int = 0) -> workers.Step:
    proto = workers.Step(number=number, acknowledged_through=acknowledged, notices_acknowledged_through=notices)
    for op in ops:
        op_to_proto(op, proto.ops.add())
    return proto


def attach(table: PoolTable, message: workers.Hello) -> Pool:
    return table.attach(message, Stream()).pool


def test_a_repeated_step_gets_its_stored_answer_and_is_not_applied_again(table: PoolTable) -> None:
    pool = attach(table, hello())
    first = pool.apply(step(1, AcquireOp(PROMPT, seq_id=5)))
    pool.apply(step(2, ExtendOp(5, 50)))
    assert pool.apply(step(1, AcquireOp(PROMPT, seq_id=5))) == first
    assert first.step_answer.results[0].WhichOneof("result") == "acquire"
    assert pool.cache.stats().num_sequences == 1
    pool.cache.check()


def test_a_number_left_out_is_refused_and_changes_nothing(table: PoolTable) -> None:
    pool = attach(table, hello())
    with pytest.raises(InvalidArgumentError, match=r"step\.number is 2; it must be 1"):
        pool.apply(step(2, AcquireOp(PROMPT)))
    assert pool.cache.stats().num_sequences == 0
    assert pool.next_step == 1


def test_an_acknowledged_answer_is_forgotten(table: PoolTable) -> None:
    pool = attach(table, hello())
    for number in (1, 2):
        pool.apply(step(number, acknowledged=number - 1))
    assert len(pool.answers) == 1
    with pytest.raises(InvalidArgumentError, match="acknowledged"):
        pool.apply(step(1))
    with pytest.raises(InvalidArgumentError, match="acknowledged_through"):
        pool.acknowledge(3, 0)


def test_answers_that_nobody_acknowledges_are_bounded(table: PoolTable) -> None:
    pool = attach(table, hello())
    for number in (1, 2, 3):
        pool.apply(step(number))
    with pytest.raises(LimitError, match="unacknowledged"):
        pool.apply(step(4, AcquireOp(PROMPT)))
    assert pool.cache.stats().num_sequences == 0
    pool.apply(step(4, acknowledged=1))


def wait_and_lose(pool: Pool, number: int, *, notices: int = 0) -> None:
    """Step `number`: one acquire that waits for another, which is gone."""
    wait = AcquireOp(PROMPT, waits=True)
    ops = (AcquireOp(PROMPT, seq_id=number), wait, ReleaseOp(number))
    answer = pool.apply(step(number, *ops, acknowledged=number - 1, notices=notices)).step_answer
    assert [result.WhichOneof("result") for result in answer.results] == ["acquire", "pending", "release"]


def test_notices_are_numbered_and_kept_until_they_are_acknowledged(table: PoolTable) -> None:
    pool = attach(table, hello())
    assert pool.collect_notices() is None
    wait_and_lose(pool, 1)
    message = pool.collect_notices()
    assert message is not None
    assert (message.notices.number, message.notices.after_step) == (1, 1)
    assert notices_from_proto(message.notices) == [Notice("gone", 1, 40)]
    assert pool.collect_notices() is None
    assert list(table.attach(hello(acknowledged=1), Stream()).pool.notices) == [message]
    wait_and_lose(pool, 2)
    second = pool.collect_notices()
    assert second is not None
    assert (second.notices.number, second.notices.after_step) == (2, 2)
    pool.acknowledge(2, 1)
    assert list(pool.notices) == [second]
    assert not table.attach(hello(acknowledged=2, notices=2), Stream()).pool.notices
    with pytest.raises(InvalidArgumentError, match="notices_acknowledged_through is 3; it must be below 3"):
        pool.acknowledge(2, 3)


def test_a_holder_gets_a_notice_for_each_acquire_that_waited_at_a_former_life_of_the_service(table: PoolTable) -> None:
    first = hello(acknowledged=7, notices=3)
    first.can_adopt = True
    for seq_id in range(1, 5):
        first.awaited.add(seq_id=seq_id, num_tokens=40)
    pool = attach(table, first)
    (message,) = pool.notices
    assert (message.notices.number, message.notices.after_step) == (4, 7)
    assert notices_from_proto(message.notices) == [Notice("gone", seq_id, 40) for seq_id in range(1, 5)]
    assert list(attach(table, first).notices) == [message], "sent again until acknowledged, and never made twice"
    pool.acknowledge(7, 4)
    assert not attach(table, hello(acknowledged=7, notices=4)).notices


def test_notices_that_nobody_acknowledges_are_bounded_and_none_is_lost(table: PoolTable) -> None:
    pool = attach(table, hello())
    for number in (1, 2, 3):
        wait_and_lose(pool, number)
        pool.collect_notices()
    assert [len(message.notices.notices) for message in pool.notices] == [1, 1]
    wait_and_lose(pool, 4, notices=1)
    message = pool.collect_notices()
    assert message is not None
    assert [notice.seq_id for notice in message.notices.notices] == [3, 4]


def test_a_step_over_its_limits_is_refused_whole(table: PoolTable) -> None:
    pool = attach(table, hello())
    with pytest.raises(LimitError, match="5 ops"):
        pool.apply(step(1, *[AcquireOp(PROMPT)] * 5))
    fork = workers.Op(fork=workers.Fork(seq_id=1, position=1, n=6))
    with pytest.raises(LimitError, match="fork of 6"):
        pool.apply(workers.Step(number=1, ops=[fork]))
    assert pool.next_step == 1
    assert pool.cache.stats().num_sequences == 0


def test_an_op_that_is_none_fails_alone(table: PoolTable) -> None:
    pool = attach(table, hello())
    request = step(1, AcquireOp(PROMPT))
    request.ops.add()
    acquired, refused = pool.apply(request).step_answer.results
    assert acquired.HasField("acquire")
    assert refused.error.code == types.ERROR_CODE_UNIMPLEMENTED
    assert refused.error.unimplemented.known[:2] == ["acquire", "extend"]
    assert pool.next_step == 2


def test_silence_for_the_ttl_ends_the_lease_and_a_successor_starts_on_an_empty_tree(
    table: PoolTable, clock: Clock
) -> None:
    pool = attach(table, hello(1))
    pool.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40)))
    clock.now_s += TTL_S - 0.001
    assert table.select("default") == [pool]
    with pytest.raises(PoolHeldError, match="held by another") as held:
        attach(table, hello(2))
    assert held.value.retry_after_s == pytest.approx(0.001)
    clock.now_s += 0.001
    with pytest.raises(UnknownPoolError):
        table.select("default")
    successor = attach(table, hello(2))
    assert successor.cache.match(PROMPT).num_tokens == 0
    assert successor.cache.stats().num_sequences == 0
    with pytest.raises(StaleIncarnationError):
        attach(table, hello(1, acknowledged=1))
    with pytest.raises(StaleIncarnationError):
        attach(table, hello(1))


def test_every_message_renews_the_lease(table: PoolTable, clock: Clock) -> None:
    stream = Stream()
    pool = table.attach(hello(), stream).pool
    for _ in range(5):
        clock.now_s += TTL_S * 0.9
        table.renew(pool, stream)
    assert table.select("") == [pool]
    clock.now_s += TTL_S
    with pytest.raises(StaleIncarnationError, match="lease"):
        table.renew(pool, stream)
    assert table.select("") == []


def test_a_silent_holders_stream_is_ended_with_its_lease(table: PoolTable, clock: Clock) -> None:
    stream = Stream()
    table.attach(hello(), stream)
    clock.now_s += TTL_S
    table.expire()
    assert isinstance(stream.ending, StaleIncarnationError)


def test_reattaching_within_the_ttl_resumes(table: PoolTable, clock: Clock) -> None:
    stream = Stream()
    pool = table.attach(hello(), stream).pool
    pool.apply(step(1, AcquireOp(PROMPT, seq_id=1)))
    table.leave(pool, stream)
    clock.now_s += TTL_S / 2
    again = table.attach(hello(acknowledged=1), Stream())
    assert again.resumed
    assert again.pool is pool
    assert pool.next_step == 2
    assert not pool.answers
    assert stream.ending is None


def test_a_newer_stream_of_the_same_incarnation_ends_the_older(table: PoolTable) -> None:
    older, newer = Stream(), Stream()
    pool = table.attach(hello(), older).pool
    assert table.attach(hello(), newer).pool is pool
    assert isinstance(older.ending, LeaseError)
    table.leave(pool, older)
    table.renew(pool, newer)
    with pytest.raises(LeaseError, match="newer stream"):
        table.renew(pool, older)


def test_a_hello_that_was_long_on_its_way_ends_no_newer_stream(table: PoolTable) -> None:
    late, newer, newest = Stream(), Stream(), Stream()
    pool = table.attach(hello(stream_number=2), newer).pool
    with pytest.raises(LeaseError, match="newer stream"):
        table.attach(hello(stream_number=1), late)
    assert newer.ending is None
    table.renew(pool, newer)
    table.attach(hello(stream_number=3), newest)
    assert isinstance(newer.ending, LeaseError)


def test_resuming_with_another_shape_is_refused(table: PoolTable) -> None:
    attach(table, hello())
    with pytest.raises(InvalidArgumentError, match="shape"):
        attach(table, hello(num_blocks=65))


def test_a_holder_that_had_answers_is_stale_for_a_service_that_knows_nothing_of_it(table: PoolTable) -> None:
    with pytest.raises(StaleIncarnationError, match="restarted"):
        attach(table, hello(acknowledged=1))
    assert table.select("") == []


def test_a_clean_end_frees_the_pool_at_once_and_retires_the_incarnation(table: PoolTable) -> None:
    pool = attach(table, hello(1))
    table.end(pool)
    with pytest.raises(StaleIncarnationError):
        attach(table, hello(1))
    assert attach(table, hello(2)) is not pool
    table.end(pool)
    assert len(table.select("")) == 1, "ending a life twice does not end its successor"


@pytest.mark.parametrize(
    ("message", "argument"),
    [
        (hello(block_size=0), "block_size"),
        (hello(num_blocks=0), "num_blocks"),
        (hello(num_blocks=2**40), "num_blocks"),
        (hello(name=""), "name"),
        (hello(name="n" * 129), "name"),
        (hello(0), "incarnation"),
        (workers.Hello(pool=hello().pool, incarnation=1, holder_name="n" * 129), "holder_name"),
        (hello(acknowledged=2**63), "acknowledged_through"),
        (hello(notices=2**63), "notices_acknowledged_through"),
        (workers.Hello(pool=hello().pool, incarnation=1, awaited=[workers.Pending()] * 131_075), "awaited"),
    ],
)
def test_a_hello_out_of_bounds_is_refused_by_name(table: PoolTable, message: workers.Hello, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        attach(table, message)
    assert caught.value.argument == argument
    assert table.select("") == []


def test_pools_are_told_apart_by_name_and_bounded_in_number(table: PoolTable) -> None:
    left, right = attach(table, hello(1, name="left")), attach(table, hello(2, name="right"))
    left.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40)))
    assert right.cache.match(PROMPT).num_tokens == 0
    assert table.select("") == [left, right]
    assert table.select("right") == [right]
    with pytest.raises(LimitError):
        attach(table, hello(3, name="third"))


@pytest.fixture
def swept_table(clock: Clock) -> PoolTable:
    """One whose sweeps are due every second, by the clock that the test moves."""
    table = PoolTable(ServiceConfig(lease_ttl_s=TTL_S), clock, stall_clock=clock)
    table.sweep()
    return table


def sweep_for(table: PoolTable, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += table.sweep_interval_s
        table.sweep()


@pytest.mark.parametrize(
    "look",
    [
        lambda table, _pool, _stream: table.sweep(),
        lambda table, _pool, _stream: table.expire(),
        lambda table, _pool, _stream: table.select(""),
        lambda table, pool, stream: table.renew(pool, stream),
        lambda table, _pool, _stream: table.attach(hello(), Stream()),
    ],
    ids=["sweep", "expire", "select", "renew", "attach"],
)
def test_a_stall_of_the_service_itself_is_nobodys_silence_whoever_looks_first(
    swept_table: PoolTable, clock: Clock, look: Callable[[PoolTable, Pool, Stream], object]
) -> None:
    stream = Stream()
    pool = swept_table.attach(hello(), stream).pool
    clock.now_s += TTL_S * 3
    look(swept_table, pool, stream)
    assert swept_table.select("") == [pool]


def test_a_stall_is_forgiven_once(swept_table: PoolTable, clock: Clock) -> None:
    pool = attach(swept_table, hello())
    clock.now_s += TTL_S * 3
    assert swept_table.select("") == swept_table.select("") == [pool]
    swept_table.sweep()
    sweep_for(swept_table, clock, round(TTL_S))
    assert swept_table.select("") == []


def test_a_holder_that_was_silent_while_the_service_listened_loses_its_lease(
    swept_table: PoolTable, clock: Clock
) -> None:
    stream = Stream()
    pool = swept_table.attach(hello(), stream).pool
    sweep_for(swept_table, clock, round(TTL_S))
    with pytest.raises(StaleIncarnationError):
        swept_table.renew(pool, stream)


def test_retired_incarnations_are_remembered_up_to_a_bound(clock: Clock) -> None:
    table = PoolTable(ServiceConfig(max_retired_incarnations=2), clock)
    for incarnation in (1, 2, 3):
        table.end(attach(table, hello(incarnation)))
    with pytest.raises(StaleIncarnationError):
        attach(table, hello(2))
    assert attach(table, hello(1)).incarnation == 1


def test_a_hello_at_its_bounds_is_taken(clock: Clock) -> None:
    table = PoolTable(ServiceConfig(max_blocks_per_pool=64), clock)
    for index, name in enumerate(("n", "n" * 128)):
        message = hello(index + 1, name=name)
        message.holder_name = "h" * 128
        message.can_adopt = True
        message.acknowledged_through = message.notices_acknowledged_through = 2**63 - 1
        assert attach(table, message).next_step == 2**63
    with pytest.raises(InvalidArgumentError, match="num_blocks is 65; it must be at most 64"):
        attach(table, hello(9, num_blocks=65))


def test_a_pool_is_changed_for_others_only_while_its_holder_hears_of_it(table: PoolTable) -> None:
    stream = Stream()
    pool = table.attach(hello(), stream).pool
    for number in (1, 2):
        assert pool.change(lambda cache: cache.clear("default")) == 0
        assert stream.num_asked == number
        pool.collect_notices()
    with pytest.raises(LimitError, match="not told of earlier changes"):
        pool.change(lambda cache: cache.clear("default"))
    assert stream.num_asked == 2
    pool.acknowledge(0, 1)
    pool.change(lambda cache: cache.clear("default"))
    table.leave(pool, stream)
    pool.acknowledge(0, 2)
    pool.change(lambda cache: cache.clear("default"))
    assert stream.num_asked == 3, "who is not there is told later"


def test_a_journal_that_is_never_acknowledged_is_bounded(table: PoolTable, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = attach(table, hello())
    pool.apply(step(1, PinOp(PROMPT[:64], 60.0)))
    monkeypatch.setattr("radixkv.service.pools.table._MAX_UNTOLD_BYTES", pool.cache.journal.size_bytes)
    pool.apply(step(2))
    monkeypatch.setattr("radixkv.service.pools.table._MAX_UNTOLD_BYTES", pool.cache.journal.size_bytes - 1)
    with pytest.raises(LimitError, match="bytes wait for notices to be acknowledged"):
        pool.apply(step(3))
    assert pool.next_step == 3


def test_a_quota_that_a_holder_brings_is_kept_for_its_later_lives_and_their_number_is_bounded(clock: Clock) -> None:
    table = PoolTable(ServiceConfig(max_quotas_per_pool=1), clock)
    pool = attach(table, hello())
    (kept,) = pool.apply(step(1, SetQuotaOp("a", 3, None))).step_answer.results
    assert not kept.HasField("error")
    (refused,) = pool.apply(step(2, SetQuotaOp("b", 4, None))).step_answer.results
    assert isinstance(error_from_proto(refused.error), LimitError)
    table.end(pool)
    again = attach(table, hello(2))
    assert [(use.namespace, use.block_quota) for use in again.cache.usage()] == [("a", 3)]


def test_a_holder_that_follows_freed_blocks_is_told_them_and_no_other(table: PoolTable) -> None:
    following = hello(1, name="follows")
    following.features.append("freed_blocks")
    for message, num_told in ((following, 3 * 4), (hello(2, name="plain"), 0)):
        pool = attach(table, message)
        pool.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40)))
        told = pool.apply(step(2, ReleaseOp(1, keep=False))).step_answer
        assert len(told.freed_block_ids) == num_told


def test_a_holder_that_keeps_records_is_told_them_and_no_other(table: PoolTable) -> None:
    keeping = hello(1, name="keeps")
    keeping.features.append("records")
    for message, num_told in ((keeping, 2), (hello(2, name="plain"), 0)):
        pool = attach(table, message)
        asked = step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40))
        told = pool.apply(asked).step_answer
        assert len(told.records.block_ids) == num_told * 4, "two whole blocks; one is written"
        assert pool.apply(asked).step_answer is told, "a lost answer comes back with them"
        released = pool.apply(step(2, ReleaseOp(1))).step_answer
        assert len(released.records.block_ids) == num_told // 2 * 4
        assert not pool.apply(step(3, acknowledged=2)).step_answer.HasField("records")


def test_records_of_a_namespace_beyond_the_rights_of_a_holder_are_not_taken(table: PoolTable) -> None:
    keeping = hello(1, name="first")
    keeping.features.append("records")
    pool = attach(table, keeping)
    ops = [AcquireOp(PROMPT, 0, "a", 1), AcquireOp(PROMPT, 0, "b", 2), InsertOp(1, 40), InsertOp(2, 40)]
    recorded = pool.apply(step(1, *ops)).step_answer.records
    table.end(pool)
    keeping = hello(1, name="second", acknowledged=1)
    keeping.features.append("records")
    keeping.can_adopt = True
    table = PoolTable(table.config, table.clock)
    after = attach(table, keeping)
    played_back = [
        AdoptBlocksOp(unpack_blocks(recorded.block_ids)[first : first + 2], tuple(recorded.records[first : first + 2]))
        for first in (0, 2)
    ]

    class OfOneTenant:
        def denial(self, namespace: str) -> RadixKVError | None:
            return None if namespace == "a" else PermissionDeniedError(namespace)

    answer = after.apply(step(2, *played_back), OfOneTenant()).step_answer  # type: ignore[arg-type]  # asked this alone
    assert [result.WhichOneof("result") for result in answer.results] == ["adopt_blocks", "error"]
    assert [after.cache.match(PROMPT, namespace=name).num_tokens for name in "ab"] == [32, 0]


def test_records_that_change_by_another_client_come_with_the_notices(table: PoolTable) -> None:
    keeping = hello(1)
    keeping.features.append("records")
    pool = attach(table, keeping)
    pool.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40), ReleaseOp(1)))
    pool.change(lambda cache: cache.retain(PROMPT, retention=(Retention(priority=80),)))
    told = pool.collect_notices()
    assert told is not None
    assert told.notices.after_step == 1
    changes = [entry.WhichOneof("entry") for entry in told.notices.journal]
    assert set(changes) == {"records"}, "they have the retention"
    pool.change(lambda cache: cache.evict(9))
    told = pool.collect_notices()
    assert told is not None
    (entry,) = told.notices.journal
    assert (len(entry.records.block_ids), list(entry.records.records)) == (3 * 4, [b""] * 3)


def test_the_end_of_a_pin_comes_with_the_notices_though_no_call_follows(table: PoolTable, clock: Clock) -> None:
    pool = attach(table, hello())
    pool.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40), ReleaseOp(1)))
    pool.change(lambda cache: cache.pin(PROMPT, ttl=5.0))
    kinds = []
    for _ in range(3):
        while (told := pool.collect_notices()) is not None:
            kinds += [entry.WhichOneof("entry") for entry in told.notices.journal]
        clock.now_s += 5.0
    assert kinds == ["pin", "unpin"]


def test_another_credential_does_not_resume_a_life(table: PoolTable) -> None:
    pool = table.attach(hello(), Stream(), ("tenant", "key")).pool
    assert table.attach(hello(), Stream(), ("tenant", "key")).pool is pool
    for identity in (None, ("tenant", "other"), ("other", "key")):
        with pytest.raises(PoolHeldError):
            table.attach(hello(), Stream(), identity)


def test_event_numbers_of_a_later_life_are_higher(clock: Clock) -> None:
    wall_s = [1.0, 2.0, -5.0]
    table = PoolTable(ServiceConfig(), clock, wall_clock=lambda: wall_s.pop(0))
    for incarnation, first in ((1, 1_000_000), (2, 2_000_000), (3, 1)):
        pool = attach(table, hello(incarnation))
        pool.apply(step(1, AcquireOp(PROMPT, seq_id=1), InsertOp(1, 40)))
        assert pool.cache.events(0)[-1].sequence_number == first - 1
        table.end(pool)
    assert table.num_ended == 3


def test_the_reason_of_an_end_reaches_the_holder(table: PoolTable) -> None:
    stream, reason = Stream(), LeaseError("for a reason")
    pool = table.attach(hello(), stream).pool
    assert table.holds(pool)
    table.end(pool, reason)
    assert stream.ending is reason
    assert not table.holds(pool)

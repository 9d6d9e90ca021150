"""Ops, answers and readers' values survive the wire unchanged."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    BlockTimes,
    CacheEvent,
    CacheEventKind,
    CacheStats,
    ClearOp,
    Copy,
    EventStats,
    EvictBranchOp,
    EvictedTokens,
    EvictionReason,
    EvictOp,
    Explanation,
    ExtendOp,
    ExtendResult,
    ForkOp,
    HintOp,
    InsertOp,
    MatchOp,
    MatchResult,
    MissCause,
    NamespaceMatch,
    NamespaceUsage,
    NodeInfo,
    Notice,
    Pending,
    PinInfo,
    PinOp,
    PoolShape,
    ReleaseOp,
    RetainOp,
    Retention,
    SetQuotaOp,
    StepOp,
    StepResult,
    Tier,
    TimeHistogram,
    UnpinOp,
)
from radixkv.core.errors import InvalidArgumentError, OutOfBlocksError, UnimplementedError
from radixkv.core.tokens import pack_tokens
from radixkv.core.tree.journal import Dropped, JournalEntry, Retained
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.journal import journal_from_proto, journal_to_proto
from radixkv.wire.reads import (
    BLOCK_TIMES,
    EVENT,
    EVENT_STATS,
    EXPLANATION,
    MATCH,
    NODE,
    PIN,
    STATS,
    stats_to_proto,
)
from radixkv.wire.steps import (
    notices_from_proto,
    notices_to_proto,
    op_from_proto,
    op_to_proto,
    result_from_proto,
    result_to_proto,
)
from radixkv.wire.values import SHAPE

integers = st.integers(-(2**63), 2**63 - 1)
tokens = st.binary(max_size=12)
block_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(lambda ids: array("i", ids))
copies = st.lists(
    st.builds(Copy, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(1, 4096)), max_size=2
).map(tuple)
acquired = st.builds(AcquireResult, integers, integers, integers, block_ids, copies)
retentions = st.builds(
    Retention,
    integers,
    st.none() | integers,
    st.integers(-(2**31), 2**31 - 1),
    st.none() | st.floats(allow_nan=False),
)
whole_tokens = tokens.filter(lambda packed: len(packed) % 4 == 0)
pins = st.builds(PinOp, whole_tokens, st.floats(allow_nan=False), st.text())
unpins = st.builds(UnpinOp, whole_tokens, st.text())
hashes = st.lists(st.integers(0, 2**64 - 1), max_size=3).map(lambda values: array("Q", values))
quotas = st.builds(SetQuotaOp, st.text(), st.none() | integers, st.none() | integers)
ops = st.one_of(
    st.builds(
        AcquireOp,
        tokens.filter(lambda t: len(t) % 4 == 0),
        integers,
        st.text(),
        st.none() | integers,
        st.booleans(),
        st.booleans(),
        st.lists(retentions, max_size=3).map(tuple),
        integers,
        st.booleans(),
    ),
    st.builds(MatchOp, whole_tokens, st.text()),
    pins,
    unpins,
    st.builds(RetainOp, whole_tokens, st.lists(retentions, max_size=3).map(tuple), st.text()),
    st.builds(EvictOp, integers),
    st.builds(EvictBranchOp, whole_tokens, st.text()),
    st.builds(ClearOp, st.text()),
    quotas,
    st.builds(HintOp, st.sampled_from(("host", "disk")), hashes, hashes, st.text()),
    st.builds(ExtendOp, integers, integers),
    st.builds(InsertOp, integers, integers, tokens.filter(lambda t: len(t) % 4 == 0)),
    st.builds(ForkOp, integers, integers, integers, integers, st.none() | st.lists(integers, max_size=3).map(tuple)),
    st.builds(ReleaseOp, integers, st.booleans()),
)


def send_op(op: StepOp) -> StepOp:
    proto = workers.Op()
    op_to_proto(op, proto)
    return op_from_proto(workers.Op.FromString(proto.SerializeToString()))


def send_result(op: StepOp, result: StepResult) -> StepResult:
    proto = workers.OpResult()
    result_to_proto(op, result, proto)
    return result_from_proto(op, workers.OpResult.FromString(proto.SerializeToString()))


@given(ops)
def test_an_op_comes_back_as_it_was(op: StepOp) -> None:
    assert send_op(op) == op


@given(acquired)
def test_an_opened_sequence_comes_back_as_it_was(result: AcquireResult) -> None:
    assert send_result(AcquireOp(b""), result) == result


@given(st.builds(ExtendResult, integers, block_ids, copies))
def test_given_room_comes_back_as_it_was(result: ExtendResult) -> None:
    assert send_result(ExtendOp(1, 1), result) == result


@given(st.lists(acquired, max_size=4))
def test_children_come_back_as_they_were(children: list[AcquireResult]) -> None:
    assert send_result(ForkOp(1, 1), children) == children


@given(integers, integers)
def test_a_pending_acquire_a_match_and_a_pin_come_back_as_they_were(first: int, second: int) -> None:
    assert send_result(AcquireOp(b"", waits=True), Pending(first, second)) == Pending(first, second)
    assert send_result(MatchOp(b""), MatchResult(first, second)) == MatchResult(first, second)
    pinned = PinInfo("a", pack_tokens([7, 8]), 2, first, 1.5, 0.5)
    assert send_result(PinOp(pack_tokens([7, 8, 9]), 1.5, "a"), pinned) == pinned


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (UnpinOp(b""), True),
        (UnpinOp(b""), False),
        (RetainOp(b"", ()), 17),
        (EvictOp(3), 3),
        (EvictBranchOp(b""), 0),
        (ClearOp(), 5),
        (SetQuotaOp("a", 4), NamespaceUsage("a", 1, 2, 3, 4, None)),
    ],
)
def test_what_a_change_of_the_pool_answers_comes_back_as_it_was(op: StepOp, result: StepResult) -> None:
    came_back = send_result(op, result)
    assert (came_back, type(came_back)) == (result, type(result))


@given(
    st.lists(
        pins
        | unpins
        | quotas
        | st.builds(Retained, block_ids, st.integers(0, 100), st.floats(0, 1e9) | st.just(math.inf))
        | st.builds(Dropped, whole_tokens, st.text(), block_ids),
        max_size=4,
    )
)
def test_a_journal_comes_back_as_it_was(entries: list[JournalEntry]) -> None:
    proto = workers.Notices()
    journal_to_proto([ClearOp("first"), *entries], proto)
    assert journal_from_proto(workers.Notices.FromString(proto.SerializeToString())) == [ClearOp("first"), *entries]


def test_an_answer_to_another_op_than_was_sent_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="an op that was sent"):
        result_from_proto(ExtendOp(1, 1), workers.OpResult(evict=workers.EvictResult(num_blocks=1)))


@given(st.lists(st.builds(Notice, st.sampled_from(("published", "gone")), integers, integers), max_size=4))
def test_notices_come_back_as_they_were(notices: list[Notice]) -> None:
    proto = workers.Notices()
    notices_to_proto(notices, proto)
    assert notices_from_proto(workers.Notices.FromString(proto.SerializeToString())) == notices


def test_a_thousand_children_of_one_table_cost_one_table() -> None:
    table = array("i", range(10_000))
    children = [AcquireResult(seq_id, 1, 2, table, ()) for seq_id in range(1000)]
    proto = workers.OpResult()
    result_to_proto(ForkOp(1, 1, 1000), children, proto)
    assert proto.ByteSize() < 100_000
    assert result_from_proto(ForkOp(1, 1, 1000), proto) == children


def test_answers_without_a_value_keep_their_kind() -> None:
    for op, kind in ((InsertOp(1, 1), "insert"), (ReleaseOp(1), "release")):
        proto = workers.OpResult()
        result_to_proto(op, None, proto)
        assert proto.WhichOneof("result") == kind
        assert result_from_proto(op, proto) is None


def test_a_failed_op_comes_back_as_its_error() -> None:
    error = send_result(ExtendOp(1, 1), OutOfBlocksError(4, 2))
    assert isinstance(error, OutOfBlocksError)
    assert (error.num_needed, error.num_available) == (4, 2)


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        (AcquireOp(b"abc"), "tokens"),
        (AcquireOp(b"", reserve=2**63), "reserve"),
        (AcquireOp(b"", at_least=2**63), "at_least"),
        (AcquireOp(b"", namespace=7), "namespace"),  # type: ignore[arg-type]  # the wrong type is the case
        (AcquireOp(b"", namespace="\ud800"), "namespace"),
        (AcquireOp(b"", retention=(Retention(), Retention(2**63))), "retention[1].start"),
        (AcquireOp(b"", retention=(Retention(0, "9"),)), "retention[0].end"),  # type: ignore[arg-type]  # the wrong type is the case
        (AcquireOp(b"", retention=(Retention(priority=2**31),)), "retention[0].priority"),
        (AcquireOp(b"", retention=(Retention(duration_s="5m"),)), "retention[0].duration_s"),  # type: ignore[arg-type]  # the same
        (AcquireOp(b"", retention=((0, 9),)), "retention[0]"),  # type: ignore[arg-type]  # the same
        (PinOp(b"", "5m"), "ttl_s"),  # type: ignore[arg-type]  # the wrong type is the case
        (UnpinOp(b"abc"), "tokens"),
        (RetainOp(b"", (Retention(2**63),)), "retention[0].start"),
        (EvictOp(2**63), "num_blocks"),
        (EvictBranchOp(b"", "\ud800"), "namespace"),
        (ClearOp(3), "namespace"),  # type: ignore[arg-type]  # the wrong type is the case
        (SetQuotaOp("a", 2.5), "blocks"),  # type: ignore[arg-type]  # the wrong type is the case
        (ExtendOp("1", 5), "seq_id"),  # type: ignore[arg-type]  # the wrong type is the case
        (ExtendOp(1, 5.5), "num_tokens"),  # type: ignore[arg-type]  # the wrong type is the case
        (InsertOp(1, -(2**63) - 1), "num_computed"),
        (ForkOp(1, 2, seq_ids=(2**64,)), "seq_ids"),
        (ReleaseOp(2**63), "seq_id"),
        ("acquire", "op"),
    ],
)
def test_a_value_that_no_message_can_hold_is_refused_by_name(op: StepOp, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        op_to_proto(op, workers.Op())
    assert caught.value.argument == argument


def test_an_op_or_answer_of_a_later_version_is_refused() -> None:
    with pytest.raises(UnimplementedError, match="acquire, extend"):
        op_from_proto(workers.Op())
    with pytest.raises(InvalidArgumentError):
        result_from_proto(ReleaseOp(1), workers.OpResult())
    with pytest.raises(InvalidArgumentError, match="published or gone"):
        notices_from_proto(workers.Notices(notices=[workers.Notice(kind=77)]))  # type: ignore[arg-type]  # of the future
    future = readers.EvictedTokens(reason=77)  # type: ignore[arg-type]  # of the future
    for unknown in (readers.Explanation(), readers.Explanation(cause=readers.MISS_CAUSE_EVICTED, evicted=future)):
        with pytest.raises(InvalidArgumentError, match=r"cause|reason"):
            EXPLANATION.read(unknown)
    with pytest.raises(InvalidArgumentError, match="kind"):
        EVENT.read(readers.Event(kind=77, tier=readers.TIER_DEVICE))  # type: ignore[arg-type]  # of the future


def test_readers_values_come_back_as_they_were() -> None:
    shape = PoolShape(num_blocks=4096, block_size=32, name="left")
    assert SHAPE.read(SHAPE.to_proto(shape)) == shape
    stats = CacheStats(*range(1, len(CacheStats._fields) - 1), eviction="adaptive", eviction_followed="lru")
    times = BlockTimes(*(TimeHistogram((0.5, 1.0), (number, 0, 7), 12.25) for number in range(3)))
    events = EventStats(3, 50, 7)
    sent = stats_to_proto("left", stats, times, events)
    assert (STATS.read(sent), BLOCK_TIMES.read(sent), EVENT_STATS.read(sent)) == (
        stats,
        times,
        events,
    )
    match = MatchResult(30, 20)
    assert MATCH.read(MATCH.to_proto(match, pool="left")) == match
    node = NodeInfo(3, 1, "default", 16, b"\1\0\0\0", (7, 8), True, 2, 12.5, 99.5, 80, 77.5, 1)
    assert NODE.read(NODE.to_proto(node)) == node
    pin = PinInfo("default", b"\1\0\0\0", 1, 1, 300.0, 12.5)
    assert PIN.read(PIN.to_proto(pin)) == pin
    causes: tuple[MissCause, ...] = ("cached", "empty", "ended", "parted", "evicted")
    reasons: tuple[EvictionReason, ...] = ("pressure", "evict", "clear", "release", "quota")
    for cause, reason in zip(causes, reasons, strict=True):
        evicted, elsewhere = EvictedTokens(7, 1.5, reason), NamespaceMatch("other", 20)
        explanation = Explanation(30, 9, cause, b"\1\0\0\0", b"\2\0\0\0", 3, evicted, elsewhere)
        for sent in (explanation, explanation._replace(evicted=None), explanation._replace(elsewhere=None)):
            assert EXPLANATION.read(EXPLANATION.to_proto(sent)) == sent
    kinds: tuple[CacheEventKind, ...] = ("reset", "stored", "removed", "cleared", "synced")
    tiers: tuple[Tier, ...] = ("device", "host", "disk", "remote", "device")
    for kind, tier, parent_hash in zip(kinds, tiers, (None, 0, 5, 2**64 - 1, None), strict=True):
        blocks, hashes = array("i", [7, 8]), array("Q", [2**64 - 1, 1])
        event = CacheEvent(9, kind, "default", 16, b"\1\0\0\0", blocks, hashes, parent_hash, tier)
        assert EVENT.read(EVENT.to_proto(event)) == event


def test_the_messages_have_a_field_for_every_field_of_the_values() -> None:
    def names(message: type) -> set[str]:
        return {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]  # every message has it

    assert names(readers.PoolStats) == {
        "pool",
        *CacheStats._fields,
        *BlockTimes._fields,
        *EventStats._fields,
        "worker",
    }
    assert names(readers.TimeHistogram) == set(TimeHistogram._fields)
    assert names(workers.Notice) == set(Notice._fields)
    assert names(workers.Pending) == set(Pending._fields)
    assert names(readers.PoolMatch) == {"pool", *MatchResult._fields}
    assert names(readers.Explanation) == set(Explanation._fields)
    assert names(readers.EvictedTokens) == set(EvictedTokens._fields)
    assert names(readers.NamespaceMatch) == set(NamespaceMatch._fields)
    assert names(readers.Node) == set(NodeInfo._fields)
    assert names(types.Retention) == set(Retention._fields)
    assert names(readers.Event) == set(CacheEvent._fields)


def test_a_shape_that_no_message_can_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        SHAPE.to_proto(PoolShape(num_blocks="many"))  # type: ignore[arg-type]  # the wrong type is the case
    assert caught.value.argument == "num_blocks"

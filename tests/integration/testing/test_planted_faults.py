"""Each rule is broken once by a small holder, and named; a holder that keeps them all breaks none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from live_service import Clock
from small_holder import SmallHolder, StreamOver, acquire, adopt, extend, fork, insert, op, release

from radixkv import pack_tokens
from radixkv.service import ServiceConfig
from radixkv.testing import trial
from radixkv.testing.faults import Fault, Script
from radixkv.testing.observer import Observer
from radixkv.testing.report import as_text
from radixkv.testing.rules import RULES
from radixkv.v1 import workers_pb2 as workers

Holding = Callable[[SmallHolder], Awaitable[None]]

TTL_S = 20.0
CLOCK = Clock()
"""Of those that say nothing for a time, which is no time of this machine."""
TOKENS = pack_tokens(range(4))


def watched(hold: Holding, script: Mapping[int, Fault] = {}) -> Observer:
    """What the observer has found once a holder is done."""

    async def run() -> Observer:
        config = ServiceConfig(
            addresses=("127.0.0.1:0",),
            lease_ttl_s=TTL_S,
            max_unacknowledged_steps=8,
            max_ops_per_step=16,
            max_message_bytes=65_536,
            drain_s=0.1,
        )
        async with trial.Trial(Script(script), config) as watching:
            holder = SmallHolder(watching.address)
            with suppress(StreamOver):
                await asyncio.wait_for(hold(holder), 300)
            await holder.close()
            watching.observer.finished(None)
            return watching.observer

    return asyncio.run(run())


def block_of(holder: SmallHolder) -> int:
    """The first block of the sequence that was opened last."""
    return int.from_bytes(holder.results[0].acquire.block_table[:4], "little")


# -- right


async def work(holder: SmallHolder) -> None:
    """Open, fork, grow and release, and go on over breaks."""
    ops = [
        [acquire(1, 6, reserve=4)],
        [insert(1, 6)],
        [fork(1, 5, 2), extend(1, 8)],
        [insert(1, 7, 9), extend(2, 7)],
        [insert(2, 6, 8), release(1)],
        [acquire(1, 6)],
        [release(2), release(1)],
    ]
    await holder.hello()
    while holder.acknowledged < len(ops):
        with suppress(StreamOver):
            await holder.step(*ops[holder.acknowledged], number=holder.acknowledged + 1)
            continue
        assert (await holder.hello()).resumed
    await holder.heartbeat()
    await holder.goodbye()


@pytest.mark.parametrize("fault", [None, Fault.LOSE_STEP, Fault.LOSE_ANSWER, Fault.BREAK, Fault.EVICT, Fault.PIN])
@pytest.mark.parametrize("ordinal", [1, 4])
def test_a_holder_that_keeps_the_rules_breaks_none(fault: Fault | None, ordinal: int) -> None:
    observer = watched(work, {ordinal: fault} if fault is not None else {})
    assert not observer.breaches, as_text(observer)
    assert observer.seen["Steps"] == 7
    assert observer.seen["COPY"] >= 1
    assert observer.seen["streams resumed"] == (fault in (Fault.LOSE_STEP, Fault.LOSE_ANSWER, Fault.BREAK))
    assert observer.seen["Steps sent again"] == (fault in (Fault.LOSE_STEP, Fault.LOSE_ANSWER))


# -- wrong, a rule each


async def step_before_attached(holder: SmallHolder) -> None:
    await holder.say_hello()
    await holder.send(acquire(1))
    await holder.read()
    await holder.goodbye()


async def two_hellos(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.write(hello={"pool": holder.pool, "incarnation": holder.incarnation})
    await holder.until_over()


async def other_shape(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.until_over()
    holder.pool.num_blocks += 1
    await holder.hello()


async def same_stream_number(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.until_over()
    holder.num_streams -= 1
    await holder.hello()
    await holder.goodbye()


async def incarnation_after_a_lost_lease(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.send(insert(1, 4))
    await holder.until_over()
    await holder.hello()


async def incarnation_after_goodbye(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.goodbye()
    await holder.hello()


async def a_number_left_out(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.send(insert(1, 4), number=3)
    await holder.until_over()


async def resent_under_a_new_number(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.send(insert(1, 4))
    await holder.until_over()
    await holder.hello()
    await holder.step(insert(1, 4), number=3)
    await holder.goodbye()


async def resent_with_other_ops(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.send(insert(1, 4))
    await holder.until_over()
    await holder.hello()
    await holder.step(insert(1, 3), number=2)
    await holder.goodbye()


async def acknowledged_before_it_came(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.send(insert(1, 4))
    await holder.until_over()
    await holder.hello(acknowledged_through=2)
    await holder.goodbye()


async def acknowledged_less(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(insert(1, 4))
    await holder.heartbeat()
    await holder.heartbeat(ack=1)
    await holder.goodbye()


async def notices_not_acknowledged(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(insert(1, 4))
    while not holder.notices:
        await holder.heartbeat()
    for _ in range(12):
        holder.notices = 0
        CLOCK.now_s += TTL_S / 6
        await holder.heartbeat()
    await holder.goodbye()


async def no_heartbeat(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    over = asyncio.ensure_future(holder.until_over())
    while not over.done():
        CLOCK.now_s += TTL_S / 100
        await asyncio.sleep(TTL_S / 1000)


async def too_many_under_way(holder: SmallHolder) -> None:
    await holder.hello()
    for seq_id in range(9):
        await holder.send(acquire(seq_id), ack=0)
    await holder.until_over()


async def too_many_ops(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.send(*(acquire(seq_id) for seq_id in range(17)))
    await holder.until_over()


async def too_many_bytes(holder: SmallHolder) -> None:
    attached = await holder.hello()
    await holder.step(acquire(1, attached.max_message_bytes // 4))
    await holder.goodbye()


async def an_id_used_twice(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(acquire(1))
    await holder.goodbye()


async def ops_out_of_order(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(insert(1, 0, 7), acquire(1))
    await holder.goodbye()


async def used_after_release(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(release(1))
    await holder.step(extend(1, 8))
    await holder.goodbye()


async def written_past_its_room(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(insert(1, 5, 7))
    await holder.goodbye()


async def inserted_before_the_answer(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(extend(1, 8), insert(1, 5, 7))
    await holder.goodbye()


async def inserted_with_the_acquire(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1), insert(1, 4))
    await holder.goodbye()


async def more_computed_than_there_is(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1), extend(1, 8))
    await holder.step(insert(1, 5))
    await holder.goodbye()


async def fewer_computed_than_before(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(insert(1, 4))
    await holder.step(insert(1, 3))
    await holder.goodbye()


async def forked_beyond_the_computed(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(insert(1, 2), fork(1, 3, 2))
    await holder.goodbye()


async def a_negative_reserve(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1, reserve=-1))
    await holder.goodbye()


async def half_a_token(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(op("acquire", seq_id=1, tokens=b"abcdef"))
    await holder.goodbye()


async def a_name_too_long(holder: SmallHolder) -> None:
    await holder.hello(holder_name="x" * 129)


async def _restarted(holder: SmallHolder) -> int:
    """Cache a block, and attach to a restarted service. Returns the block."""
    await holder.hello()
    await holder.step(acquire(1))
    block = block_of(holder)
    await holder.step(insert(1, 4), release(1))
    await holder.step(acquire(2, 6))
    await holder.step()  # with this one the service restarts
    await holder.until_over()
    assert not (await holder.hello()).resumed
    return block


async def adopted_with_other_tokens(holder: SmallHolder) -> None:
    block = await _restarted(holder)
    await holder.step(adopt(pack_tokens([0, 1, 2, 9]), block))
    await holder.goodbye()


async def a_block_that_was_never_written(holder: SmallHolder) -> None:
    block = await _restarted(holder)
    await holder.step(adopt(TOKENS, (block + 5) % 16))
    await holder.goodbye()


async def _restarted_with_a_record(holder: SmallHolder, *before: Any) -> tuple[int, bytes]:
    """Keep the record of a block, send these ops, and attach to a restarted service. Returns the block and its record."""
    await holder.hello(features=["records"])
    await holder.step(acquire(1), extend(1, 8))
    await holder.step(insert(1, 4), release(1))
    ((block, record),) = holder.kept.items()
    await holder.step(*before)
    await holder.step()  # with this one the service restarts
    await holder.until_over()
    assert not (await holder.hello(features=["records"])).resumed
    return block, record


def played_back(block: int, record: bytes) -> workers.Op:
    return op("adopt_blocks", block_ids=block.to_bytes(4, "little"), records=[record])


async def a_record_changed(holder: SmallHolder) -> None:
    block, record = await _restarted_with_a_record(holder)
    assert (await holder.step(played_back(block, record[:-1] + bytes([record[-1] ^ 1]))))[
        0
    ].adopt_blocks.num_blocks == 0
    assert holder.kept[block] == b"", "it is refused"
    await holder.goodbye()


async def a_record_of_another_block(holder: SmallHolder) -> None:
    block, record = await _restarted_with_a_record(holder)
    assert (await holder.step(played_back((block + 1) % 16, record)))[0].adopt_blocks.num_blocks == 0
    await holder.goodbye()


async def a_record_that_was_taken_back(holder: SmallHolder) -> None:
    block, record = await _restarted_with_a_record(holder, op("evict", num_blocks=1))
    assert (await holder.step(played_back(block, record)))[0].adopt_blocks.num_blocks == 1, "no hash can tell"
    await holder.goodbye()


async def a_record_kept_back(holder: SmallHolder) -> None:
    await _restarted_with_a_record(holder)
    await holder.step(acquire(7))
    await holder.goodbye()


async def nothing_adopted(holder: SmallHolder) -> None:
    await _restarted(holder)
    await holder.step(acquire(7))
    await holder.goodbye()


async def a_sequence_adopted_with_more_room(holder: SmallHolder) -> None:
    block = await _restarted(holder)
    table = b"".join(each.to_bytes(4, "little") for each in (block, (block + 1) % 16, (block + 2) % 16))
    tokens = pack_tokens(range(6))
    sequence = {"seq_id": 2, "tokens": tokens, "block_table": table, "num_computed": 4, "room": 9}
    await holder.step(op("adopt_sequence", **sequence))
    await holder.goodbye()


async def _changed_and_restarted(holder: SmallHolder, change: workers.Op) -> int:
    """Cache a block, have something changed, receive its Notices, and attach to a restarted service. Returns the block."""
    await holder.hello()
    await holder.step(acquire(1))
    block = block_of(holder)
    await holder.step(insert(1, 4), release(1))
    await holder.step(change)
    while not holder.notices:
        await holder.read()
    await holder.step()
    await holder.until_over()
    await holder.hello()
    return block


async def a_cleared_history_adopted(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("clear"))
    await holder.step(adopt(TOKENS, block))
    await holder.goodbye()


async def a_dropped_history_adopted(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("evict_branch", tokens=TOKENS[:8]))
    await holder.step(adopt(TOKENS, block))
    await holder.goodbye()


async def a_history_dropped_by_its_release_adopted(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    block = block_of(holder)
    await holder.step(insert(1, 4))
    await holder.step(op("release", seq_id=1))
    while not holder.notices:
        await holder.read()
    await holder.step()
    await holder.until_over()
    await holder.hello()
    await holder.step(adopt(TOKENS, block))
    await holder.goodbye()


async def a_pin_kept_back(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("pin", tokens=TOKENS, ttl_s=60.0))
    await holder.step(adopt(TOKENS, block))
    await holder.step(acquire(7))
    await holder.goodbye()


async def a_pin_before_its_history(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("pin", tokens=TOKENS, ttl_s=60.0))
    await holder.step(op("pin", tokens=TOKENS, ttl_s=60.0), adopt(TOKENS, block))
    await holder.step(acquire(7))
    await holder.goodbye()


async def a_pin_for_a_shorter_time(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("pin", tokens=TOKENS, ttl_s=60.0))
    await holder.step(adopt(TOKENS, block), op("pin", tokens=TOKENS, ttl_s=30.0))
    await holder.step(acquire(7))
    await holder.goodbye()


async def a_quota_kept_back(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("set_quota", sequences=3))
    await holder.step(adopt(TOKENS, block))
    await holder.step(acquire(7))
    await holder.goodbye()


async def a_quota_after_the_sequences(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(2))
    block = block_of(holder)
    await holder.step(op("set_quota", sequences=3))
    while not holder.notices:
        await holder.read()
    await holder.step()
    await holder.step()
    await holder.until_over()
    await holder.hello()
    table = block.to_bytes(4, "little")
    await holder.step(op("adopt_sequence", seq_id=2, tokens=TOKENS, block_table=table, num_computed=0, room=4))
    await holder.step(op("set_quota", sequences=3))
    await holder.goodbye()


HIGH = [{"priority": 90}]


async def a_retention_kept_back(holder: SmallHolder) -> None:
    block = await _changed_and_restarted(holder, op("retain", tokens=TOKENS, retention=HIGH))
    await holder.step(adopt(TOKENS, block))
    await holder.step(acquire(7))
    await holder.goodbye()


async def given_back(holder: SmallHolder) -> None:
    """All that was set, by the histories and by calls of its own."""
    changes = op("set_quota", sequences=3), op("retain", tokens=TOKENS, retention=HIGH)
    await holder.hello()
    await holder.step(acquire(1))
    block = block_of(holder)
    await holder.step(insert(1, 4), release(1))
    await holder.step(*changes, op("pin", tokens=TOKENS, ttl_s=60.0))
    while not holder.notices:
        await holder.read()
    await holder.step()
    await holder.until_over()
    await holder.hello()
    back = adopt(TOKENS, block, retention=HIGH if holder.incarnation % 2 else [])
    await holder.step(changes[0], back, changes[1], op("pin", tokens=TOKENS, ttl_s=60.0))
    await holder.step(acquire(7))
    await holder.goodbye()


def test_a_holder_that_gives_everything_back_breaks_no_rule() -> None:
    observer = watched(given_back, RESTART_FOURTH)
    assert not observer.breaches, as_text(observer)
    for what in ("pins", "quotas", "retained blocks"):
        assert observer.seen[f"{what} at a restart"] == 1


async def a_promised_copy_left_out(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1, 6))
    await holder.step(insert(1, 6), op("fork", seq_id=1, position=5, n=1, reserve=4, seq_ids={"values": [2]}))
    table = holder.results[1].fork.children[0].block_table
    await holder.step(release(1))
    await holder.step()
    await holder.until_over()
    await holder.hello()
    sequence = {"seq_id": 2, "tokens": pack_tokens(range(5)), "block_table": table, "num_computed": 5, "room": 5}
    await holder.step(op("adopt_sequence", **sequence, reserve=4))
    await holder.goodbye()


async def a_wait_left_out(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1, 8))
    await holder.step(acquire(2, 8, waits=True))
    assert holder.results[0].HasField("pending")
    await holder.until_over()
    await holder.hello()
    await holder.goodbye()


async def a_wait_listed(holder: SmallHolder) -> None:
    """One that a restart ends, and one whose Notice was handled."""
    await holder.hello()
    await holder.step(acquire(1, 8))
    await holder.step(acquire(2, 8, waits=True))
    await holder.until_over()
    await holder.hello(awaited=[{"seq_id": 1, "num_tokens": 8}])
    while not holder.notices:
        await holder.read()
    await holder.step()
    await holder.until_over()
    await holder.hello()
    await holder.goodbye()


def test_a_holder_that_lists_what_it_awaits_breaks_no_rule() -> None:
    observer = watched(a_wait_listed, {2: Fault.RESTART, 3: Fault.BREAK})
    assert not observer.breaches, as_text(observer)
    assert observer.seen["Pendings at a restart"] == 1


async def _with_an_aborted_insert(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))
    await holder.step(extend(1, 1000), insert(1, 4, 7))
    assert [result.WhichOneof("result") for result in holder.results] == ["error", "error"]


async def other_tokens_after_an_aborted_insert(holder: SmallHolder) -> None:
    await _with_an_aborted_insert(holder)
    await holder.step(insert(1, 4, 8))
    await holder.step(insert(1, 4, 7))
    await holder.heartbeat()
    await holder.goodbye()


async def the_same_tokens_after_an_aborted_insert(holder: SmallHolder) -> None:
    await _with_an_aborted_insert(holder)
    await holder.step(insert(1, 4, 7, 8))
    await holder.heartbeat()
    await holder.goodbye()


def test_a_holder_that_repeats_an_aborted_insert_breaks_no_rule() -> None:
    observer = watched(the_same_tokens_after_an_aborted_insert)
    assert not observer.breaches, as_text(observer)


async def no_goodbye(holder: SmallHolder) -> None:
    await holder.hello()
    await holder.step(acquire(1))


BREAK_FIRST = {1: Fault.BREAK}
LOSE_SECOND = {2: Fault.LOSE_ANSWER}
RESTART_FOURTH = {4: Fault.RESTART}
FAULTS: list[tuple[str, Holding, dict[str, Any]]] = [
    ("attached-first", step_before_attached, {}),
    ("hello-first", two_hellos, {}),
    ("same-pool", other_shape, {"script": BREAK_FIRST}),
    ("stream-number", same_stream_number, {"script": BREAK_FIRST}),
    ("incarnation-new", incarnation_after_a_lost_lease, {"script": {2: Fault.LOSE_LEASE}}),
    ("incarnation-new", incarnation_after_goodbye, {}),
    ("step-numbers", a_number_left_out, {}),
    ("resend-first", resent_under_a_new_number, {"script": LOSE_SECOND}),
    ("resend-first", resent_under_a_new_number, {"script": {2: Fault.LOSE_STEP}}),
    ("resend-unchanged", resent_with_other_ops, {"script": LOSE_SECOND}),
    ("resend-unchanged", resent_with_other_ops, {"script": {2: Fault.LOSE_STEP}}),
    ("ack-delivered", acknowledged_before_it_came, {"script": LOSE_SECOND}),
    ("ack-falls", acknowledged_less, {}),
    ("notices-ack", notices_not_acknowledged, {"script": {2: Fault.CLEAR}}),
    ("heartbeat", no_heartbeat, {}),
    ("window", too_many_under_way, {}),
    ("step-size", too_many_ops, {}),
    ("step-size", too_many_bytes, {}),
    ("id-in-use", an_id_used_twice, {}),
    ("unknown-sequence", ops_out_of_order, {}),
    ("use-after-release", used_after_release, {}),
    ("insert-room", written_past_its_room, {}),
    ("insert-early", inserted_before_the_answer, {}),
    ("insert-early", inserted_with_the_acquire, {}),
    ("insert-tokens", more_computed_than_there_is, {}),
    ("insert-falls", fewer_computed_than_before, {}),
    ("fork-computed", forked_beyond_the_computed, {}),
    ("op-valid", a_negative_reserve, {}),
    ("op-valid", half_a_token, {}),
    ("stream-accepted", a_name_too_long, {}),
    ("adopt-content", adopted_with_other_tokens, {"script": RESTART_FOURTH}),
    ("adopt-content", a_block_that_was_never_written, {"script": RESTART_FOURTH}),
    ("adopt-dropped", a_cleared_history_adopted, {"script": RESTART_FOURTH}),
    ("adopt-dropped", a_dropped_history_adopted, {"script": RESTART_FOURTH}),
    ("adopt-dropped", a_history_dropped_by_its_release_adopted, {"script": RESTART_FOURTH}),
    ("pins-back", a_pin_kept_back, {"script": RESTART_FOURTH}),
    ("pins-back", a_pin_before_its_history, {"script": RESTART_FOURTH}),
    ("pins-back", a_pin_for_a_shorter_time, {"script": RESTART_FOURTH}),
    ("quotas-back", a_quota_kept_back, {"script": RESTART_FOURTH}),
    ("quotas-back", a_quota_after_the_sequences, {"script": RESTART_FOURTH}),
    ("retention-back", a_retention_kept_back, {"script": RESTART_FOURTH}),
    ("adopt-sequence", a_promised_copy_left_out, {"script": RESTART_FOURTH}),
    ("awaited", a_wait_left_out, {"script": {2: Fault.RESTART}}),
    ("awaited", a_wait_left_out, {"script": {2: Fault.BREAK}}),
    ("insert-again", other_tokens_after_an_aborted_insert, {}),
    ("adopt-first", nothing_adopted, {"script": RESTART_FOURTH}),
    ("adopt-record", a_record_changed, {"script": RESTART_FOURTH}),
    ("adopt-record", a_record_of_another_block, {"script": RESTART_FOURTH}),
    ("adopt-record", a_record_that_was_taken_back, {"script": RESTART_FOURTH}),
    ("adopt-record", a_record_kept_back, {"script": RESTART_FOURTH}),
    ("adopt-sequence", a_sequence_adopted_with_more_room, {"script": RESTART_FOURTH}),
    ("goodbye", no_goodbye, {}),
]


@pytest.mark.parametrize(
    ("rule", "hold", "more"), FAULTS, ids=[f"{hold.__name__}-{n}" for n, (_, hold, _) in enumerate(FAULTS)]
)
def test_the_rule_that_a_holder_breaks_is_named(
    rule: str, hold: Holding, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if hold in (notices_not_acknowledged, no_heartbeat):
        monkeypatch.setattr(trial, "time", SimpleNamespace(monotonic=CLOCK))
        monkeypatch.setattr(trial, "_TICKS_PER_TTL", 2000)
    if hold is step_before_attached:
        monkeypatch.setattr(trial, "_HASTE_S", 300.0)
    observer = watched(hold, **more)
    assert [breach.rule for breach in observer.breaches[:1]] == [rule], as_text(observer)
    breach = observer.breaches[0]
    assert breach.messages
    assert all(number in observer.messages for number in breach.messages)
    text = as_text(observer)
    assert f"BROKEN {rule}" in text
    assert RULES[rule].source in text


def test_every_rule_that_messages_can_break_is_planted() -> None:
    assert {rule for rule, _, _ in FAULTS} == set(RULES) - {"block-content", "holder-exit"}

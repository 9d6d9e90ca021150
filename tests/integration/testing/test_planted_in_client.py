"""Bugs planted in our own client are found by the kit, from the messages that a working holder then sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from radixkv import PoolShape, RadixKVError, connect
from radixkv.client.ledger import Ledger
from radixkv.client.notices import NoticeBox
from radixkv.client.session import HolderSession
from radixkv.client.stream import StepStream
from radixkv.core.api import ClearOp, ExtendOp, ForkOp, PinOp, SetQuotaOp
from radixkv.core.tree.journal import Recorded
from radixkv.service import ServiceConfig
from radixkv.testing.faults import DEFAULT_FAULTS, Fault, RandomFaults
from radixkv.testing.holder import work
from radixkv.testing.observer import Observer
from radixkv.testing.report import as_text
from radixkv.testing.trial import Trial

NUM_STEPS = 150
POOL = PoolShape(num_blocks=24, block_size=4)


def watched(faults: tuple[Fault, ...], ttl_s: float = 30.0) -> Observer:
    """What is found of the example while it works, up to the first breach."""

    async def run() -> Observer:
        config = ServiceConfig(addresses=("127.0.0.1:0",), lease_ttl_s=ttl_s, drain_s=0.1)
        async with Trial(RandomFaults(2, faults, (2, 4)), config) as trial:

            def hold() -> None:
                with suppress(RadixKVError, AssertionError), connect(trial.address, POOL, patience_s=300) as holder:
                    for _ in islice(work(holder, POOL, seed=4), NUM_STEPS):
                        if trial.observer.breaches:
                            return

            await asyncio.to_thread(hold)
            await trial.settle()
            trial.observer.finished(0)
            return trial.observer

    return asyncio.run(asyncio.wait_for(run(), 500))


def _nothing(*_: Any) -> None:
    pass


def _forgetting(kind: type) -> Callable[[Ledger, Any], None]:
    def noted(ledger: Ledger, entry: Any) -> None:
        if not isinstance(entry, kind):
            NOTED(ledger, entry)

    return noted


def _fork_without_promised_copies(ledger: Ledger, op: ForkOp, children: Any) -> None:
    FORKED(ledger, op, children)
    for child in children:
        ledger._open[child.seq_id].shares_last = False


def _extend_without_room(ledger: Ledger, op: ExtendOp, result: Any) -> None:
    opened = ledger._open[op.seq_id]
    room = opened.room
    EXTENDED(ledger, op, result)
    opened.room = room


def _keep_all(ledger: Ledger, recorded: Recorded) -> None:
    ledger.records.update({block_id: each for block_id, each in zip(*recorded, strict=True) if each})


def _open_as_the_first(session: HolderSession, send: Callable[[bytes], None]) -> None:
    session._hello.stream_number = 0
    OPENED(session, send)


def _open_with_one_answer_more(session: HolderSession, send: Callable[[bytes], None]) -> None:
    session._num_answered += bool(session._num_answered)
    OPENED(session, send)
    session._num_answered -= bool(session._num_answered)


NOTED, EXTENDED, FORKED, OPENED = Ledger.noted, Ledger._extended, Ledger._forked, HolderSession.open
BREAKS = (Fault.BREAK, Fault.LOSE_ANSWER, Fault.LOSE_STEP)
RESTARTS = (Fault.RESTART, Fault.LOSE_AND_RESTART)
DROPS = (*RESTARTS, Fault.EVICT_BRANCH, Fault.CLEAR)
BUGS: list[tuple[str, Any, str, Any, tuple[Fault, ...], float]] = [
    ("adopt-record", Ledger, "noted", _forgetting(Recorded), DROPS, 30.0),
    ("adopt-sequence", Ledger, "noted", _forgetting(ClearOp), DROPS, 30.0),
    ("pins-back", Ledger, "noted", _forgetting(PinOp), (*RESTARTS, Fault.PIN), 30.0),
    ("quotas-back", Ledger, "noted", _forgetting(SetQuotaOp), (*RESTARTS, Fault.QUOTA), 30.0),
    ("adopt-sequence", Ledger, "_forked", _fork_without_promised_copies, RESTARTS, 30.0),
    ("awaited", NoticeBox, "awaited", property(lambda _: []), (Fault.RESTART_A_WAIT,), 30.0),
    ("adopt-record", Ledger, "keep", _keep_all, RESTARTS, 30.0),
    ("adopt-sequence", Ledger, "_extended", _extend_without_room, RESTARTS, 30.0),
    ("adopt-record", Ledger, "adoption", lambda _: iter(()), RESTARTS, 30.0),
    ("heartbeat", HolderSession, "heartbeat", _nothing, (), 6.0),
    ("goodbye", HolderSession, "say_goodbye", lambda _: False, (), 30.0),
    ("stream-number", HolderSession, "open", _open_as_the_first, BREAKS, 30.0),
    (
        "ack-delivered",
        HolderSession,
        "open",
        _open_with_one_answer_more,
        BREAKS,
        30.0,
    ),
    ("notices-ack", NoticeBox, "num_handled", property(lambda _: 0), (Fault.CLEAR, Fault.PIN), 6.0),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "owner", "name", "bug", "faults", "ttl_s"), BUGS, ids=[f"{b[0]}-{b[2]}" for b in BUGS]
)
def test_a_bug_in_the_client_is_named_by_the_rule_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    owner: Any,
    name: str,
    bug: Any,
    faults: tuple[Fault, ...],
    ttl_s: float,
) -> None:
    monkeypatch.setattr(owner, name, bug)
    if rule == "heartbeat":
        monkeypatch.setattr("radixkv.testing.holder.PAUSE_S", 5.0)
    if rule == "notices-ack":
        monkeypatch.setattr("radixkv.testing.holder.PAUSE_S", 0.1)  # all steps take longer than the TTL
    if rule == "goodbye":
        monkeypatch.setattr(StepStream.close, "__defaults__", (2.0,))  # it waits for a goodbye that is not said
    observer = watched(faults, ttl_s)
    assert rule in observer.num_breaches, as_text(observer)


@pytest.mark.thorough
def test_the_client_as_it_is_breaks_none() -> None:
    observer = watched(DEFAULT_FAULTS)
    assert not observer.breaches, as_text(observer)

"""What is answered without a key leaves its place soon; what is refused is told the time that the backlog takes."""

from __future__ import annotations

import asyncio

import pytest

from radixkv.gateway.http import gate
from radixkv.gateway.http.gate import (
    MAX_FOLLOWERS,
    MAX_READS,
    ONE_STRANGERS,
    SHARE,
    STRANGERS_AT_ONCE,
    Cost,
    Gate,
    StrangersLane,
)


def test_readers_who_take_nothing_leave_their_places_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HELD_S", 0.01)

    async def story() -> None:
        lane, never, num_entered = StrangersLane(lambda: 0.0), asyncio.Event(), 0

        async def hold(address: str) -> None:
            nonlocal num_entered
            async with lane.turn(address, None):
                num_entered += 1
                await never.wait()

        num_addresses = 2 * STRANGERS_AT_ONCE // ONE_STRANGERS
        tasks = [
            asyncio.create_task(hold(f"address {n}")) for n in range(num_addresses) for _ in range(2 * ONE_STRANGERS)
        ]
        await asyncio.sleep(0)
        assert num_entered == STRANGERS_AT_ONCE
        async with asyncio.timeout(300), lane.turn("another", None):
            pass
        never.set()
        await asyncio.gather(*tasks)
        assert num_entered == len(tasks)
        free = [asyncio.create_task(hold(f"address {n // ONE_STRANGERS}")) for n in range(STRANGERS_AT_ONCE)]
        await asyncio.gather(*free)  # none was given back twice, or not at all

    asyncio.run(story())


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_refused_is_told_how_long_the_backlog_takes(is_shared: bool) -> None:
    now_s = 1000.0
    gate = Gate(40, 360, is_shared=is_shared, clock=lambda: now_s)
    num_entered = 0
    while gate.refusal("red", Cost.WORK) is None:
        gate.enter("red", Cost.WORK)
        num_entered += 1
    assert num_entered == (100 if is_shared else 400)
    for _ in range(20):  # they end four at a time, twice a second
        now_s += 0.5
        for _ in range(4):
            gate.leave("red", Cost.WORK)
            gate.enter("red", Cost.WORK)
    refusal = gate.refusal("red", Cost.WORK)
    assert refusal is not None
    assert refusal.status == (429 if is_shared else 503)
    assert int(refusal.headers["Retry-After"]) == pytest.approx(num_entered / 8, rel=0.15)
    assert (gate.refusal("blue", Cost.WORK) is None) == is_shared
    assert gate.refusal("red", Cost.READ) is None


def test_idle_time_is_no_part_of_the_pace() -> None:
    now_s = 0.0
    gate = Gate(1, 0, clock=lambda: now_s)
    for _ in range(20):
        now_s += 3600.0
        gate.enter("red", Cost.WORK)
        now_s += 2.0
        gate.leave("red", Cost.WORK)
    gate.enter("red", Cost.WORK)
    refusal = gate.refusal("red", Cost.WORK)
    assert refusal is not None
    assert refusal.headers["Retry-After"] == "2"


@pytest.mark.parametrize("is_shared", [False, True])
def test_looks_and_streams_have_places_of_their_own_and_a_tenant_its_share_of_them(is_shared: bool) -> None:
    gate = Gate(1, 0, is_shared=is_shared, clock=lambda: 0.0)
    gate.enter("red", Cost.WORK)
    for cost, size in ((Cost.READ, MAX_READS), (Cost.FOLLOW, MAX_FOLLOWERS)):
        num_entered = 0
        while gate.refusal("red", cost) is None:
            gate.enter("red", cost)
            num_entered += 1
        assert num_entered == (size // SHARE if is_shared else size)
        refusal = gate.refusal("red", cost)
        assert refusal is not None
        assert refusal.status == (429 if is_shared else 503)
        assert (gate.refusal("blue", cost) is None) == is_shared
        gate.leave("red", cost)
        assert gate.refusal("red", cost) is None


def test_a_gate_that_is_closing_refuses_all_and_is_empty_once_the_last_has_left() -> None:
    async def story() -> None:
        gate = Gate(2, 2)
        assert gate.draining() is None
        assert await gate.wait_empty(0.01)
        gate.enter("red", Cost.WORK)
        gate.enter("red", Cost.FOLLOW)
        gate.is_draining = True
        for cost in Cost:
            refusal = gate.refusal("blue", cost)
            assert refusal is not None
            assert (refusal.status, refusal.code) == (503, "draining")
        gate.leave("red", Cost.WORK)
        assert not await gate.wait_empty(0.01)
        gate.leave("red", Cost.FOLLOW)
        assert await gate.wait_empty(0.01)

    asyncio.run(story())

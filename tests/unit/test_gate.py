"""What is answered without a key: a reader that takes nothing keeps its place no longer than a moment."""

from __future__ import annotations

import asyncio

import pytest

from radixkv.gateway import gate
from radixkv.gateway.gate import ONE_STRANGERS, STRANGERS_AT_ONCE, StrangersLane


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
        async with asyncio.timeout(20), lane.turn("another", None):
            pass
        never.set()
        await asyncio.gather(*tasks)
        assert num_entered == len(tasks)
        free = [asyncio.create_task(hold(f"address {n // ONE_STRANGERS}")) for n in range(STRANGERS_AT_ONCE)]
        await asyncio.gather(*free)  # none was given back twice, or not at all

    asyncio.run(story())

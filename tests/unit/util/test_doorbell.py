"""One call into the loop for any number of rings."""

from __future__ import annotations

import asyncio
from unittest import mock

from radixkv.util.doorbell import Doorbell


def test_a_burst_wakes_everybody_by_one_call() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell, news = Doorbell(loop), [asyncio.Event() for _ in range(64)]
        with mock.patch.object(loop, "call_soon_threadsafe", side_effect=loop.call_soon_threadsafe) as calls:
            for _ in range(2):
                for one in news:
                    bell.ring(one)
                assert not any(one.is_set() for one in news)
                await asyncio.wait_for(asyncio.gather(*(one.wait() for one in news)), 300)
                for one in news:
                    one.clear()
        assert calls.call_count == 2

    asyncio.run(main())


def test_a_bell_of_a_closed_loop_does_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Doorbell(loop).ring(asyncio.Event())

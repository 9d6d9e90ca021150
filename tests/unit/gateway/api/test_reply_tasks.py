"""The tasks that run at one gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from radixkv.core.errors import LimitError
from radixkv.gateway.turns.reply_task import ReplyTasks


class Task:
    """What `ReplyTasks` knows of a task; the test ends it."""

    task_id = "conv_1/msg_1"
    namespace = "team"
    is_background = True

    def __init__(self) -> None:
        self.work: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def when_ended(self, callback: Callable[[], None]) -> None:
        self.work.add_done_callback(lambda _: callback())


def test_a_task_that_is_taken_over_from_this_gateway_itself_outlives_the_end_of_the_first() -> None:
    async def run() -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        tasks: ReplyTasks[Task] = ReplyTasks("replies run", "stopped")  # type: ignore[type-var]
        first, second = Task(), Task()
        tasks.add(first)
        tasks.add(second)
        first.work.set_result(None)
        assert not await tasks.wait_empty(0.01)
        with pytest.raises(LimitError):
            tasks.check_room("team", 1)
        second.work.set_result(None)
        assert await tasks.wait_empty(1.0)
        await asyncio.sleep(0)
        tasks.check_room("team", 1)
        assert not unhandled

    asyncio.run(run())

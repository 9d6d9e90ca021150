"""Server streams of an asyncio gRPC server, with a bound on slow readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from radixkv.core.errors import LimitError

__all__ = ["write_all"]

LONGEST_UNTOLD_S = 30.0
"""How long a caller that was cut off may take to read its error."""


async def write_all(context: Any, answers: AsyncGenerator[Any, None], unread_s: float) -> None:
    """Write a server stream to its caller; a caller that reads nothing for `unread_s` is cut off.

    gRPC sends no status while a message is unread. So the stream's resources are released at once. The caller gets the error as
    soon as it reads; otherwise the call is cancelled without one.

    Raises:
        LimitError: the caller did not read. `answers` is closed.
    """
    loop, call = asyncio.get_running_loop(), asyncio.current_task()
    assert call is not None, "a handler runs in a task"
    cut: list[asyncio.Task[None]] = []

    async def end() -> None:
        await answers.aclose()
        await asyncio.sleep(LONGEST_UNTOLD_S)
        call.cancel()

    def cut_off() -> None:
        cut.append(loop.create_task(end()))

    try:
        async for answer in answers:
            late = loop.call_later(unread_s, cut_off)
            try:
                await context.write(answer)
            finally:
                late.cancel()
            if cut:
                raise LimitError(f"this caller has read nothing for {unread_s:g} s; read answers as they come")
    finally:
        for ending in cut:
            ending.cancel()
            await asyncio.wait((ending,))
        await answers.aclose()

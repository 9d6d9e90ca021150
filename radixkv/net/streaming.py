"""Server streams of an asyncio gRPC server, written to callers who read them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from radixkv.core.errors import LimitError

__all__ = ["write_all"]

LONGEST_UNTOLD_S = 30.0
"""How long a caller who was cut off may take to read so far that it can be told."""


async def write_all(context: Any, answers: AsyncGenerator[Any, None], unread_s: float) -> None:
    """Write a server stream to a caller who reads: one who takes nothing for `unread_s` is cut off.

    gRPC takes no status while a message waits to be taken. So what the stream holds is let go at once, and the caller is told
    as soon as it reads, or cut off without a word where it does not.

    Raises:
        LimitError: the caller did not read. `answers` is closed.
    """
    async with contextlib.aclosing(answers):
        async for answer in answers:
            writing = asyncio.ensure_future(context.write(answer))
            try:
                if (await asyncio.wait((writing,), timeout=unread_s))[0]:
                    writing.result()
                    continue
                await answers.aclose()
                if not (await asyncio.wait((writing,), timeout=LONGEST_UNTOLD_S))[0]:
                    raise asyncio.CancelledError
                raise LimitError(f"this caller has read nothing for {unread_s:g} s; read answers as they come")
            finally:
                writing.cancel()

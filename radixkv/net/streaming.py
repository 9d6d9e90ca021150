"""Server streams of an asyncio gRPC server, with a bound on slow readers."""

from __future__ import annotations

import asyncio
import contextlib
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

"""Validates the lines of a batch's file, streamed from the database: a few at a time, at any size of the file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from radixkv.gateway.api.jobs.lines import MAX_REQUESTS, BatchLine, LineError, read_line

__all__ = ["MAX_ERRORS", "Lines", "error_entry", "read_lines"]

MAX_ERRORS = 100
"""Most faults reported per file."""

_LINES_AT_ONCE, _BYTES_AT_ONCE = 256, 1024 * 1024
_BOM = b"\xef\xbb\xbf"

Entry = dict[str, Any]
Away = Callable[[Callable[[], "Lines"]], Coroutine[Any, Any, "Lines"]]
"""Runs a function off the event loop."""


class Lines(NamedTuple):
    """Some lines of a file: requests with their line numbers, and faults; one fault rejects the whole file."""

    requests: Sequence[BatchLine]
    numbers: Sequence[int]
    errors: Sequence[Entry]


def error_entry(code: str, message: str, param: str | None = None, line: int | None = None) -> Entry:
    """Return a fault as a failed batch lists it."""
    return {"code": code, "message": message, "param": param, "line": line}


async def read_lines(content: AsyncIterator[bytes], endpoint: str, max_bytes: int, away: Away) -> AsyncIterator[Lines]:
    """Yield the lines of a file, validated. `max_bytes`: of one line; a longer one, or too many lines, end it with a fault."""
    count = 0
    waiting: list[tuple[int, bytes]] = []
    async for number, line in _split(content, max_bytes):
        if len(line) > max_bytes:
            message = f"a line must be at most {max_bytes:,} bytes"
            yield Lines([], [], [error_entry("line_too_long", message, line=number)])
            return
        if not line.strip():
            continue
        count += 1
        if count > MAX_REQUESTS:
            message = f"a batch has at most {MAX_REQUESTS:,} requests"
            yield Lines([], [], [error_entry("too_many_requests", message, line=number)])
            return
        waiting.append((number, line))
        if len(waiting) == _LINES_AT_ONCE or sum(len(each) for _, each in waiting) > _BYTES_AT_ONCE:
            yield await away(partial(_read, waiting, endpoint))
            waiting = []
    if waiting:
        yield await away(partial(_read, waiting, endpoint))
    if not count:
        yield Lines([], [], [error_entry("empty_file", "the file has no requests: one JSON object per line")])


async def _split(content: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield lines with their numbers, from 1; a line over the bound is cut and is the last."""
    number, rest, is_first = 1, bytearray(), True
    async for piece in content:
        rest += piece.removeprefix(_BOM) if is_first else piece
        is_first = False
        *lines, last = rest.split(b"\n")
        for line in lines:
            yield number, bytes(line)
            number += 1
        rest = last
        if len(rest) > max_bytes:
            break
    yield number, bytes(rest)


def _read(lines: Sequence[tuple[int, bytes]], endpoint: str) -> Lines:
    requests: list[BatchLine] = []
    numbers: list[int] = []
    errors: list[Entry] = []
    for number, text in lines:
        try:
            requests.append(read_line(text, endpoint))
            numbers.append(number)
        except LineError as error:
            errors.append(error_entry(error.code, str(error), error.param, number))
    return Lines(requests, numbers, errors)

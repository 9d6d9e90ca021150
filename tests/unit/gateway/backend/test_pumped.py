"""A stream that can only be iterated, as one with a listener: all of it arrives, and an unread one is cut off and closed."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.gateway.backend import backend
from radixkv.gateway.backend.backend import _listenable
from radixkv.generation.stream import Delta, GenerationStream, StreamItem


def iterated(*items: StreamItem) -> tuple[GenerationStream, SimpleQueue[str]]:
    waiting, closed = [*items], SimpleQueue[str]()
    return GenerationStream("id", lambda: waiting.pop(0), lambda: closed.put("closed")), closed


@pytest.mark.parametrize("error", [None, UnavailableError("gone"), RadixKVError("other")])
def test_every_event_and_the_end_or_the_error_arrive(error: RadixKVError | None) -> None:
    events = [Delta(0, (number,), "") for number in range(3)]
    stream = _listenable(iterated(*events, error)[0])
    assert [next(stream) for _ in events] == events
    with pytest.raises(type(error) if error is not None else StopIteration):
        next(stream)


def test_a_stream_that_nobody_reads_is_cut_off_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_UNREAD_EVENTS", 3)
    monkeypatch.setattr("radixkv.generation.stream.UNREAD_S", 0.0)
    given, closed = iterated(*(Delta(0, (number,), "") for number in range(9)), None)
    stream = _listenable(given)
    assert closed.get(timeout=60) == "closed"
    with pytest.raises(LimitError, match="was not read"):
        list(stream)

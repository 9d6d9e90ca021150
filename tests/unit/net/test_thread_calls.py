"""A call that is served by a thread ends once."""

from __future__ import annotations

from typing import Any

from radixkv.core.errors import LeaseError
from radixkv.net.calls.thread_calls import ThreadCall


class Ended:
    """Notes what a call ends with."""

    def __init__(self) -> None:
        self.details: list[str] = []

    def set_trailing_metadata(self, _metadata: object) -> None: ...

    def set_code(self, _code: object) -> None: ...

    def set_details(self, details: str) -> None:
        self.details.append(details)


def test_whatever_ends_a_call_first_ends_it_and_nothing_else_does() -> None:
    for first, details in (("finish", []), ("fail", ["the lease is over"])):
        sent: list[Any] = []
        context = Ended()
        waits: Any = None  # nothing is waited for
        call = ThreadCall(iter(()), context, sent.append, waits, (1.0, 1.0))
        if first == "finish":
            call.finish()
        else:
            call.fail(LeaseError("the lease is over"))
        call.fail(LeaseError("too late"))
        call.finish()
        assert (sent, context.details) == ([None], details)

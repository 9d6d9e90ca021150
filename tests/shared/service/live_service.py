"""The clock and the lease of the live services under test."""

from __future__ import annotations

TTL_S = 30.0


class Clock:
    """The service's clock, moved by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

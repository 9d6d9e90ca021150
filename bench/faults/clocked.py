"""`radixkv` with a wall clock that signals set: SIGUSR1 90 s ahead, SIGUSR2 90 s back.

So a host whose clock is wrong is played: file times, timers and the monotonic clock are the machine's. gRPC keeps the machine's
clock, too: its core does, and a deadline computed in Python by another one would be 90 s off. A script, not a module to import:
`radixkv` is loaded once its clock is in place.
"""

from __future__ import annotations

import runpy
import signal
import time
from importlib import import_module
from types import SimpleNamespace

SHIFT_S = 90
GRPC = ("grpc._channel", "grpc._common", "grpc._cython.cygrpc", "grpc._utilities", "grpc.aio._utils")


def main() -> None:
    """Run the command line's arguments."""
    offset_s = 0
    true = SimpleNamespace(**vars(time))

    def shift(number: int, _frame: object) -> None:
        nonlocal offset_s
        offset_s += SHIFT_S if number == signal.SIGUSR1 else -SHIFT_S

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, shift)
    time.time = lambda: true.time() + offset_s
    time.time_ns = lambda: true.time_ns() + offset_s * 1_000_000_000
    for name in GRPC:
        vars(import_module(name))["time"] = true
    runpy.run_module("radixkv", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

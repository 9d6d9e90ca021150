"""`radixkv` with a wall clock that signals set: SIGUSR1 90 s ahead, SIGUSR2 90 s back.

So a host whose clock is wrong is played: file times, timers and the monotonic clock are the machine's. A script, not a module
to import: `radixkv` is loaded once its clock is in place.
"""

from __future__ import annotations

import runpy
import signal
import time

SHIFT_S = 90


def main() -> None:
    """Run the command line's arguments."""
    offset_s = 0
    true_s, true_ns = time.time, time.time_ns

    def shift(number: int, _frame: object) -> None:
        nonlocal offset_s
        offset_s += SHIFT_S if number == signal.SIGUSR1 else -SHIFT_S

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, shift)
    time.time = lambda: true_s() + offset_s
    time.time_ns = lambda: true_ns() + offset_s * 1_000_000_000
    runpy.run_module("radixkv.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

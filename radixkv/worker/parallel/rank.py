"""A rank of a model, in a process of its own: makes the calls that rank 0 sends it, until rank 0 is gone.

    python -m radixkv.worker.parallel.rank FD

It takes no part in the worker's stop signals: rank 0 drains with its help.
"""

from __future__ import annotations

import logging
import signal
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from radixkv.worker.threads import configure_threads

if TYPE_CHECKING:
    from radixkv.worker.parallel.seat import Seat


def main() -> None:
    """Serve rank 0 over the inherited socket whose descriptor is the argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    logging.disable(logging.WARNING)  # rank 0 logs the same
    with Connection(int(sys.argv[1])) as rank_0:
        try:
            seat, options = rank_0.recv()
            _serve(rank_0, seat, options)
        except (EOFError, ConnectionError):
            pass


def _serve(rank_0: Connection, seat: Seat, options: dict[str, Any]) -> None:
    configure_threads()
    from radixkv.worker.parallel.runner import CALLS, RankRunner

    device = seat.join(options.pop("device"))
    runner = RankRunner(device=device, **options)
    while True:
        call, args, is_asked = rank_0.recv()
        result = CALLS[call](runner)(*args)
        if is_asked:
            rank_0.send(result)


if __name__ == "__main__":
    main()

"""A rank of a model, in a process of its own: makes the calls that rank 0 sends it, until rank 0 is gone.

    python -m radixkv.worker.parallel.rank FD

It is in a process group of its own, so that no Ctrl-C reaches it: rank 0 drains with its help. Once rank 0 is gone it ends at
once, whatever it waits for or computes.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
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
            threading.Thread(target=_end_with, args=(rank_0, seat.folder), daemon=True).start()
            _serve(rank_0, seat, options)
        except (EOFError, ConnectionError):
            pass


def _serve(rank_0: Connection, seat: Seat, options: dict[str, Any]) -> None:
    configure_threads()
    from radixkv.worker.parallel.runner import CALLS, RankRunner

    rank_0.send("ready")
    device = seat.join(options.pop("device"))
    runner = RankRunner(device=device, **options)
    while True:
        call, args, is_asked = rank_0.recv()
        result = CALLS[call](runner)(*args)
        if is_asked:
            rank_0.send(result)


def _end_with(rank_0: Connection, folder: Path) -> None:
    """End this process when rank 0 is gone, and remove the folder that it may have left."""
    hangup = select.poll()
    hangup.register(rank_0, 0)
    hangup.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()

"""Block removals as they happen: a thread follows the pool's events while there is a viewer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from radixkv.client import RemoteReader
from radixkv.core.errors import RadixKVError

__all__ = ["Removals"]

RETRY_S = 2.0


class Removals:
    """Follows the events until closed, across restarts of the service.

    Args:
        open_reader: gives a new reader of the pool.
        on_removed: called on that thread with the ids of blocks that can no longer be matched.
    """

    def __init__(self, open_reader: Callable[[], RemoteReader], on_removed: Callable[[Sequence[int]], None]) -> None:
        self._open_reader = open_reader
        self._on_removed = on_removed
        self._is_closed = threading.Event()
        self._reader: RemoteReader | None = None
        self._gate = threading.Lock()
        threading.Thread(target=self._run, name="radixkv-cache-events", daemon=True).start()

    def close(self) -> None:
        """Stop following, and let the thread end. May be repeated."""
        with self._gate:
            self._is_closed.set()
            if self._reader is not None:
                self._reader.close()

    def _run(self) -> None:
        while reader := self._open():
            try:
                self._follow(reader)
            except (RadixKVError, ValueError):
                pass  # the service or pool is gone, or the reader was closed; later listings show the same
            finally:
                reader.close()
            self._is_closed.wait(RETRY_S)

    def _open(self) -> RemoteReader | None:
        with self._gate:
            if self._is_closed.is_set():
                return None
            self._reader = self._open_reader()
            return self._reader

    def _follow(self, reader: RemoteReader) -> None:
        for event in reader.follow_events():
            if event.kind == "removed" and not self._is_closed.is_set():
                self._on_removed(event.block_ids)

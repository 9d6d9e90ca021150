"""The index of a host pool: a `CacheHolder` whose loss or delay costs hits and never stops the engine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from radixkv.core.api import CacheHolder, Notice, ReleaseOp, StepOp, StepResult
from radixkv.core.errors import RadixKVError

__all__ = ["HostIndex"]

logger = logging.getLogger(__name__)


class HostIndex:
    """Steps on a holder, each answered within `timeout_s` or not at all. One thread calls it.

    Until the answer to a late Step arrives, every Step goes unanswered at once. A holder that fails is replaced in the
    background: its successor starts on an empty tree.

    Args:
        connect: opens a holder of the pool; called here, and on a thread after a loss.
        timeout_s: how long a Step may take.
        retry_s: time between attempts to replace a holder.

    Raises: the errors of `connect`.
    """

    def __init__(self, connect: Callable[[], CacheHolder], *, timeout_s: float = 2.0, retry_s: float = 5.0) -> None:
        self._connect = connect
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._holder: CacheHolder | None = connect()
        self._late: Future[list[StepResult]] | None = None
        self._orphans: list[int] = []
        self._closed = threading.Event()

    def step(self, ops: Sequence[StepOp]) -> list[StepResult] | None:
        """Apply ops in order. None: they were applied in part, later or never; `orphan` the sequences that they concern."""
        holder = self._holder
        if holder is None or (self._late is not None and not self._late.done()):
            return None
        self._late = None
        orphans, self._orphans = self._orphans, []
        releases = [ReleaseOp(seq_id, keep=False) for seq_id in orphans]
        try:
            future = holder.submit([*releases, *ops])
        except RadixKVError as error:
            self._replace(holder, error)
            return None
        try:
            return future.result(self._timeout_s)[len(releases) :]
        except TimeoutError:
            logger.warning(
                "the cache service has not answered for %g s: no KV is loaded or saved until it does", self._timeout_s
            )
            self._late = future
        except RadixKVError as error:
            self._replace(holder, error)
        return None

    def orphan(self, seq_ids: Iterable[int]) -> None:
        """Release these sequences with the next Step, without what only they have published."""
        self._orphans.extend(seq_ids)

    def take_notices(self) -> list[Notice]:
        """The holder's notices; see `CacheHolder.take_notices`."""
        return [] if self._holder is None else self._holder.take_notices()

    def close(self) -> None:
        """Detach from the pool. May be repeated."""
        self._closed.set()
        holder, self._holder = self._holder, None
        _close(holder)

    def _replace(self, lost: CacheHolder, error: RadixKVError) -> None:
        logger.warning("the host pool's index is lost: %s; its successor starts empty", error)
        self._holder = None
        self._orphans.clear()
        threading.Thread(target=self._reconnect, args=(lost,), name="radixkv-reconnect", daemon=True).start()

    def _reconnect(self, lost: CacheHolder) -> None:
        _close(lost)
        while not self._closed.is_set():
            try:
                holder = self._connect()
            except RadixKVError as error:
                logger.info("no index yet: %s", error)
                self._closed.wait(self._retry_s)
                continue
            self._holder = holder
            if self._closed.is_set():
                _close(holder)
            return


def _close(holder: CacheHolder | None) -> None:
    """End a holder over gRPC; one in process has nothing to end."""
    close = getattr(holder, "close", None)
    if close is not None:
        close()

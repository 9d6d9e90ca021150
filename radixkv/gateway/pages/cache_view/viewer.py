"""One open tree page: the version it has received, and the namespaces it may see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from radixkv.gateway.pages.cache_view.gauges import Gauges
from radixkv.gateway.pages.cache_view.nodes import Change, Departure, TreeState

__all__ = ["Viewer"]

ROWS_AT_ONCE = 1000
"""Nodes per event: other requests are served between two events."""

Update = tuple[str, Any]
"""Name and data of a server-sent event."""


class Observed(Protocol):
    """A pool as last seen by its observer."""

    state: TreeState
    status: Any
    gauges: Gauges

    def changes_since(self, version: int) -> list[Change] | None:
        """Return the changes after a version; None where it is too old."""


class Viewer:
    """Follows the observer at its own pace: a slow reader gets several changes as one, or a full listing.

    Args:
        observer: the source of its updates.
        sees: whether the viewer may see a namespace.
    """

    def __init__(self, observer: Observed, sees: Callable[[str], bool]) -> None:
        self._observer = observer
        self._sees = sees
        self._news = asyncio.Event()
        self._version = -1
        self._status: Any = None
        self._num_points = 0
        self._gone: list[Departure] = []

    def wake(self) -> None:
        """Wake the viewer: there may be updates."""
        self._news.set()

    def left(self, gone: Iterable[Departure]) -> None:
        """Note nodes that left the tree since the last listing."""
        self._gone += gone

    async def updates(self, is_over: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield updates as they arrive, until `is_over`, which is checked at every wake-up."""
        while not is_over():
            self._news.clear()
            for update in self.take():
                yield update
            await self._news.wait()

    def take(self) -> Iterator[Update]:
        """Yield the updates available now."""
        observer = self._observer
        if observer.status != self._status:
            self._status = observer.status
            yield "status", self._status
        if observer.gauges.num_read != self._num_points:
            points = observer.gauges.since(self._num_points)
            self._num_points = observer.gauges.num_read
            yield "points", observer.gauges.told(points)
        gone, self._gone = self._rows(self._gone), []
        if gone:
            yield "gone", {"gone": gone}
        if observer.state.version > max(self._version, 0):
            yield from self._tree()

    def _tree(self) -> Iterator[Update]:
        """Yield the nodes changed since the version sent last, or all of them where that version is too old."""
        observer = self._observer
        state, changes = observer.state, observer.changes_since(self._version)
        self._version = state.version
        if changes is None:
            ids = list(state.nodes)
            gone = []
        else:
            ids = list(dict.fromkeys(view_id for change in changes for view_id in change.changed))
            gone = self._rows(departure for change in changes for departure in change.gone)
        nodes = [state.nodes[view_id] for view_id in ids if view_id in state.nodes]
        rows = [node.row() for node in nodes if self._sees(node.info.namespace)]
        if changes is not None and not rows and not gone:
            return
        for first in range(0, max(1, len(rows)), ROWS_AT_ONCE):
            part = rows[first : first + ROWS_AT_ONCE]
            is_last = first + ROWS_AT_ONCE >= len(rows)
            yield (
                "tree",
                {
                    "reset": changes is None and not first,
                    "done": is_last,
                    "now_s": state.now_s,
                    "nodes": part,
                    "gone": gone if is_last else [],
                },
            )

    def _rows(self, gone: Iterable[Departure]) -> list[list[Any]]:
        return [departure.row() for departure in gone if self._sees(departure.node.info.namespace)]

"""One page that looks at the tree: what it has been told already, and what it may see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from radixkv.gateway.pages.cache_view.gauges import Gauges
from radixkv.gateway.pages.cache_view.nodes import Change, Departure, TreeState

__all__ = ["Viewer"]

ROWS_AT_ONCE = 1000
"""Nodes told in one event: other requests are served between two of them."""

Update = tuple[str, Any]
"""Name and data of a server-sent event."""


class Observed(Protocol):
    """A pool as its observer has seen it last."""

    state: TreeState
    status: Any
    gauges: Gauges

    def changes_since(self, version: int) -> list[Change] | None:
        """The changes after a version; None where that is too long ago."""


class Viewer:
    """Follows the observer at its own pace: who reads slowly is told several changes as one, or all anew.

    Args:
        observer: is looked through.
        sees: whether a namespace is this viewer's to see.
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
        """There may be something to tell."""
        self._news.set()

    def left(self, gone: Iterable[Departure]) -> None:
        """Nodes have left the tree since the last listing."""
        self._gone += gone

    async def updates(self, is_over: Callable[[], bool]) -> AsyncIterator[Update]:
        """What is new, as it comes, until `is_over`, which is asked once a second."""
        while not is_over():
            self._news.clear()
            for update in self.take():
                yield update
            await self._news.wait()

    def take(self) -> Iterator[Update]:
        """What is new now."""
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
        """The nodes that changed since the version told last, or all of them where that is too long ago."""
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

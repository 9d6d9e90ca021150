"""A store of grammars with separate namespaces: timing reveals no other namespace's use, and none evicts another's share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["NamespaceStore"]

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class NamespaceStore(Generic[_Key, _Value]):
    """Keeps the most recently used values, up to `capacity` in all. The namespace with the highest cost evicts its oldest.

    Args:
        capacity: bound on the sum of all values' costs.
        cost: of a value; may grow while it is kept, and is read again on each `put`.
    """

    def __init__(self, capacity: int, cost: Callable[[_Value], int] = lambda _: 1) -> None:
        self._capacity = capacity
        self._cost = cost
        self._kept: dict[str, OrderedDict[_Key, _Value]] = {}

    def get(self, namespace: str, key: _Key) -> _Value | None:
        """The kept value, now the most recently used of its namespace. O(1)."""
        kept = self._kept.get(namespace)
        if kept is None or key not in kept:
            return None
        kept.move_to_end(key)
        return kept[key]

    def put(self, namespace: str, key: _Key, value: _Value) -> None:
        """Keep a value; evict others for room. A value above the capacity is evicted too. O(kept)."""
        kept = self._kept.setdefault(namespace, OrderedDict())
        kept[key] = value
        kept.move_to_end(key)
        costs = {name: sum(map(self._cost, values.values())) for name, values in self._kept.items()}
        while sum(costs.values()) > self._capacity:
            largest = max(costs, key=lambda name: (costs[name], name == namespace))
            _, lost = self._kept[largest].popitem(last=False)
            costs[largest] -= self._cost(lost)
            if not self._kept[largest]:
                del self._kept[largest], costs[largest]

    def drop(self, namespace: str, key: _Key) -> None:
        """Remove a value, if kept."""
        kept = self._kept.get(namespace)
        if kept is not None and kept.pop(key, None) is not None and not kept:
            del self._kept[namespace]

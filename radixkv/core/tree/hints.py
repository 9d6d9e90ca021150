"""Blocks that a holder has below its pool, as far as it reports them: hints, by tier and owner.

A hint is the hash of a whole block (`tree.hashes`), which stands for the namespace and all tokens up to the block's end. A
prompt is looked up by the hashes of its own tokens, in its own namespace, so a look-up shows nothing of another's. A wrong hint
costs a miss.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from radixkv.core.reports import Tier

__all__ = ["HINTED_TIERS", "MAX_HINTS", "HintChange", "StoredHints"]

HINTED_TIERS: tuple[Tier, ...] = ("host", "disk")
"""The tiers of hints, the faster first. A remote one is the same for every pool, and no holder knows what it has dropped."""

MAX_HINTS = 1 << 19
"""Hints of each tier; beyond, the owner with the most loses its oldest. About 80 bytes each."""


class HintChange(NamedTuple):
    """Hashes of an owner that came to a tier or left it."""

    tier: Tier
    owner: str
    saved: array[int]
    lost: array[int]


class StoredHints:
    """The hints of one pool, the oldest of each owner first. O(1) per hash.

    Args:
        capacity: hints of each tier.
    """

    __slots__ = ("_capacity", "_nums", "_tables")

    def __init__(self, capacity: int = MAX_HINTS) -> None:
        self._capacity = capacity
        self._tables: dict[Tier, dict[str, dict[int, None]]] = {tier: {} for tier in HINTED_TIERS}
        self._nums = dict.fromkeys(HINTED_TIERS, 0)

    def __bool__(self) -> bool:
        return any(self._nums.values())

    def num(self, tier: Tier, owner: str | None = None) -> int:
        """Hints of a tier, of one owner or of all. O(1)."""
        return self._nums[tier] if owner is None else len(self._tables[tier].get(owner, ()))

    def owners(self) -> set[str]:
        """Owners with hints. O(owners)."""
        return set().union(*self._tables.values())

    def tell(self, tier: Tier, owner: str, saved: Iterable[int], lost: Iterable[int]) -> list[HintChange]:
        """Drop the lost hashes, then take the saved ones; returns what has changed, other owners' included."""
        table = self._tables[tier]
        own = table.setdefault(owner, {})
        gone = array("Q", (each for each in lost if own.pop(each, 0) is None))
        come = array("Q", (each for each in dict.fromkeys(saved) if each not in own))
        own.update(dict.fromkeys(come))
        self._nums[tier] += len(come) - len(gone)
        if not own:
            del table[owner]
        changes = [HintChange(tier, owner, come, gone)] if come or gone else []
        while (num_over := self._nums[tier] - self._capacity) > 0:
            largest = max(table, key=lambda each: len(table[each]))
            oldest = array("Q", (each for each, _ in zip(table[largest], range(num_over), strict=False)))
            changes += self.tell(tier, largest, (), oldest)
        return changes

    def clear(self, owner: str) -> list[HintChange]:
        """Drop all hints of an owner. O(its hints)."""
        return [
            change for tier in HINTED_TIERS for change in self.tell(tier, owner, (), list(self.hashes(tier, owner)))
        ]

    def hashes(self, tier: Tier, owner: str) -> Iterable[int]:
        """Hashes of an owner in a tier, the oldest first; also for `in`."""
        return self._tables[tier].get(owner, {}).keys()

    def slices(self, max_hashes: int) -> Iterator[HintChange]:
        """All hints, in parts. Hints may change meanwhile: one that was dropped before its part is not in it."""
        for tier in HINTED_TIERS:
            for owner in list(self._tables[tier]):
                known = list(self.hashes(tier, owner))
                for start in range(0, len(known), max_hashes):
                    own = self._tables[tier].get(owner, {})
                    part = array("Q", (each for each in known[start : start + max_hashes] if each in own))
                    if part:
                        yield HintChange(tier, owner, part, array("Q"))

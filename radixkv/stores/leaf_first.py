"""Which block makes room: the least recently used leaf, so that no stored block is left without its parents.

    order of use:   oldest  ·  c2  c1  b1  a  ·  newest            a ── b1 ── c1
                                                                         └─── c2
    A use touches leaf to root, root last: a parent is always newer than its children, so the oldest block is a leaf.

Where namespaces have a share, the one furthest above its own gives the next block: one within its share loses nothing to
others. The namespaces without a share have the rest together.

Children are counted by the parent's name, stored or not: a block may be stored before its parent, and a damaged parent may go
before its children, which become reachable again once it is stored again.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["Entry", "LeafFirst"]

_REST = b""
"""In place of the id of a namespace without a share."""


class Entry(NamedTuple):
    """Where a block lies, and whose it is. `parent`: the name before its own. `hint`: see `SealedBlock`."""

    slot: int
    parent: bytes
    namespace_id: bytes
    hint: bytes = b""


class LeafFirst:
    """Names of stored blocks in the order of their use. No thread of its own, no lock: its owner has one.

    Attributes:
        entries: by name, the least recently used first; changed by the methods only. num_of: their number, by namespace id.
        used: names touched since the owner last emptied it, and the number of that use. clock: the highest number.
    """

    __slots__ = ("_num_children", "_orders", "_shares", "clock", "entries", "num_of", "used")

    def __init__(self, entries: Iterable[tuple[bytes, Entry]] = (), clock: int = 0) -> None:
        """`entries`: the least recently used first. `clock`: the highest number of a use. O(n)."""
        self.entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.num_of: dict[bytes, int] = {}
        self._num_children: dict[bytes, int] = {}
        self._shares: dict[bytes, int] = {}
        self._orders: dict[bytes, OrderedDict[bytes, None]] = {}  # names by share, as `entries`; none without shares
        self.clock = clock
        self.used: dict[bytes, int] = {}
        self.add(entries)
        self.touch(list(reversed(self.entries)))
        self.used = {}

    def share(self, parts: Mapping[bytes, float], num_blocks: int) -> None:
        """From now on, keep these parts of so many blocks for namespaces, by id; no parts: for none. O(n)."""
        shares = {namespace_id: int(part * num_blocks) for namespace_id, part in parts.items()}
        self._shares = shares | {_REST: num_blocks - sum(shares.values())} if shares else {}
        self._orders = {part: OrderedDict() for part in self._shares}
        for name, entry in self.entries.items() if shares else ():
            self._order_of(entry)[name] = None

    def _order_of(self, entry: Entry) -> OrderedDict[bytes, None]:
        return self._orders[entry.namespace_id if entry.namespace_id in self._orders else _REST]

    def add(self, entries: Iterable[tuple[bytes, Entry]]) -> None:
        """Add names that are not stored. The caller touches them."""
        for name, entry in entries:
            assert name not in self.entries
            self.entries[name] = entry
            if self._shares:
                self._order_of(entry)[name] = None
            self._num_children[entry.parent] = self._num_children.get(entry.parent, 0) + 1
            self.num_of[entry.namespace_id] = self.num_of.get(entry.namespace_id, 0) + 1

    def remove(self, name: bytes) -> Entry | None:
        """Remove a name, leaf or not; None: it was not stored."""
        entry = self.entries.pop(name, None)
        if entry is not None:
            if self._shares:
                del self._order_of(entry)[name]
            for counts, key in ((self._num_children, entry.parent), (self.num_of, entry.namespace_id)):
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
            self.used.pop(name, None)
        return entry

    def touch(self, names: Iterable[bytes]) -> None:
        """Make the names and all that is stored above them the most recently used. O(names + blocks above them)."""
        seen: set[bytes] = set()
        parents_first: list[bytes] = []
        for name in names:
            path: list[bytes] = []
            above = name
            while above not in seen and (entry := self.entries.get(above)) is not None:
                seen.add(above)
                path.append(above)
                above = entry.parent
            parents_first += reversed(path)
        for name in reversed(parents_first):
            self.clock += 1
            self.used[name] = self.clock
            self.entries.move_to_end(name)
            if self._shares:
                self._order_of(self.entries[name]).move_to_end(name)

    def evict(self, num_blocks: int, keep: Collection[bytes] = ()) -> list[tuple[bytes, Entry]]:
        """Remove up to so many leaves, the least recently used first; a parent is a leaf once its children are gone.

        `keep`: names that stay, and with them everything above them. O(num_blocks + len(keep) + blocks above those), and
        O(log shares) per block.
        """
        evicted: list[tuple[bytes, Entry]] = []
        for names, count in self._burdens(num_blocks) if self._shares else [(self.entries, num_blocks)]:
            evicted += self._leaves(names, count, keep)
        for name, _ in evicted:
            self.remove(name)
        return evicted

    def _burdens(self, num_blocks: int) -> list[tuple[Iterable[bytes], int]]:
        """The blocks that each share gives: one after another, from the one that is furthest above. The rest gives all that it
        has before a share that is not above gives any.
        """

        def below(part: bytes, num_left: int) -> int:
            number = self._shares[part] - num_left
            return min(number, 0) if part == _REST else number

        above = [(below(part, len(order)), part) for part, order in self._orders.items() if order]
        heapq.heapify(above)
        counts: Counter[bytes] = Counter()
        for _ in range(min(num_blocks, len(self.entries))):
            part = above[0][1]
            counts[part] += 1
            if (num_left := len(self._orders[part]) - counts[part]) > 0:
                heapq.heapreplace(above, (below(part, num_left), part))
            else:
                heapq.heappop(above)
        return [(self._orders[part], count) for part, count in counts.items()]

    def _leaves(self, names: Iterable[bytes], num_blocks: int, keep: Collection[bytes]) -> list[tuple[bytes, Entry]]:
        """Up to so many of these names, which are in order of use, that are leaves once those before them are gone."""
        leaves: list[tuple[bytes, Entry]] = []
        num_gone: dict[bytes, int] = {}
        for name in names:
            if len(leaves) >= num_blocks:
                break
            if name not in keep and self._num_children.get(name, 0) == num_gone.get(name, 0):
                entry = self.entries[name]
                leaves.append((name, entry))
                num_gone[entry.parent] = num_gone.get(entry.parent, 0) + 1
        return leaves

    def of(self, namespace_ids: Collection[bytes]) -> Iterator[tuple[bytes, Entry]]:
        """The blocks of these namespaces. O(n); O(ids) where there are none."""
        if any(each in self.num_of for each in namespace_ids):
            yield from ((name, entry) for name, entry in self.entries.items() if entry.namespace_id in namespace_ids)

    def below(self, parents: Iterable[bytes]) -> list[bytes]:
        """The names below these, children before their parents. O(n)."""
        gone = set(parents)
        names: list[bytes] = []
        for name, entry in reversed(self.entries.items()):  # a parent is newer than its children
            if entry.parent in gone:
                gone.add(name)
                names.append(name)
        return names[::-1]

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        num_children: dict[bytes, int] = {}
        seen: set[bytes] = set()
        for name, entry in self.entries.items():
            num_children[entry.parent] = num_children.get(entry.parent, 0) + 1
            assert entry.parent not in seen, "a parent is newer than its children"
            seen.add(name)
        assert num_children == self._num_children
        assert self.num_of == Counter(entry.namespace_id for entry in self.entries.values())
        for part, order in self._orders.items():
            assert list(order) == [name for name, entry in self.entries.items() if self._order_of(entry) is order], part
        assert self.used.keys() <= self.entries.keys()
        slots = [entry.slot for entry in self.entries.values()]
        assert len(slots) == len(set(slots))

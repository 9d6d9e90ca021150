"""Pins: prefixes that are protected until a time.

A pin is a lock ref with an expiry and without private blocks; its tokens are its name within their namespace. It stands on the
node whose last block holds the last of them. A use of all its tokens renews its ttl; after its end, the branch is an ordinary
one, as old as its last use.

Two bounds hold them: the pins of an owner, in all its namespaces, cost blocks x ttl each, together at most its budget of
block-seconds; and all pins of a pool together protect at most a part of its blocks, where a block that several pins protect
counts once. Owners that have pins share that part evenly. Another owner may pin the idle part of a share, until its owner wants
it: then the newest pins of the owner furthest above its share end.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable

from radixkv.core.api import PinInfo, PinOp, UnpinOp
from radixkv.core.errors import PinBudgetError
from radixkv.core.nodes.node import Node, PinMark
from radixkv.core.tree import surgery
from radixkv.core.tree.accounts import NamespaceAccount
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.roots import Pin, RootNode
from radixkv.core.tree.surgery import stand_node

__all__ = ["MAX_PINNED_SHARE", "PinBook"]

HOUR_S = 3600.0
MAX_PINNED_SHARE = 0.5
"""Of a pool's blocks; the rest is for running sequences."""

MAX_TOLD = 16
"""Pins listed in a `PinBudgetError`, the costliest first."""


class PinBook:
    """All pins of a pool.

    Args:
        budget: block-seconds that the pins of one owner may cost together; half of the pool for an hour if None.
    """

    def __init__(self, forest: Forest, budget: float | None) -> None:
        self._forest = forest
        self.budget = MAX_PINNED_SHARE * forest.pool.num_blocks * HOUR_S if budget is None else budget
        self.max_blocks = math.floor(MAX_PINNED_SHARE * forest.pool.num_blocks)
        self.num_blocks = 0
        self.num_pins = 0
        self._of_accounts: dict[NamespaceAccount, dict[Pin, None]] = {}  # those that have pins; the oldest pin first
        self._expiries: list[tuple[float, int, Pin]] = []  # a heap by `queued_s`
        self._num_queued = 0

    def of(self, account: NamespaceAccount) -> Collection[Pin]:
        """The pins of an account, in all its namespaces, the oldest first."""
        return self._of_accounts.get(account, ())

    def check(self, root: RootNode, tokens: bytes, walk: Walk, ttl_s: float) -> None:
        """Raise `PinBudgetError` where a pin of `tokens`, all of them walked, exceeds a bound. O(path + pins of the owner)."""
        same, account = root.pins.get(tokens), root.account
        num_blocks = self._num_blocks(tokens)
        used = sum(pin.cost for pin in self.of(account) if pin is not same)
        if used + num_blocks * ttl_s > self.budget:
            left = self.budget - used
            told = self._costliest(root)
            raise PinBudgetError("block-seconds of its namespace", num_blocks * ttl_s, left, self.budget, told)
        num_new = self._num_unpinned(walk, num_blocks) if same is None else 0
        share = self._share_with(account)
        if self.num_blocks + num_new > self.max_blocks and account.num_pinned + num_new > share:
            num_left = max(self.max_blocks - self.num_blocks, share - account.num_pinned)
            told = self._costliest(root)
            raise PinBudgetError("blocks of the pool", num_new, num_left, account.num_pinned + num_left, told)

    def lock_cost(self, root: RootNode, tokens: bytes, walk: Walk) -> int:
        """Evictable blocks that a pin of `tokens`, all of them walked, takes from the pool. O(unlocked path)."""
        if tokens in root.pins:
            return 0
        forest = self._forest
        cost = forest.lock_cost(walk.node)
        if walk.child is not None and not walk.child.lock_ref:
            cost += self._num_blocks(tokens) - walk.node.end_bytes // forest.block_bytes
        return cost

    def set(self, root: RootNode, tokens: bytes, walk: Walk, ttl_s: float) -> Pin:
        """Pin `tokens`, all of them walked and checked, or set a new `ttl_s` of their pin. O(path + log pins).

        Where others hold the rest of its owner's share, pins of theirs end: O(path + owners with pins) each.
        """
        pin = root.pins.get(tokens)
        if pin is None:
            num_blocks = self._num_blocks(tokens)
            self._make_room(root.account, self._num_unpinned(walk, num_blocks))
            node = stand_node(self._forest, walk, num_blocks)
            self._forest.lock(root, node)
            node.used_bytes = max(node.used_bytes, walk.matched_bytes)
            pin = Pin(root, node, tokens, num_blocks)
            self._mark(pin)
        if ttl_s != pin.ttl_s:
            self._forest.journal.add(PinOp(tokens, ttl_s, root.namespace))
        pin.ttl_s = ttl_s
        pin.cost = pin.num_blocks * ttl_s
        pin.expires_s = self._forest.clock() + ttl_s
        self._queue(pin)
        return pin

    def drop(self, pin: Pin) -> None:
        """End a pin: its branch is an ordinary one again, as old as its last use. O(path)."""
        forest, root, node = self._forest, pin.root, pin.node
        self._unmark(pin)
        forest.journal.add(UnpinOp(pin.tokens, root.namespace))
        surgery.merge_down(forest, forest.unlock(root, node, is_use=False))
        forest.forget_if_empty(root)

    def drop_all(self, root: RootNode) -> None:
        """End the pins of a namespace. O(pins · path)."""
        for pin in list(root.pins.values()):
            self.drop(pin)

    def drop_expired(self) -> None:
        """End every expired pin. O(1) where there is none."""
        now_s = self._forest.clock()
        while self._expiries and self._expiries[0][0] <= now_s:
            entry = heapq.heappop(self._expiries)
            pin = entry[2]
            if not _is_current(entry):
                continue
            if pin.expires_s <= now_s:
                self.drop(pin)
            else:
                pin.queued_s = math.inf
                self._queue(pin)

    def used(self, root: RootNode, node: Node, tokens: bytes | bytearray, child: Node | None = None) -> None:
        """Renew every pin whose tokens are all covered by `tokens`, which a new sequence has stored up to `node`.

        If `child` is given, the last of these bytes were copied from it. A pin may also end inside a sibling's block, where
        other tokens follow the pin's. O(path + lengths of pins that end in a block right below a node of it).
        """
        now_s, matched_bytes = self._forest.clock(), len(tokens)
        above: Node | None = node if child is None or child.pin_mark is None else child
        while above is not None:
            if above.pin_mark is not None:
                for pin in above.pin_mark.pins:
                    if len(pin.tokens) <= matched_bytes:
                        pin.expires_s = now_s + pin.ttl_s
                for length in root.cut_pins.get(above.end_bytes, ()):
                    beside = root.pins.get(bytes(tokens[:length])) if length <= matched_bytes else None
                    if beside is not None:
                        beside.expires_s = now_s + beside.ttl_s
            above = above.parent

    def infos(self, roots: Iterable[RootNode]) -> list[PinInfo]:
        """The pins of these namespaces, the oldest of each first. O(pins)."""
        now_s = self._forest.clock()
        return [pin.info(now_s) for root in roots for pin in root.pins.values()]

    # -- inside -------------------------------------------------------------------------------------------------------

    def _num_blocks(self, tokens: bytes) -> int:
        return -(-len(tokens) // self._forest.block_bytes)

    def _cut_at(self, pin: Pin) -> int | None:
        """The start of the block inside which a pin ends; None where it ends with a block."""
        cut = len(pin.tokens) % self._forest.block_bytes
        return len(pin.tokens) - cut if cut else None

    def _num_unpinned(self, walk: Walk, num_kept: int) -> int:
        """Blocks of the walk's first `num_kept` that no pin protects yet. O(that part of the path)."""
        count = 0
        if walk.child is not None and walk.child.pin_mark is None:
            count += num_kept - walk.node.end_bytes // self._forest.block_bytes
        above: Node | None = walk.node
        while above is not None and above.pin_mark is None:
            count += len(above.blocks)
            above = above.parent
        return count

    def _share_with(self, account: NamespaceAccount) -> int:
        """The share of each owner with pins, this one included. O(1)."""
        return self.max_blocks // (len(self._of_accounts) + (account not in self._of_accounts))

    def _make_room(self, account: NamespaceAccount, num_new: int) -> None:
        """End pins of others until an owner can pin `num_new` more blocks, which fit its share or the pool's limit.

        While they do not fit, another owner is above its share, since all shares together are at most the limit.
        """
        while self.num_blocks + num_new > self.max_blocks:
            others = (other for other in self._of_accounts if other is not account)
            self.drop(next(reversed(self._of_accounts[max(others, key=lambda other: other.num_pinned)])))

    def _costliest(self, root: RootNode) -> tuple[PinInfo, ...]:
        """The costliest pins of this namespace alone: an error reveals nothing of another salt's."""
        now_s = self._forest.clock()
        costliest = heapq.nlargest(MAX_TOLD, root.pins.values(), key=lambda pin: pin.cost)
        return tuple(pin.info(now_s) for pin in costliest)

    def _queue(self, pin: Pin) -> None:
        """Queue a pin at its expiry, unless an earlier entry is queued. O(log pins), amortised."""
        if pin.expires_s >= pin.queued_s:
            return
        pin.queued_s = pin.expires_s
        self._num_queued += 1
        heapq.heappush(self._expiries, (pin.queued_s, self._num_queued, pin))
        if len(self._expiries) > 2 * self.num_pins + 64:  # entries of ended pins must not accumulate until their time
            self._expiries = list(filter(_is_current, self._expiries))
            heapq.heapify(self._expiries)

    def _mark(self, pin: Pin) -> None:
        """Count the pin on its node and, up to the first marked one, on those above. O(path that no pin protects yet)."""
        root = pin.root
        root.pins[pin.tokens] = pin
        if (start := self._cut_at(pin)) is not None:
            root.cut_pins.setdefault(start, Counter())[len(pin.tokens)] += 1
        self._of_accounts.setdefault(root.account, {})[pin] = None
        self.num_pins += 1
        above: Node | None = pin.node
        while above is not None:
            mark = above.pin_mark
            if mark is not None:
                mark.num_refs += 1
                break
            above.pin_mark = PinMark()
            root.account.num_pinned += len(above.blocks)
            self.num_blocks += len(above.blocks)
            above = above.parent
        assert pin.node.pin_mark is not None, "just marked"
        pin.node.pin_mark.pins.append(pin)

    def _unmark(self, pin: Pin) -> None:
        root = pin.root
        del root.pins[pin.tokens]
        if (start := self._cut_at(pin)) is not None:
            root.cut_pins[start] -= Counter((len(pin.tokens),))
            if not root.cut_pins[start]:
                del root.cut_pins[start]
        del self._of_accounts[root.account][pin]
        if not self._of_accounts[root.account]:
            del self._of_accounts[root.account]
        self.num_pins -= 1
        above: Node | None = pin.node
        assert pin.node.pin_mark is not None, "a pinned node is marked"
        pin.node.pin_mark.pins.remove(pin)
        while above is not None:
            mark = above.pin_mark
            assert mark is not None, "whatever lies above a pin is marked"
            mark.num_refs -= 1
            if mark.num_refs:
                break
            above.pin_mark = None
            root.account.num_pinned -= len(above.blocks)
            self.num_blocks -= len(above.blocks)
            above = above.parent


def _is_current(entry: tuple[float, int, Pin]) -> bool:
    queued_s, _, pin = entry
    return queued_s == pin.queued_s and pin.root.pins.get(pin.tokens) is pin

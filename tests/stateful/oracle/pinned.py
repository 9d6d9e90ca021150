"""How namespaces share the part of a pool that may be pinned, from what the cache shows alone; a part of the oracle."""

from __future__ import annotations

from radixkv.core.errors import PinBudgetError, RadixKVError

from .oracle import Tokens
from .shares import owner_of
from .snapshot import Snapshot

__all__ = ["check_refused_pin", "pins_that_gave_way"]


def check_refused_pin(before: Snapshot, namespace: str, error: RadixKVError) -> None:
    """Whoever was refused for want of blocks that may be pinned wanted more than is left, and more than its share."""
    if isinstance(error, PinBudgetError) and error.unit == "blocks of the pool":
        pinned = _pinned(before)
        own, all_pinned = pinned.get(owner_of(namespace), 0), sum(pinned.values())
        assert all_pinned + error.num_needed > _most(before), f"{error}, and {all_pinned} were pinned"
        assert own + error.num_needed > _share(before, namespace), f"{error}, and it had pinned {own}"


def pins_that_gave_way(
    before: Snapshot, after: Snapshot, listed: list[tuple[str, Tokens]], namespace: str
) -> set[tuple[str, Tokens]]:
    """The pins that ended by a pin of `namespace`: none unless its owner stays in its share, of others the newest.

    `listed`: the pins before, the oldest of each namespace first.
    """
    namespace = owner_of(namespace)
    gone = [pin for pin in listed if pin not in after.pins]
    pinned, now_pinned, share = _pinned(before), _pinned(after), _share(before, namespace)
    num_new = now_pinned.get(namespace, 0) - pinned.get(namespace, 0)
    if gone:
        assert sum(pinned.values()) + num_new > _most(before), f"{gone} gave way, and there was room"
        assert now_pinned[namespace] <= share, (
            f"{gone} gave way to {now_pinned[namespace]} blocks, the share is {share}"
        )
    for name in {name for name, _ in gone}:
        own = [pin for pin in listed if pin[0] == name]
        ended = [pin for pin in gone if pin[0] == name]
        loser = owner_of(name)
        assert loser != namespace, f"{ended} gave way to their own owner"
        assert own[-len(ended) :] == ended, f"{ended} gave way, of {own}"
        assert pinned[loser] > share, f"{ended} gave way, and {pinned[loser]} blocks were pinned of a share of {share}"
    return set(gone)


def _most(snapshot: Snapshot) -> int:
    return snapshot.stats.num_blocks // 2


def _share(snapshot: Snapshot, namespace: str) -> int:
    """What each may pin where all that have pins do, and this one."""
    return _most(snapshot) // len({owner_of(name) for name, _ in snapshot.pins} | {owner_of(namespace)})


def _pinned(snapshot: Snapshot) -> dict[str, int]:
    """Blocks that pins protect, by owner: those of nodes on which one stands, and of all above."""
    protected: set[int] = set()
    for node_id, path in snapshot.paths.items():
        above = node_id if path.node.pinned_until_s else 0
        while above and above not in protected:
            protected.add(above)
            above = snapshot.paths[above].node.parent_id
    pinned: dict[str, int] = {}
    for node_id in protected:
        node = snapshot.paths[node_id].node
        owner = owner_of(node.namespace)
        pinned[owner] = pinned.get(owner, 0) + len(node.block_ids)
    return pinned

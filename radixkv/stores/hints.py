"""What the disk level holds, as hints for the cache service: the hashes by which it names the same blocks.

A hash shows which prompt a block belongs to, so on disk it lies masked under a key of the block's owner, and is noise once that
is erased. It is told once the owner's name is known: at its first request.

    level's threads   changed(block)  --- queue --->  take()   engine's thread
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from radixkv.core.api import HintOp
from radixkv.core.namespaces import owner_of

if TYPE_CHECKING:
    from radixkv.stores.disk import DiskLevel
    from radixkv.stores.keys import NamespaceKeys
    from radixkv.stores.leaf_first import Entry

__all__ = ["HINT_BYTES", "DiskHints", "mask"]

HINT_BYTES = 8
_AT_ONCE = 1024
"""Changes of one Step: about 2 ms of the engine's thread."""


def mask(keys: NamespaceKeys, name: bytes, block_hash: int) -> bytes:
    """The hash of a block as it is stored, 8 bytes."""
    pad = blake2b(name, digest_size=HINT_BYTES, key=keys.hint_key).digest()
    return (block_hash ^ int.from_bytes(pad, "little")).to_bytes(HINT_BYTES, "little")


def _unmask(keys: NamespaceKeys, name: bytes, hint: bytes) -> int:
    return int.from_bytes(mask(keys, name, int.from_bytes(hint, "little")), "little")


class DiskHints:
    """Changes of a disk level that the service has not been told of. For any thread.

    Args:
        disk: the level; it reports its changes here from now on.
        submit: runs a function soon, on another thread.
        wake: called when there is something to tell.
    """

    def __init__(self, disk: DiskLevel, submit: Callable[[Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self._disk = disk
        self._submit = submit
        self._wake = wake
        self._owners: dict[bytes, tuple[str, NamespaceKeys]] = {}  # by namespace id
        self._changes: deque[tuple[bytes, Entry, bool]] = deque()
        disk.on_change = self._changed

    def know(self, namespace: str, keys: NamespaceKeys) -> None:
        """The name of an owner is known: what it has on disk is told soon. O(1)."""
        if keys.id not in self._owners:
            self._owners[keys.id] = owner_of(namespace), keys
            self._submit(partial(self._list, {keys.id}))

    def tell_again(self) -> None:
        """The service knows nothing of this pool: tell it of everything."""
        self._submit(partial(self._list, set(self._owners)))

    def _list(self, ids: set[bytes]) -> None:
        self._disk.list_blocks(ids)
        self._wake()

    def _changed(self, name: bytes, entry: Entry, is_saved: bool) -> None:
        if entry.hint and entry.namespace_id in self._owners:
            self._changes.append((name, entry, is_saved))
            if len(self._changes) == 1:
                self._wake()

    def take(self) -> list[HintOp]:
        """The next changes, one op for each owner that they concern."""
        told: dict[str, dict[int, bool]] = {}
        for _ in range(min(len(self._changes), _AT_ONCE)):
            name, entry, is_saved = self._changes.popleft()
            owner, keys = self._owners[entry.namespace_id]
            told.setdefault(owner, {})[_unmask(keys, name, entry.hint)] = is_saved
        ops: list[HintOp] = []
        for owner, own in told.items():
            saved = array("Q", (block_hash for block_hash, is_saved in own.items() if is_saved))
            lost = array("Q", (block_hash for block_hash, is_saved in own.items() if not is_saved))
            ops.append(HintOp("disk", saved, lost, owner))
        return ops

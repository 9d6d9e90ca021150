"""Hints for the cache service: blocks of the disk level, or else of host memory, by the hashes that the service has of the same
blocks.

A hash shows which prompt a block belongs to. So on disk it lies masked under a key of the block's owner, and is noise once that
is erased. The owner's name lies there too, sealed under the same key, so that a worker that starts knows whose blocks it has.

    level's threads   changed(block)  --- queue --->  take()   engine's thread
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from hashlib import blake2b
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from radixkv.core.api import HintOp
from radixkv.core.namespaces import owner_of
from radixkv.stores.leaf_first import Entry
from radixkv.stores.secrets.keys import NamespaceKeys, StoreKeys

__all__ = ["HINT_BYTES", "LevelHints", "mask"]

HINT_BYTES = 8
_NONCE_BYTES = 12
_AT_ONCE = 1024
"""Changes of one Step: about 2 ms of the engine's thread."""


class _Level(Protocol):
    """A level, as its hints use it."""

    def follow(self, on_change: Callable[[bytes, Entry, bool], None]) -> None: ...

    def list_blocks(self, namespace_ids: Collection[bytes]) -> None: ...


class _Disk(_Level, Protocol):
    def labels(self) -> dict[bytes, bytes]: ...

    def label(self, namespace_id: bytes, label: bytes) -> None: ...


def mask(hint_key: bytes, name: bytes, block_hash: int) -> bytes:
    """The hash of a block as it is stored, 8 bytes."""
    pad = blake2b(name, digest_size=HINT_BYTES, key=hint_key).digest()
    return (block_hash ^ int.from_bytes(pad, "little")).to_bytes(HINT_BYTES, "little")


def _unmask(hint_key: bytes, name: bytes, hint: bytes) -> int:
    return int.from_bytes(mask(hint_key, name, int.from_bytes(hint, "little")), "little")


class LevelHints:
    """Changes of a level that are not yet reported to the service. For any thread.

    Args:
        host, disk: the level is the disk, or else host memory; it reports its changes here from now on. keys: of its blocks.
        submit: runs a function soon, on another thread.
        wake: called when there is something to report.
    """

    def __init__(
        self,
        host: _Level,
        disk: _Disk | None,
        keys: StoreKeys,
        submit: Callable[[Callable[[], None]], None],
        wake: Callable[[], None],
    ) -> None:
        self._level: _Level = host if disk is None else disk
        self._disk = disk
        self._submit = submit
        self._wake = wake
        self._owners: dict[bytes, tuple[str, bytes]] = {}  # name and hint key, by namespace id
        self._changes: deque[tuple[bytes, Entry, bool]] = deque()
        self._level.follow(self._changed)
        for namespace_id, label in ({} if disk is None else disk.labels()).items():
            hint_key = keys.hint_key(namespace_id)
            owner = None if hint_key is None else _open(hint_key, namespace_id, label)
            if hint_key is not None and owner is not None:
                self._owners[namespace_id] = owner, hint_key
        self.tell_again()

    def know(self, namespace: str, keys: NamespaceKeys) -> None:
        """A namespace is in use. O(1)."""
        if keys.id not in self._owners:
            owner = owner_of(namespace)
            self._owners[keys.id] = owner, keys.hint_key
            if self._disk is not None:
                nonce = os.urandom(_NONCE_BYTES)
                sealed = AESGCM(keys.hint_key).encrypt(nonce, owner.encode(), keys.id)
                self._submit(partial(self._disk.label, keys.id, nonce + sealed))
            self._submit(partial(self._list, {keys.id}))

    def tell_again(self) -> None:
        """The service knows nothing of this pool: report everything."""
        self._submit(partial(self._list, set(self._owners)))

    def _list(self, ids: set[bytes]) -> None:
        self._level.list_blocks(ids)
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
            owner, hint_key = self._owners[entry.namespace_id]
            told.setdefault(owner, {})[_unmask(hint_key, name, entry.hint)] = is_saved
        ops: list[HintOp] = []
        for owner, own in told.items():
            saved = array("Q", (block_hash for block_hash, is_saved in own.items() if is_saved))
            lost = array("Q", (block_hash for block_hash, is_saved in own.items() if not is_saved))
            ops.append(HintOp("host" if self._disk is None else "disk", saved, lost, owner))
        return ops


def _open(hint_key: bytes, namespace_id: bytes, sealed: bytes) -> str | None:
    try:
        return AESGCM(hint_key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], namespace_id).decode()
    except (InvalidTag, ValueError):  # a damaged file
        return None

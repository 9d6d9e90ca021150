"""Sealing of blocks: AES-256-GCM, whose tag is also the checksum. There is no unencrypted mode: a checksum would cost as much.

    sealed:  salt 16 | counter 8 | ciphertext, as long as the block | tag 16

    session key = BLAKE2b(seal key of the namespace, salt)      salt: random, of one process's `Sealer`
    nonce       = counter, padded to 12 bytes                   counter: of that `Sealer`, never repeated
    associated  = name · fingerprint · length

A counter is not stored, so no backup can set it back. A block in a wrong slot, of another model, namespace or length, or with a
changed bit does not open.
"""

from __future__ import annotations

import os
import threading
from hashlib import blake2b
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from radixkv.stores.errors import SealError

if TYPE_CHECKING:
    from radixkv.stores.secrets.keys import NamespaceKeys

__all__ = ["SEAL_BYTES", "Sealer"]

SALT_BYTES, COUNTER_BYTES, TAG_BYTES = 16, 8, 16
HEAD_BYTES = SALT_BYTES + COUNTER_BYTES
SEAL_BYTES = HEAD_BYTES + TAG_BYTES
"""Bytes that a sealed block has over its data."""

MAX_SESSIONS = 4096
"""Session keys held in memory; the oldest is derived again."""


class Sealer:
    """Seals and opens blocks of one model. For any thread; a forked process gets a salt of its own.

    Args:
        fingerprint: of model and layout, of any length; a block of another does not open.
    """

    def __init__(self, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._lock = threading.Lock()
        self._sessions: dict[tuple[bytes, bytes], AESGCM] = {}
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._salt = os.urandom(SALT_BYTES)
        self._count = 0

    def seal(
        self,
        keys: NamespaceKeys,
        name: bytes,
        data: bytes | bytearray | memoryview,
        out: bytearray | None = None,
    ) -> bytes | bytearray:
        """Encrypt one block. Returns `SEAL_BYTES` more than `data`. About 20 µs for 180 KiB, and 30 or more for new memory.

        Args:
            data: the block's bytes, contiguous. name: 16 bytes, bound to the result.
            out: filled and returned, of the result's length; None: new bytes are.
        """
        view = memoryview(data).cast("B")
        with self._lock:
            if self._process != os.getpid():
                self._begin()
            salt, count = self._salt, self._count
            self._count += 1
        counter = count.to_bytes(COUNTER_BYTES, "big")
        sealed = bytearray(SEAL_BYTES + len(view)) if out is None else out
        sealed[:SALT_BYTES] = salt
        sealed[SALT_BYTES:HEAD_BYTES] = counter
        self._session(keys, salt).encrypt_into(
            _nonce(counter), view, self._associated(name, len(view)), memoryview(sealed)[HEAD_BYTES:]
        )
        return bytes(sealed) if out is None else out

    def open_into(self, keys: NamespaceKeys, name: bytes, sealed: bytes | memoryview, out: memoryview) -> None:
        """Decrypt one block into `out`, which has the length of its data. About 20 µs for 180 KiB.

        Raises:
            SealError: the block does not open; `out` holds zeros.
        """
        view, out = memoryview(sealed).cast("B"), out.cast("B")
        try:
            if len(view) != SEAL_BYTES + len(out):
                raise SealError(f"a sealed block has {len(view)} bytes, and {SEAL_BYTES + len(out)} are expected")
            salt, counter = bytes(view[:SALT_BYTES]), bytes(view[SALT_BYTES:HEAD_BYTES])
            self._session(keys, salt).decrypt_into(
                _nonce(counter), view[HEAD_BYTES:], self._associated(name, len(out)), out
            )
        except (InvalidTag, SealError) as error:
            out[:] = bytes(len(out))
            if isinstance(error, SealError):
                raise
            raise SealError(f"block {name.hex()} does not open with this key") from None

    def _session(self, keys: NamespaceKeys, salt: bytes) -> AESGCM:
        session = self._sessions.get((keys.seal_key, salt))
        if session is None:
            session = AESGCM(blake2b(salt, digest_size=32, key=keys.seal_key, person=b"radixkv session").digest())
            with self._lock:
                if len(self._sessions) >= MAX_SESSIONS:
                    del self._sessions[next(iter(self._sessions))]
                self._sessions[keys.seal_key, salt] = session
        return session

    def _associated(self, name: bytes, num_bytes: int) -> bytes:
        return name + num_bytes.to_bytes(8, "big") + self._fingerprint


def _nonce(counter: bytes) -> bytes:
    return counter + b"\0\0\0\0"

"""The slot file: equal slots, allocated in steps, read and written in place; no compaction, and an exact size.

    slot:  sealed block | label: nonce 12, name 16, parent 16, namespace id 16, hint 8, tag 16 | padding to whole sectors

A label is encrypted under the key of an epoch, which lies in the index and changes with each of its commits. So one sync makes
a block durable with its place in the tree of names; the commit that lists it may come later. Labels of past epochs are noise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from radixkv.stores.block import SealedBlock
from radixkv.stores.hints import HINT_BYTES
from radixkv.stores.secrets.names import NAME_BYTES

__all__ = ["EPOCH_BYTES", "SlotFile", "slot_bytes_of"]

SECTOR_BYTES = 512
MIN_STEP_BYTES, MAX_STEP_BYTES = 4 << 20, 256 << 20
EPOCH_BYTES, NONCE_BYTES = 16, 12
LABEL_BYTES = NONCE_BYTES + 3 * NAME_BYTES + HINT_BYTES + 16
_NO_HINT = bytes(HINT_BYTES)
MAX_RUN = 256
"""Slots per write call: two buffers each, and the system takes 1,024."""

_fdatasync = "fdatasync" if hasattr(os, "fdatasync") else "fsync"


def slot_bytes_of(sealed_bytes: int) -> int:
    """Bytes of a slot: those of a sealed block and its label, in whole sectors."""
    return -(-(sealed_bytes + LABEL_BYTES) // SECTOR_BYTES) * SECTOR_BYTES


class SlotFile:
    """One file of slots. `read` is for any thread; everything else for one writer at a time.

    Args:
        path: created where missing, for its owner alone. sealed_bytes: of every block. max_slots: the file grows up to them.

    Attributes:
        num_slots: allocated ones. free: those of them that hold nothing, the next to use last.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, sealed_bytes: int, max_slots: int) -> None:
        self.sealed_bytes = sealed_bytes
        self.slot_bytes = slot_bytes_of(sealed_bytes)
        self.max_slots = max_slots
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.num_slots = os.fstat(self._fd).st_size // self.slot_bytes
        self.free: list[int] = []
        self._padding = bytes(self.slot_bytes - sealed_bytes - LABEL_BYTES)
        self._epoch = AESGCM(bytes(EPOCH_BYTES))

    def begin(self, epoch: bytes) -> None:
        """Write and read labels of this epoch from now on."""
        self._epoch = AESGCM(epoch)

    def step(self, num_wanted: int) -> int:
        """Slots by which the file would grow if so many are wanted."""
        step_bytes = min(max(self.num_slots * self.slot_bytes // 8, MIN_STEP_BYTES), MAX_STEP_BYTES)
        return max(min(max(num_wanted, step_bytes // self.slot_bytes), self.max_slots - self.num_slots), 0)

    def grow(self, num_slots: int) -> None:
        """Allocate so many more slots.

        Raises:
            OSError: the disk is full; nothing has changed.
        """
        start, size = self.num_slots * self.slot_bytes, num_slots * self.slot_bytes
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, start, size)
            else:
                os.ftruncate(self._fd, start + size)
        except OSError:
            os.ftruncate(self._fd, start)
            raise
        self.free[:0] = range(self.num_slots + num_slots - 1, self.num_slots - 1, -1)
        self.num_slots += num_slots

    def cut(self, num_slots: int) -> None:
        """Keep the first slots only; none of the others is in use."""
        os.ftruncate(self._fd, num_slots * self.slot_bytes)
        self.num_slots = num_slots
        self.free = [slot for slot in self.free if slot < num_slots]

    def take(self, num_slots: int) -> list[int]:
        """Up to so many free slots, in ascending order."""
        start = max(len(self.free) - num_slots, 0)
        taken = self.free[start:]
        del self.free[start:]
        return sorted(taken)

    def write(self, slots: Sequence[int], blocks: Sequence[SealedBlock]) -> None:
        """Write blocks and their labels into slots, which ascend; neighbours in one call. Not durable before `sync`.

        Raises:
            OSError: some may be written.
        """
        start = 0
        for end in range(1, len(slots) + 1):
            if end == len(slots) or slots[end] != slots[end - 1] + 1 or end - start == MAX_RUN:
                self._write_run(slots[start], blocks[start:end])
                start = end

    def _write_run(self, slot: int, blocks: Sequence[SealedBlock]) -> None:
        """Whole slots with their padding, so that the system reads no page before it writes it."""
        buffers: list[bytes | bytearray] = []
        for number, block in enumerate(blocks, slot):
            nonce = os.urandom(NONCE_BYTES)
            fields = block.name + block.parent + block.namespace_id + (block.hint or _NO_HINT)
            label = self._epoch.encrypt(nonce, fields, number.to_bytes(8, "big"))
            buffers += (block.sealed, nonce + label + self._padding)
        if os.pwritev(self._fd, buffers, slot * self.slot_bytes) != len(blocks) * self.slot_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Make what is written durable.

        Raises:
            OSError: it may not be.
        """
        getattr(os, _fdatasync)(self._fd)

    def read(self, slot: int, buffer: memoryview) -> bool:
        """Read a block into a buffer of `sealed_bytes`; False: the file ends before.

        Raises:
            OSError: it cannot be read.
        """
        return os.preadv(self._fd, [buffer], slot * self.slot_bytes) == self.sealed_bytes

    def prefetch(self, slot: int) -> None:
        """Have the system read a block ahead of `read`, and wait for nothing."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, slot * self.slot_bytes, self.sealed_bytes, os.POSIX_FADV_WILLNEED)

    def label(self, slot: int) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Name, parent, namespace id and hint of the block that was written into a slot in this epoch; None: none was.

        Raises:
            OSError: it cannot be read.
        """
        label = os.pread(self._fd, LABEL_BYTES, slot * self.slot_bytes + self.sealed_bytes)
        try:
            fields = self._epoch.decrypt(label[:NONCE_BYTES], label[NONCE_BYTES:], slot.to_bytes(8, "big"))
        except (InvalidTag, ValueError):
            return None
        hint = fields[48:]
        return fields[:16], fields[16:32], fields[32:48], b"" if hint == _NO_HINT else hint

    def close(self) -> None:
        os.close(self._fd)

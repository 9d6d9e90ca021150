"""Sealed blocks for tests of the block store, whose data follow from their names, so that a wrong one is always seen."""

from __future__ import annotations

import hashlib
from pathlib import Path

from radixkv import pack_tokens
from radixkv.stores.block import SealedBlock
from radixkv.stores.disk import DiskLevel
from radixkv.stores.disk.slots import slot_bytes_of
from radixkv.stores.errors import SealError
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.names import names_of, root_name
from radixkv.stores.secrets.sealing import SEAL_BYTES, Sealer

__all__ = ["FINGERPRINT", "BlockMaker"]

FINGERPRINT = bytes(range(32))


class BlockMaker:
    """Blocks of one token each, of one model and key file."""

    def __init__(self, key_file: Path, data_bytes: int = 1000, fingerprint: bytes = FINGERPRINT) -> None:
        self.keys = StoreKeys(key_file)
        self.fingerprint = fingerprint
        self.sealer = Sealer(fingerprint)
        self.data_bytes = data_bytes
        self.sealed_bytes = data_bytes + SEAL_BYTES

    def level(self, folder: Path, num_blocks: int = 64, **options: object) -> DiskLevel:
        """A level with room for so many blocks."""
        slot_bytes = slot_bytes_of(self.sealed_bytes)
        return DiskLevel(folder, num_blocks * (slot_bytes + 160), self.fingerprint, self.sealed_bytes, **options)  # type: ignore[arg-type]

    def names(self, tokens: list[int], namespace: str = "alice") -> list[bytes]:
        keys = self.keys.of(namespace)
        return names_of(keys, root_name(keys, self.fingerprint), pack_tokens(tokens), 4)

    def chain(self, tokens: list[int], namespace: str = "alice") -> list[SealedBlock]:
        """The blocks of a history, the first one first."""
        keys, names = self.keys.of(namespace), self.names(tokens, namespace)
        parents = [root_name(keys, self.fingerprint), *names]
        return [
            SealedBlock(name, parent, keys.id, self.sealer.seal(keys, name, self.data(name)))
            for name, parent in zip(names, parents, strict=False)
        ]

    def data(self, name: bytes) -> bytes:
        return hashlib.shake_128(name).digest(self.data_bytes)

    def found(self, level: DiskLevel, tokens: list[int], namespace: str = "alice") -> int:
        """How many leading blocks of a history the level gives back; asserts that what opens is right."""
        keys = self.keys.of(namespace)
        sealed, out = memoryview(bytearray(self.sealed_bytes)), memoryview(bytearray(self.data_bytes))
        for number, name in enumerate(self.names(tokens, namespace)):
            if not level.read(name, sealed):
                return number
            try:
                self.sealer.open_into(keys, name, sealed, out)
            except SealError:
                level.forget(name)
                return number
            assert out == self.data(name), "a wrong block opened"
        return len(tokens)

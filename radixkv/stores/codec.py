"""A block's form outside the pool and the host level: rounded, where that is wished, and sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from radixkv.stores.block import SealedBlock
from radixkv.stores.secrets.sealing import SEAL_BYTES, Sealer

if TYPE_CHECKING:
    from radixkv.stores.secrets.keys import NamespaceKeys

__all__ = ["BlockCodec", "Rounding"]


class Rounding(Protocol):
    """Another form of a block outside the pool and the host level, of `num_bytes`."""

    @property
    def num_bytes(self) -> int: ...

    def round(self, row: memoryview, /) -> bytearray: ...

    def unround(self, rounded: memoryview, row: memoryview, /) -> None: ...


class BlockCodec:
    """Seals and opens blocks of one model. For any thread.

    Args:
        fingerprint: see `Sealer`.
        block_bytes: of a block in the pool.
        rounding: before the seal; None: blocks are sealed as they are.

    Attributes:
        sealed_bytes: of a sealed block.
    """

    def __init__(self, fingerprint: bytes, block_bytes: int, rounding: Rounding | None) -> None:
        self._sealer = Sealer(fingerprint)
        self._rounding = rounding
        self._data_bytes = block_bytes if rounding is None else rounding.num_bytes
        self.sealed_bytes = self._data_bytes + SEAL_BYTES

    def seal(
        self,
        keys: NamespaceKeys,
        name: bytes,
        parent: bytes,
        data: memoryview,
        out: bytearray | None = None,
        hint: bytes = b"",
    ) -> SealedBlock:
        """Seal a block. `out`: memory of `sealed_bytes` for it; None: new memory. `hint`: see `SealedBlock`."""
        stored = data if self._rounding is None else self._rounding.round(data)
        return SealedBlock(name, parent, keys.id, self._sealer.seal(keys, name, stored, out), hint)

    def open_into(self, keys: NamespaceKeys, name: bytes, sealed: bytes | memoryview, out: memoryview) -> None:
        """Open a block into `out`. Raises `SealError`."""
        if self._rounding is None:
            self._sealer.open_into(keys, name, sealed, out)
        else:
            rounded = memoryview(bytearray(self._data_bytes))
            self._sealer.open_into(keys, name, sealed, rounded)
            self._rounding.unround(rounded, out)

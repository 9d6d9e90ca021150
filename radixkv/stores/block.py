"""A block as every level stores it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SealedBlock"]


class SealedBlock(NamedTuple):
    """A sealed block and its place in the tree of names.

    Attributes:
        name: 16 bytes, of `names_of`. parent: the name of the block before it, or the root name.
        namespace_id: 16 bytes, of `NamespaceKeys`. sealed: the output of `Sealer.seal`.
    """

    name: bytes
    parent: bytes
    namespace_id: bytes
    sealed: bytes | bytearray

"""Conversion of values that many messages hold, both ways: block ids, shapes of pools, retention."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from radixkv.core.api import DEFAULT_NAMESPACE, PoolShape, Retention, WorkerLoad, WorkerReport
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.validation import MAX_RETENTION_RANGES, check_hashes
from radixkv.v1 import types_pb2 as types
from radixkv.wire.codec import Codec, Form

__all__ = [
    "BLOCK_IDS",
    "BLOCK_TABLE",
    "RETENTION",
    "SHAPE",
    "WORKER_LOAD",
    "WORKER_REPORT",
    "hashes_form",
    "named_namespace",
    "namespace_of",
    "pack_blocks",
    "unpack_blocks",
]

_NEEDS_SWAP = sys.byteorder == "big"
_BLOCK_ID_BYTES = 4
_HASH_BYTES = 8


def named_namespace(request: Any) -> str | None:
    """The namespace that a request names; None: none."""
    return request.namespace if request.HasField("namespace") else None


def namespace_of(request: Any) -> str:
    """The namespace that a request is about: the default one where it names none. A caller's right to it is checked by this."""
    return request.namespace if request.HasField("namespace") else DEFAULT_NAMESPACE


def pack_blocks(block_ids: Iterable[int]) -> bytes:
    """Block ids as packed little-endian int32."""
    packed = block_ids if isinstance(block_ids, array) and block_ids.typecode == "i" else array("i", block_ids)
    if _NEEDS_SWAP:
        packed = array("i", packed)
        packed.byteswap()
    return packed.tobytes()


def unpack_blocks(packed: bytes, name: str = "block_ids") -> array[int]:
    """Packed little-endian int32 as block ids.

    Raises:
        InvalidArgumentError: not a whole number of ids; names them by `name`.
    """
    if len(packed) % _BLOCK_ID_BYTES:
        raise InvalidArgumentError(name, f"{len(packed)} bytes", f"a whole number of {_BLOCK_ID_BYTES}-byte block ids")
    block_ids = array("i")
    block_ids.frombytes(packed)
    if _NEEDS_SWAP:
        block_ids.byteswap()
    return block_ids


def hashes_form(name: str) -> Form:
    """Hashes of blocks as packed little-endian uint64, in a field of that name. Raise `InvalidArgumentError` for others."""

    def pack(hashes: Sequence[int]) -> bytes:
        return struct.pack(f"<{len(hashes)}Q", *check_hashes(name, hashes))

    def unpack(packed: bytes) -> array[int]:
        if len(packed) % _HASH_BYTES:
            raise InvalidArgumentError(name, f"{len(packed)} bytes", f"a whole number of {_HASH_BYTES}-byte hashes")
        return array("Q", struct.unpack(f"<{len(packed) // _HASH_BYTES}Q", packed))

    return Form(pack, unpack)


BLOCK_IDS = Form(pack_blocks, unpack_blocks)
BLOCK_TABLE = Form(pack_blocks, partial(unpack_blocks, name="block_table"))

SHAPE = Codec(PoolShape, types.PoolShape)
"""Reading checks no bounds."""

WORKER_LOAD = Codec(WorkerLoad, types.WorkerLoad)
WORKER_REPORT = Codec(WorkerReport, types.WorkerReport, load=WORKER_LOAD)

_RANGE = Codec(Retention, types.Retention)

RETENTION = Form(_RANGE.write, _RANGE.read, most=MAX_RETENTION_RANGES + 1)
"""Ranges of a history; of too many only as many are read as are needed to reject them."""

"""Conversion of values that many messages hold, both ways: block ids, shapes of pools, retention."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Any

from radixkv.core.api import DEFAULT_PRIORITY, PoolShape, Retention
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.validation import MAX_RETENTION_RANGES
from radixkv.v1 import types_pb2 as types

__all__ = [
    "pack_blocks",
    "refuse_unfit",
    "retention_from_proto",
    "retention_to_proto",
    "shape_from_proto",
    "shape_to_proto",
    "unpack_blocks",
]

_NEEDS_SWAP = sys.byteorder == "big"
_BLOCK_ID_BYTES = 4


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


def shape_to_proto(shape: PoolShape) -> types.PoolShape:
    """A pool's shape for the wire."""
    fields = {"name": shape.name, "num_blocks": shape.num_blocks, "block_size": shape.block_size}
    refuse_unfit(fields, types.PoolShape)
    return types.PoolShape(name=shape.name, num_blocks=shape.num_blocks, block_size=shape.block_size)


def shape_from_proto(proto: types.PoolShape) -> PoolShape:
    """A pool's shape from the wire; its bounds are not checked here."""
    return PoolShape(proto.num_blocks, proto.block_size, proto.name)


def refuse_unfit(fields: dict[str, Any], kind: Any, within: str = "") -> None:
    """Raise for the first value that its field cannot hold, naming it with the prefix `within`."""
    for name, value in fields.items():
        try:
            kind(**{name: value})
        except (TypeError, ValueError):
            raise InvalidArgumentError(within + name, value, _WIRE_BOUNDS.get(name, _WIRE_BOUND)) from None


_WIRE_BOUND = "integers in [-2**63, 2**63)"
_WIRE_BOUNDS = {
    "namespace": "a string of Unicode characters",
    "name": "a string of Unicode characters",
    "priority": "an integer in [-2**31, 2**31)",
    "duration_s": "a number of seconds, or None",
    "ttl_s": "a number of seconds",
}


def retention_to_proto(ranges: Iterable[Retention], protos: Any) -> None:
    """Write ranges of a history into a field of a wire message.

    Raises:
        InvalidArgumentError: a value that no message can hold, or an object that is no range.
    """
    for index, wanted in enumerate(ranges):
        name = f"retention[{index}]"
        if not isinstance(wanted, Retention):
            raise InvalidArgumentError(name, wanted, "a `Retention`")
        fields = wanted._asdict()
        try:
            protos.add(**fields)
        except (TypeError, ValueError):
            refuse_unfit(fields, types.Retention, f"{name}.")
            raise


def retention_from_proto(protos: Iterable[types.Retention]) -> tuple[Retention, ...]:
    """Ranges of a history from the wire; of too many only as many as are needed to reject them."""
    return tuple(
        Retention(
            proto.start,
            proto.end if proto.HasField("end") else None,
            proto.priority if proto.HasField("priority") else DEFAULT_PRIORITY,
            proto.duration_s if proto.HasField("duration_s") else None,
        )
        for proto in islice(protos, MAX_RETENTION_RANGES + 1)
    )

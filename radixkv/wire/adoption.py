"""Conversion of a holder's report to a restarted service, both ways."""

from __future__ import annotations

from radixkv.core.api import DEFAULT_NAMESPACE, AdoptionOp, AdoptOp, AdoptSequenceOp
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.values import pack_blocks, retention_from_proto, retention_to_proto, unpack_blocks

__all__ = ["adoption_from_proto", "adoption_to_proto"]


def adoption_to_proto(op: AdoptionOp, proto: workers.Op) -> None:
    """Write one op into a wire message. O(size)."""
    if isinstance(op, AdoptSequenceOp):
        _write_adopted(op, proto.adopt_sequence)
        return
    adopt = proto.adopt
    adopt.SetInParent()
    adopt.tokens = op.tokens
    adopt.num_kept = op.num_kept
    adopt.block_ids = pack_blocks(op.block_ids)
    if op.namespace != DEFAULT_NAMESPACE:
        adopt.namespace = op.namespace
    retention_to_proto(op.retention, adopt.retention)


def adoption_from_proto(proto: workers.Op) -> AdoptionOp:
    """Read an adoption op from the wire.

    Raises:
        InvalidArgumentError: not a whole number of block ids.
    """
    if proto.HasField("adopt_sequence"):
        return _adopted_from_proto(proto.adopt_sequence)
    adopt = proto.adopt
    namespace = adopt.namespace if adopt.HasField("namespace") else DEFAULT_NAMESPACE
    retention = retention_from_proto(adopt.retention)
    return AdoptOp(adopt.tokens, unpack_blocks(adopt.block_ids), adopt.num_kept, namespace, retention)


def _write_adopted(op: AdoptSequenceOp, adopted: workers.AdoptSequence) -> None:
    adopted.seq_id = op.seq_id
    adopted.tokens = op.tokens
    adopted.block_table = pack_blocks(op.block_table)
    adopted.num_computed = op.num_computed
    adopted.room = op.room
    adopted.reserve = op.reserve
    if op.namespace != DEFAULT_NAMESPACE:
        adopted.namespace = op.namespace
    adopted.is_unshared = not op.share_prefix
    if op.same_tree_as is not None:
        adopted.beside_seq_id = op.same_tree_as
    retention_to_proto(op.retention, adopted.retention)
    adopted.shares_last_block = op.shares_last


def _adopted_from_proto(adopted: workers.AdoptSequence) -> AdoptSequenceOp:
    return AdoptSequenceOp(
        adopted.seq_id,
        adopted.tokens,
        unpack_blocks(adopted.block_table, "block_table"),
        adopted.num_computed,
        adopted.room,
        adopted.reserve,
        adopted.namespace if adopted.HasField("namespace") else DEFAULT_NAMESPACE,
        not adopted.is_unshared,
        adopted.beside_seq_id if adopted.HasField("beside_seq_id") else None,
        retention_from_proto(adopted.retention),
        adopted.shares_last_block,
    )

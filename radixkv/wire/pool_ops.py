"""Conversion of ops that name no sequence, of their answers and of the journal, both ways.

Fields have the same names on both sides; a field absent on the wire has its default in process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    ClearOp,
    EvictBranchOp,
    EvictOp,
    MatchOp,
    NamespaceUsage,
    PinInfo,
    PinOp,
    RetainOp,
    SetQuotaOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.core.tree.journal import Dropped, JournalEntry, Retained
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.reads import usage_from_proto, usage_to_proto
from radixkv.wire.values import pack_blocks, retention_from_proto, retention_to_proto, unpack_blocks

__all__ = [
    "POOL_OPS",
    "journal_from_proto",
    "journal_to_proto",
    "pool_op_from_proto",
    "pool_op_to_proto",
    "pool_result_from_proto",
    "pool_result_to_proto",
]

POOL_OPS: dict[str, Any] = {
    "match": MatchOp,
    "pin": PinOp,
    "unpin": UnpinOp,
    "retain": RetainOp,
    "evict": EvictOp,
    "evict_branch": EvictBranchOp,
    "clear": ClearOp,
    "set_quota": SetQuotaOp,
}
"""Op classes by the name of their field in `Op`."""

_NAMES = {op: name for name, op in POOL_OPS.items()}


def pool_op_to_proto(op: Any, proto: workers.Op | workers.JournalEntry) -> None:
    """Write one of `POOL_OPS` into its field of a wire message. O(size)."""
    message = getattr(proto, _NAMES[type(op)])
    message.SetInParent()
    for field in fields(op):
        name, value = field.name, getattr(op, field.name)
        if name == "tokens":
            message.tokens = pack_tokens(value)
        elif name == "retention":
            retention_to_proto(value, message.retention)
        elif value is not None and (name, value) != ("namespace", DEFAULT_NAMESPACE):
            setattr(message, name, value)


def pool_op_from_proto(kind: str, proto: workers.Op | workers.JournalEntry) -> Any:
    """The op of that name from the wire."""
    message, given = getattr(proto, kind), {}
    for field in message.DESCRIPTOR.fields:
        if field.name == "retention":
            given["retention"] = retention_from_proto(message.retention)
        elif not field.has_presence or message.HasField(field.name):
            given[field.name] = getattr(message, field.name)
    return POOL_OPS[kind](**given)


def pool_result_to_proto(op: Any, result: StepResult, proto: workers.OpResult) -> None:
    """Write the answer to one of `POOL_OPS`, except a match, into a wire message."""
    if isinstance(result, PinInfo):
        proto.pin.SetInParent()
        for field in proto.pin.DESCRIPTOR.fields:
            setattr(proto.pin, field.name, getattr(result, field.name))
    elif isinstance(result, NamespaceUsage):
        proto.set_quota.CopyFrom(usage_to_proto(result))
    else:
        message = getattr(proto, _NAMES[type(op)])
        message.SetInParent()
        setattr(message, message.DESCRIPTOR.fields[0].name, result)


def pool_result_from_proto(op: Any, kind: str, proto: workers.OpResult) -> StepResult:
    """Read the answer to one of `POOL_OPS`, except a match, from the wire."""
    message = getattr(proto, kind)
    if kind == "pin":
        tokens = pack_tokens(op.tokens)[: message.num_tokens * TOKEN_BYTES]
        return PinInfo(op.namespace, tokens, message.num_tokens, message.num_blocks, message.ttl_s, message.remaining_s)
    if kind == "set_quota":
        return usage_from_proto(message)
    answer: int = getattr(message, message.DESCRIPTOR.fields[0].name)
    return answer


def journal_to_proto(entries: Iterable[JournalEntry], proto: workers.Notices) -> None:
    """Write journal entries into a wire message. O(size)."""
    for entry in entries:
        if isinstance(entry, ClearOp):
            proto.cleared.append(entry.namespace)
        elif isinstance(entry, Retained):
            retained = proto.journal.add().retained
            retained.block_ids, retained.priority = pack_blocks(entry.block_ids), entry.priority
            if entry.duration_s < math.inf:
                retained.duration_s = entry.duration_s
        elif isinstance(entry, Dropped):
            dropped = proto.journal.add().dropped
            dropped.tokens, dropped.kept_block_ids = entry.tokens, pack_blocks(entry.kept)
            dropped.namespace = entry.namespace
        else:
            pool_op_to_proto(entry, proto.journal.add())


def journal_from_proto(proto: workers.Notices) -> list[JournalEntry]:
    """Read journal entries from the wire; entries unknown to this version are skipped. O(size)."""
    entries: list[JournalEntry] = [ClearOp(namespace) for namespace in proto.cleared]
    for told in proto.journal:
        kind = told.WhichOneof("entry")
        if kind == "retained":
            duration_s = told.retained.duration_s if told.retained.HasField("duration_s") else math.inf
            entries.append(Retained(unpack_blocks(told.retained.block_ids), told.retained.priority, duration_s))
        elif kind == "dropped":
            kept = unpack_blocks(told.dropped.kept_block_ids)
            entries.append(Dropped(told.dropped.tokens, told.dropped.namespace, kept))
        elif kind is not None:
            entries.append(pool_op_from_proto(kind, told))
    return entries

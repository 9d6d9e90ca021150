"""Conversion of a holder's ops and answers, both ways; `reads` has those of readers.

Block ids and token ids are copied as whole buffers, never id by id. The core checks bounds, so that a call gives the same error
in process and over the wire; only an argument that no message can hold is rejected here, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    AcquireOp,
    AcquireResult,
    AdoptionOp,
    AdoptOp,
    AdoptResult,
    AdoptSequenceOp,
    Copy,
    ExtendOp,
    ExtendResult,
    ForkOp,
    InsertOp,
    MatchResult,
    Notice,
    NoticeKind,
    Pending,
    ReleaseOp,
    StepOp,
    StepResult,
)
from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.core.tokens import pack_tokens
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.adoption import adoption_from_proto, adoption_to_proto
from radixkv.wire.errors import error_from_proto, error_to_proto
from radixkv.wire.pool_ops import (
    POOL_OPS,
    pool_op_from_proto,
    pool_op_to_proto,
    pool_result_from_proto,
    pool_result_to_proto,
)
from radixkv.wire.values import pack_blocks, refuse_unfit, retention_from_proto, retention_to_proto, unpack_blocks

__all__ = [
    "notices_from_proto",
    "notices_to_proto",
    "op_from_proto",
    "op_to_proto",
    "result_from_proto",
    "result_to_proto",
]

_NOTICE_KINDS: dict[NoticeKind, workers.NoticeKind] = {
    "published": workers.NOTICE_KIND_PUBLISHED,
    "gone": workers.NOTICE_KIND_GONE,
}
_NOTICE_KIND_NAMES = {kind: name for name, kind in _NOTICE_KINDS.items()}


def op_to_proto(op: StepOp | AdoptionOp, proto: workers.Op) -> None:
    """Write one op into a wire message. O(size).

    Raises:
        InvalidArgumentError: a value that no message can hold, or an object that is no op.
    """
    try:
        _write_op(op, proto)
    except (TypeError, ValueError) as error:
        if not isinstance(error, InvalidArgumentError):
            kind = next(kind for op_kind, kind in _OP_MESSAGES.items() if isinstance(op, op_kind))
            names = [
                field.name for field in kind.DESCRIPTOR.fields if not field.message_type and hasattr(op, field.name)
            ]
            refuse_unfit({name: getattr(op, name) for name in names}, kind)
            refuse_unfit({"values": getattr(op, "seq_ids", None)}, workers.SeqIds)
        raise


def _write_op(op: StepOp | AdoptionOp, proto: workers.Op) -> None:
    match op:
        case AcquireOp():
            _write_acquire(op, proto.acquire)
        case ExtendOp():
            extend = proto.extend
            extend.SetInParent()
            extend.seq_id = op.seq_id
            extend.num_tokens = op.num_tokens
        case InsertOp():
            insert = proto.insert
            insert.SetInParent()
            insert.seq_id = op.seq_id
            insert.num_computed = op.num_computed
            insert.new_tokens = pack_tokens(op.new_tokens)
        case ForkOp():
            fork = proto.fork
            fork.SetInParent()
            fork.seq_id = op.seq_id
            fork.position = op.position
            fork.n = op.n
            fork.reserve = op.reserve
            if op.seq_ids is not None:
                fork.seq_ids.SetInParent()
                fork.seq_ids.values.extend(op.seq_ids)
        case ReleaseOp():
            release = proto.release
            release.SetInParent()
            release.seq_id = op.seq_id
            release.keep = bool(op.keep)
        case AdoptOp() | AdoptSequenceOp():
            adoption_to_proto(op, proto)
        case _ if type(op) in POOL_OPS.values():
            pool_op_to_proto(op, proto)
        case _:
            raise InvalidArgumentError("op", op, "one of those that a Step takes, such as an AcquireOp")


def _write_acquire(op: AcquireOp, acquire: workers.Acquire) -> None:
    acquire.SetInParent()
    acquire.tokens = pack_tokens(op.tokens)
    acquire.reserve = op.reserve
    if op.namespace != DEFAULT_NAMESPACE:
        acquire.namespace = op.namespace
    if op.seq_id is not None:
        acquire.seq_id = op.seq_id
    acquire.waits = bool(op.waits)
    acquire.is_unshared = not op.share_prefix
    retention_to_proto(op.retention, acquire.retention)


_OP_MESSAGES: dict[type, Any] = {
    AcquireOp: workers.Acquire,
    ExtendOp: workers.Extend,
    InsertOp: workers.Insert,
    ForkOp: workers.Fork,
    ReleaseOp: workers.Release,
    AdoptOp: workers.Adopt,
    AdoptSequenceOp: workers.AdoptSequence,
    **{op: getattr(workers, op.__name__.removesuffix("Op")) for op in POOL_OPS.values()},
}


def op_from_proto(proto: workers.Op) -> StepOp | AdoptionOp:
    """One op from the wire.

    Raises:
        InvalidArgumentError: no op known to this version is set.
    """
    kind = proto.WhichOneof("op")
    if kind == "acquire":
        acquire = proto.acquire
        return AcquireOp(
            acquire.tokens,
            acquire.reserve,
            acquire.namespace if acquire.HasField("namespace") else DEFAULT_NAMESPACE,
            acquire.seq_id if acquire.HasField("seq_id") else None,
            acquire.waits,
            not acquire.is_unshared,
            retention_from_proto(acquire.retention),
        )
    if kind == "extend":
        return ExtendOp(proto.extend.seq_id, proto.extend.num_tokens)
    if kind == "insert":
        return InsertOp(proto.insert.seq_id, proto.insert.num_computed, proto.insert.new_tokens)
    if kind == "fork":
        fork = proto.fork
        seq_ids = tuple(fork.seq_ids.values) if fork.HasField("seq_ids") else None
        return ForkOp(fork.seq_id, fork.position, fork.n, fork.reserve, seq_ids)
    if kind == "release":
        return ReleaseOp(proto.release.seq_id, proto.release.keep)
    if kind in ("adopt", "adopt_sequence"):
        return adoption_from_proto(proto)
    if kind is not None:
        op: StepOp = pool_op_from_proto(kind, proto)
        return op
    raise InvalidArgumentError("op", kind, "one of " + ", ".join(field.name for field in workers.Op.DESCRIPTOR.fields))


def result_to_proto(op: StepOp | AdoptionOp, result: StepResult, proto: workers.OpResult) -> None:
    """Write the answer to one op into a wire message. O(size)."""
    if isinstance(result, AcquireResult):
        _opened_to_proto(result, proto.acquire, pack_blocks(result.block_table))
    elif isinstance(result, ExtendResult):
        extend = proto.extend
        extend.first_changed = result.first_changed
        extend.block_ids = pack_blocks(result.block_ids)
        _copies_to_proto(result.ops, extend.ops)
    elif isinstance(result, list):
        _children_to_proto(result, proto.fork)
    elif isinstance(result, RadixKVError):
        proto.error.CopyFrom(error_to_proto(result))
    elif isinstance(result, Pending):
        proto.pending.SetInParent()
        proto.pending.seq_id, proto.pending.num_tokens = result
    elif isinstance(result, MatchResult):
        proto.match.SetInParent()
        proto.match.num_tokens, proto.match.num_device_tokens = result
    elif isinstance(result, AdoptResult):
        proto.adopt.SetInParent()
        proto.adopt.num_tokens = result.num_tokens
    elif isinstance(op, InsertOp):
        proto.insert.SetInParent()
    elif isinstance(op, AdoptSequenceOp):
        proto.adopt_sequence.SetInParent()
    elif isinstance(op, ReleaseOp):
        proto.release.SetInParent()
    else:
        pool_result_to_proto(op, result, proto)


def _opened_to_proto(opened: AcquireResult, proto: workers.AcquireResult, table: bytes) -> None:
    proto.seq_id = opened.seq_id
    proto.num_cached_tokens = opened.num_cached_tokens
    proto.num_stored_tokens = opened.num_stored_tokens
    proto.block_table = table
    _copies_to_proto(opened.ops, proto.ops)


def _children_to_proto(children: Sequence[AcquireResult], proto: workers.ForkResult) -> None:
    """Write children; a table equal to the previous child's is sent once, as children usually share their parent's."""
    proto.SetInParent()
    table_before: bytes | None = None
    for child in children:
        table = pack_blocks(child.block_table)
        child_proto = proto.children.add()
        child_proto.is_same_table = table == table_before
        _opened_to_proto(child, child_proto, b"" if child_proto.is_same_table else table)
        table_before = table


def _copies_to_proto(copies: Sequence[Copy], protos: Any) -> None:
    for copy in copies:
        proto = protos.add().copy
        proto.src, proto.dst, proto.num_tokens = copy


def _copies_from_proto(protos: Sequence[types.BlockOp]) -> tuple[Copy, ...]:
    if not protos:
        return ()
    return tuple(Copy(proto.copy.src, proto.copy.dst, proto.copy.num_tokens) for proto in protos)


def result_from_proto(op: StepOp | AdoptionOp, proto: workers.OpResult) -> StepResult:
    """The answer to one op from the wire. O(size).

    Raises:
        InvalidArgumentError: no result known to this version is set.
    """
    kind = proto.WhichOneof("result")
    if kind == "acquire":
        acquire = proto.acquire
        return _opened_from_proto(acquire, acquire.block_table)
    if kind == "extend":
        extend = proto.extend
        return ExtendResult(extend.first_changed, unpack_blocks(extend.block_ids), _copies_from_proto(extend.ops))
    if kind in ("insert", "release", "adopt_sequence"):
        return None
    if kind == "adopt":
        return AdoptResult(proto.adopt.num_tokens)
    if kind == "pending":
        return Pending(proto.pending.seq_id, proto.pending.num_tokens)
    if kind == "match":
        return MatchResult(proto.match.num_tokens, proto.match.num_device_tokens)
    if kind == "error":
        return error_from_proto(proto.error)
    if kind == "fork":
        children, table = [], b""
        for child in proto.fork.children:
            table = table if child.is_same_table else child.block_table
            children.append(_opened_from_proto(child, table))
        return children
    if kind is not None and POOL_OPS.get(kind) is type(op):
        return pool_result_from_proto(op, kind, proto)
    raise InvalidArgumentError("result", kind, "the answer to an op that was sent")


def _opened_from_proto(proto: workers.AcquireResult, table: bytes) -> AcquireResult:
    return AcquireResult(
        proto.seq_id,
        proto.num_cached_tokens,
        proto.num_stored_tokens,
        unpack_blocks(table),
        _copies_from_proto(proto.ops),
    )


def notices_to_proto(notices: Iterable[Notice], proto: workers.Notices) -> None:
    """Write notices into a wire message. O(notices)."""
    for kind, seq_id, num_tokens in notices:
        proto.notices.add(kind=_NOTICE_KINDS[kind], seq_id=seq_id, num_tokens=num_tokens)


def notices_from_proto(proto: workers.Notices) -> list[Notice]:
    """Notices from the wire. O(notices)

    Raises:
        InvalidArgumentError: a kind unknown to this version.
    """
    unknown = next((notice.kind for notice in proto.notices if notice.kind not in _NOTICE_KIND_NAMES), None)
    if unknown is not None:
        raise InvalidArgumentError("kind", unknown, "published or gone")
    return [Notice(_NOTICE_KIND_NAMES[notice.kind], notice.seq_id, notice.num_tokens) for notice in proto.notices]

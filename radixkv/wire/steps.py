"""Conversion of a holder's ops and answers, both ways; `reads` has those of readers.

Block ids and token ids are copied as whole buffers, never id by id. The core checks bounds, so that a call gives the same error
in process and over the wire; only an argument that no message can hold is rejected here, by name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import not_

from radixkv.core.api import (
    AcquireOp,
    AcquireResult,
    AdoptBlocksOp,
    AdoptionOp,
    AdoptOp,
    AdoptResult,
    AdoptSequenceOp,
    ClearOp,
    Copy,
    EvictBranchOp,
    EvictOp,
    ExtendOp,
    ExtendResult,
    ForkOp,
    HintOp,
    InsertOp,
    MatchOp,
    MatchResult,
    Notice,
    Pending,
    PinInfo,
    PinOp,
    ReleaseOp,
    RetainOp,
    SetQuotaOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import InvalidArgumentError, RadixKVError
from radixkv.core.tokens import TOKEN_BYTES, pack_tokens
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.codec import Codec, Form, OneOf
from radixkv.wire.errors import error_from_proto, error_to_proto
from radixkv.wire.reads import USAGE
from radixkv.wire.values import BLOCK_IDS, BLOCK_TABLE, RETENTION, hashes_form

__all__ = [
    "PENDING",
    "PIN_OP",
    "QUOTA_OP",
    "UNPIN_OP",
    "notices_from_proto",
    "notices_to_proto",
    "op_from_proto",
    "op_to_proto",
    "result_from_proto",
    "result_to_proto",
]

_UNSHARED = Form(not_, not_, "is_unshared")
_SEQ_IDS = Form(lambda ids, proto: proto.values.extend(ids), lambda proto: tuple(proto.values))

PIN_OP = Codec(PinOp, workers.Pin)
UNPIN_OP = Codec(UnpinOp, workers.Unpin)
QUOTA_OP = Codec(SetQuotaOp, workers.SetQuota)

_OPS = OneOf(
    workers.Op,
    Codec(AcquireOp, workers.Acquire, share_prefix=_UNSHARED, retention=RETENTION),
    Codec(ExtendOp, workers.Extend),
    Codec(InsertOp, workers.Insert),
    Codec(ForkOp, workers.Fork, seq_ids=_SEQ_IDS),
    Codec(ReleaseOp, workers.Release),
    Codec(MatchOp, workers.Match),
    PIN_OP,
    Codec(AdoptOp, workers.Adopt, block_ids=BLOCK_IDS, retention=RETENTION),
    Codec(
        AdoptSequenceOp,
        workers.AdoptSequence,
        block_table=BLOCK_TABLE,
        share_prefix=_UNSHARED,
        same_tree_as=Form(name="beside_seq_id"),
        retention=RETENTION,
        shares_last=Form(name="shares_last_block"),
        last_record=Form(bytes, bytes),
    ),
    UNPIN_OP,
    Codec(RetainOp, workers.Retain, retention=RETENTION),
    Codec(EvictOp, workers.Evict),
    Codec(EvictBranchOp, workers.EvictBranch),
    Codec(ClearOp, workers.Clear),
    QUOTA_OP,
    Codec(HintOp, workers.Hint, saved=hashes_form("saved"), lost=hashes_form("lost")),
    Codec(AdoptBlocksOp, workers.AdoptBlocks, block_ids=BLOCK_IDS),
)

PENDING = Codec(Pending, workers.Pending)

_COPIES = OneOf(types.BlockOp, Codec(Copy, types.Copy))
_OPENED = Codec(AcquireResult, workers.AcquireResult, block_table=BLOCK_TABLE, ops=_COPIES)
_PINNED = Codec(PinInfo, workers.PinResult, left_out=("namespace", "tokens"))
_RESULTS = OneOf(
    workers.OpResult,
    _OPENED,
    Codec(ExtendResult, workers.ExtendResult, block_ids=BLOCK_IDS, ops=_COPIES),
    PENDING,
    Codec(MatchResult, workers.MatchResult, left_out=("num_host_tokens", "num_disk_tokens")),
    Codec(AdoptResult, workers.AdoptResult),
    USAGE,
)
_ANSWERS = {
    proto.name: "".join(field.name for field in proto.message_type.fields)
    for proto in workers.OpResult.DESCRIPTOR.fields
    if proto.message_type is not None and len(proto.message_type.fields) <= 1
}
"""The only field of an answer to an op, by its field in `OpResult`; empty: it has none."""

_NOTICE = Codec(Notice, workers.Notice)


def op_to_proto(op: StepOp | AdoptionOp, proto: workers.Op) -> None:
    """Write one op into a wire message. O(size).

    Raises:
        InvalidArgumentError: a value that no message can hold, or an object that is no op.
    """
    if type(op) not in _OPS.names:
        raise InvalidArgumentError("op", op, "one of those that a Step takes, such as an AcquireOp")
    _OPS.write(op, proto)


def op_from_proto(proto: workers.Op) -> StepOp | AdoptionOp:
    """One op from the wire.

    Raises:
        UnimplementedError: no op known to this version is set.
        InvalidArgumentError: a value of it cannot be read.
    """
    op: StepOp | AdoptionOp = _OPS.read(proto)
    return op


def result_to_proto(op: StepOp | AdoptionOp, result: StepResult, proto: workers.OpResult) -> None:
    """Write the answer to one op into a wire message. O(size)."""
    if result is None:
        getattr(proto, _OPS.names[type(op)]).SetInParent()
    elif type(result) in _RESULTS.names:
        _RESULTS.write(result, proto)
    elif isinstance(result, RadixKVError):
        proto.error.CopyFrom(error_to_proto(result))
    elif isinstance(result, list):
        _children_to_proto(result, proto.fork)
    elif isinstance(result, PinInfo):
        _PINNED.write(result, proto.pin)
    else:
        name = _OPS.names[type(op)]
        answer = getattr(proto, name)
        answer.SetInParent()
        setattr(answer, _ANSWERS[name], result)


def _children_to_proto(children: Sequence[AcquireResult], proto: workers.ForkResult) -> None:
    """Write children; a table equal to the previous child's is sent once, as children usually share their parent's."""
    proto.SetInParent()
    table_before: array[int] | None = None
    for child in children:
        child_proto = proto.children.add()
        child_proto.is_same_table = child.block_table == table_before
        _OPENED.write(child._replace(block_table=array("i")) if child_proto.is_same_table else child, child_proto)
        table_before = child.block_table


def result_from_proto(op: StepOp | AdoptionOp, proto: workers.OpResult) -> StepResult:
    """The answer to one op from the wire. O(size).

    Raises:
        InvalidArgumentError: no result known to this version is set, or one to another op.
    """
    kind = proto.WhichOneof("result")
    result: StepResult
    if kind in _RESULTS.codecs:
        result = _RESULTS.codecs[kind].read(getattr(proto, kind))
    elif kind == "error":
        result = error_from_proto(proto.error)
    elif kind == "fork":
        result = _children_from_proto(proto.fork)
    elif kind is None or kind != _OPS.names[type(op)]:
        raise InvalidArgumentError("result", kind, "the answer to an op that was sent")
    elif isinstance(op, PinOp):
        tokens = pack_tokens(op.tokens)[: proto.pin.num_tokens * TOKEN_BYTES]
        result = _PINNED.read(proto.pin, namespace=op.namespace, tokens=tokens)
    else:
        result = getattr(getattr(proto, kind), _ANSWERS[kind]) if _ANSWERS[kind] else None
    return result


def _children_from_proto(proto: workers.ForkResult) -> list[AcquireResult]:
    children: list[AcquireResult] = []
    for child_proto in proto.children:
        child = _OPENED.read(child_proto)
        if child_proto.is_same_table and children:
            child = child._replace(block_table=children[-1].block_table[:])
        children.append(child)
    return children


def notices_to_proto(notices: Iterable[Notice], proto: workers.Notices) -> None:
    """Write notices into a wire message. O(notices)."""
    proto.notices.extend(map(_NOTICE.to_proto, notices))


def notices_from_proto(proto: workers.Notices) -> list[Notice]:
    """Notices from the wire. O(notices)

    Raises:
        InvalidArgumentError: a kind unknown to this version.
    """
    return list(map(_NOTICE.read, proto.notices))

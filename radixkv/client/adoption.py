"""The Steps by which a restarted service takes on what a pool holds, and what follows from its answers to them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from radixkv.client.ledger import Ledger
from radixkv.client.notices import NoticeBox
from radixkv.core.api import (
    AdoptBlocksOp,
    AdoptionOp,
    AdoptSequenceOp,
    HintOp,
    Notice,
    PinInfo,
    PinOp,
    StepOp,
    StepResult,
    UnpinOp,
)
from radixkv.core.errors import RadixKVError
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.steps import op_to_proto

__all__ = ["adoption_steps", "take_outcomes"]

_LOG = logging.getLogger(__name__)

_MAX_OPS, _MAX_BYTES = 256, 1 << 18
_NEEDED = {HintOp: "hint", AdoptBlocksOp: "records"}
"""The feature of a service that takes an op."""


def adoption_steps(
    ledger: Ledger, max_message_bytes: int, max_ops: int, features: Collection[str]
) -> Iterator[tuple[workers.AttachRequest, list[StepOp | AdoptionOp]]]:
    """Adoption Steps without their numbers, short enough to be interleaved with other holders' Steps. The rest describes the
    service: its limits and features.
    """
    max_bytes = min(_MAX_BYTES, max_message_bytes // 2)
    max_ops = min(_MAX_OPS, max_ops)
    ops: list[StepOp | AdoptionOp] = []
    request, size_bytes = workers.AttachRequest(), 0
    for op in ledger.adoption():
        if _NEEDED.get(type(op)) not in {None, *features}:
            continue
        proto = workers.Op()
        op_to_proto(op, proto)
        if ops and (size_bytes + proto.ByteSize() > max_bytes or len(ops) >= max_ops):
            yield request, ops
            request, size_bytes, ops = workers.AttachRequest(), 0, []
        request.step.ops.append(proto)
        size_bytes += proto.ByteSize()
        ops.append(op)
    if ops:
        yield request, ops


def take_outcomes(
    ops: Sequence[StepOp | AdoptionOp], results: Sequence[StepResult], ledger: Ledger, notices: NoticeBox
) -> None:
    """Handle answers to adoption Steps: a rejected history is recomputed on demand, a rejected sequence after its notice."""
    for op, result in zip(ops, results, strict=True):
        if isinstance(op, PinOp) and not (isinstance(result, PinInfo) and result.tokens == op.tokens):
            ledger.noted(UnpinOp(op.tokens, op.namespace))
        if isinstance(op, AdoptSequenceOp) and isinstance(result, RadixKVError):
            _LOG.warning("the restarted service did not take sequence %d on: %s", op.seq_id, result)
            ledger.lost(op.seq_id)
            notices.tell([Notice("lost", op.seq_id, 0)])

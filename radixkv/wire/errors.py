"""The one table between radixkv's errors, the wire's `Error` and gRPC status codes, used in both directions.

A failed call or stream ends with the status code of its error and carries the serialised `Error` in the trailing metadata
`radixkv-error-bin`; an op of a Step carries its `Error` in its answer. A client rebuilds from it the exception that the same
call would have raised in process. An error's time to retry after is also sent as gRPC's own metadata `grpc-retry-pushback-ms`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import grpc

from radixkv.core.api import PinInfo
from radixkv.core.errors import (
    AbortedError,
    CorruptionError,
    DeadlineExceededError,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    NotCachedError,
    OutOfBlocksError,
    PermissionDeniedError,
    PinBudgetError,
    PoolHeldError,
    QuotaError,
    RadixKVError,
    StaleIncarnationError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownPoolError,
    UnknownSequenceError,
    WrongThreadError,
)
from radixkv.v1 import types_pb2 as types

__all__ = [
    "ERROR_METADATA_KEY",
    "error_from_proto",
    "error_from_rpc",
    "error_to_proto",
    "message_of",
    "status_of",
    "trailing_metadata",
]

ERROR_METADATA_KEY = "radixkv-error-bin"
PUSHBACK_METADATA_KEY = "grpc-retry-pushback-ms"
_QUOTA = ("namespace", "unit", "num_needed", "num_available", "quota")
_PIN_COST = ("num_tokens", "num_blocks", "ttl_s", "remaining_s")
MAX_MESSAGE_BYTES = 1024
MAX_VALUE_BYTES = 256


class _Row(NamedTuple):
    error: type[RadixKVError]
    code: types.ErrorCode
    status: grpc.StatusCode


_TABLE = (
    _Row(InvalidArgumentError, types.ERROR_CODE_INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT),
    _Row(UnknownSequenceError, types.ERROR_CODE_UNKNOWN_SEQUENCE, grpc.StatusCode.NOT_FOUND),
    _Row(OutOfBlocksError, types.ERROR_CODE_OUT_OF_BLOCKS, grpc.StatusCode.RESOURCE_EXHAUSTED),
    _Row(QuotaError, types.ERROR_CODE_QUOTA, grpc.StatusCode.RESOURCE_EXHAUSTED),
    _Row(PinBudgetError, types.ERROR_CODE_PIN_BUDGET, grpc.StatusCode.RESOURCE_EXHAUSTED),
    _Row(AbortedError, types.ERROR_CODE_ABORTED, grpc.StatusCode.ABORTED),
    _Row(LeaseError, types.ERROR_CODE_LEASE, grpc.StatusCode.FAILED_PRECONDITION),
    _Row(StaleIncarnationError, types.ERROR_CODE_STALE_INCARNATION, grpc.StatusCode.FAILED_PRECONDITION),
    _Row(PoolHeldError, types.ERROR_CODE_POOL_HELD, grpc.StatusCode.FAILED_PRECONDITION),
    _Row(UnknownPoolError, types.ERROR_CODE_UNKNOWN_POOL, grpc.StatusCode.NOT_FOUND),
    _Row(LimitError, types.ERROR_CODE_LIMIT, grpc.StatusCode.RESOURCE_EXHAUSTED),
    _Row(UnavailableError, types.ERROR_CODE_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
    _Row(CorruptionError, types.ERROR_CODE_CORRUPTION, grpc.StatusCode.INTERNAL),
    _Row(DeadlineExceededError, types.ERROR_CODE_DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED),
    _Row(UnauthenticatedError, types.ERROR_CODE_UNAUTHENTICATED, grpc.StatusCode.UNAUTHENTICATED),
    _Row(PermissionDeniedError, types.ERROR_CODE_PERMISSION_DENIED, grpc.StatusCode.PERMISSION_DENIED),
    _Row(UnimplementedError, types.ERROR_CODE_UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED),
    _Row(NotCachedError, types.ERROR_CODE_NOT_CACHED, grpc.StatusCode.FAILED_PRECONDITION),
    _Row(WrongThreadError, types.ERROR_CODE_INTERNAL, grpc.StatusCode.INTERNAL),
    _Row(RadixKVError, types.ERROR_CODE_INTERNAL, grpc.StatusCode.INTERNAL),
)
_BY_CLASS = {row.error: row for row in _TABLE}
_BY_CODE = {row.code: row.error for row in _TABLE}

# Statuses without our details: from the transport, or from a server that is no radixkv service.
_BY_STATUS: dict[grpc.StatusCode, type[RadixKVError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
}


def _row_of(error: RadixKVError) -> _Row:
    return next(_BY_CLASS[base] for base in type(error).__mro__ if base in _BY_CLASS)


def status_of(error: RadixKVError) -> grpc.StatusCode:
    """The status code of an error, by the nearest class of the table."""
    return _row_of(error).status


def message_of(error: RadixKVError) -> str:
    """The message of a status, short enough that gRPC, which escapes it, never rejects the trailing metadata."""
    return _cut(str(error), MAX_MESSAGE_BYTES)


def _cut(text: str, max_bytes: int) -> str:
    """The beginning of a text, in whole characters that UTF-8 can encode."""
    return text[:max_bytes].encode(errors="replace")[:max_bytes].decode(errors="ignore")


def error_to_proto(error: RadixKVError) -> types.Error:
    """The wire form of an error, with its machine-readable details."""
    proto = types.Error(code=_row_of(error).code, message=message_of(error), retry_after_s=error.retry_after_s)
    if isinstance(error, InvalidArgumentError):
        details = proto.invalid_argument
        details.argument, details.bound = error.argument, error.bound
        details.value = _cut(repr(error.value), MAX_VALUE_BYTES)
    elif isinstance(error, UnknownSequenceError):
        proto.unknown_sequence.seq_id = error.seq_id
    elif isinstance(error, OutOfBlocksError):
        proto.out_of_blocks.num_needed = error.num_needed
        proto.out_of_blocks.num_available = error.num_available
    elif isinstance(error, QuotaError):
        proto.quota.CopyFrom(types.Quota(**{name: getattr(error, name) for name in _QUOTA}))
    elif isinstance(error, PinBudgetError):
        proto.pin_budget.CopyFrom(_pin_budget_to_proto(error))
    elif isinstance(error, UnimplementedError):
        proto.unimplemented.CopyFrom(types.Unimplemented(what=error.what, known=error.known))
    elif isinstance(error, NotCachedError):
        proto.not_cached.CopyFrom(types.NotCached(num_cached=error.num_cached, at_least=error.at_least))
    return proto


def error_from_proto(proto: types.Error) -> RadixKVError:
    """The exception of an `Error`: same class, same message, same attributes."""
    error: RadixKVError
    if proto.code == types.ERROR_CODE_INVALID_ARGUMENT:
        argument = proto.invalid_argument
        error = InvalidArgumentError(argument.argument, _read_value(argument.value), argument.bound)
    elif proto.code == types.ERROR_CODE_UNKNOWN_SEQUENCE:
        error = UnknownSequenceError(proto.unknown_sequence.seq_id)
    elif proto.code == types.ERROR_CODE_OUT_OF_BLOCKS:
        error = OutOfBlocksError(proto.out_of_blocks.num_needed, proto.out_of_blocks.num_available)
    elif proto.code == types.ERROR_CODE_QUOTA:
        error = QuotaError(**{name: getattr(proto.quota, name) for name in _QUOTA})
    elif proto.code == types.ERROR_CODE_PIN_BUDGET:
        error = _pin_budget_from_proto(proto.pin_budget)
    elif proto.code == types.ERROR_CODE_UNIMPLEMENTED:
        error = UnimplementedError(proto.unimplemented.what, tuple(proto.unimplemented.known))
    elif proto.code == types.ERROR_CODE_NOT_CACHED:
        error = NotCachedError(proto.not_cached.num_cached, proto.not_cached.at_least)
    else:
        error = _BY_CODE.get(proto.code, RadixKVError)()
    error.args = (proto.message,)
    if proto.HasField("retry_after_s"):
        error.retry_after_s = proto.retry_after_s
    return error


def _pin_budget_to_proto(error: PinBudgetError) -> types.PinBudget:
    pins = [types.PinCost(**{name: getattr(pin, name) for name in _PIN_COST}) for pin in error.pins]
    return types.PinBudget(
        unit=error.unit,
        num_needed=error.num_needed,
        num_available=error.num_available,
        num_total=error.num_total,
        pins=pins,
    )


def _pin_budget_from_proto(proto: types.PinBudget) -> PinBudgetError:
    pins = tuple(PinInfo("", b"", **{name: getattr(pin, name) for name in _PIN_COST}) for pin in proto.pins)
    return PinBudgetError(proto.unit, proto.num_needed, proto.num_available, proto.num_total, pins)


def _read_value(text: str) -> object:
    text = _cut(text, MAX_VALUE_BYTES)  # the other side may have sent more
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def trailing_metadata(error: RadixKVError) -> tuple[tuple[str, str | bytes], ...]:
    """The trailing metadata of a failed call or stream."""
    details = (ERROR_METADATA_KEY, error_to_proto(error).SerializeToString())
    if error.retry_after_s is None:
        return (details,)
    return (details, (PUSHBACK_METADATA_KEY, str(math.ceil(1000 * error.retry_after_s))))


def error_from_rpc(
    call: Any, address: str, kinds: Mapping[grpc.StatusCode, Callable[[str], RadixKVError]] = MappingProxyType({})
) -> RadixKVError:
    """The exception of a failed gRPC call.

    Args:
        call: the `grpc.RpcError`, which is also the finished call.
        address: of the server, for the message where the transport failed.
        kinds: makes the error of a status without our details from its message, of a server that may be another's.
    """
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            return error_from_proto(types.Error.FromString(value))
    status: grpc.StatusCode = call.code()
    if status in kinds:
        return kinds[status](call.details() or status.name)
    kind = _BY_STATUS.get(status, RadixKVError)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return kind(f"the server at {address} did not answer in time; it may be overloaded or stopped")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return kind(f"the server at {address} is not a radixkv service of this version: {call.details()}")
    if kind is UnavailableError:
        return kind(f"the server at {address} cannot be reached: {call.details()}")
    return kind(f"the server at {address} failed with {status.name}: {call.details()}")


async def abort(context: Any, error: RadixKVError) -> NoReturn:
    """End a call with an error's status and details. Raises, so that the handler ends as well."""
    await context.abort(status_of(error), message_of(error), trailing_metadata(error))
    raise AssertionError("abort raises") from error

from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_BLOCKS: _ClassVar[ErrorCode]
    ERROR_CODE_ABORTED: _ClassVar[ErrorCode]
    ERROR_CODE_LEASE: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_INCARNATION: _ClassVar[ErrorCode]
    ERROR_CODE_POOL_HELD: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_POOL: _ClassVar[ErrorCode]
    ERROR_CODE_LIMIT: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPTION: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_PIN_BUDGET: _ClassVar[ErrorCode]
    ERROR_CODE_QUOTA: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_PERMISSION_DENIED: _ClassVar[ErrorCode]
    ERROR_CODE_UNIMPLEMENTED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CACHED: _ClassVar[ErrorCode]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_UNKNOWN_SEQUENCE: ErrorCode
ERROR_CODE_OUT_OF_BLOCKS: ErrorCode
ERROR_CODE_ABORTED: ErrorCode
ERROR_CODE_LEASE: ErrorCode
ERROR_CODE_STALE_INCARNATION: ErrorCode
ERROR_CODE_POOL_HELD: ErrorCode
ERROR_CODE_UNKNOWN_POOL: ErrorCode
ERROR_CODE_LIMIT: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_CORRUPTION: ErrorCode
ERROR_CODE_DEADLINE_EXCEEDED: ErrorCode
ERROR_CODE_PIN_BUDGET: ErrorCode
ERROR_CODE_QUOTA: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_PERMISSION_DENIED: ErrorCode
ERROR_CODE_UNIMPLEMENTED: ErrorCode
ERROR_CODE_NOT_CACHED: ErrorCode

class PoolShape(_message.Message):
    __slots__ = ("name", "num_blocks", "block_size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_blocks: int
    block_size: int
    def __init__(self, name: _Optional[str] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ...) -> None: ...

class BlockOp(_message.Message):
    __slots__ = ("copy",)
    COPY_FIELD_NUMBER: _ClassVar[int]
    copy: Copy
    def __init__(self, copy: _Optional[_Union[Copy, _Mapping]] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("src", "dst", "num_tokens")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    src: int
    dst: int
    num_tokens: int
    def __init__(self, src: _Optional[int] = ..., dst: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Retention(_message.Message):
    __slots__ = ("start", "end", "priority", "duration_s")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    priority: int
    duration_s: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., priority: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "invalid_argument", "unknown_sequence", "out_of_blocks", "pin_budget", "quota", "unimplemented", "not_cached", "retry_after_s")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    INVALID_ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PIN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    UNIMPLEMENTED_FIELD_NUMBER: _ClassVar[int]
    NOT_CACHED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    invalid_argument: InvalidArgument
    unknown_sequence: UnknownSequence
    out_of_blocks: OutOfBlocks
    pin_budget: PinBudget
    quota: Quota
    unimplemented: Unimplemented
    not_cached: NotCached
    retry_after_s: float
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., invalid_argument: _Optional[_Union[InvalidArgument, _Mapping]] = ..., unknown_sequence: _Optional[_Union[UnknownSequence, _Mapping]] = ..., out_of_blocks: _Optional[_Union[OutOfBlocks, _Mapping]] = ..., pin_budget: _Optional[_Union[PinBudget, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ..., unimplemented: _Optional[_Union[Unimplemented, _Mapping]] = ..., not_cached: _Optional[_Union[NotCached, _Mapping]] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class InvalidArgument(_message.Message):
    __slots__ = ("argument", "value", "bound")
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    argument: str
    value: str
    bound: str
    def __init__(self, argument: _Optional[str] = ..., value: _Optional[str] = ..., bound: _Optional[str] = ...) -> None: ...

class UnknownSequence(_message.Message):
    __slots__ = ("seq_id",)
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    def __init__(self, seq_id: _Optional[int] = ...) -> None: ...

class NotCached(_message.Message):
    __slots__ = ("num_cached", "at_least")
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    num_cached: int
    at_least: int
    def __init__(self, num_cached: _Optional[int] = ..., at_least: _Optional[int] = ...) -> None: ...

class Unimplemented(_message.Message):
    __slots__ = ("what", "known")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    what: str
    known: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, what: _Optional[str] = ..., known: _Optional[_Iterable[str]] = ...) -> None: ...

class OutOfBlocks(_message.Message):
    __slots__ = ("num_needed", "num_available")
    NUM_NEEDED_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    num_needed: int
    num_available: int
    def __init__(self, num_needed: _Optional[int] = ..., num_available: _Optional[int] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("namespace", "unit", "num_needed", "num_available", "quota")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NUM_NEEDED_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    unit: str
    num_needed: int
    num_available: int
    quota: int
    def __init__(self, namespace: _Optional[str] = ..., unit: _Optional[str] = ..., num_needed: _Optional[int] = ..., num_available: _Optional[int] = ..., quota: _Optional[int] = ...) -> None: ...

class PinBudget(_message.Message):
    __slots__ = ("unit", "num_needed", "num_available", "num_total", "pins")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NUM_NEEDED_FIELD_NUMBER: _ClassVar[int]
    NUM_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    num_needed: float
    num_available: float
    num_total: float
    pins: _containers.RepeatedCompositeFieldContainer[PinCost]
    def __init__(self, unit: _Optional[str] = ..., num_needed: _Optional[float] = ..., num_available: _Optional[float] = ..., num_total: _Optional[float] = ..., pins: _Optional[_Iterable[_Union[PinCost, _Mapping]]] = ...) -> None: ...

class PinCost(_message.Message):
    __slots__ = ("num_tokens", "num_blocks", "ttl_s", "remaining_s")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_blocks: int
    ttl_s: float
    remaining_s: float
    def __init__(self, num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., ttl_s: _Optional[float] = ..., remaining_s: _Optional[float] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("incarnation", "holder_name", "generation_address", "fingerprint", "load", "load_age_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LOAD_AGE_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    holder_name: str
    generation_address: str
    fingerprint: str
    load: WorkerLoad
    load_age_s: float
    def __init__(self, incarnation: _Optional[int] = ..., holder_name: _Optional[str] = ..., generation_address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., load: _Optional[_Union[WorkerLoad, _Mapping]] = ..., load_age_s: _Optional[float] = ...) -> None: ...

class WorkerLoad(_message.Message):
    __slots__ = ("num_backlog_tokens", "tokens_per_s", "num_running", "is_accepting", "loaded_tokens_per_s", "num_ahead")
    NUM_BACKLOG_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    IS_ACCEPTING_FIELD_NUMBER: _ClassVar[int]
    LOADED_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    num_backlog_tokens: int
    tokens_per_s: float
    num_running: int
    is_accepting: bool
    loaded_tokens_per_s: float
    num_ahead: int
    def __init__(self, num_backlog_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., num_running: _Optional[int] = ..., is_accepting: _Optional[bool] = ..., loaded_tokens_per_s: _Optional[float] = ..., num_ahead: _Optional[int] = ...) -> None: ...

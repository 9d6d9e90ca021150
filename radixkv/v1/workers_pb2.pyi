from radixkv.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "step", "heartbeat", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: Step
    heartbeat: Heartbeat
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("attached", "step_answer", "heartbeat_answer")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    STEP_ANSWER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    step_answer: StepAnswer
    heartbeat_answer: HeartbeatAnswer
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., step_answer: _Optional[_Union[StepAnswer, _Mapping]] = ..., heartbeat_answer: _Optional[_Union[HeartbeatAnswer, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("pool", "incarnation", "acknowledged_through", "holder_name")
    POOL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NAME_FIELD_NUMBER: _ClassVar[int]
    pool: _types_pb2.PoolShape
    incarnation: int
    acknowledged_through: int
    holder_name: str
    def __init__(self, pool: _Optional[_Union[_types_pb2.PoolShape, _Mapping]] = ..., incarnation: _Optional[int] = ..., acknowledged_through: _Optional[int] = ..., holder_name: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("acknowledged_through",)
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    acknowledged_through: int
    def __init__(self, acknowledged_through: _Optional[int] = ...) -> None: ...

class HeartbeatAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Attached(_message.Message):
    __slots__ = ("resumed", "next_step", "lease_ttl_ms", "max_message_bytes", "max_unacknowledged_steps", "max_ops_per_step", "max_children_per_fork")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UNACKNOWLEDGED_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_CHILDREN_PER_FORK_FIELD_NUMBER: _ClassVar[int]
    resumed: bool
    next_step: int
    lease_ttl_ms: int
    max_message_bytes: int
    max_unacknowledged_steps: int
    max_ops_per_step: int
    max_children_per_fork: int
    def __init__(self, resumed: _Optional[bool] = ..., next_step: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_unacknowledged_steps: _Optional[int] = ..., max_ops_per_step: _Optional[int] = ..., max_children_per_fork: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "acknowledged_through", "ops")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    acknowledged_through: int
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    def __init__(self, number: _Optional[int] = ..., acknowledged_through: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("acquire", "extend", "insert", "fork", "release")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    acquire: Acquire
    extend: Extend
    insert: Insert
    fork: Fork
    release: Release
    def __init__(self, acquire: _Optional[_Union[Acquire, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ..., insert: _Optional[_Union[Insert, _Mapping]] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("tokens", "reserve", "namespace", "seq_id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    reserve: int
    namespace: str
    seq_id: int
    def __init__(self, tokens: _Optional[bytes] = ..., reserve: _Optional[int] = ..., namespace: _Optional[str] = ..., seq_id: _Optional[int] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("seq_id", "num_tokens")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_tokens: int
    def __init__(self, seq_id: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Insert(_message.Message):
    __slots__ = ("seq_id", "num_computed", "new_tokens")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_computed: int
    new_tokens: bytes
    def __init__(self, seq_id: _Optional[int] = ..., num_computed: _Optional[int] = ..., new_tokens: _Optional[bytes] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("seq_id", "position", "n", "reserve", "seq_ids")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    position: int
    n: int
    reserve: int
    seq_ids: SeqIds
    def __init__(self, seq_id: _Optional[int] = ..., position: _Optional[int] = ..., n: _Optional[int] = ..., reserve: _Optional[int] = ..., seq_ids: _Optional[_Union[SeqIds, _Mapping]] = ...) -> None: ...

class SeqIds(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("seq_id", "keep")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    keep: bool
    def __init__(self, seq_id: _Optional[int] = ..., keep: _Optional[bool] = ...) -> None: ...

class StepAnswer(_message.Message):
    __slots__ = ("number", "results")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    results: _containers.RepeatedCompositeFieldContainer[OpResult]
    def __init__(self, number: _Optional[int] = ..., results: _Optional[_Iterable[_Union[OpResult, _Mapping]]] = ...) -> None: ...

class OpResult(_message.Message):
    __slots__ = ("error", "acquire", "extend", "insert", "fork", "release")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.Error
    acquire: AcquireResult
    extend: ExtendResult
    insert: InsertResult
    fork: ForkResult
    release: ReleaseResult
    def __init__(self, error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ..., acquire: _Optional[_Union[AcquireResult, _Mapping]] = ..., extend: _Optional[_Union[ExtendResult, _Mapping]] = ..., insert: _Optional[_Union[InsertResult, _Mapping]] = ..., fork: _Optional[_Union[ForkResult, _Mapping]] = ..., release: _Optional[_Union[ReleaseResult, _Mapping]] = ...) -> None: ...

class AcquireResult(_message.Message):
    __slots__ = ("seq_id", "num_cached_tokens", "num_stored_tokens", "block_table", "ops", "is_same_table")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    IS_SAME_TABLE_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_cached_tokens: int
    num_stored_tokens: int
    block_table: bytes
    ops: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockOp]
    is_same_table: bool
    def __init__(self, seq_id: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_stored_tokens: _Optional[int] = ..., block_table: _Optional[bytes] = ..., ops: _Optional[_Iterable[_Union[_types_pb2.BlockOp, _Mapping]]] = ..., is_same_table: _Optional[bool] = ...) -> None: ...

class ExtendResult(_message.Message):
    __slots__ = ("first_changed", "block_ids", "ops")
    FIRST_CHANGED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    first_changed: int
    block_ids: bytes
    ops: _containers.RepeatedCompositeFieldContainer[_types_pb2.BlockOp]
    def __init__(self, first_changed: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., ops: _Optional[_Iterable[_Union[_types_pb2.BlockOp, _Mapping]]] = ...) -> None: ...

class InsertResult(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForkResult(_message.Message):
    __slots__ = ("children",)
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    children: _containers.RepeatedCompositeFieldContainer[AcquireResult]
    def __init__(self, children: _Optional[_Iterable[_Union[AcquireResult, _Mapping]]] = ...) -> None: ...

class ReleaseResult(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

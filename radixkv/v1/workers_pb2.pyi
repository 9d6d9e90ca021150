from radixkv.v1 import prefix_cache_pb2 as _prefix_cache_pb2
from radixkv.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTICE_KIND_UNSPECIFIED: _ClassVar[NoticeKind]
    NOTICE_KIND_PUBLISHED: _ClassVar[NoticeKind]
    NOTICE_KIND_GONE: _ClassVar[NoticeKind]
NOTICE_KIND_UNSPECIFIED: NoticeKind
NOTICE_KIND_PUBLISHED: NoticeKind
NOTICE_KIND_GONE: NoticeKind

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
    __slots__ = ("attached", "step_answer", "heartbeat_answer", "notices")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    STEP_ANSWER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    step_answer: StepAnswer
    heartbeat_answer: HeartbeatAnswer
    notices: Notices
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., step_answer: _Optional[_Union[StepAnswer, _Mapping]] = ..., heartbeat_answer: _Optional[_Union[HeartbeatAnswer, _Mapping]] = ..., notices: _Optional[_Union[Notices, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("pool", "incarnation", "acknowledged_through", "holder_name", "notices_acknowledged_through", "can_adopt", "stream_number", "features", "awaited", "generation_address", "fingerprint", "load")
    POOL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NAME_FIELD_NUMBER: _ClassVar[int]
    NOTICES_ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    CAN_ADOPT_FIELD_NUMBER: _ClassVar[int]
    STREAM_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    pool: _types_pb2.PoolShape
    incarnation: int
    acknowledged_through: int
    holder_name: str
    notices_acknowledged_through: int
    can_adopt: bool
    stream_number: int
    features: _containers.RepeatedScalarFieldContainer[str]
    awaited: _containers.RepeatedCompositeFieldContainer[Pending]
    generation_address: str
    fingerprint: str
    load: _types_pb2.WorkerLoad
    def __init__(self, pool: _Optional[_Union[_types_pb2.PoolShape, _Mapping]] = ..., incarnation: _Optional[int] = ..., acknowledged_through: _Optional[int] = ..., holder_name: _Optional[str] = ..., notices_acknowledged_through: _Optional[int] = ..., can_adopt: _Optional[bool] = ..., stream_number: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., awaited: _Optional[_Iterable[_Union[Pending, _Mapping]]] = ..., generation_address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., load: _Optional[_Union[_types_pb2.WorkerLoad, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("acknowledged_through", "notices_acknowledged_through", "load")
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    NOTICES_ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    acknowledged_through: int
    notices_acknowledged_through: int
    load: _types_pb2.WorkerLoad
    def __init__(self, acknowledged_through: _Optional[int] = ..., notices_acknowledged_through: _Optional[int] = ..., load: _Optional[_Union[_types_pb2.WorkerLoad, _Mapping]] = ...) -> None: ...

class HeartbeatAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Attached(_message.Message):
    __slots__ = ("resumed", "next_step", "lease_ttl_ms", "max_message_bytes", "max_unacknowledged_steps", "max_ops_per_step", "max_children_per_fork", "features")
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_UNACKNOWLEDGED_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_CHILDREN_PER_FORK_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    resumed: bool
    next_step: int
    lease_ttl_ms: int
    max_message_bytes: int
    max_unacknowledged_steps: int
    max_ops_per_step: int
    max_children_per_fork: int
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resumed: _Optional[bool] = ..., next_step: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_unacknowledged_steps: _Optional[int] = ..., max_ops_per_step: _Optional[int] = ..., max_children_per_fork: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("number", "acknowledged_through", "ops", "notices_acknowledged_through", "load")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_ACKNOWLEDGED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    acknowledged_through: int
    ops: _containers.RepeatedCompositeFieldContainer[Op]
    notices_acknowledged_through: int
    load: _types_pb2.WorkerLoad
    def __init__(self, number: _Optional[int] = ..., acknowledged_through: _Optional[int] = ..., ops: _Optional[_Iterable[_Union[Op, _Mapping]]] = ..., notices_acknowledged_through: _Optional[int] = ..., load: _Optional[_Union[_types_pb2.WorkerLoad, _Mapping]] = ...) -> None: ...

class Op(_message.Message):
    __slots__ = ("acquire", "extend", "insert", "fork", "release", "match", "pin", "adopt", "adopt_sequence", "unpin", "retain", "evict", "evict_branch", "clear", "set_quota", "hint", "adopt_blocks")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    ADOPT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    EVICT_BRANCH_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTA_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    ADOPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    acquire: Acquire
    extend: Extend
    insert: Insert
    fork: Fork
    release: Release
    match: Match
    pin: Pin
    adopt: Adopt
    adopt_sequence: AdoptSequence
    unpin: Unpin
    retain: Retain
    evict: Evict
    evict_branch: EvictBranch
    clear: Clear
    set_quota: SetQuota
    hint: Hint
    adopt_blocks: AdoptBlocks
    def __init__(self, acquire: _Optional[_Union[Acquire, _Mapping]] = ..., extend: _Optional[_Union[Extend, _Mapping]] = ..., insert: _Optional[_Union[Insert, _Mapping]] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., match: _Optional[_Union[Match, _Mapping]] = ..., pin: _Optional[_Union[Pin, _Mapping]] = ..., adopt: _Optional[_Union[Adopt, _Mapping]] = ..., adopt_sequence: _Optional[_Union[AdoptSequence, _Mapping]] = ..., unpin: _Optional[_Union[Unpin, _Mapping]] = ..., retain: _Optional[_Union[Retain, _Mapping]] = ..., evict: _Optional[_Union[Evict, _Mapping]] = ..., evict_branch: _Optional[_Union[EvictBranch, _Mapping]] = ..., clear: _Optional[_Union[Clear, _Mapping]] = ..., set_quota: _Optional[_Union[SetQuota, _Mapping]] = ..., hint: _Optional[_Union[Hint, _Mapping]] = ..., adopt_blocks: _Optional[_Union[AdoptBlocks, _Mapping]] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("tokens", "reserve", "namespace", "seq_id", "waits", "is_unshared", "retention", "at_least", "whole_blocks")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    IS_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    reserve: int
    namespace: str
    seq_id: int
    waits: bool
    is_unshared: bool
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    at_least: int
    whole_blocks: bool
    def __init__(self, tokens: _Optional[bytes] = ..., reserve: _Optional[int] = ..., namespace: _Optional[str] = ..., seq_id: _Optional[int] = ..., waits: _Optional[bool] = ..., is_unshared: _Optional[bool] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ..., at_least: _Optional[int] = ..., whole_blocks: _Optional[bool] = ...) -> None: ...

class Match(_message.Message):
    __slots__ = ("tokens", "namespace")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    namespace: str
    def __init__(self, tokens: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("tokens", "ttl_s", "namespace")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    ttl_s: float
    namespace: str
    def __init__(self, tokens: _Optional[bytes] = ..., ttl_s: _Optional[float] = ..., namespace: _Optional[str] = ...) -> None: ...

class Unpin(_message.Message):
    __slots__ = ("tokens", "namespace")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    namespace: str
    def __init__(self, tokens: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class Retain(_message.Message):
    __slots__ = ("tokens", "retention", "namespace")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    namespace: str
    def __init__(self, tokens: _Optional[bytes] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ..., namespace: _Optional[str] = ...) -> None: ...

class Evict(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

class EvictBranch(_message.Message):
    __slots__ = ("tokens", "namespace")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    namespace: str
    def __init__(self, tokens: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class Clear(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class SetQuota(_message.Message):
    __slots__ = ("namespace", "blocks", "sequences")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    blocks: int
    sequences: int
    def __init__(self, namespace: _Optional[str] = ..., blocks: _Optional[int] = ..., sequences: _Optional[int] = ...) -> None: ...

class Hint(_message.Message):
    __slots__ = ("tier", "saved", "lost", "namespace")
    TIER_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tier: _prefix_cache_pb2.Tier
    saved: bytes
    lost: bytes
    namespace: str
    def __init__(self, tier: _Optional[_Union[_prefix_cache_pb2.Tier, str]] = ..., saved: _Optional[bytes] = ..., lost: _Optional[bytes] = ..., namespace: _Optional[str] = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("seq_id", "num_tokens")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_tokens: int
    def __init__(self, seq_id: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Insert(_message.Message):
    __slots__ = ("seq_id", "num_computed", "new_tokens", "position")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_computed: int
    new_tokens: bytes
    position: int
    def __init__(self, seq_id: _Optional[int] = ..., num_computed: _Optional[int] = ..., new_tokens: _Optional[bytes] = ..., position: _Optional[int] = ...) -> None: ...

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

class Adopt(_message.Message):
    __slots__ = ("tokens", "num_kept", "block_ids", "namespace", "retention")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    num_kept: int
    block_ids: bytes
    namespace: str
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    def __init__(self, tokens: _Optional[bytes] = ..., num_kept: _Optional[int] = ..., block_ids: _Optional[bytes] = ..., namespace: _Optional[str] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ...) -> None: ...

class AdoptSequence(_message.Message):
    __slots__ = ("seq_id", "tokens", "block_table", "num_computed", "room", "reserve", "namespace", "is_unshared", "beside_seq_id", "retention", "shares_last_block", "last_record")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    IS_UNSHARED_FIELD_NUMBER: _ClassVar[int]
    BESIDE_SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    SHARES_LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_RECORD_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    tokens: bytes
    block_table: bytes
    num_computed: int
    room: int
    reserve: int
    namespace: str
    is_unshared: bool
    beside_seq_id: int
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    shares_last_block: bool
    last_record: bytes
    def __init__(self, seq_id: _Optional[int] = ..., tokens: _Optional[bytes] = ..., block_table: _Optional[bytes] = ..., num_computed: _Optional[int] = ..., room: _Optional[int] = ..., reserve: _Optional[int] = ..., namespace: _Optional[str] = ..., is_unshared: _Optional[bool] = ..., beside_seq_id: _Optional[int] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ..., shares_last_block: _Optional[bool] = ..., last_record: _Optional[bytes] = ...) -> None: ...

class AdoptBlocks(_message.Message):
    __slots__ = ("block_ids", "records")
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    block_ids: bytes
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_ids: _Optional[bytes] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class BlockRecords(_message.Message):
    __slots__ = ("block_ids", "records")
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    block_ids: bytes
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, block_ids: _Optional[bytes] = ..., records: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StepAnswer(_message.Message):
    __slots__ = ("number", "results", "freed_block_ids", "records")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FREED_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    results: _containers.RepeatedCompositeFieldContainer[OpResult]
    freed_block_ids: bytes
    records: BlockRecords
    def __init__(self, number: _Optional[int] = ..., results: _Optional[_Iterable[_Union[OpResult, _Mapping]]] = ..., freed_block_ids: _Optional[bytes] = ..., records: _Optional[_Union[BlockRecords, _Mapping]] = ...) -> None: ...

class Notices(_message.Message):
    __slots__ = ("number", "after_step", "notices", "cleared", "journal")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_STEP_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    number: int
    after_step: int
    notices: _containers.RepeatedCompositeFieldContainer[Notice]
    cleared: _containers.RepeatedScalarFieldContainer[str]
    journal: _containers.RepeatedCompositeFieldContainer[JournalEntry]
    def __init__(self, number: _Optional[int] = ..., after_step: _Optional[int] = ..., notices: _Optional[_Iterable[_Union[Notice, _Mapping]]] = ..., cleared: _Optional[_Iterable[str]] = ..., journal: _Optional[_Iterable[_Union[JournalEntry, _Mapping]]] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("pin", "unpin", "set_quota", "retained", "dropped", "records")
    PIN_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTA_FIELD_NUMBER: _ClassVar[int]
    RETAINED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    pin: Pin
    unpin: Unpin
    set_quota: SetQuota
    retained: Retained
    dropped: Dropped
    records: BlockRecords
    def __init__(self, pin: _Optional[_Union[Pin, _Mapping]] = ..., unpin: _Optional[_Union[Unpin, _Mapping]] = ..., set_quota: _Optional[_Union[SetQuota, _Mapping]] = ..., retained: _Optional[_Union[Retained, _Mapping]] = ..., dropped: _Optional[_Union[Dropped, _Mapping]] = ..., records: _Optional[_Union[BlockRecords, _Mapping]] = ...) -> None: ...

class Retained(_message.Message):
    __slots__ = ("block_ids", "priority", "duration_s")
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    block_ids: bytes
    priority: int
    duration_s: float
    def __init__(self, block_ids: _Optional[bytes] = ..., priority: _Optional[int] = ..., duration_s: _Optional[float] = ...) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("tokens", "namespace", "kept_block_ids")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    namespace: str
    kept_block_ids: bytes
    def __init__(self, tokens: _Optional[bytes] = ..., namespace: _Optional[str] = ..., kept_block_ids: _Optional[bytes] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "seq_id", "num_tokens")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    kind: NoticeKind
    seq_id: int
    num_tokens: int
    def __init__(self, kind: _Optional[_Union[NoticeKind, str]] = ..., seq_id: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class OpResult(_message.Message):
    __slots__ = ("error", "acquire", "extend", "insert", "fork", "release", "pending", "match", "pin", "adopt", "adopt_sequence", "unpin", "retain", "evict", "evict_branch", "clear", "set_quota", "hint", "adopt_blocks")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    ADOPT_FIELD_NUMBER: _ClassVar[int]
    ADOPT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNPIN_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    EVICT_BRANCH_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTA_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    ADOPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    error: _types_pb2.Error
    acquire: AcquireResult
    extend: ExtendResult
    insert: InsertResult
    fork: ForkResult
    release: ReleaseResult
    pending: Pending
    match: MatchResult
    pin: PinResult
    adopt: AdoptResult
    adopt_sequence: AdoptSequenceResult
    unpin: UnpinResult
    retain: RetainResult
    evict: EvictResult
    evict_branch: EvictResult
    clear: EvictResult
    set_quota: _prefix_cache_pb2.NamespaceUsage
    hint: HintResult
    adopt_blocks: AdoptBlocksResult
    def __init__(self, error: _Optional[_Union[_types_pb2.Error, _Mapping]] = ..., acquire: _Optional[_Union[AcquireResult, _Mapping]] = ..., extend: _Optional[_Union[ExtendResult, _Mapping]] = ..., insert: _Optional[_Union[InsertResult, _Mapping]] = ..., fork: _Optional[_Union[ForkResult, _Mapping]] = ..., release: _Optional[_Union[ReleaseResult, _Mapping]] = ..., pending: _Optional[_Union[Pending, _Mapping]] = ..., match: _Optional[_Union[MatchResult, _Mapping]] = ..., pin: _Optional[_Union[PinResult, _Mapping]] = ..., adopt: _Optional[_Union[AdoptResult, _Mapping]] = ..., adopt_sequence: _Optional[_Union[AdoptSequenceResult, _Mapping]] = ..., unpin: _Optional[_Union[UnpinResult, _Mapping]] = ..., retain: _Optional[_Union[RetainResult, _Mapping]] = ..., evict: _Optional[_Union[EvictResult, _Mapping]] = ..., evict_branch: _Optional[_Union[EvictResult, _Mapping]] = ..., clear: _Optional[_Union[EvictResult, _Mapping]] = ..., set_quota: _Optional[_Union[_prefix_cache_pb2.NamespaceUsage, _Mapping]] = ..., hint: _Optional[_Union[HintResult, _Mapping]] = ..., adopt_blocks: _Optional[_Union[AdoptBlocksResult, _Mapping]] = ...) -> None: ...

class Pending(_message.Message):
    __slots__ = ("seq_id", "num_tokens")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    num_tokens: int
    def __init__(self, seq_id: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class MatchResult(_message.Message):
    __slots__ = ("num_tokens", "num_device_tokens")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    num_device_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ..., num_device_tokens: _Optional[int] = ...) -> None: ...

class PinResult(_message.Message):
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

class UnpinResult(_message.Message):
    __slots__ = ("was_pinned",)
    WAS_PINNED_FIELD_NUMBER: _ClassVar[int]
    was_pinned: bool
    def __init__(self, was_pinned: _Optional[bool] = ...) -> None: ...

class RetainResult(_message.Message):
    __slots__ = ("num_tokens",)
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ...) -> None: ...

class EvictResult(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

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

class HintResult(_message.Message):
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

class AdoptResult(_message.Message):
    __slots__ = ("num_tokens",)
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    def __init__(self, num_tokens: _Optional[int] = ...) -> None: ...

class AdoptSequenceResult(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdoptBlocksResult(_message.Message):
    __slots__ = ("num_blocks",)
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ...) -> None: ...

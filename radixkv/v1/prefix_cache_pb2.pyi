from radixkv.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MISS_CAUSE_UNSPECIFIED: _ClassVar[MissCause]
    MISS_CAUSE_CACHED: _ClassVar[MissCause]
    MISS_CAUSE_EMPTY: _ClassVar[MissCause]
    MISS_CAUSE_ENDED: _ClassVar[MissCause]
    MISS_CAUSE_PARTED: _ClassVar[MissCause]
    MISS_CAUSE_EVICTED: _ClassVar[MissCause]

class EvictionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICTION_REASON_UNSPECIFIED: _ClassVar[EvictionReason]
    EVICTION_REASON_PRESSURE: _ClassVar[EvictionReason]
    EVICTION_REASON_EVICT: _ClassVar[EvictionReason]
    EVICTION_REASON_CLEAR: _ClassVar[EvictionReason]
    EVICTION_REASON_RELEASE: _ClassVar[EvictionReason]
    EVICTION_REASON_QUOTA: _ClassVar[EvictionReason]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_STORED: _ClassVar[EventKind]
    EVENT_KIND_REMOVED: _ClassVar[EventKind]
    EVENT_KIND_CLEARED: _ClassVar[EventKind]
    EVENT_KIND_RESET: _ClassVar[EventKind]
    EVENT_KIND_SYNCED: _ClassVar[EventKind]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_DEVICE: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_DISK: _ClassVar[Tier]
    TIER_REMOTE: _ClassVar[Tier]
MISS_CAUSE_UNSPECIFIED: MissCause
MISS_CAUSE_CACHED: MissCause
MISS_CAUSE_EMPTY: MissCause
MISS_CAUSE_ENDED: MissCause
MISS_CAUSE_PARTED: MissCause
MISS_CAUSE_EVICTED: MissCause
EVICTION_REASON_UNSPECIFIED: EvictionReason
EVICTION_REASON_PRESSURE: EvictionReason
EVICTION_REASON_EVICT: EvictionReason
EVICTION_REASON_CLEAR: EvictionReason
EVICTION_REASON_RELEASE: EvictionReason
EVICTION_REASON_QUOTA: EvictionReason
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_STORED: EventKind
EVENT_KIND_REMOVED: EventKind
EVENT_KIND_CLEARED: EventKind
EVENT_KIND_RESET: EventKind
EVENT_KIND_SYNCED: EventKind
TIER_UNSPECIFIED: Tier
TIER_DEVICE: Tier
TIER_HOST: Tier
TIER_DISK: Tier
TIER_REMOTE: Tier

class MatchRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolMatch]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolMatch, _Mapping]]] = ...) -> None: ...

class PoolMatch(_message.Message):
    __slots__ = ("pool", "num_tokens", "num_device_tokens", "num_host_tokens", "num_disk_tokens")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_tokens: int
    num_device_tokens: int
    num_host_tokens: int
    num_disk_tokens: int
    def __init__(self, pool: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_device_tokens: _Optional[int] = ..., num_host_tokens: _Optional[int] = ..., num_disk_tokens: _Optional[int] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolRoute]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolRoute, _Mapping]]] = ...) -> None: ...

class PoolRoute(_message.Message):
    __slots__ = ("pool", "num_tokens", "num_pending_tokens", "worker", "num_stored_tokens", "num_room_tokens", "freed_tokens_per_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROOM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREED_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_tokens: int
    num_pending_tokens: int
    worker: _types_pb2.WorkerReport
    num_stored_tokens: int
    num_room_tokens: int
    freed_tokens_per_s: float
    def __init__(self, pool: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_pending_tokens: _Optional[int] = ..., worker: _Optional[_Union[_types_pb2.WorkerReport, _Mapping]] = ..., num_stored_tokens: _Optional[int] = ..., num_room_tokens: _Optional[int] = ..., freed_tokens_per_s: _Optional[float] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens", "also")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    also: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ..., also: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolExplanation]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolExplanation, _Mapping]]] = ...) -> None: ...

class PoolExplanation(_message.Message):
    __slots__ = ("pool", "explanation")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    explanation: Explanation
    def __init__(self, pool: _Optional[str] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_tokens", "cause", "wanted", "found", "num_siblings", "evicted", "elsewhere", "num_host_tokens", "num_disk_tokens")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    NUM_SIBLINGS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_tokens: int
    cause: MissCause
    wanted: bytes
    found: bytes
    num_siblings: int
    evicted: EvictedTokens
    elsewhere: NamespaceMatch
    num_host_tokens: int
    num_disk_tokens: int
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_tokens: _Optional[int] = ..., cause: _Optional[_Union[MissCause, str]] = ..., wanted: _Optional[bytes] = ..., found: _Optional[bytes] = ..., num_siblings: _Optional[int] = ..., evicted: _Optional[_Union[EvictedTokens, _Mapping]] = ..., elsewhere: _Optional[_Union[NamespaceMatch, _Mapping]] = ..., num_host_tokens: _Optional[int] = ..., num_disk_tokens: _Optional[int] = ...) -> None: ...

class EvictedTokens(_message.Message):
    __slots__ = ("num_tokens", "ago_s", "reason")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGO_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    ago_s: float
    reason: EvictionReason
    def __init__(self, num_tokens: _Optional[int] = ..., ago_s: _Optional[float] = ..., reason: _Optional[_Union[EvictionReason, str]] = ...) -> None: ...

class NamespaceMatch(_message.Message):
    __slots__ = ("namespace", "num_tokens")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    num_tokens: int
    def __init__(self, namespace: _Optional[str] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("pool", "num_blocks", "request_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_blocks: int
    request_id: str
    def __init__(self, pool: _Optional[str] = ..., num_blocks: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolEvicted]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolEvicted, _Mapping]]] = ...) -> None: ...

class PoolEvicted(_message.Message):
    __slots__ = ("pool", "num_blocks")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_blocks: int
    def __init__(self, pool: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class EvictBranchRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens", "request_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    request_id: str
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ..., request_id: _Optional[str] = ...) -> None: ...

class EvictBranchResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolEvicted]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolEvicted, _Mapping]]] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("pool", "namespace", "request_id")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    request_id: str
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ClearResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolCleared]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolCleared, _Mapping]]] = ...) -> None: ...

class PoolCleared(_message.Message):
    __slots__ = ("pool", "num_blocks")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_blocks: int
    def __init__(self, pool: _Optional[str] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens", "ttl_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    ttl_s: float
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ..., ttl_s: _Optional[float] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolPin]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolPin, _Mapping]]] = ...) -> None: ...

class PoolPin(_message.Message):
    __slots__ = ("pool", "pin")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    pool: str
    pin: PinInfo
    def __init__(self, pool: _Optional[str] = ..., pin: _Optional[_Union[PinInfo, _Mapping]] = ...) -> None: ...

class PinInfo(_message.Message):
    __slots__ = ("namespace", "tokens", "num_tokens", "num_blocks", "ttl_s", "remaining_s")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    tokens: bytes
    num_tokens: int
    num_blocks: int
    ttl_s: float
    remaining_s: float
    def __init__(self, namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., ttl_s: _Optional[float] = ..., remaining_s: _Optional[float] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolUnpinned]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolUnpinned, _Mapping]]] = ...) -> None: ...

class PoolUnpinned(_message.Message):
    __slots__ = ("pool", "was_pinned")
    POOL_FIELD_NUMBER: _ClassVar[int]
    WAS_PINNED_FIELD_NUMBER: _ClassVar[int]
    pool: str
    was_pinned: bool
    def __init__(self, pool: _Optional[str] = ..., was_pinned: _Optional[bool] = ...) -> None: ...

class PinsRequest(_message.Message):
    __slots__ = ("pool", "namespace")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class PinsResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolPins]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolPins, _Mapping]]] = ...) -> None: ...

class PoolPins(_message.Message):
    __slots__ = ("pool", "pins")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    pins: _containers.RepeatedCompositeFieldContainer[PinInfo]
    def __init__(self, pool: _Optional[str] = ..., pins: _Optional[_Iterable[_Union[PinInfo, _Mapping]]] = ...) -> None: ...

class RetainRequest(_message.Message):
    __slots__ = ("pool", "namespace", "tokens", "retention")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    tokens: bytes
    retention: _containers.RepeatedCompositeFieldContainer[_types_pb2.Retention]
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., tokens: _Optional[bytes] = ..., retention: _Optional[_Iterable[_Union[_types_pb2.Retention, _Mapping]]] = ...) -> None: ...

class RetainResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolRetained]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolRetained, _Mapping]]] = ...) -> None: ...

class PoolRetained(_message.Message):
    __slots__ = ("pool", "num_tokens")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_tokens: int
    def __init__(self, pool: _Optional[str] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class SetQuotaRequest(_message.Message):
    __slots__ = ("pool", "namespace", "blocks", "sequences")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    blocks: int
    sequences: int
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ..., blocks: _Optional[int] = ..., sequences: _Optional[int] = ...) -> None: ...

class SetQuotaResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolQuota]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolQuota, _Mapping]]] = ...) -> None: ...

class PoolQuota(_message.Message):
    __slots__ = ("pool", "usage")
    POOL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    usage: NamespaceUsage
    def __init__(self, pool: _Optional[str] = ..., usage: _Optional[_Union[NamespaceUsage, _Mapping]] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("pool", "namespace")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class UsageResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolUsage]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolUsage, _Mapping]]] = ...) -> None: ...

class PoolUsage(_message.Message):
    __slots__ = ("pool", "usages")
    POOL_FIELD_NUMBER: _ClassVar[int]
    USAGES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    usages: _containers.RepeatedCompositeFieldContainer[NamespaceUsage]
    def __init__(self, pool: _Optional[str] = ..., usages: _Optional[_Iterable[_Union[NamespaceUsage, _Mapping]]] = ...) -> None: ...

class NamespaceUsage(_message.Message):
    __slots__ = ("namespace", "num_blocks", "num_blocks_in_use", "num_sequences", "block_quota", "sequence_quota", "num_query_tokens", "num_hit_tokens", "held_block_s", "num_host_blocks", "num_disk_blocks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_QUOTA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_QUOTA_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCK_S_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    num_blocks: int
    num_blocks_in_use: int
    num_sequences: int
    block_quota: int
    sequence_quota: int
    num_query_tokens: int
    num_hit_tokens: int
    held_block_s: float
    num_host_blocks: int
    num_disk_blocks: int
    def __init__(self, namespace: _Optional[str] = ..., num_blocks: _Optional[int] = ..., num_blocks_in_use: _Optional[int] = ..., num_sequences: _Optional[int] = ..., block_quota: _Optional[int] = ..., sequence_quota: _Optional[int] = ..., num_query_tokens: _Optional[int] = ..., num_hit_tokens: _Optional[int] = ..., held_block_s: _Optional[float] = ..., num_host_blocks: _Optional[int] = ..., num_disk_blocks: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolStats]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolStats, _Mapping]]] = ...) -> None: ...

class PoolStats(_message.Message):
    __slots__ = ("pool", "num_blocks", "block_size", "num_free_blocks", "num_cached_blocks", "num_private_blocks", "num_evictable_blocks", "num_promised_blocks", "num_nodes", "num_sequences", "num_queries", "num_query_tokens", "num_hit_tokens", "num_inserted_tokens", "num_forks", "num_evicted_blocks", "num_copied_tokens", "num_pending", "num_notices", "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds", "num_pins", "num_pinned_blocks", "num_event_subscribers", "num_events_sent", "num_event_resets", "eviction", "num_missed_new_tokens", "num_missed_parted_tokens", "num_missed_evicted_tokens", "eviction_followed", "num_host_blocks", "num_disk_blocks", "worker")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PRIVATE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMISED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_INSERTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_FORKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_COPIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_FIELD_NUMBER: _ClassVar[int]
    NUM_NOTICES_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_IDLE_BEFORE_EVICT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_REUSE_GAP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PINS_FIELD_NUMBER: _ClassVar[int]
    NUM_PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENT_SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENT_RESETS_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_PARTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_EVICTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    NUM_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_DISK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    pool: str
    num_blocks: int
    block_size: int
    num_free_blocks: int
    num_cached_blocks: int
    num_private_blocks: int
    num_evictable_blocks: int
    num_promised_blocks: int
    num_nodes: int
    num_sequences: int
    num_queries: int
    num_query_tokens: int
    num_hit_tokens: int
    num_inserted_tokens: int
    num_forks: int
    num_evicted_blocks: int
    num_copied_tokens: int
    num_pending: int
    num_notices: int
    kv_block_lifetime_seconds: TimeHistogram
    kv_block_idle_before_evict_seconds: TimeHistogram
    kv_block_reuse_gap_seconds: TimeHistogram
    num_pins: int
    num_pinned_blocks: int
    num_event_subscribers: int
    num_events_sent: int
    num_event_resets: int
    eviction: str
    num_missed_new_tokens: int
    num_missed_parted_tokens: int
    num_missed_evicted_tokens: int
    eviction_followed: str
    num_host_blocks: int
    num_disk_blocks: int
    worker: _types_pb2.WorkerReport
    def __init__(self, pool: _Optional[str] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., num_private_blocks: _Optional[int] = ..., num_evictable_blocks: _Optional[int] = ..., num_promised_blocks: _Optional[int] = ..., num_nodes: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_queries: _Optional[int] = ..., num_query_tokens: _Optional[int] = ..., num_hit_tokens: _Optional[int] = ..., num_inserted_tokens: _Optional[int] = ..., num_forks: _Optional[int] = ..., num_evicted_blocks: _Optional[int] = ..., num_copied_tokens: _Optional[int] = ..., num_pending: _Optional[int] = ..., num_notices: _Optional[int] = ..., kv_block_lifetime_seconds: _Optional[_Union[TimeHistogram, _Mapping]] = ..., kv_block_idle_before_evict_seconds: _Optional[_Union[TimeHistogram, _Mapping]] = ..., kv_block_reuse_gap_seconds: _Optional[_Union[TimeHistogram, _Mapping]] = ..., num_pins: _Optional[int] = ..., num_pinned_blocks: _Optional[int] = ..., num_event_subscribers: _Optional[int] = ..., num_events_sent: _Optional[int] = ..., num_event_resets: _Optional[int] = ..., eviction: _Optional[str] = ..., num_missed_new_tokens: _Optional[int] = ..., num_missed_parted_tokens: _Optional[int] = ..., num_missed_evicted_tokens: _Optional[int] = ..., eviction_followed: _Optional[str] = ..., num_host_blocks: _Optional[int] = ..., num_disk_blocks: _Optional[int] = ..., worker: _Optional[_Union[_types_pb2.WorkerReport, _Mapping]] = ...) -> None: ...

class TimeHistogram(_message.Message):
    __slots__ = ("bounds_s", "counts", "sum_s")
    BOUNDS_S_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    bounds_s: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_s: float
    def __init__(self, bounds_s: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., sum_s: _Optional[float] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("pools",)
    POOLS_FIELD_NUMBER: _ClassVar[int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolCheck]
    def __init__(self, pools: _Optional[_Iterable[_Union[PoolCheck, _Mapping]]] = ...) -> None: ...

class PoolCheck(_message.Message):
    __slots__ = ("pool", "violation", "num_audits")
    POOL_FIELD_NUMBER: _ClassVar[int]
    VIOLATION_FIELD_NUMBER: _ClassVar[int]
    NUM_AUDITS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    violation: str
    num_audits: int
    def __init__(self, pool: _Optional[str] = ..., violation: _Optional[str] = ..., num_audits: _Optional[int] = ...) -> None: ...

class DumpRequest(_message.Message):
    __slots__ = ("pool", "namespace")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    pool: str
    namespace: str
    def __init__(self, pool: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class DumpResponse(_message.Message):
    __slots__ = ("pool", "nodes", "now_s")
    POOL_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NOW_S_FIELD_NUMBER: _ClassVar[int]
    pool: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    now_s: float
    def __init__(self, pool: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., now_s: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_id", "parent_id", "namespace", "position", "tokens", "block_ids", "is_tail", "lock_ref", "last_access_s", "pinned_until_s", "priority", "retained_until_s", "num_sequences")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_TAIL_FIELD_NUMBER: _ClassVar[int]
    LOCK_REF_FIELD_NUMBER: _ClassVar[int]
    LAST_ACCESS_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETAINED_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    parent_id: int
    namespace: str
    position: int
    tokens: bytes
    block_ids: bytes
    is_tail: bool
    lock_ref: int
    last_access_s: float
    pinned_until_s: float
    priority: int
    retained_until_s: float
    num_sequences: int
    def __init__(self, node_id: _Optional[int] = ..., parent_id: _Optional[int] = ..., namespace: _Optional[str] = ..., position: _Optional[int] = ..., tokens: _Optional[bytes] = ..., block_ids: _Optional[bytes] = ..., is_tail: _Optional[bool] = ..., lock_ref: _Optional[int] = ..., last_access_s: _Optional[float] = ..., pinned_until_s: _Optional[float] = ..., priority: _Optional[int] = ..., retained_until_s: _Optional[float] = ..., num_sequences: _Optional[int] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("pool", "start", "namespace", "follow")
    POOL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    pool: str
    start: int
    namespace: str
    follow: bool
    def __init__(self, pool: _Optional[str] = ..., start: _Optional[int] = ..., namespace: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("pool", "incarnation", "events")
    POOL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    incarnation: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, pool: _Optional[str] = ..., incarnation: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence_number", "kind", "namespace", "position", "tokens", "block_ids", "block_hashes", "parent_hash", "tier")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    PARENT_HASH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    kind: EventKind
    namespace: str
    position: int
    tokens: bytes
    block_ids: bytes
    block_hashes: bytes
    parent_hash: int
    tier: Tier
    def __init__(self, sequence_number: _Optional[int] = ..., kind: _Optional[_Union[EventKind, str]] = ..., namespace: _Optional[str] = ..., position: _Optional[int] = ..., tokens: _Optional[bytes] = ..., block_ids: _Optional[bytes] = ..., block_hashes: _Optional[bytes] = ..., parent_hash: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ...) -> None: ...

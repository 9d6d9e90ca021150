"""Settings of a cache service, with every bound."""

from __future__ import annotations

from dataclasses import dataclass, field

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.eviction import DEFAULT_POLICY, check_policy_name
from radixkv.net.calls.auth import MAX_CALLS, REQUEST_S
from radixkv.net.tls import Security
from radixkv.service.quotas import Quota, check_quotas

__all__ = ["DEFAULT_ADDRESS", "MAX_NAME_CHARACTERS", "ServiceConfig"]

DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_NAME_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of one cache service.

    Attributes:
        addresses: addresses to listen on: ``host:port`` (port 0 takes a free one) or ``unix:path``. At least one.
        lease_ttl_s: a lease ends after this long without a message from its holder.
        max_message_bytes: largest message that is read.
        max_unacknowledged_steps: most answers kept per pool for a holder that has not acknowledged them.
        max_unacknowledged_notices: most notices kept per pool for a holder that has not acknowledged them; more wait in the
            cache, where acquires no longer wait once there are too many.
        max_ops_per_step: most ops in one Step.
        max_children_per_fork: most children of one fork.
        max_pools: most pools attached at a time.
        max_blocks_per_pool: most blocks of one pool.
        max_retired_incarnations: how many ended lives of pools are recorded, to reject them by name.
        max_stored_requests: how many answers to calls with a request id are kept.
        eviction: the policy that orders eviction in every pool, by name; see `radixkv.core.eviction.POLICIES`.
        pin_budget: block-seconds that the pins of one namespace of one pool may cost, each its blocks times its ttl; half of
            the pool for an hour if None.
        quotas: partitions of every pool for single namespaces, and bounds on their sequences; see `QuotaBook` for pools that
            are too small for them.
        max_quotas_per_pool: most namespaces with a quota in one pool.
        max_event_subscribers: how many streams may follow events at a time.
        max_kept_events: how many events are kept per pool for subscribers that resume or are slow, and how many changes may
            wait to be read.
        security: authentication of callers, and protection of the transport.
        kv_events_endpoint: a ZMQ endpoint to publish KV events on in vLLM's format, such as ``tcp://127.0.0.1:5557``; None: no
            such publisher. Every client of it sees the token ids of every namespace.
        kv_events_replay_endpoint: a second one, from which routers get missed batches; None: they cannot.
        kv_events_topic: the first frame of each message.
        kv_events_pool: the pool that is published.
        kv_events_arrays: publish each event as an array that begins with its name, as SGLang and older versions of vLLM do, and
            not as a map. Namespaces are its last element, which such a subscriber may not know.
        unread_s: a reader that reads nothing of a listing or of events for so long is cut off.
        request_s: how long the request of a call may take to arrive.
        max_calls: calls at once, not counting those of health and the streams of holders; requests over it are rejected before
            they are read. Callers with keys share them, see `Shares`.
        audit_s: pause between two audits of all pools, which are verified a millisecond at a time; 0: no audits.
        drain_s: how long a stopping service waits for calls in progress.
        metrics_address: ``host:port`` at which Prometheus reads the metrics of all pools over HTTP; None: none. Every client of
            it sees the load and the names of namespaces.
    """

    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    lease_ttl_s: float = 10.0
    max_message_bytes: int = 16 * 1024 * 1024
    max_unacknowledged_steps: int = 256
    max_unacknowledged_notices: int = 65_536
    max_ops_per_step: int = 4096
    max_children_per_fork: int = 4096
    max_pools: int = 64
    max_blocks_per_pool: int = 1 << 24
    max_retired_incarnations: int = 4096
    max_stored_requests: int = 1024
    eviction: str = DEFAULT_POLICY
    pin_budget: float | None = None
    quotas: tuple[Quota, ...] = ()
    max_quotas_per_pool: int = 1024
    max_event_subscribers: int = 32
    max_kept_events: int = 16_384
    security: Security = field(default_factory=Security)
    kv_events_endpoint: str | None = None
    kv_events_replay_endpoint: str | None = None
    kv_events_topic: str = ""
    kv_events_pool: str = "default"
    kv_events_arrays: bool = False
    unread_s: float = 30.0
    request_s: float = REQUEST_S
    max_calls: int = MAX_CALLS
    audit_s: float = 10.0
    drain_s: float = 2.0
    metrics_address: str | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InvalidArgumentError("addresses", self.addresses, "at least one address")
        if not self.lease_ttl_s >= 0.001:
            raise InvalidArgumentError("lease_ttl_s", self.lease_ttl_s, "at least 0.001 seconds")
        if not self.unread_s > 0:
            raise InvalidArgumentError("unread_s", self.unread_s, "above 0 seconds")
        if not self.request_s > 0:
            raise InvalidArgumentError("request_s", self.request_s, "above 0 seconds")
        if not self.audit_s >= 0:
            raise InvalidArgumentError("audit_s", self.audit_s, "at least 0 seconds")
        if not self.drain_s >= 0:
            raise InvalidArgumentError("drain_s", self.drain_s, "at least 0 seconds")
        check_policy_name(self.eviction)
        if self.pin_budget is not None and not self.pin_budget >= 0:
            raise InvalidArgumentError("pin_budget", self.pin_budget, "at least 0 block-seconds")
        check_quotas(self.quotas)
        if len(self.quotas) > self.max_quotas_per_pool:
            raise InvalidArgumentError("quotas", f"{len(self.quotas)} of them", f"at most {self.max_quotas_per_pool}")
        if self.kv_events_replay_endpoint and not self.kv_events_endpoint:
            bound = "given along with kv_events_endpoint only"
            raise InvalidArgumentError("kv_events_replay_endpoint", self.kv_events_replay_endpoint, bound)
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, getattr(self, name), "at least 1")


_AT_LEAST_ONE = (
    "max_message_bytes",
    "max_unacknowledged_steps",
    "max_unacknowledged_notices",
    "max_ops_per_step",
    "max_children_per_fork",
    "max_pools",
    "max_blocks_per_pool",
    "max_retired_incarnations",
    "max_stored_requests",
    "max_quotas_per_pool",
    "max_event_subscribers",
    "max_kept_events",
    "max_calls",
)

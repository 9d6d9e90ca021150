"""The reader's calls of a service, and their channel."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import grpc

from radixkv.core import validation
from radixkv.core.api import (
    DEFAULT_NAMESPACE,
    BlockTimes,
    CacheEvent,
    CacheStats,
    EventStats,
    Explanation,
    MatchResult,
    NamespaceUsage,
    NodeInfo,
    PinInfo,
    PoolRoute,
    RetainOp,
    Retention,
    WorkerReport,
)
from radixkv.core.errors import CorruptionError, InvalidArgumentError, UnavailableError, UnknownPoolError
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.net.channel import Credentials, make_channel
from radixkv.net.retry import retry_policy, retry_waits_s
from radixkv.util.closing import Closing
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc
from radixkv.wire.errors import error_from_rpc
from radixkv.wire.reads import (
    BLOCK_TIMES,
    EVENT,
    EVENT_STATS,
    EXPLANATION,
    MATCH,
    NODE,
    PIN,
    RETAIN,
    ROUTE,
    STATS,
    USAGE,
)
from radixkv.wire.values import WORKER_REPORT

__all__ = ["PoolCheck", "RemoteReader", "open_channel"]

_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


def open_channel(address: str, credentials: Credentials | None = None, *, retries: bool = True) -> grpc.Channel:
    """A channel to a service; nothing is sent yet. `retries`: whether calls that cannot reach it are retried.

    Raises:
        InvalidArgumentError: an address that cannot be read, or credentials that cannot be used there.
    """
    retrying = (
        retry_policy(readers.DESCRIPTOR.services_by_name["PrefixCache"]) if retries else ("grpc.enable_retries", 0)
    )
    return make_channel(address, credentials, (*_CHANNEL_OPTIONS, retrying))


class PoolCheck(NamedTuple):
    """The result of `check` for one pool: the first violated invariant or ``""``, and the number of the service's audits."""

    violation: str
    num_audits: int


class RemoteReader(Closing):
    """A `CacheReader` of one pool of a service, a context manager. Calls may come from any thread.

    Args:
        address: ``host:port`` or ``unix:path``.
        pool_name: the pool of its calls.
        timeout_s: how long each call waits for its answer.
        credentials: the caller's, and those that secure the connection; None: anonymous, in plaintext.
        retries: whether calls that cannot reach the service are retried.

    Every call raises `UnavailableError` when the service cannot be reached or does not answer in time, `UnknownPoolError` when
    the pool is not attached, and otherwise the errors of `PrefixCache`. A call that cannot reach the service is retried for
    about a second and a half, within its timeout; a retried change is made once.
    """

    def __init__(
        self,
        address: str,
        pool_name: str = "default",
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        retries: bool = True,
    ) -> None:
        if not timeout_s > 0:
            raise InvalidArgumentError("timeout_s", timeout_s, "above 0")
        self.address = address
        self.pool_name = pool_name
        self._timeout_s = timeout_s
        self._channel = open_channel(address, credentials, retries=retries)
        self._stub = prefix_cache_pb2_grpc.PrefixCacheStub(self._channel)  # type: ignore[no-untyped-call]  # generated

    def of_pool(self, pool_name: str, timeout_s: float | None = None) -> RemoteReader:
        """A reader of another pool, over the same connection: closing one closes both. With this timeout, or the same."""
        other = object.__new__(RemoteReader)
        vars(other).update(vars(self), pool_name=pool_name, _timeout_s=timeout_s or self._timeout_s)
        return other

    def match(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> MatchResult:
        """See `PrefixCache.match`."""
        return MATCH.read(self._only(self._match(self.pool_name, tokens, namespace)))

    def match_all(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> dict[str, MatchResult]:
        """`match` in every pool of the service, by name, for a router."""
        return {pool.pool: MATCH.read(pool) for pool in self._match("", tokens, namespace).pools}

    def _match(self, pool_name: str, tokens: TokensLike, namespace: str) -> readers.MatchResponse:
        packed = pack_tokens(tokens)
        validation.check_namespace(namespace)
        response: readers.MatchResponse = self._call(
            self._stub.Match, readers.MatchRequest(pool=pool_name, namespace=namespace, tokens=packed)
        )
        return response

    def route_all(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> dict[str, PoolRoute]:
        """The cached part of a prompt in every pool of the service, and its worker, by name of the pool.

        Raises:
            LimitError: the service has more than 64 pools.
        """
        return self.begin_route(tokens, namespace, self._timeout_s)()

    def begin_route(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, timeout_s: float = 10.0
    ) -> Callable[[], dict[str, PoolRoute]]:
        """Begin `route_all` and return at once a function that waits for the answer; it raises as `route_all`."""
        request = readers.RouteRequest(namespace=validation.check_namespace(namespace), tokens=pack_tokens(tokens))
        try:
            call = self._stub.Route.future(request, timeout=timeout_s)
        except ValueError:
            raise self._closed() from None

        def wait() -> dict[str, PoolRoute]:
            try:
                return {pool.pool: ROUTE.read(pool) for pool in call.result().pools}
            except grpc.RpcError as error:
                raise error_from_rpc(error, self.address) from None
            except grpc.FutureCancelledError:
                raise self._closed() from None

        return wait

    def explain(
        self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE, other_namespaces: Sequence[str] = ()
    ) -> Explanation:
        """See `PrefixCache.explain`."""
        response = self._explain(self.pool_name, tokens, namespace, other_namespaces)
        return EXPLANATION.read(self._only(response).explanation)

    def explain_all(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, other_namespaces: Sequence[str] = ()
    ) -> dict[str, Explanation]:
        """`explain` by every pool of the service, by name."""
        response = self._explain("", tokens, namespace, other_namespaces)
        return {pool.pool: EXPLANATION.read(pool.explanation) for pool in response.pools}

    def _explain(
        self, pool_name: str, tokens: TokensLike, namespace: str, other_namespaces: Sequence[str]
    ) -> readers.ExplainResponse:
        request = readers.ExplainRequest(
            pool=pool_name,
            tokens=pack_tokens(tokens),
            namespace=validation.check_namespace(namespace),
            also=validation.check_other_namespaces(other_namespaces),
        )
        response: readers.ExplainResponse = self._call(self._stub.Explain, request)
        return response

    def evict(self, num_blocks: int) -> int:
        """See `PrefixCache.evict`."""
        validation.check_int("num_blocks", num_blocks, 0, validation.MAX_SEQ_ID)
        request = readers.EvictRequest(pool=self.pool_name, num_blocks=num_blocks, request_id=_new_request_id())
        return int(self._only(self._call(self._stub.Evict, request)).num_blocks)

    def evict_branch(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """See `PrefixCache.evict_branch`."""
        request = readers.EvictBranchRequest(
            pool=self.pool_name,
            namespace=validation.check_namespace(namespace),
            tokens=pack_tokens(tokens),
            request_id=_new_request_id(),
        )
        return int(self._only(self._call(self._stub.EvictBranch, request)).num_blocks)

    def clear(self, namespace: str = DEFAULT_NAMESPACE) -> int:
        """See `PrefixCache.clear`."""
        request = readers.ClearRequest(
            pool=self.pool_name, namespace=validation.check_namespace(namespace), request_id=_new_request_id()
        )
        return int(self._only(self._call(self._stub.Clear, request)).num_blocks)

    def pin(self, tokens: TokensLike, *, ttl: float | str = "5m", namespace: str = DEFAULT_NAMESPACE) -> PinInfo:
        """See `PrefixCache.pin`."""
        packed = pack_tokens(tokens)
        request = readers.PinRequest(
            pool=self.pool_name,
            namespace=validation.check_namespace(namespace),
            tokens=packed,
            ttl_s=validation.check_ttl(ttl),
        )
        pin = PIN.read(self._only(self._call(self._stub.Pin, request)).pin)
        return pin._replace(tokens=packed[: pin.num_tokens * TOKEN_BYTES])

    def unpin(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """See `PrefixCache.unpin`."""
        packed = pack_tokens(tokens)
        request = readers.UnpinRequest(
            pool=self.pool_name, namespace=validation.check_namespace(namespace), tokens=packed
        )
        return bool(self._only(self._call(self._stub.Unpin, request)).was_pinned)

    def pins(self, namespace: str | None = None) -> list[PinInfo]:
        """See `PrefixCache.pins`."""
        request = readers.PinsRequest(pool=self.pool_name, namespace=_optional_namespace(namespace))
        return [PIN.read(pin) for pin in self._only(self._call(self._stub.Pins, request)).pins]

    def retain(self, tokens: TokensLike, *, retention: Sequence[Retention], namespace: str = DEFAULT_NAMESPACE) -> int:
        """See `PrefixCache.retain`."""
        op = RetainOp(pack_tokens(tokens), validation.check_retention(retention), validation.check_namespace(namespace))
        request = RETAIN.to_proto(op, pool=self.pool_name)
        return int(self._only(self._call(self._stub.Retain, request)).num_tokens)

    def set_quota(
        self, namespace: str = DEFAULT_NAMESPACE, blocks: int | None = None, sequences: int | None = None
    ) -> NamespaceUsage:
        """See `PrefixCache.set_quota`. The service keeps it for later lives of the pool too, and its holder for a
        restarted service.

        Raises:
            LimitError: more namespaces would have a quota than the service allows.
        """
        validation.check_namespace(namespace)
        if sequences is not None:
            validation.check_int("sequences", sequences, 0, validation.MAX_SEQ_ID)
        if blocks is not None:
            validation.check_int("blocks", blocks, 0, validation.MAX_SEQ_ID)
        request = readers.SetQuotaRequest(pool=self.pool_name, namespace=namespace, blocks=blocks, sequences=sequences)
        return USAGE.read(self._only(self._call(self._stub.SetQuota, request)).usage)

    def usage(self, namespace: str | None = None) -> list[NamespaceUsage]:
        """See `PrefixCache.usage`."""
        request = readers.UsageRequest(pool=self.pool_name, namespace=_optional_namespace(namespace))
        return [USAGE.read(usage) for usage in self._only(self._call(self._stub.Usage, request)).usages]

    def usage_all(self) -> dict[str, list[NamespaceUsage]]:
        """`usage` of every pool of the service, by name, and of all its namespaces."""
        response = self._call(self._stub.Usage, readers.UsageRequest())
        return {pool.pool: [USAGE.read(usage) for usage in pool.usages] for pool in response.pools}

    def stats(self) -> CacheStats:
        """See `PrefixCache.stats`."""
        return STATS.read(self._pool_stats())

    def block_times(self) -> BlockTimes:
        """See `PrefixCache.block_times`."""
        return BLOCK_TIMES.read(self._pool_stats())

    def event_stats(self) -> EventStats:
        """See `PrefixCache.event_stats`."""
        return EVENT_STATS.read(self._pool_stats())

    def stats_all(self) -> dict[str, CacheStats]:
        """`stats` of every pool of the service, by name."""
        return {pool.pool: STATS.read(pool) for pool in self._all_stats()}

    def workers_all(self) -> dict[str, WorkerReport]:
        """The report of every pool's holder, by name of the pool."""
        return {pool.pool: WORKER_REPORT.read(pool.worker) for pool in self._all_stats()}

    def event_stats_all(self) -> dict[str, EventStats]:
        """`event_stats` of every pool of the service, by name."""
        return {pool.pool: EVENT_STATS.read(pool) for pool in self._all_stats()}

    def check(self) -> None:
        """See `PrefixCache.check`.

        Raises:
            CorruptionError: an invariant is broken; the message names it.
        """
        violation = self._only(self._call(self._stub.Check, readers.CheckRequest(pool=self.pool_name))).violation
        if violation:
            raise CorruptionError(violation)

    def check_all(self) -> dict[str, PoolCheck]:
        """`check` of every pool of the service, by name, without raising, and the number of the service's own audits."""
        response = self._call(self._stub.Check, readers.CheckRequest())
        return {pool.pool: PoolCheck(pool.violation, pool.num_audits) for pool in response.pools}

    def dump(self, namespace: str | None = None) -> list[NodeInfo]:
        """See `PrefixCache.dump`."""
        return self.dump_at(namespace)[1]

    def dump_at(self, namespace: str | None = None) -> tuple[float, list[NodeInfo]]:
        """`dump`, with the time of the service's clock at which it was taken: times of nodes are by that clock."""
        request = readers.DumpRequest(pool=self.pool_name, namespace=_optional_namespace(namespace))
        now_s = 0.0
        nodes: list[NodeInfo] = []
        for response in self._call(_whole(self._stub.Dump), request):
            now_s = response.now_s
            nodes.extend(map(NODE.read, response.nodes))
        return now_s, nodes

    def events(self, start: int = 0, namespace: str | None = None) -> list[CacheEvent]:
        """See `PrefixCache.events`."""
        responses = self._call(_whole(self._stub.Events), self._events_request(start, namespace, follow=False))
        return [EVENT.read(event) for response in responses for event in response.events]

    def follow_events(self, start: int = 0, namespace: str | None = None) -> Iterator[CacheEvent]:
        """`events`, followed by later ones. Ends with `UnknownPoolError` when the pool's lease ends.

        A reader that is too slow for the service's stored events gets a ``"reset"``, followed by a new snapshot.

        Raises:
            LimitError: too many subscribers.
        """
        for response in self._stream(self._stub.Events, self._events_request(start, namespace, follow=True)):
            yield from map(EVENT.read, response.events)

    def _events_request(self, start: int, namespace: str | None, follow: bool) -> readers.EventsRequest:
        return readers.EventsRequest(
            pool=self.pool_name, start=start, namespace=_optional_namespace(namespace), follow=follow
        )

    def close(self) -> None:
        """Close the connection. May be repeated."""
        self._channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as call:
            raise error_from_rpc(call, self.address) from None
        except ValueError:  # grpc's way to say so
            raise self._closed() from None

    def _closed(self) -> UnavailableError:
        return UnavailableError(f"the connection to the service at {self.address} is closed")

    def _stream(self, method: Any, request: Any) -> Iterator[Any]:
        try:
            call = method(request)
        except ValueError:
            raise self._closed() from None
        try:
            yield from call
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.address) from None
        finally:
            call.cancel()

    def _all_stats(self) -> Any:
        return self._call(self._stub.Stats, readers.StatsRequest()).pools

    def _pool_stats(self) -> Any:
        return self._only(self._call(self._stub.Stats, readers.StatsRequest(pool=self.pool_name)))

    def _only(self, response: Any) -> Any:
        if len(response.pools) != 1:
            raise UnknownPoolError(f"{len(response.pools)} pools answer to {self.pool_name!r}; name one")
        return response.pools[0]


def _new_request_id() -> str:
    """An id by which the service recognises a retried change, and makes it once."""
    return uuid.uuid4().hex


def _optional_namespace(namespace: str | None) -> str | None:
    return None if namespace is None else validation.check_namespace(namespace)


def _whole(method: Any) -> Any:
    """A call that answers with all messages of this method's stream, retried as gRPC retries calls of one answer."""

    def read(request: Any, timeout: float) -> list[Any]:
        until_s = time.monotonic() + timeout
        for wait_s in retry_waits_s():
            try:
                return list(method(request, timeout=until_s - time.monotonic()))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() + wait_s > until_s:
                    raise
            time.sleep(wait_s)
        return list(method(request, timeout=until_s - time.monotonic()))

    return read

"""The `PrefixCache` service: the readers' calls, on one pool or on all."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import closing
from functools import partial, wraps
from typing import Any, TypeVar

from radixkv.core.errors import CorruptionError, InvalidArgumentError, LimitError, UnavailableError
from radixkv.net.calls.callers import current_caller
from radixkv.service.config import MAX_NAME_CHARACTERS
from radixkv.service.events.subscriptions import PoolEventStream, SubscriberGate
from radixkv.service.pools.table import Pool, PoolTable
from radixkv.v1 import prefix_cache_pb2 as readers
from radixkv.v1 import prefix_cache_pb2_grpc
from radixkv.wire.reads import EVENT, EXPLANATION, MATCH, NODE, PIN, RETAIN, ROUTE, USAGE, stats_to_proto
from radixkv.wire.values import WORKER_REPORT, named_namespace, namespace_of

__all__ = ["PrefixCacheServicer"]

CHUNK_BYTES = 256 * 1024
MAX_ROUTED_POOLS = 64

ERASED_WITHIN_S = 5.0
"""Longest wait for the holder of a cleared pool."""

_POLL_S = 0.005

_Answer = TypeVar("_Answer")
_Call = Callable[["PrefixCacheServicer", Any], _Answer]


def _unary(call: _Call[_Answer]) -> Callable[[PrefixCacheServicer, Any, Any], Coroutine[Any, Any, _Answer]]:
    """Serve a plain method as a unary call."""

    @wraps(call)
    async def serve(self: PrefixCacheServicer, request: Any, _context: Any) -> _Answer:
        return call(self, request)

    return serve


class PrefixCacheServicer(prefix_cache_pb2_grpc.PrefixCacheServicer):
    """Serves readers from the pool table, on the event loop's thread."""

    def __init__(self, pools: PoolTable, followers: SubscriberGate) -> None:
        self._pools = pools
        self._followers = followers
        self._stored: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    @_unary
    def Match(self, request: readers.MatchRequest) -> readers.MatchResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace = namespace_of(request)
        return readers.MatchResponse(
            pools=[
                MATCH.to_proto(pool.cache.match(request.tokens, namespace=namespace), pool=pool.shape.name)
                for pool in self._pools.select(request.pool)
            ]
        )

    @_unary
    def Route(self, request: readers.RouteRequest) -> readers.RouteResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace, pools, now_s = namespace_of(request), self._pools.select(request.pool), self._pools.clock()
        if len(pools) > MAX_ROUTED_POOLS:
            raise LimitError(f"{len(pools)} pools are attached; at most {MAX_ROUTED_POOLS} are routed to at once")
        response, tokens = readers.RouteResponse(), request.tokens  # a copy at every access
        for pool in pools:
            route = pool.cache.route(tokens, namespace=namespace, worker=pool.report(now_s))
            ROUTE.write(route, response.pools.add(pool=pool.shape.name))
        return response

    @_unary
    def Explain(self, request: readers.ExplainRequest) -> readers.ExplainResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace, others, answers = namespace_of(request), list(request.also), []
        for pool in self._pools.select(request.pool):
            explanation = EXPLANATION.to_proto(
                pool.cache.explain(request.tokens, namespace=namespace, other_namespaces=others)
            )
            answers.append(readers.PoolExplanation(pool=pool.shape.name, explanation=explanation))
        return readers.ExplainResponse(pools=answers)

    @_unary
    def Evict(self, request: readers.EvictRequest) -> readers.EvictResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""

        def evict() -> readers.EvictResponse:
            answers = [
                readers.PoolEvicted(
                    pool=pool.shape.name, num_blocks=pool.change(lambda cache: cache.evict(request.num_blocks))
                )
                for pool in self._pools.select(request.pool)
            ]
            return readers.EvictResponse(pools=answers)

        return self._once("evict", request.request_id, evict)

    @_unary
    def EvictBranch(self, request: readers.EvictBranchRequest) -> readers.EvictBranchResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace = namespace_of(request)

        def evict() -> readers.EvictBranchResponse:
            answers = [
                readers.PoolEvicted(
                    pool=pool.shape.name,
                    num_blocks=pool.change(lambda cache: cache.evict_branch(request.tokens, namespace=namespace)),
                )
                for pool in self._pools.select(request.pool)
            ]
            return readers.EvictBranchResponse(pools=answers)

        return self._once("evict_branch", request.request_id, evict)

    async def Clear(self, request: readers.ClearRequest, _context: Any) -> readers.ClearResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""

        def clear() -> readers.ClearResponse:
            answers = []
            for pool in self._pools.select(request.pool):
                num_blocks = pool.change(lambda cache: cache.clear(namespace_of(request)))
                answers.append(readers.PoolCleared(pool=pool.shape.name, num_blocks=num_blocks))
            return readers.ClearResponse(pools=answers)

        response = self._once("clear", request.request_id, clear)
        storing = [pool for pool in self._pools.select(request.pool) if pool.erases]
        erased = await asyncio.gather(*map(_has_erased, storing)) if storing else ()
        for pool, has_erased in zip(storing, erased, strict=True):
            if not has_erased:
                raise UnavailableError(
                    f"pool {pool.shape.name!r} is cleared, but its worker has not confirmed that what it stores is erased; "
                    "it goes on trying: clear again to find out"
                )
        return response

    @_unary
    def Pin(self, request: readers.PinRequest) -> readers.PinResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace, answers = namespace_of(request), []
        for pool in self._pools.select(request.pool):
            pin = pool.change(lambda cache: cache.pin(request.tokens, ttl=request.ttl_s, namespace=namespace))
            answers.append(readers.PoolPin(pool=pool.shape.name, pin=PIN.to_proto(pin._replace(tokens=b""))))
        return readers.PinResponse(pools=answers)

    @_unary
    def Unpin(self, request: readers.UnpinRequest) -> readers.UnpinResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace, answers = namespace_of(request), []
        for pool in self._pools.select(request.pool):
            was_pinned = pool.change(lambda cache: cache.unpin(request.tokens, namespace=namespace))
            answers.append(readers.PoolUnpinned(pool=pool.shape.name, was_pinned=was_pinned))
        return readers.UnpinResponse(pools=answers)

    @_unary
    def Pins(self, request: readers.PinsRequest) -> readers.PinsResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace = named_namespace(request)
        return readers.PinsResponse(
            pools=[
                readers.PoolPins(pool=pool.shape.name, pins=map(PIN.to_proto, pool.cache.pins(namespace)))
                for pool in self._pools.select(request.pool)
            ]
        )

    @_unary
    def Retain(self, request: readers.RetainRequest) -> readers.RetainResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        op = RETAIN.read(request)
        return readers.RetainResponse(
            pools=[
                readers.PoolRetained(
                    pool=pool.shape.name,
                    num_tokens=pool.change(
                        lambda cache: cache.retain(op.tokens, retention=op.retention, namespace=op.namespace)
                    ),
                )
                for pool in self._pools.select(request.pool)
            ]
        )

    @_unary
    def SetQuota(self, request: readers.SetQuotaRequest) -> readers.SetQuotaResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        pools = self._pools.select(request.pool)
        for pool in pools:
            pool.require_told()
            pool.require_quotas()
        usages = self._pools.quotas.set(
            {pool.shape.name: pool.cache for pool in pools},
            namespace_of(request),
            request.blocks if request.HasField("blocks") else None,
            request.sequences if request.HasField("sequences") else None,
        )
        for pool in pools:
            pool.tell()
        answers = [readers.PoolQuota(pool=name, usage=USAGE.to_proto(usage)) for name, usage in usages.items()]
        return readers.SetQuotaResponse(pools=answers)

    @_unary
    def Usage(self, request: readers.UsageRequest) -> readers.UsageResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        namespace = named_namespace(request)
        return readers.UsageResponse(
            pools=[
                readers.PoolUsage(pool=pool.shape.name, usages=map(USAGE.to_proto, pool.cache.usage(namespace)))
                for pool in self._pools.select(request.pool)
            ]
        )

    def _once(self, call: str, request_id: str, change: Callable[[], _Answer]) -> _Answer:
        """Change state, unless a request of that id by the same caller did so before: then return the stored answer."""
        if len(request_id) > MAX_NAME_CHARACTERS:
            bound = f"of at most {MAX_NAME_CHARACTERS} characters"
            raise InvalidArgumentError("request_id", request_id[:256], bound)
        caller = current_caller()
        key = (caller.identity if caller else None, call, request_id)
        if request_id and key in self._stored:
            stored: _Answer = self._stored[key]
            return stored
        answer = change()
        self._followers.changed()
        if request_id:
            self._stored[key] = answer
            if len(self._stored) > self._pools.config.max_stored_requests:
                self._stored.popitem(last=False)
        return answer

    @_unary
    def Stats(self, request: readers.StatsRequest) -> readers.StatsResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        answers, now_s = [], self._pools.clock()
        for pool in self._pools.select(request.pool):
            cache = pool.cache
            answer = stats_to_proto(pool.shape.name, cache.stats(), cache.block_times(), cache.event_stats())
            WORKER_REPORT.write(pool.report(now_s), answer.worker)
            answers.append(answer)
        return readers.StatsResponse(pools=answers)

    @_unary
    def Check(self, request: readers.CheckRequest) -> readers.CheckResponse:  # noqa: N802 the proto's name
        """See prefix_cache.proto."""
        pools = self._pools.select(request.pool)
        return readers.CheckResponse(
            pools=[
                readers.PoolCheck(pool=pool.shape.name, violation=_violation(pool), num_audits=pool.num_audits)
                for pool in pools
            ]
        )

    async def Dump(  # noqa: N802 the proto's name
        self, request: readers.DumpRequest, _context: Any
    ) -> AsyncGenerator[readers.DumpResponse, None]:
        """See prefix_cache.proto."""
        namespace = named_namespace(request)
        for pool in self._pools.select(request.pool):
            listing = pool.cache.list_nodes(namespace)
            while not listing.is_done:
                now_s = self._pools.clock()
                for chunk in _chunks(map(NODE.to_proto, listing.take())):
                    yield readers.DumpResponse(pool=pool.shape.name, nodes=chunk, now_s=now_s)
                await asyncio.sleep(0)  # lets Steps run between two slices

    async def Events(  # noqa: N802 the proto's name
        self, request: readers.EventsRequest, _context: Any
    ) -> AsyncGenerator[readers.EventsResponse, None]:
        """See prefix_cache.proto."""
        namespace = named_namespace(request)
        pools = partial(self._pools.select, request.pool)
        with (
            self._followers.admit(),
            closing(PoolEventStream(pools, self._followers, namespace, request.start)) as stream,
        ):
            while True:
                for pool, events, _ in stream.take():
                    for chunk in _chunks(map(EVENT.to_proto, events)):
                        yield readers.EventsResponse(pool=pool.shape.name, incarnation=pool.incarnation, events=chunk)
                if stream.is_current and not request.follow:
                    return
                await stream.wait()


async def _has_erased(pool: Pool) -> bool:
    """Wait until the holder has acknowledged all changes so far. False: it takes too long, or its stream ends."""
    stream, next_notices, until_s = pool.stream, pool.next_notices, asyncio.get_running_loop().time() + ERASED_WITHIN_S
    while pool.cache.journal.size_bytes or pool.next_notices - len(pool.notices) < next_notices:
        await asyncio.sleep(_POLL_S)
        if pool.stream is not stream or asyncio.get_running_loop().time() > until_s:
            return False
    return stream is not None


def _violation(pool: Pool) -> str:
    try:
        pool.cache.check()
    except CorruptionError as error:
        return str(error) or "an invariant does not hold"
    return ""


def _chunks(protos: Iterator[_Answer]) -> Iterator[list[_Answer]]:
    """Messages grouped into lists of about `CHUNK_BYTES`."""
    chunk: list[_Answer] = []
    size_bytes = 0
    for proto in protos:
        chunk.append(proto)
        size_bytes += proto.ByteSize()  # type: ignore[attr-defined]  # every message has it
        if size_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk

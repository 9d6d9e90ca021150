"""The server: one event loop whose thread owns every pool, and the ways to run it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import grpc
from grpc_health.v1 import health_pb2_grpc

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.net.addresses import Address, parse_address
from radixkv.net.calls.auth import Guard
from radixkv.net.calls.cancelled_calls import new_task
from radixkv.net.calls.health import Health
from radixkv.net.calls.reflecting import enable_reflection
from radixkv.net.keepalive import server_keepalive
from radixkv.net.loop_thread import LoopThread, let_calls_end
from radixkv.net.signals import STOP_SIGNALS, let_the_next_kill
from radixkv.net.tls import bind
from radixkv.service.attach.servicer import WorkersServicer
from radixkv.service.config import ServiceConfig
from radixkv.service.events.smg import KvEventsServicer
from radixkv.service.events.subscriptions import SubscriberGate
from radixkv.service.pools.auditor import Auditor
from radixkv.service.pools.table import PoolTable
from radixkv.service.reading import PrefixCacheServicer
from radixkv.service.runtime.collector import Collector
from radixkv.service.runtime.lasting_calls import LastingCalls
from radixkv.v1 import prefix_cache_pb2, prefix_cache_pb2_grpc, workers_pb2, workers_pb2_grpc

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from radixkv.service.events.zmq import ZmqPublisher

__all__ = ["CacheService", "ServiceThread", "run_service"]

SERVICE_NAMES = (
    workers_pb2.DESCRIPTOR.services_by_name["Workers"].full_name,
    prefix_cache_pb2.DESCRIPTOR.services_by_name["PrefixCache"].full_name,
)
_MOST_BUSY_S = 10.0
"""How long a scrape of the metrics waits for a turn of the loop."""

_STREAMS_PER_CONNECTION = 100
"""Calls in flight, not counting event subscribers; a client queues more by itself. gRPC drops calls at random where too many
are unread, which thus takes a flood from many connections.
"""

_LEAST_UNSEEN = 16_384
"""Calls that may be unread before gRPC drops some at random, of any caller; at twice as many it drops all."""


class CacheService:
    """A cache service on the running event loop.

    Args:
        config: addresses, limits, the lease's TTL.
        clock: seconds, monotonic; for leases and recency.
        collector: called at least once a second with counts of possible garbage; none where the process is not the service's
            own.
        interceptors: further ones, next to the servicers.

    All calls must come from one event loop.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        collector: Collector | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.config = config
        self.addresses: tuple[str, ...] = ()
        self._clock = clock
        self._collector = collector
        self._interceptors = interceptors
        self._calls = LastingCalls()
        self._publisher: ZmqPublisher | None = None
        self._paths: list[str] = []
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics = contextlib.ExitStack()
        self.metrics_address = ""

    async def start(self) -> None:
        """Listen. `addresses` then has the addresses, with the ports that were taken for port 0.

        Raises:
            InvalidArgumentError: an address that cannot be read, is none of this machine's, or is not safe to listen on; a keys
                file or TLS files that cannot be read.
            UnavailableError: an address in use, or one that this process may not listen on. Nothing listens then.
            ModuleNotFoundError: KV events are to be published over ZMQ and pyzmq or msgspec is not installed.
        """
        self._pools = PoolTable(self.config, self._clock)
        self._followers = SubscriberGate(self.config.max_event_subscribers)
        self._workers = WorkersServicer(self._pools, self._followers.changed)
        self._health = Health(SERVICE_NAMES)
        config = self.config
        guard = Guard(
            config.security.ring(),
            max_calls=config.max_calls,
            request_s=config.request_s,
            unread_s=config.unread_s,
        )
        server = grpc.aio.server(
            interceptors=(guard, self._calls, *self._interceptors), options=_server_options(config)
        )
        workers_pb2_grpc.add_WorkersServicer_to_server(self._workers, server)  # type: ignore[no-untyped-call]  # generated
        prefix_cache_pb2_grpc.add_PrefixCacheServicer_to_server(  # type: ignore[no-untyped-call]  # generated
            PrefixCacheServicer(self._pools, self._followers), server
        )
        server.add_generic_rpc_handlers(KvEventsServicer(self._pools, self._followers).handlers())
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        enable_reflection(server, SERVICE_NAMES)
        try:
            self.addresses = tuple(self._listen(server, parse_address(text)) for text in self.config.addresses)
            self._publisher = self._open_publisher()
            self.metrics_address = self._open_metrics()
        except (RadixKVError, ImportError):
            await server.start()  # gRPC gives the ports of a server that never started back with the process alone
            await server.stop(None)
            self._unlink_paths()
            raise
        if self._publisher is not None:
            self._publisher.start()
        await server.start()
        self._server = server
        self._health.serve()
        self._tasks = [asyncio.create_task(self._sweep())]
        if self.config.audit_s:
            self._tasks.append(asyncio.create_task(Auditor(self._pools, self.config.audit_s).run()))

    def _open_publisher(self) -> ZmqPublisher | None:
        if self.config.kv_events_endpoint is None:
            return None
        from radixkv.service.events.zmq import ZmqPublisher  # needs optional packages

        return ZmqPublisher(self.config, self._pools, self._followers)

    def _open_metrics(self) -> str:
        if self.config.metrics_address is None:
            return ""
        from radixkv.net.metrics import PoolFigures, pool_metrics, serve_metrics

        loop = asyncio.get_running_loop()

        async def figures() -> list[PoolFigures]:
            named = ((pool.shape.name, pool.cache) for pool in self._pools.select(""))
            return [PoolFigures(cache.stats(), cache.block_times(), cache.usage(), name) for name, cache in named]

        def collect() -> Iterator[Metric]:
            return pool_metrics(asyncio.run_coroutine_threadsafe(figures(), loop).result(_MOST_BUSY_S))

        return self._metrics.enter_context(serve_metrics(self.config.metrics_address, collect))

    def _listen(self, server: grpc.aio.Server, address: Address) -> str:
        try:
            port = bind(server, address, self.config.security)
        except RuntimeError as error:
            raise UnavailableError(f"cannot listen on {address}: {error}") from None
        if address.path:
            self._paths.append(address.path)
            return str(address)
        return str(address._replace(port=port))

    async def _sweep(self) -> None:
        """Sweep expired leases, and collect garbage."""
        self._pools.sweep()
        while True:
            await asyncio.sleep(self._pools.sweep_interval_s)
            self._pools.sweep()
            self._followers.changed()
            if self._collector is not None:
                self._collector.tell(self._pools.num_ended, self._calls.num_begun)

    async def stop(self) -> None:
        """Drain: reject new calls, end the streams, let calls in progress finish, stop listening. May be repeated."""
        server, self._server = self._server, None
        if server is None:
            return
        await asyncio.to_thread(self._metrics.close)
        self._health.refuse()
        self._workers.stop()
        self._followers.stop()
        if self._publisher is not None:
            await self._publisher.stop()
        await server.stop(self.config.drain_s)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._unlink_paths()

    def _unlink_paths(self) -> None:
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _server_options(config: ServiceConfig) -> list[tuple[str, int]]:
    num_unseen = max(_LEAST_UNSEEN, config.max_calls)
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION + config.max_event_subscribers),
        ("grpc.server.max_pending_requests", num_unseen),
        ("grpc.server.max_pending_requests_hard_limit", 2 * num_unseen),
        *server_keepalive(),
    ]


def run_service(config: ServiceConfig, on_ready: Callable[[tuple[str, ...]], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM, then drain; a second one ends the process at once. Prints nothing. Call it from the main
    thread.

    The process is the service's own: its garbage collection follows the schedule of `service.collector`.

    Args:
        config: addresses, limits, the lease's TTL.
        on_ready: called with the addresses once the service listens.

    Raises:
        InvalidArgumentError, UnavailableError: as `CacheService.start`.
    """

    async def serve() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_task_factory(new_task)

        def stop() -> None:
            stopping.set()
            let_the_next_kill()

        for signal_number in STOP_SIGNALS:
            loop.add_signal_handler(signal_number, stop)
        service = CacheService(config, collector=collector)
        await service.start()
        try:
            if on_ready is not None:
                on_ready(service.addresses)
            await stopping.wait()
        finally:
            await service.stop()
            await let_calls_end()

    collector = Collector()
    collector.start()
    try:
        asyncio.run(serve())
    finally:
        collector.stop()


class ServiceThread:
    """The same service in a background thread, as a context manager.

        with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
            holder = radixkv.connect(service.addresses[0], PoolShape(num_blocks=1024))

    Args:
        config: addresses, limits, the lease's TTL.
        clock: seconds, monotonic; read by the service's thread.

    Raises:
        InvalidArgumentError, UnavailableError: on entering, as `CacheService.start`.
    """

    def __init__(self, config: ServiceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.addresses: tuple[str, ...] = ()
        self._clock = clock
        self._thread: LoopThread | None = None

    def start(self) -> Self:
        """Start the thread; returns once the service listens."""
        self._service = CacheService(self.config, clock=self._clock)
        self._thread = LoopThread()
        try:
            self._thread.call(self._service.start())
        except BaseException:
            self.stop()
            raise
        self.addresses = self._service.addresses
        return self

    def stop(self) -> None:
        """Drain and join the thread. May be repeated."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.call(self._service.stop())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

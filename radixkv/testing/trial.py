"""A trial: a real cache service on a loopback port, whose streams of holders are watched and broken in between.

holder ──gRPC──▶ [ watched stream: observer, faults ] ──▶ CacheService
                   other clients' calls ─────────────────────▲   restarted in place
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Self

import grpc

from radixkv.core.errors import RadixKVError, UnavailableError
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.service import ServiceConfig
from radixkv.service.server import CacheService
from radixkv.testing.faults import Fault, FaultPlan
from radixkv.testing.life import Life
from radixkv.testing.observer import Observer
from radixkv.v1 import generation_pb2, generation_pb2_grpc, prefix_cache_pb2, prefix_cache_pb2_grpc
from radixkv.v1 import types_pb2 as types
from radixkv.v1 import workers_pb2 as workers
from radixkv.wire.errors import ERROR_METADATA_KEY, error_from_proto

__all__ = ["Trial"]

_ATTACH = "/radixkv.v1.Workers/Attach"
_TICKS_PER_TTL = 30
_CALL_TIMEOUT_S = 10.0
_SETTLE_S = 5.0
_VERIFY_S = 0.05
_HASTE_S = 0.05
"""How long Attached is held back, for a Step that does not wait for it to show."""
_PIN_S = (1.0, 8.0)
"""Times of pins: some expire during a trial."""
_WIDE = (100_000, 1_000_000)
"""Bounds of the sequences that a quota allows."""
_LOST = {types.ERROR_CODE_STALE_INCARNATION}
_FAULTS = {types.ERROR_CODE_INVALID_ARGUMENT, types.ERROR_CODE_LIMIT, types.ERROR_CODE_INTERNAL}


class _WatchedContext:
    """The context of one stream, as its servicer sees it: messages are reported, and faults carried out."""

    def __init__(self, context: Any, trial: Trial) -> None:
        self._context = context
        self._trial = trial
        self._watch = trial.observer.opened()
        self._fault: Fault | None = None
        self._step = 0  # the Step that the fault meets
        self._is_broken = False
        self._ahead: asyncio.Future[Any] | None = None  # the message after Hello
        self._ending: tuple[RadixKVError | None, int] = (None, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        self._check()
        if self._ahead is None:
            request = await self._read()
            if isinstance(request, workers.AttachRequest) and request.HasField("hello"):
                self._ahead = asyncio.ensure_future(self._read())
        else:
            request, self._ahead = await self._ahead, None
        if isinstance(request, workers.AttachRequest) and request.HasField("step"):
            self._meet(request.step.number)
        return request

    async def _read(self) -> Any:
        request = await self._context.read()
        if isinstance(request, workers.AttachRequest):
            self._trial.observer.sent(self._watch, request, time.monotonic())
        return request

    def _meet(self, number: int) -> None:
        """Draw the fault of a Step."""
        fault = self._trial.draw()
        if fault is None:
            return
        if fault is Fault.LOSE_STEP:
            self._break()
        elif fault.is_by_another:
            self._trial.soon(self._trial.call_as_another(fault))
        elif fault is Fault.LOSE_LEASE:
            self._trial.expire()
        elif fault is Fault.RESTART_A_WAIT:
            self._trial.restarts_a_wait = True
        else:
            self._fault, self._step = fault, number

    async def write(self, response: workers.AttachResponse) -> None:
        self._check()
        if response.HasField("attached"):
            response.attached.max_message_bytes //= 2  # of what is read, so that a larger message is seen
            if self._ahead is not None:
                await asyncio.wait({self._ahead}, timeout=_HASTE_S)
        fault = None
        if response.HasField("step_answer") and response.step_answer.number >= self._step:
            fault, self._fault = self._fault, None
        waits = any(result.HasField("pending") for result in response.step_answer.results)
        if waits and fault is None and self._trial.restarts_a_wait:
            fault, self._trial.restarts_a_wait = Fault.RESTART, False
        if fault in (Fault.LOSE_ANSWER, Fault.LOSE_AND_RESTART):
            if fault is Fault.LOSE_AND_RESTART:
                self._trial.soon(self._trial.restart())
            self._break()
        if fault is Fault.DELAY:
            await asyncio.sleep(self._trial.random.uniform(0.2, 1.0) * self._trial.config.lease_ttl_s / 6)
        self._trial.observer.delivered(self._watch, response, time.monotonic())
        await self._context.write(response)
        if response.HasField("attached"):
            self._trial.attached.set()
        if fault is Fault.RESTART:
            self._trial.soon(self._trial.restart())
        elif fault is Fault.BREAK:
            self._break()

    def _break(self) -> None:
        self._is_broken = True
        self._check()

    def _check(self) -> None:
        if self._is_broken:
            raise UnavailableError("the stream was broken by the test")

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        for key, value in trailing_metadata:
            if key == ERROR_METADATA_KEY:
                proto = types.Error.FromString(value)
                self._ending = error_from_proto(proto), proto.code
        await self._context.abort(code, details, trailing_metadata)

    def close(self) -> None:
        """The stream is over."""
        if self._ahead is not None:
            self._ahead.cancel()
        error, code = self._ending
        self._trial.observer.ended(self._watch, error, is_lost=code in _LOST, is_fault=code in _FAULTS)


class _Watching(grpc.aio.ServerInterceptor):
    """Puts a watched context in front of the servicer of holders."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None or details.method != _ATTACH:
            return handler

        async def serve(requests: Any, context: Any) -> None:
            watched = _WatchedContext(context, self._trial)
            try:
                await handler.stream_stream(requests, watched)
            finally:
                watched.close()

        return grpc.stream_stream_rpc_method_handler(serve, handler.request_deserializer, handler.response_serializer)


class Trial:
    """A service under watch on the running event loop, an async context manager.

    Args:
        plan: when which fault happens.
        seed: of what else is drawn.
        config: of the service; `addresses` with port 0.
        worker: address of the holder's Generation service; its blocks are verified. None: it has none.

    Attributes:
        address: where the holder attaches; the same over restarts.
        observer: the breaches so far, and the counts of what was exercised.
        attached: set once a holder was attached.
        restarts_a_wait: whether the service restarts after the next answer with a Pending.
    """

    def __init__(self, plan: FaultPlan, config: ServiceConfig, *, seed: int = 0, worker: str | None = None) -> None:
        self.config = config
        self.observer = Observer()
        self.attached = asyncio.Event()
        self.restarts_a_wait = False
        self.random = random.Random(seed)
        self.address = ""
        self._plan = plan
        self._num_steps = 0
        self._skipped_s = 0.0
        self._has_faults = True
        self._worker = worker
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._service = await self._start(self.config)
        self.address = self._service.addresses[0]
        self._channel = grpc.aio.insecure_channel(self.address)
        self._cache: Any = prefix_cache_pb2_grpc.PrefixCacheStub(self._channel)  # type: ignore[no-untyped-call]  # generated
        self.soon(self._tick())
        if self._worker is not None:
            self.soon(self._verify_on(self._worker))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()
        await self._service.stop()

    async def _start(self, config: ServiceConfig) -> CacheService:
        service = CacheService(
            config, clock=lambda: time.monotonic() + self._skipped_s, interceptors=(_Watching(self),)
        )
        await service.start()
        return service

    def soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run some work of the trial, until its end at most."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def draw(self) -> Fault | None:
        """The fault of the Step that arrives now."""
        self._num_steps += 1
        fault = self._plan.at(self._num_steps) if self._has_faults else None
        if fault is not None:
            self.observer.seen[fault.value] += 1
            self.observer.note(f"test: {fault.value}")
        return fault

    def stop_faults(self) -> None:
        """Let the holder end undisturbed."""
        self._has_faults = False

    async def settle(self) -> None:
        """Wait for the last messages of a holder that has ended."""
        until_s = time.monotonic() + _SETTLE_S
        while self.observer.has_streams and time.monotonic() < until_s:
            await asyncio.sleep(0.01)

    # -- faults

    def expire(self) -> None:
        """Let the lease expire now."""
        self._skipped_s += self.config.lease_ttl_s + 1.0

    async def restart(self) -> None:
        """Stop the service, and start one that knows nothing at the same address."""
        if self._restarting.locked():
            return
        async with self._restarting:
            await self._service.stop()
            deadline_s = time.monotonic() + _CALL_TIMEOUT_S
            while True:
                try:
                    self._service = await self._start(_at(self.config, self.address))
                    return
                except UnavailableError:  # the port is not free yet
                    if time.monotonic() > deadline_s:
                        raise
                    await asyncio.sleep(0.02)

    async def call_as_another(self, fault: Fault) -> None:
        """Change the pool as a client that is not its holder."""
        life, cache = self._life(), self._cache
        if life is None:
            return
        known = (_cached(life, is_unlocked=True) if fault is Fault.EVICT_BRANCH else []) or _cached(life)
        namespace, tokens = self.random.choice(known) if known else ("default", b"")
        pool = life.hello.pool.name
        retention = [types.Retention(priority=self.random.randint(36, 100), duration_s=60.0)]
        calls: dict[Fault, Callable[[], Any]] = {
            Fault.CLEAR: lambda: cache.Clear(prefix_cache_pb2.ClearRequest(pool=pool, namespace=namespace)),
            Fault.PIN: lambda: cache.Pin(
                prefix_cache_pb2.PinRequest(
                    pool=pool, namespace=namespace, tokens=tokens, ttl_s=self.random.choice(_PIN_S)
                )
            ),
            Fault.QUOTA: lambda: cache.SetQuota(
                prefix_cache_pb2.SetQuotaRequest(pool=pool, namespace=namespace, sequences=self.random.randint(*_WIDE))
            ),
            Fault.RETAIN: lambda: cache.Retain(
                prefix_cache_pb2.RetainRequest(pool=pool, namespace=namespace, tokens=tokens, retention=retention)
            ),
            Fault.EVICT: lambda: cache.Evict(prefix_cache_pb2.EvictRequest(pool=pool, num_blocks=2)),
            Fault.EVICT_BRANCH: lambda: cache.EvictBranch(
                prefix_cache_pb2.EvictBranchRequest(pool=pool, namespace=namespace, tokens=tokens)
            ),
        }
        with contextlib.suppress(grpc.RpcError):
            await asyncio.wait_for(calls[fault](), _CALL_TIMEOUT_S)

    def _life(self) -> Life | None:
        lives = [life for life in self.observer.lives.values() if life.is_attached and not life.ended_by]
        return lives[-1] if lives else None

    # -- watching

    async def _tick(self) -> None:
        while True:
            self.observer.tick(time.monotonic())
            await asyncio.sleep(self.config.lease_ttl_s / _TICKS_PER_TTL)

    async def _verify_on(self, address: str) -> None:
        """Have the worker compute cached blocks again, one after the other."""
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated
            verified: set[tuple[str, bytes]] = set()
            while True:
                await asyncio.sleep(_VERIFY_S)
                life = self._life()
                known = {each for each in _cached(life) if _is_full(life, each[1])} if life is not None else set()
                verified = verified if known - verified else set()
                if known:
                    block = self.random.choice(sorted(known - verified))
                    verified.add(block)
                    await self._verify(stub, *block)

    async def _verify(self, stub: Any, namespace: str, tokens: bytes) -> None:
        request = generation_pb2.VerifyBlockRequest(token_ids=tokens, namespace=namespace)
        try:
            found = await stub.VerifyBlock(request, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError:
            return
        verdict = generation_pb2.BlockVerdict.Name(found.verdict)
        self.observer.seen[f"blocks verified: {verdict.removeprefix('BLOCK_VERDICT_').lower()}"] += 1
        if found.verdict == generation_pb2.BLOCK_VERDICT_DIFFERS:
            number = self.observer.note(f"worker: VerifyBlock: {' '.join(str(found).split())}")
            end = len(tokens) // TOKEN_BYTES
            facts = f"block {found.block_id}, the last of {end} tokens in {namespace!r}, holds other values"
            self.observer.broke("block-content", facts, number)


def _at(config: ServiceConfig, address: str) -> ServiceConfig:
    return replace(config, addresses=(address,))


def _cached(life: Life, *, is_unlocked: bool = False) -> list[tuple[str, bytes]]:
    """Namespace and history up to its end of each block that may be cached. `is_unlocked`: no open sequence has it."""
    names = {tree: namespace for namespace, tree in life.record.trees.items()}
    locked = {block_id for opened in life.record.open.values() for block_id in opened.table} if is_unlocked else ()
    return [
        (names[held.tree], held.history)
        for block_id, held in life.record.held.items()
        if held.tree in names and block_id not in locked
    ]


def _is_full(life: Life, history: bytes) -> bool:
    return len(history) % (life.hello.pool.block_size * TOKEN_BYTES) == 0

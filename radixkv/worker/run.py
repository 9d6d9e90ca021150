"""A whole worker in one call: model, cache, engine, Generation service, until a signal or `close`."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from radixkv.core.api import BlockTimes, CacheHolder, CacheStats, PoolShape, SetQuotaOp, WorkerLoad
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import (
    InvalidArgumentError,
    PoolHeldError,
    RadixKVError,
    UnauthenticatedError,
    UnavailableError,
)
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults
from radixkv.generation.prices import read_prices
from radixkv.kernels.cpu.native_attention import NATIVE_LIMITS
from radixkv.net.addresses import parse_address
from radixkv.net.limits import Limiter
from radixkv.net.signals import StopSignals
from radixkv.net.tls import Security
from radixkv.planner.plan import DEFAULT_UTILISATION
from radixkv.stores.errors import StoreError
from radixkv.stores.settings import StoreSettings
from radixkv.util.folders import cache_folder
from radixkv.util.heaps import set_heap_aside
from radixkv.worker.engine.engine import Engine
from radixkv.worker.errors import ModelError
from radixkv.worker.generations.text import ChatText
from radixkv.worker.loading.default_model import DEFAULT_MODEL, SMOLLM2_135M, resolve_model
from radixkv.worker.loading.model_clearing import clear_models
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.placement import choose_device
from radixkv.worker.pool_size import PoolPlan, PoolWish, plan_pool
from radixkv.worker.scheduling.arena import Arena
from radixkv.worker.scheduling.limits import LimitsWish, SchedulerLimits
from radixkv.worker.server import GenerationServer
from radixkv.worker.speculation.comparison import rows_agree
from radixkv.worker.speculation.settings import DEFAULT_BYTES, DEFAULT_TOKENS, SPECULATIONS, SpeculationSettings
from radixkv.worker.storing.fingerprint import served_fingerprint
from radixkv.worker.threads import run_on_passing_thread

if TYPE_CHECKING:
    from radixkv.client import Credentials, RemoteHolder
    from radixkv.core.tree.journal import JournalEntry
    from radixkv.stores.store import BlockStore

__all__ = ["Worker", "WorkerConfig", "run_worker"]

DEFAULT_ADDRESS = "127.0.0.1:50052"
LAYOUTS = ("paged", "arena", "auto")
UTILISATION_WITH_LINES = 0.85
_WATCH_S = 0.5
_GRAMMARS_AFTER_S = 2.0
"""Delay before the grammar process starts. The first request with a grammar starts it earlier."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of a worker.

    Attributes:
        model: a folder, a GGUF file, a Hugging Face id, or None for the default model.
        service: address of the cache service that keeps the tree; None: a tree in this process.
        credentials: key and TLS settings for that service; None: no key, in plaintext.
        listen: where to serve Generation: ``host:port`` (port 0 takes a free one) or ``unix:path``; None: nowhere.
        security: keys and TLS of the Generation service.
        pool_name: of the pool, among those of the service.
        num_blocks, block_size: the pool's size; its memory is allocated at the start. None: from the device's memory, see
            `pool_size`, also for `utilisation` (None: 0.90, and 0.85 with lines), `kv_bytes` and `host_bytes`.
        sampling: defaults of sampling parameters that a request leaves out; unset ones are the model's own.
        dtype, device, quantization, kv_dtype: see `ModelRunner`.
        advertise: address at which routers reach the Generation service; None: that of `listen`.
        adapters: folders of low-rank adapters, by the name used in requests.
        deterministic: whether replies are bitwise independent of the batch and the cache; see `ModelRunner`.
        cuda_graphs: whether steps of up to 1,024 tokens on CUDA are captured, at the start, and replayed.
        tensor_parallel: ranks that share the model and the pool, each a process; see `parallel`.
        max_model_len: longest sequence served, in tokens; the pool must hold one. None: the model's bound, or the pool's.
        limits: bounds of a round; unset ones by the device, see `LimitsWish`. Its `swap_blocks` follow from `host_bytes`.
        layout: ``"paged"``: all KV in blocks of the pool; ``"arena"``: histories that have never branched in spans of their
            own, see `arena`; ``"auto"``: paged, about as fast by measurement, see `bench.sizing.lines`.
        window_share: share of the blocks with K and V of layers with a sliding window at a time, see `pool_size`.
        share_prefixes: whether requests reuse KV of prefixes computed by other requests.
        unshared_namespaces: namespaces without such reuse, although `share_prefixes`.
        store: settings of a block store below the pool; None: there is none.
        prices_file: price list, see `generation.prices`; None: no usage has a cost.
        speculation: ``"auto"``: several tokens of a reply in a step, where guesses pay, see `speculation`; ``"off"``: one.
        draft_tokens, draft_bytes: most tokens guessed for a branch in a step; memory of the texts that guesses come from.
        num_remembered: finished generations that can still be forked.
        connect_timeout_s: how long to retry attaching at the start while the cache service cannot be reached or another
            worker holds the pool.
        reattach_s: how long to wait for a cache service that is down, and to retry for a new lease after losing one.
        drain_s: how long generations over gRPC may go on after `run_worker` gets a stop signal.
        show_progress: whether fetching a model shows a bar.
        on_stage: called with the name of each stage of the start, on any thread.
    """

    model: str | None = None
    service: str | None = None
    credentials: Credentials | None = None
    listen: str | None = DEFAULT_ADDRESS
    advertise: str | None = None
    security: Security = field(default_factory=Security)
    pool_name: str = "default"
    num_blocks: int | None = None
    block_size: int = 16
    utilisation: float | None = None
    kv_bytes: int | None = None
    host_bytes: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "auto"
    kv_dtype: str = "auto"
    adapters: Mapping[str, Path] = field(default_factory=dict)
    deterministic: bool = False
    cuda_graphs: bool = True
    tensor_parallel: int = 1
    max_model_len: int | None = None
    sampling: SamplingDefaults = NO_DEFAULTS
    limits: LimitsWish = field(default_factory=LimitsWish)
    layout: str = "auto"
    window_share: float = 1.0
    share_prefixes: bool = True
    unshared_namespaces: frozenset[str] = frozenset()
    store: StoreSettings | None = None
    prices_file: Path | None = None
    speculation: str = "auto"
    draft_tokens: int = DEFAULT_TOKENS
    draft_bytes: int = DEFAULT_BYTES
    num_remembered: int = 1024
    connect_timeout_s: float = 10.0
    reattach_s: float = 60.0
    drain_s: float = 30.0
    show_progress: bool = True
    on_stage: Callable[[str], None] = lambda _stage: None


class Worker:
    """A running worker, as a context manager.

        with Worker(WorkerConfig(listen="127.0.0.1:0")) as worker:
            stream = worker.engine.generate(GenerateParams(text="Once upon a time"))

    Attributes:
        engine: generates, in this process.
        runner: the model and its KV tensors.
        address: of the Generation service; empty where it is not served.
        plan: the pool's size and the use of the memory.
        store: the levels of its block store, or why it has none although one was wished for; empty without a wish.
        limiter: counts tenants' requests over gRPC; other servers of the same tenants share it.

    Raises on entering:
        ModelError: the model cannot be fetched or served.
        PlanError: too little memory; names what does not fit, and a remedy.
        InvalidArgumentError, UnavailableError, LeaseError: an argument is out of bounds; an address cannot be listened on;
            the cache service cannot be reached, or another worker holds the pool.
    """

    engine: Engine
    runner: ModelRunner
    plan: PoolPlan
    address: str
    store: str

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.limiter = Limiter()
        self._stack = ExitStack()
        self._server: GenerationServer | None = None
        self._lease: _Lease | None = None

    def __enter__(self) -> Worker:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def fault(self) -> str:
        """Why it can generate nothing more; empty while it can."""
        return self.runner.fault or ("" if self.engine.is_alive else "the engine has stopped by a fault; see the log")

    def refuse(self) -> None:
        """Reject further generations over gRPC, and grammars that are not compiled yet; health reports not serving.

        Running generations go on. Idempotent.
        """
        self.engine.end_grammars()
        if self._server is not None:
            self._server.refuse()
        if self._lease is not None:
            self._lease.refuse()

    def drain(self, timeout_s: float) -> bool:
        """`refuse`, and wait for the streams over gRPC to end; False where some remain after `timeout_s`."""
        return self._server is None or self._server.drain(timeout_s)

    def _open(self, stack: ExitStack) -> None:
        config = self.config
        if config.listen:
            address = parse_address(config.listen)  # checked before the long work of loading a model
            config.security.check_address(address)
            address.require_free()
        if config.tensor_parallel > 1 and config.store is not None and not config.store.is_optional:
            raise InvalidArgumentError("tensor_parallel", config.tensor_parallel, "1 with a block store")
        prices = read_prices(config.prices_file) if config.prices_file is not None else None
        bounds = _draft_bounds(config)
        limits = config.limits.fill(choose_device(config.device).type)
        model = str(resolve_model(config.model, progress=config.show_progress))
        clear_models(Path(model), cache_folder())
        config.on_stage("weights and tokenizer")
        with ThreadPoolExecutor(1, thread_name_prefix="radixkv-text") as beside:
            reading = beside.submit(_load_text, model)
            self.runner, self.plan = run_on_passing_thread(lambda: _load_runner(model, config, limits))
        stack.callback(self.runner.close)
        _LOG.info("%s: %s", model, self.plan)
        plan = self.plan
        config.on_stage("cache and servers")
        is_default = config.model in (None, DEFAULT_MODEL)
        store = self._open_store(stack, Path(model))
        if store is None and config.store is not None:
            self.runner.pool.shrink_host(plan.num_host_blocks if limits.preemption == "swap" else 0)
        lease = self._lease = _Lease(config, PoolShape(plan.num_blocks, plan.block_size, config.pool_name))
        if store is not None:
            lease.share = store.share
        stack.callback(lease.close)
        first_line = (plan.num_blocks, plan.num_lines, plan.line_blocks, plan.block_size)
        self.engine = Engine(
            self.runner,
            lease.attach(config.connect_timeout_s) if config.service else PrefixCache(plan.num_blocks, plan.block_size),
            text=reading.result(),
            model_name=SMOLLM2_135M.name if is_default else str(config.model),
            num_parameters=self.runner.num_parameters,
            adapters=self.runner.adapter_names,
            sampling=config.sampling.over(SMOLLM2_135M.sampling if is_default else self.runner.sampling_defaults),
            limits=replace(limits, swap_blocks=plan.num_host_blocks),
            unshared_namespaces=config.unshared_namespaces if config.share_prefixes else None,
            reattach=lease.reattach if config.service else None,
            overlaps=self.runner.device.type == "cuda",
            cache_stats=lease.stats if config.service else None,
            num_remembered=config.num_remembered,
            arena=Arena(*first_line) if plan.num_lines else None,
            store=store,
            prices=prices,
            speculation=bounds if _keeps_replies(config, self.runner) else None,
        )
        lease.wake, lease.noted, lease.measured = self.engine.wake, self.engine.noted, self.engine.load
        stack.callback(self.engine.close)
        stack.callback(lease.give_up)
        starting = threading.Timer(_GRAMMARS_AFTER_S, self.engine.start_grammars)
        starting.daemon = True
        starting.start()
        stack.callback(starting.cancel)
        self.address = ""
        if config.listen:
            server = GenerationServer(self.engine, config.listen, security=config.security, limiter=self.limiter)
            self._server = stack.enter_context(server)
            self.address = self._server.address
            if config.service:
                facts = {"quantization": self.runner.quantization, "dtype": str(self.runner.dtype)}
                describe = partial(served_fingerprint, Path(model), config.adapters, facts)
                lease.announce(config.advertise or self.address, describe)
        stack.callback(self.engine.end_grammars)  # before the server waits for its callers, which may wait for a trial

    def _open_store(self, stack: ExitStack, model: Path) -> BlockStore | None:
        """The block store; it is closed after the engine, whose last saves it takes."""
        config, plan = self.config, self.plan
        self.store = ""
        if config.store is None:
            return None
        if config.tensor_parallel > 1:
            self.store = "none: a model on several ranks has no block store yet"
            return None
        from radixkv.worker.storing.opening import open_store

        config.on_stage("block store")
        try:
            store = open_store(config, config.store, self.runner, model, num_kept=plan.num_host_blocks)
        except (StoreError, InvalidArgumentError) as error:
            if not config.store.is_optional:
                raise
            self.store = f"none: {error}"
            return None
        self.store = str(store)
        stack.callback(store.close)
        return store


def run_worker(
    config: WorkerConfig,
    on_ready: Callable[[Worker], None] | None = None,
    front: Callable[[Worker], contextlib.AbstractContextManager[object]] | None = None,
) -> None:
    """Run a worker until SIGINT or SIGTERM, then drain and stop it; a second signal ends the process at once. Prints nothing.

    Draining: new requests are rejected with `UnavailableError`. Running generations may go on for `config.drain_s` and then
    end with that error. Until the worker serves, signal handlers are unchanged. Call it from the main thread.

    Args:
        config: see `WorkerConfig`.
        on_ready: called once the worker serves.
        front: returns the context of a server in front of the worker: entered before `on_ready`, left before the worker stops.

    Raises:
        UnavailableError: the engine has stopped by a fault; the log has the cause.
        And as `Worker`.
    """
    with StopSignals() as signals, Worker(config) as worker:
        with front(worker) if front else contextlib.nullcontext():
            set_heap_aside()
            signals.listen()
            if on_ready is not None:
                on_ready(worker)
            while not signals.wait(_WATCH_S):
                if fault := worker.fault:
                    raise UnavailableError(fault)
            until_s = time.monotonic() + config.drain_s
            worker.refuse()
        if not worker.drain(max(0.0, until_s - time.monotonic())):
            _LOG.warning("what still runs after %g s is ended with an error", config.drain_s)


def _load_runner(model: str, config: WorkerConfig, limits: SchedulerLimits) -> tuple[ModelRunner, PoolPlan]:
    """The model with its pool."""
    if config.layout not in LAYOUTS:
        raise InvalidArgumentError("layout", config.layout, ", ".join(LAYOUTS))
    has_lines = config.layout == "arena"
    utilisation = UTILISATION_WITH_LINES if has_lines else DEFAULT_UTILISATION
    wish = PoolWish(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        utilisation=utilisation if config.utilisation is None else config.utilisation,
        kv_bytes=config.kv_bytes,
        host_bytes=config.host_bytes,
        num_ranks=config.tensor_parallel,
        needs_full_length=config.max_model_len is not None,
        has_lines=has_lines,
        window_share=config.window_share,
        has_store=config.store is not None and config.tensor_parallel == 1,
    )
    wish.check(limits)  # before the long work of loading a model
    options: dict[str, Any] = {
        "dtype": config.dtype,
        "device": config.device,
        "max_model_len": config.max_model_len,
        "quantization": config.quantization,
        "kv_dtype": config.kv_dtype,
        "adapters": config.adapters,
        "deterministic": config.deterministic,
        "cuda_graphs": config.cuda_graphs,
        "progress": config.show_progress,
    }
    if config.tensor_parallel > 1:
        from radixkv.worker.parallel.runner import ParallelRunner

        runner: ModelRunner = ParallelRunner(model, num_ranks=config.tensor_parallel, **options)
    else:
        runner = ModelRunner(model, num_blocks=None, **options)
    try:
        plan = _allocate(runner, wish, limits, config.on_stage)
    except BaseException:
        runner.close()
        raise
    return runner, plan


def _allocate(
    runner: ModelRunner, wish: PoolWish, limits: SchedulerLimits, on_stage: Callable[[str], None]
) -> PoolPlan:
    """Size and make the pool."""
    on_stage("memory that a step takes")
    plan = plan_pool(runner, wish, limits)
    on_stage("KV pool")
    num_blocks = plan.num_blocks + plan.num_lines * plan.line_blocks
    num_host_blocks = plan.num_host_blocks + plan.num_rows
    runner.allocate_pool(num_blocks, plan.block_size, num_host_blocks, plan.num_window_blocks)
    runner.prepare(limits.max_batch_tokens)
    return plan


def _draft_bounds(config: WorkerConfig) -> SpeculationSettings:
    if config.speculation not in SPECULATIONS:
        raise InvalidArgumentError("speculation", config.speculation, " or ".join(SPECULATIONS))
    shared_tokens = math.inf if config.deterministic else NATIVE_LIMITS.min_saved_tokens
    return SpeculationSettings(config.draft_tokens, config.draft_bytes, shared_tokens)


def _keeps_replies(config: WorkerConfig, runner: ModelRunner) -> bool:
    """Whether drafts are wanted, and every reply is the one that it is without them.

    The native decoder computes a token alike whatever else a step has, but for blocks that several branches read at once. Other
    code rounds by the shape of a step, which only float32 does too little to be seen.
    """
    if config.speculation == "off" or runner.device.type != "cpu" or config.tensor_parallel > 1:
        return False
    if config.deterministic:
        return rows_agree(runner, 1 + config.draft_tokens)
    return runner.is_native or runner.dtype == torch.float32


def _load_text(model: str) -> ChatText | None:
    try:
        return ChatText(model)
    except ModelError as error:
        _LOG.warning("only token ids are served: %s", error)
        return None


class _Lease:
    """The lease on a pool of a cache service, renewed with a new incarnation after it was lost.

    Attributes:
        wake: called, on any thread, when the service has sent notices. noted: as `connect`'s `on_journal`.
        share: called, on any thread, with the part of the pool that each namespace has by its quota, when it may have changed.
        measured: returns how busy the worker is.
    """

    def __init__(self, config: WorkerConfig, pool: PoolShape) -> None:
        self._config = config
        self._pool = pool
        self._holder: RemoteHolder | None = None
        self.wake: Callable[[], None] = lambda: None
        self.noted: Callable[[Sequence[JournalEntry]], Sequence[Future[None]]] = lambda _entries: ()
        self.share: Callable[[Mapping[str, float]], None] | None = None
        self._sharing = threading.Lock()
        self._given_up = threading.Event()
        self.measured: Callable[[], WorkerLoad] = lambda: WorkerLoad(0, 0.0, 0, is_accepting=False)
        self._is_refusing = False
        self._announced = ("", "")

    def load(self) -> WorkerLoad:
        """How busy the worker is. On any thread."""
        load = self.measured()
        return load._replace(is_accepting=False) if self._is_refusing else load

    def refuse(self) -> None:
        """Report that no new work is taken."""
        self._is_refusing = True
        if (holder := self._holder) is not None:
            holder.report_load()

    def announce(self, address: str, describe: Callable[[], str]) -> None:
        """Report the address, and the fingerprint that `describe` returns: on a thread, since it may read the weights."""

        def tell() -> None:
            try:
                self._announced = (address, describe())
            except OSError as error:
                _LOG.warning("no router sends requests here: the model's files cannot be read: %s", error)
                return
            if (holder := self._holder) is not None:
                holder.announce(*self._announced)

        threading.Thread(target=tell, name="radixkv-announce", daemon=True).start()

    def attach(self, wait_s: float = 0.0) -> CacheHolder:
        """A holder that has attached, after at most `wait_s` in which another worker held the pool: a killed one does for its
        TTL.

        Raises:
            RadixKVError: as `connect`.
        """
        from radixkv.client import connect

        config = self._config
        assert config.service is not None
        self._holder = connect(
            config.service,
            self._pool,
            timeout_s=config.connect_timeout_s,
            wait_s=wait_s,
            on_notices=self._told,
            on_journal=self._changed,
            load=self.load,
            on_restart=self._restarted,
            patience_s=config.reattach_s,
            credentials=config.credentials,
        )
        if self._announced[0]:
            self._holder.announce(*self._announced)
        self._ask_quotas()
        return self._holder

    def _told(self) -> None:
        self.wake()

    def _restarted(self) -> None:
        _LOG.warning("the cache service was restarted; its tree is rebuilt from the blocks here")
        self._ask_quotas()

    def _changed(self, entries: Sequence[JournalEntry]) -> Sequence[Future[None]]:
        if any(isinstance(entry, SetQuotaOp) for entry in entries):
            self._ask_quotas()
        return self.noted(entries)

    def _ask_quotas(self) -> None:
        """Have `share` called, on another thread: the service is asked for all quotas, also those that it was started with."""
        share = self.share
        if share is None:
            return

        def ask() -> None:
            with self._sharing, contextlib.suppress(RadixKVError):  # without an answer they stay as they were
                if (holder := self._holder) is not None:
                    quotas = {usage.namespace: usage.block_quota for usage in holder.usage()}
                    num_blocks = self._pool.num_blocks
                    share({name: quota / num_blocks for name, quota in quotas.items() if quota is not None})

        threading.Thread(target=ask, name="radixkv-quotas", daemon=True).start()

    def stats(self) -> tuple[CacheStats, BlockTimes]:
        """The service's stats of the pool. Thread-safe.

        Raises:
            UnavailableError: the service cannot be reached, or no holder is attached.
        """
        holder = self._holder
        if holder is None:
            raise UnavailableError("no lease on the pool is held at present")
        return holder.stats(), holder.block_times()

    def reattach(self) -> CacheHolder:
        """Retry for `reattach_s`, until the service is up and the old lease has ended.

        Raises:
            RadixKVError: of the last attempt.
        """
        self._detach()
        num_tries = max(1, round(self._config.reattach_s / _WATCH_S))
        for _ in range(num_tries - 1):
            try:
                return self.attach()
            except (UnavailableError, PoolHeldError, UnauthenticatedError) as error:
                _LOG.info("the cache service takes no holder yet: %s", error)
            if self._given_up.wait(_WATCH_S):
                break
        return self.attach()

    def give_up(self) -> None:
        """End a `reattach` on another thread soon."""
        self._given_up.set()

    def close(self) -> None:
        """Detach."""
        self._given_up.set()
        self._detach()

    def _detach(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            with contextlib.suppress(RadixKVError):
                holder.__exit__(None, None, None)

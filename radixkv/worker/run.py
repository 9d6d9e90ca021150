"""A whole worker in one call: model, cache, engine, Generation service, until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType, TracebackType

from radixkv.core.api import CacheHolder, PoolShape
from radixkv.core.cache import PrefixCache
from radixkv.core.errors import PoolHeldError, RadixKVError, UnavailableError
from radixkv.service.addresses import parse_address
from radixkv.worker.default_model import DEFAULT_MODEL, SMOLLM2_135M, resolve_model
from radixkv.worker.engine import Engine
from radixkv.worker.errors import ModelError
from radixkv.worker.model import ModelRunner
from radixkv.worker.scheduler import SchedulerLimits
from radixkv.worker.server import GenerationServer
from radixkv.worker.text import ChatText

__all__ = ["Worker", "WorkerConfig", "run_worker"]

DEFAULT_ADDRESS = "127.0.0.1:50052"
_WATCH_S = 0.5
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told.

    Attributes:
        model: a folder, a Hugging Face id, or None for the default model.
        service: address of the cache service that keeps the tree; None: a tree in this process.
        listen: where to serve Generation: ``host:port`` (port 0 takes a free one) or ``unix:path``; None: nowhere.
        pool_name: of the pool, among those of the service.
        num_blocks, block_size: the pool's size; its memory is allocated at the start.
        dtype, device: see `ModelRunner`.
        limits: bounds of a round.
        num_remembered: finished generations that can still be forked.
        connect_timeout_s: how long to wait for the cache service to take this holder.
        reattach_s: how long to try for a new lease when the old one is lost.
        show_progress: whether fetching a model shows a bar.
    """

    model: str | None = None
    service: str | None = None
    listen: str | None = DEFAULT_ADDRESS
    pool_name: str = "default"
    num_blocks: int = 1024
    block_size: int = 16
    dtype: str = "auto"
    device: str = "auto"
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    num_remembered: int = 1024
    connect_timeout_s: float = 10.0
    reattach_s: float = 60.0
    show_progress: bool = True


class Worker:
    """A worker that runs, from entering it as a context manager to leaving it.

        with Worker(WorkerConfig(listen="127.0.0.1:0")) as worker:
            stream = worker.engine.generate(GenerateParams(text="Once upon a time"))

    Attributes:
        engine: generates, in this process.
        runner: the model and its KV tensors.
        address: where Generation is served; empty where it is not.
        num_blocks: the pool's size.

    Raises on entering:
        ModelError: the model cannot be had or served.
        InvalidArgumentError, UnavailableError, LeaseError: an argument is outside its bound; an address cannot be listened on;
            the cache service cannot be reached, or another worker holds the pool.
    """

    engine: Engine
    runner: ModelRunner
    address: str

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.num_blocks = config.num_blocks
        self._stack = ExitStack()

    def __enter__(self) -> Worker:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self, stack: ExitStack) -> None:
        config = self.config
        if config.listen:
            parse_address(config.listen).require_free()  # before the long work of loading a model
        model = str(resolve_model(config.model, progress=config.show_progress))
        self.runner = ModelRunner(
            model,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            dtype=config.dtype,
            device=config.device,
        )
        text = _load_text(model)
        lease = _Lease(config)
        stack.callback(lease.close)
        self.engine = Engine(
            self.runner,
            lease.attach() if config.service else PrefixCache(config.num_blocks, config.block_size),
            text=text,
            model_name=SMOLLM2_135M.name if config.model in (None, DEFAULT_MODEL) else str(config.model),
            limits=config.limits,
            reattach=lease.reattach if config.service else None,
            num_remembered=config.num_remembered,
        )
        stack.callback(self.engine.close)
        stack.callback(lease.give_up)
        self.address = ""
        if config.listen:
            self.address = stack.enter_context(GenerationServer(self.engine, config.listen)).address


def run_worker(config: WorkerConfig, on_ready: Callable[[Worker], None] | None = None) -> None:
    """Run a worker until SIGINT or SIGTERM, then stop it cleanly. Prints nothing. Call it from the main thread.

    Args:
        config: see `WorkerConfig`.
        on_ready: called once everything is up.

    Raises:
        UnavailableError: the engine has stopped by itself; its log tells why.
        And as `Worker`.
    """
    stopping = threading.Event()

    def stop(_signal_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Worker(config) as worker:
            if on_ready is not None:
                on_ready(worker)
            while not stopping.wait(_WATCH_S):
                if not worker.engine.is_alive:
                    raise UnavailableError("the engine has stopped by a fault; see the log")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _load_text(model: str) -> ChatText | None:
    try:
        return ChatText(model)
    except ModelError as error:
        _LOG.warning("only token ids are served: %s", error)
        return None


class _Lease:
    """The hold on a pool of a cache service, renewed with a new incarnation when it was lost."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._holder: contextlib.AbstractContextManager[object] | None = None
        self._given_up = threading.Event()

    def attach(self) -> CacheHolder:
        """A holder that has attached.

        Raises:
            RadixKVError: as `connect`.
        """
        from radixkv.client import connect

        config = self._config
        assert config.service is not None
        pool = PoolShape(config.num_blocks, config.block_size, config.pool_name)
        holder = connect(config.service, pool, timeout_s=config.connect_timeout_s)
        self._holder = holder
        return holder

    def reattach(self) -> CacheHolder:
        """Try until the service is back and the old lease has ended, or the time is up.

        Raises:
            RadixKVError: why the last try failed.
        """
        self._detach()
        num_tries = max(1, round(self._config.reattach_s / _WATCH_S))
        for _ in range(num_tries - 1):
            try:
                return self.attach()
            except (UnavailableError, PoolHeldError) as error:
                _LOG.info("the cache service takes no holder yet: %s", error)
            if self._given_up.wait(_WATCH_S):
                break
        return self.attach()

    def give_up(self) -> None:
        """Let a `reattach` under way on another thread end soon."""
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

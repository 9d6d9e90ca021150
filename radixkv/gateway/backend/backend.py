"""Asynchronous access to the worker: no call blocks the event loop, and no stream holds a thread."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from radixkv.core.errors import InvalidArgumentError, LimitError, RadixKVError, UnavailableError
from radixkv.core.tokens import TokensLike
from radixkv.gateway.backend.resume import ResumableGeneration
from radixkv.generation.params import SamplingParams
from radixkv.generation.prices import Prices
from radixkv.generation.request import GenerateParams, Generator, ModelInfo, Prompt
from radixkv.generation.stream import MAX_UNREAD_EVENTS, EventQueue, GenerationEvent, GenerationStream, Usage
from radixkv.util.calls import Calls
from radixkv.util.doorbell import Doorbell
from radixkv.util.fair_semaphore import CALLER, FairSemaphore

__all__ = ["Backend", "EventStream", "Watch"]

MODEL_TTL_S = 30.0
"""How long model information is cached."""

NUM_THREADS, ONE_NAMESPACES_THREADS = 16, 4
"""Threads for calls that encode text or cross a network: in all, and per namespace where there are several."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 0.5

_Result = TypeVar("_Result")

Watch = Callable[[Sequence[GenerationEvent]], None]
"""Called with every burst of events just before the consumer gets it."""


class EventStream(AsyncIterator[GenerationEvent]):
    """Events of one generation, in order, for one coroutine. The first is `Started`.

        async with await backend.generate(params) as stream:
            async for event in stream: ...

    Iterating raises the `RadixKVError` that ended the generation, if there is one. Leaving the context, `aclose`, or dropping
    the stream cancels a running generation.

    Args:
        stream: the worker's.
        bell: wakes the coroutine.
        watch: see `Watch`.
        go_on: resumes the generation after its worker is lost, or raises.

    Attributes:
        sampling: its sampling parameters; None for a fork.
    """

    def __init__(
        self, stream: GenerationStream, bell: Doorbell, watch: Watch | None = None, go_on: _GoOn | None = None
    ) -> None:
        self.sampling: SamplingParams | None = None
        self._stream = stream
        self._bell = bell
        self._watch = watch
        self._go_on = go_on
        self._is_closed = False
        self._failure: Exception | None = None
        self._events: deque[GenerationEvent] = deque()
        self._news = asyncio.Event()
        stream.listen(partial(bell.ring, self._news))

    @property
    def is_closed(self) -> bool:
        """Whether the consumer has closed it."""
        return self._is_closed

    @property
    def generation_id(self) -> str:
        """For `ForkParams`."""
        return self._stream.generation_id

    @property
    def route(self) -> str:
        """Why its worker was chosen, for operators."""
        return self._stream.route

    @property
    def usage(self) -> Usage | None:
        """Its cost, once it has completed."""
        return self._stream.usage

    async def take(self) -> list[GenerationEvent]:
        """Return all available events, at least one; empty at the end."""
        if self._events:
            events = list(self._events)
            self._events.clear()
            return events
        while not self._stream.has_ended:
            self._news.clear()
            taken = await self._take_now()
            if taken:
                if self._watch is not None:
                    self._watch(taken)
                return taken
            if self._stream.has_ended:
                break
            await self._news.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return []

    async def _take_now(self) -> list[GenerationEvent]:
        try:
            taken = self._stream.take()
        except UnavailableError as error:
            if self._go_on is None or self._is_closed:
                raise
            stream = await self._go_on.resume(self, error)
            if self._is_closed:
                stream.close()
            else:
                stream.listen(partial(self._bell.ring, self._news))
            self._stream = stream
            return []
        return taken if self._go_on is None else self._go_on.resumable.fresh(taken)

    async def __anext__(self) -> GenerationEvent:
        if not self._events:
            self._events.extend(await self.take())
        if not self._events:
            raise StopAsyncIteration
        return self._events.popleft()

    def close(self) -> None:
        """Cancel a running generation; harmless when repeated."""
        self._is_closed = True
        self._stream.close()
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Cancel a running generation; the consumer gets `error` after the events that it already took."""
        if not self._stream.has_ended:
            self._failure = error
            self.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Backend:
    """An asynchronous generator: an `Engine` in this process, or a `GenerationClient`. The caller closes the generator.

    Every call raises the generator's errors. One event loop uses it.

    Args:
        generator: generates the replies.
        patience_s: how long a request waits for a remote generator that is unreachable or stopping. A generation under way
            resumes then, see `resume`. 0: such a request fails at once.
        is_shared: several namespaces call; none takes all threads.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        patience_s: float = 0.0,
        is_shared: bool = False,
    ) -> None:
        self.generator = generator
        self._is_remote = not hasattr(generator, "is_alive")
        self._patience_s = patience_s if self._is_remote else 0.0
        self._is_failing = False
        self._info: ModelInfo | None = None
        self._asked_s = 0.0
        self._spelled: dict[int, bytes] = {}  # at most the vocabulary
        self._bell: Doorbell | None = None
        self._streams: weakref.WeakSet[EventStream] = weakref.WeakSet()
        self._calls = Calls(NUM_THREADS, ONE_NAMESPACES_THREADS if is_shared else None)
        self._asking_again = FairSemaphore(None, 1)

    async def model(self) -> ModelInfo:
        """Return the served model; refreshed now and then, since a worker may be replaced by one with another model."""
        now_s = time.monotonic()
        if self._info is None or now_s - self._asked_s > MODEL_TTL_S:
            info = await self._patiently(partial(self._calls.call, self.generator.model))
            if info != self._info:
                self._spelled.clear()
            self._info, self._asked_s = info, now_s
        return self._info

    @property
    def prices(self) -> Prices | None:
        """Prices of the served model, as last known."""
        return self._info.prices if self._info is not None else None

    async def generate(self, params: GenerateParams, watch: Watch | None = None) -> EventStream:
        """Continue a prompt. Returns once the worker accepted it. Where its tokenizer is another one, so is its model."""
        go_on = _GoOn(self, params) if self._patience_s else None
        try:
            if go_on is None:
                stream = await self._start(partial(self.generator.generate, params))
            else:
                stream = await go_on.start(go_on.resumable.params)
        except InvalidArgumentError as error:
            if error.argument == "tokenizer":
                self._info = None
            raise
        events = self._listen(stream, watch, go_on)
        events.sampling = params.sampling
        return events

    async def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes:
        """Return packed token ids of `history` with the prompt appended; `namespace`: whose turn the call takes."""
        ask = partial(self.generator.tokenize, prompt, history, namespace)
        return await self._patiently(partial(self._calls.call, ask))

    async def detokenize(self, token_ids: TokensLike) -> str:
        """Return the text of token ids, without special tokens."""
        return await self._patiently(partial(self._calls.call, partial(self.generator.detokenize, token_ids)))

    async def spell(self, token_ids: Collection[int]) -> dict[int, bytes]:
        """Return the bytes of text of each token; special tokens by name. Each token is requested once."""
        missing = [token_id for token_id in token_ids if token_id not in self._spelled]
        if missing:
            spelled = await self._patiently(partial(self._calls.call, partial(self.generator.spell, missing)))
            self._spelled.update(zip(missing, spelled, strict=True))
        return {token_id: self._spelled[token_id] for token_id in token_ids}

    async def is_alive(self) -> bool:
        """Whether the worker responds."""
        alive: bool | None = getattr(self.generator, "is_alive", None)
        if alive is not None:
            return alive
        try:
            await self._calls.look("model", self.generator.model)
        except (RadixKVError, TimeoutError):
            return False
        return True

    @property
    def is_stuck(self) -> bool:
        """Whether no new call can start; see `Calls`."""
        return self._calls.is_stuck

    async def stats(self) -> Any:
        """Return gauges and counters of the worker; None where it reports none now."""
        stats: Callable[[], Any] | None = getattr(self.generator, "stats", None)
        try:
            return None if stats is None else await self._calls.look("stats", stats)
        except (RadixKVError, TimeoutError):
            return None

    def fail_all(self, error: Exception) -> None:
        """End every running stream with `error` and stop waiting for the worker. Call on the loop."""
        self._is_failing = True
        for stream in list(self._streams):
            stream.fail(error)

    def close(self) -> None:
        """Shut the threads down."""
        self._calls.close()

    async def _start(self, start: Callable[[], GenerationStream]) -> GenerationStream:
        """Start a generation.

        Where all streams of a remote worker are taken, it waits for one: per namespace the first in line retries, the others
        queue after it. A limit without a time to retry after is not waited for.
        """
        key = CALLER.get()
        if not self._is_remote:
            return await self._calls.open(start)
        if not self._asking_again.is_taken(key):
            try:
                return await self._calls.open(start)
            except LimitError as error:
                if self._is_failing or error.retry_after_s is None:
                    raise
        async with self._asking_again.place(key):
            while True:
                try:
                    return await self._calls.open(start)
                except LimitError as error:
                    if self._is_failing or error.retry_after_s is None:
                        raise
                    wait_s = error.retry_after_s
                await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))

    async def _patiently(
        self,
        ask: Callable[[], Awaitable[_Result]],
        timeout_s: float | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> _Result:
        """Return the result of `ask`, retried while the worker is unreachable, within `timeout_s` and `patience_s`."""
        now = asyncio.get_running_loop().time
        until_s = now() + min(self._patience_s, self._patience_s if timeout_s is None else timeout_s)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return await ask()
            except UnavailableError:
                if self._is_failing or not is_wanted() or now() + wait_s > until_s:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _listen(self, stream: GenerationStream, watch: Watch | None, go_on: _GoOn | None = None) -> EventStream:
        loop = asyncio.get_running_loop()
        if self._bell is None or self._bell.loop is not loop:
            self._bell = Doorbell(loop)
        events = EventStream(_listenable(stream), self._bell, watch, go_on)
        self._streams.add(events)
        return events


class _GoOn:
    """Starts a generation, and resumes it on another worker after its worker is lost."""

    def __init__(self, backend: Backend, params: GenerateParams) -> None:
        self.resumable = ResumableGeneration(params)
        self._backend = backend
        self._info = backend._info
        self._begun_s = asyncio.get_running_loop().time()

    async def start(self, params: GenerateParams, is_wanted: Callable[[], bool] = lambda: True) -> GenerationStream:
        """Return the stream of a request once a worker accepts it."""
        backend = self._backend
        ask = partial(backend._start, partial(backend.generator.generate, params))
        return await backend._patiently(ask, params.timeout_s, is_wanted)

    async def resume(self, events: EventStream, error: UnavailableError) -> GenerationStream:
        """Return the stream that continues after the emitted events.

        Raises:
            UnavailableError: no worker was reachable in time, or those there are have another model.
        """
        backend, is_wanted = self._backend, partial(_is_wanted, weakref.ref(events))
        if self._info is not None:
            ask = partial(backend._calls.call, backend.generator.model)
            with suppress(LimitError):
                info = await backend._patiently(ask, self._left_s(error), is_wanted)
                if _kind(info) != _kind(self._info):
                    told = "the worker was lost, and its model is no longer served; ask again"
                    raise UnavailableError(told) from error
        return _listenable(await self.start(self.resumable.again(self._left_s(error)), is_wanted))

    def _left_s(self, error: UnavailableError) -> float | None:
        """The rest of the request's own timeout; raises `error` where there is none."""
        left_s = self.resumable.params.timeout_s
        if left_s is not None:
            left_s -= asyncio.get_running_loop().time() - self._begun_s
            if left_s <= 0:
                raise error
        return left_s


def _kind(info: ModelInfo) -> tuple[object, ...]:
    """What differs between models; workers of one may have it under several names."""
    return info.vocab_size, info.eos_token_ids, info.num_parameters, info.tokenizer


def _is_wanted(events: weakref.ref[EventStream]) -> bool:
    stream = events()
    return stream is not None and not stream.is_closed


def _listenable(stream: GenerationStream) -> GenerationStream:
    return stream if stream.listen(_ignore) else _pumped(stream)


def _pumped(stream: GenerationStream) -> GenerationStream:
    """Wrap a stream that can only be iterated as a stream with a listener, at the cost of a thread."""
    queue = EventQueue(MAX_UNREAD_EVENTS)

    def cut_off() -> None:
        queue.put(LimitError("this stream was not read: too many of its events wait; read them as they come"))
        stream.close()

    queue.bound(cut_off)

    def pump() -> None:
        try:
            for event in stream:
                queue.put(event)
            queue.put(None)
        except Exception as error:  # the consumer handles every kind
            queue.put(error)

    threading.Thread(target=pump, name="radixkv-gateway-stream", daemon=True).start()
    return GenerationStream(stream.generation_id, queue, stream.close, stream.route)


def _ignore() -> None:
    """Only to find out whether a stream supports listeners."""

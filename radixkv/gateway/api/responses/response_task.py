"""One running response: a task that turns the worker's events into output, and its followers.

    worker -> EventStream -> ResponseTask (a task) -> frames 0, 1, 2 ... -> any number of followers, from any frame on
                                          -> the store, before the last frame

A response outside the background ends when its request's client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from radixkv.core.errors import LimitError, RadixKVError, UnavailableError
from radixkv.gateway.api.responses.output import Output
from radixkv.gateway.api.responses.tools import Offer
from radixkv.gateway.backend.backend import Backend, EventStream
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.protocol.sse import sse
from radixkv.gateway.turns.logprobs import chat_logprobs
from radixkv.gateway.turns.models import ServedModel
from radixkv.gateway.turns.replies import Growth, Reply
from radixkv.gateway.turns.turns import begin_replies
from radixkv.generation.stream import BranchFinished, Completed, Delta, FinishReason, Started, Usage

__all__ = ["Ending", "ResponseTask", "ResponseTasks"]

MAX_BACKGROUND = 256
"""Concurrent background responses of all namespaces; a single namespace may have half as many."""

MAX_FINISHED = 64
"""Finished background responses whose events can still be followed."""

_LOG = logging.getLogger(__name__)


class Ending(Protocol):
    """Called with a finished response, before its last event is sent."""

    def __call__(self, body: dict[str, Any], reply: Reply, prompt: bytes) -> Awaitable[None]: ...


class ResponseTask:
    """The generation of one response. The event loop owns it.

    Args:
        body: the response object; the task fills it in.
        namespace: of its owner.
        stream: the worker's events.
        reply: parses them.
        backend: decodes tokens where log probabilities are wanted.
        model: generates the reply.
        offers: the tools, by their names in the prompt.
        on_end: awaited with the finished body before the last event.
        keeps_events: keep the events for followers.

    Attributes:
        failure: its error, if it failed.
    """

    def __init__(
        self,
        body: dict[str, Any],
        namespace: str,
        stream: EventStream,
        reply: Reply,
        backend: Backend,
        *,
        model: ServedModel,
        offers: Mapping[str, Offer],
        on_end: Ending,
        keeps_events: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.body = body
        self.namespace = namespace
        self.is_background = bool(body["background"])
        self.keeps_events = keeps_events
        self.generation_id = stream.generation_id
        self._stream = stream
        self._reply = reply
        self._backend = backend
        self._model = model
        self._on_end = on_end
        self._clock = clock
        self._frames: list[bytes] = []
        self._news = asyncio.Event()
        self._output = Output(self._emit if keeps_events else None, offers)
        self._prompt = b""
        self.failure: ApiError | None = None
        self._has_ended = self._is_stopped = False
        self._emit("response.created", self._snapshot())
        if body["status"] == "queued":
            self._emit("response.queued", self._snapshot())
        self._task = asyncio.get_running_loop().create_task(self._work(), name=f"response {body['id']}")

    @property
    def text(self) -> str:
        """Visible text of the reply so far, without calls."""
        return self._reply.text

    @property
    def has_ended(self) -> bool:
        """Whether the body is final and stored."""
        return self._has_ended

    async def wait(self) -> dict[str, Any]:
        """Return the finished body. Cancelling the wait does not end the task."""
        await asyncio.wait((self._task,))
        return self.body

    async def told(self) -> dict[str, Any]:
        """Return the current body; a final one only after it is stored and no longer counts as running."""
        if self.body["status"] not in ("queued", "in_progress"):
            await self.wait()
        return self.body

    def stop(self) -> None:
        """End it soon; its output so far stays. Harmless at the end."""
        self._is_stopped = True
        self._stream.close()

    def abort(self, error: RadixKVError) -> None:
        """Fail it soon. Harmless at the end."""
        self._stream.fail(error)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Register `callback` for the complete end of the task."""
        self._task.add_done_callback(lambda _: callback())

    async def follow(self, first: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events from sequence number `first` on, until the last one."""
        while True:
            news = self._news
            if first < len(self._frames):
                pieces, first = b"".join(self._frames[first:]), len(self._frames)
                yield pieces
            elif self._has_ended:
                return
            else:
                await news.wait()

    def follow_to_end(self) -> AsyncIterator[bytes]:
        """Return all events; the task is stopped when its follower leaves early."""
        return _OnlyFollower(self)

    # -- the task

    async def _work(self) -> None:
        try:
            async with self._stream:
                await self._read()
        except (RadixKVError, ApiError) as error:
            self._fail(ApiError.of(error))
        except Exception as fault:
            _LOG.exception("response %s failed", self.body["id"])
            self._fail(ApiError.of(fault))
        try:
            await self._on_end(self.body, self._reply, self._prompt)
        except RadixKVError as error:
            _LOG.error("response %s is not stored: %s", self.body["id"], error)
        self._tell_end()

    async def _read(self) -> None:
        self.body["status"] = "in_progress"
        self._emit("response.in_progress", self._snapshot())
        while events := await self._stream.take():
            for event in events:
                match event:
                    case Started():
                        self._prompt = event.prompt
                        await begin_replies(self._backend, self._model, [self._reply], event.prompt)
                    case Delta():
                        await self._grow(self._reply.push(event))
                    case BranchFinished():
                        await self._grow(self._reply.finish(event))
                    case Completed():
                        self.body["usage"] = _usage(event.usage, self._reply.num_thinking_tokens)
            self._ring()
        reason = self._reply.reason
        if reason is None and self._is_stopped:
            self._end("cancelled")
        elif reason is None:
            raise RadixKVError("the generation ended without an end")
        elif reason is FinishReason.LENGTH:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
            self._end("incomplete")
        else:
            self._end("completed")

    async def _grow(self, growth: Growth) -> None:
        logprobs: list[dict[str, Any]] = []
        if growth.logprobs:
            logprobs = await chat_logprobs(self._backend, growth.logprobs)
        self._output.add_thinking(growth.thinking)
        self._output.add_text(growth.text, logprobs)
        is_cut = self._reply.reason is FinishReason.LENGTH
        for piece in growth.calls:
            self._output.add_call(piece._replace(ends=piece.ends and not is_cut))

    def _end(self, status: str) -> None:
        self._output.finish("completed" if status == "completed" else "incomplete")
        self.body["status"] = status
        self.body["output"] = self._output.items
        if status == "completed":
            self.body["completed_at"] = int(self._clock())

    def _fail(self, error: ApiError) -> None:
        self.failure = error
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._output.close("incomplete")
        self.body |= {
            "status": "failed",
            "output": self._output.items,
            "error": {"code": code, "message": error.message},
        }

    def _tell_end(self) -> None:
        status = self.body["status"]
        # The protocol has no event for a cancelled response: its follower cancelled it, or sees the status.
        self._emit(f"response.{'incomplete' if status == 'cancelled' else status}", self._snapshot())
        self._has_ended = True
        self._ring()

    def _snapshot(self) -> dict[str, Any]:
        return {"response": self.body}

    def _emit(self, kind: str, fields: dict[str, Any]) -> None:
        if self.keeps_events:
            self._frames.append(sse({"type": kind, "sequence_number": len(self._frames), **fields}, kind))

    def _ring(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class _OnlyFollower(AsyncIterator[bytes]):
    """Follows a task for its only reader; closing or dropping it stops the task."""

    def __init__(self, task: ResponseTask) -> None:
        self._task = task
        self._frames = task.follow()

    async def __anext__(self) -> bytes:
        return await anext(self._frames)

    async def aclose(self) -> None:
        self._task.stop()
        await self._frames.aclose()

    def __del__(self) -> None:
        self._task.stop()


def _usage(usage: Usage, num_thinking_tokens: int) -> dict[str, Any]:
    num_written = usage.num_prompt_tokens - usage.num_cached_tokens
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": num_written},
        "output_tokens": usage.num_generated_tokens,
        "output_tokens_details": {"reasoning_tokens": num_thinking_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_generated_tokens,
    }


class ResponseTasks:
    """Running responses, and the events of some finished ones. The event loop owns it."""

    def __init__(self) -> None:
        self._running: dict[str, ResponseTask] = {}
        self._finished: OrderedDict[str, ResponseTask] = OrderedDict()
        self._num_background: Counter[str] = Counter()

    def check_room(self, namespace: str, max_concurrent: int | None) -> None:
        """Raises LimitError: too many background responses run, for the server or for this tenant's limit."""
        num_own, num_all = self._num_background[namespace], self._num_background.total()
        bound = min(MAX_BACKGROUND // 2, max_concurrent or MAX_BACKGROUND)
        if num_own >= bound or num_all >= MAX_BACKGROUND:
            raise LimitError(f"{num_own} of your responses run in the background already; try again later")

    def add(self, task: ResponseTask) -> None:
        """Register a task that has begun."""
        response_id = task.body["id"]
        self._running[response_id] = task
        self._num_background[task.namespace] += task.is_background
        task.when_ended(lambda: self._ended(response_id))

    def find(self, namespace: str, response_id: str, *, finished: bool = False) -> ResponseTask | None:
        """Return the task of a running response; with `finished`, also of a finished one that can still be followed."""
        task = self._running.get(response_id) or (self._finished.get(response_id) if finished else None)
        return task if task is not None and task.namespace == namespace else None

    def forget(self, response_id: str) -> None:
        """Drop the events of a deleted response."""
        self._finished.pop(response_id, None)

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until none runs; False if some still run after `timeout_s`."""
        waiting = [asyncio.ensure_future(task.wait()) for task in self._running.values()]
        if not waiting:
            return True
        _, left = await asyncio.wait(waiting, timeout=max(0.0, timeout_s))
        for one in left:
            one.cancel()
        return not left

    async def aclose(self) -> None:
        """End all tasks and wait until each is stored: the server stops."""
        tasks = list(self._running.values())
        for task in tasks:
            task.abort(UnavailableError("the server is stopping"))
        for task in tasks:
            await task.wait()

    def _ended(self, response_id: str) -> None:
        task = self._running.pop(response_id)
        self._num_background[task.namespace] -= task.is_background
        self._num_background += Counter()  # drops zero counts
        if task.is_background and task.keeps_events:
            self._finished[response_id] = task
            while len(self._finished) > MAX_FINISHED:
                self._finished.popitem(last=False)

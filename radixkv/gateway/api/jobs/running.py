"""Runs batches: validates them, sends their requests at low priority, and finishes them.

    a file --read_lines--> requests, ordered by prefix --post--> results, each stored before another takes its place

A request without a result is sent again, so a process may end at any moment. A request that is rejected for lack of blocks,
or by a limit of its tenant, goes back to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp

from radixkv.core.errors import RadixKVError
from radixkv.gateway.api.jobs.answers import answer_line, ended_line, error_line
from radixkv.gateway.api.jobs.batches import (
    CANCELLED,
    COMPLETED,
    EXPIRED,
    FAILED,
    OPENAI,
    Batch,
    BatchStore,
    WaitingRequest,
)
from radixkv.gateway.api.jobs.files import FileStore
from radixkv.gateway.api.jobs.lines import LineError
from radixkv.gateway.api.jobs.validating import MAX_ERRORS, error_entry, read_lines
from radixkv.gateway.http.gate import Gate
from radixkv.gateway.http.inner_calls import Answer, post
from radixkv.gateway.protocol.errors import ApiError
from radixkv.net.tenants import KeyRing
from radixkv.util.calls import Calls
from radixkv.util.fair_semaphore import CALLER

__all__ = ["JobRunner"]

AT_ONCE = 32
"""Concurrent requests of batches. A worker runs 64 branches by default, its background on three quarters of the places at most,
and few of them next to other requests."""

MAX_BYTES = 16 * 1024 * 1024
"""Bodies of running requests; a larger one runs alone."""

LOOK_S = 1.0
"""How often batches are checked for the end of their window, in seconds."""

PURGE_S = 300.0
FETCHED = 256
MAX_TRIES = 5
"""Tries of a request that the pool or a quota rejects; failures of the worker or a rate limit retry until the window ends."""

LEAST_WAIT_S, MOST_WAIT_S = 1.0, 30.0
_LINE_EXTRA_BYTES = 4096
_NOT_NOW = ("unavailable", "overloaded", "draining", "rate_limit_exceeded")
_NO_ROOM = ("out_of_blocks", "quota_exceeded")
"""Error codes after which a request is retried; all others are results."""

_LOG = logging.getLogger(__name__)


class _Work:
    """One batch under way."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.queue: deque[WaitingRequest] = deque()
        self.last: WaitingRequest | None = None  # the last fetched one
        self.running: dict[int, tuple[asyncio.Task[None], WaitingRequest]] = {}
        self.changing: asyncio.Task[None] | None = None  # validates or ends it
        self.paused_until_s = 0.0
        self.num_refused: Counter[int] = Counter()  # of retried ones


class JobRunner:
    """Runs all batches. One event loop owns it.

    Args:
        app: answers the requests.
        keys: finds their tenants. calls: parses large input. gate: shows when the server drains.
        max_body_bytes: per request.
    """

    def __init__(
        self,
        app: ASGIApp,
        files: FileStore,
        batches: BatchStore,
        *,
        keys: KeyRing,
        calls: Calls,
        gate: Gate,
        max_body_bytes: int,
    ) -> None:
        self._app = app
        self._files = files
        self._batches = batches
        self._keys = keys
        self._calls = calls
        self._gate = gate
        self._max_body_bytes = max_body_bytes
        self._works: dict[int, _Work] = {}
        self._news = asyncio.Event()
        self._looked_s = self._purged_s = -PURGE_S
        self._task = asyncio.create_task(self._run(), name="radixkv-jobs")

    def look(self) -> None:
        """Check batches and removals soon: something has changed."""
        self._looked_s = self._purged_s = -PURGE_S
        self._news.set()

    async def aclose(self) -> None:
        """Stop running; the next process sends the requests without a result."""
        tasks = [self._task]
        for work in self._works.values():
            tasks += [task for task, _ in work.running.values()]
            tasks += [work.changing] if work.changing is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the loop

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            try:
                if clock() - self._looked_s >= LOOK_S:
                    self._looked_s = clock()
                    await self._take_in()
                if clock() - self._purged_s >= PURGE_S:
                    self._purged_s = clock()
                    await self._files.purge()
                    await self._batches.purge()
                await self._fetch()
                self._begin(clock())
            except RadixKVError as error:
                _LOG.error("batches wait: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    LOOK_S if self._works else self._batches.idle_s
                ):  # wait_for may lose a cancellation
                    await self._news.wait()

    async def _take_in(self) -> None:
        """Load the status of unfinished batches; validate or end them where due."""
        batches = {batch.number: batch for batch in await self._batches.unfinished()}
        for number in [number for number in self._works if number not in batches]:
            del self._works[number]
        for batch in batches.values():
            work = self._works.setdefault(batch.number, _Work(batch))
            work.batch = batch
            if batch.status == "cancelling":
                self._change(work, self._end(work, CANCELLED, "cancelled"), cancels=True)
            elif time.time() >= batch.window_s:
                self._change(work, self._end(work, EXPIRED, "expired"), cancels=True)
            elif batch.status == "validating" and batch.protocol == OPENAI:
                self._change(work, self._validate(work))

    def _change(self, work: _Work, change: Coroutine[Any, Any, None], *, cancels: bool = False) -> None:
        """Start the validation or the end of a batch, once. `cancels`: replaces a running validation."""
        if work.changing is not None and not work.changing.done():
            if not cancels or work.changing.get_name() == "end":
                change.close()
                return
            work.changing.cancel()

        async def carry_out() -> None:
            CALLER.set(work.batch.namespace)
            try:
                await change
            except RadixKVError as error:
                _LOG.error("%s waits: %s", work.batch.id, error)
            self.look()

        work.changing = asyncio.create_task(carry_out(), name="end" if cancels else "validate")

    async def _fetch(self) -> None:
        """Prefetch the next requests of every batch; finish batches without any."""
        for work in list(self._works.values()):
            if work.batch.status != "in_progress" or work.queue or work.changing is not None:
                continue
            found = await self._batches.waiting(work.batch, work.last, FETCHED)
            if not found and not work.running:
                work.last = None  # requests whose result could not be stored are sent again
                found = await self._batches.waiting(work.batch, None, FETCHED)
                if not found:
                    await self._batches.finish(work.batch, "completed")
                    del self._works[work.batch.number]
            if found:
                work.queue.extend(found)
                work.last = found[-1]

    def _begin(self, now_s: float) -> None:
        """Begin as many requests as may run now: of the tenant with the fewest running, of its oldest batch."""
        while not self._gate.is_draining:
            running = [(work, request) for work in self._works.values() for _, request in work.running.values()]
            if len(running) >= AT_ONCE:
                return
            num_running = Counter(work.batch.namespace for work, _ in running)
            ready = [
                work
                for work in self._works.values()
                if work.queue
                and work.paused_until_s <= now_s
                and work.batch.status == "in_progress"
                and not work.changing
            ]
            if not ready:
                return
            work = min(ready, key=lambda each: (num_running[each.batch.namespace], each.batch.number))
            size_bytes = sum(request.size_bytes for _, request in running)
            if running and size_bytes + work.queue[0].size_bytes > MAX_BYTES:
                return
            request = work.queue.popleft()
            task = asyncio.create_task(self._carry_out(work, request), name=f"request of {work.batch.id}")
            work.running[request.number] = (task, request)
            task.add_done_callback(self._ended(work, request))

    def _ended(self, work: _Work, request: WaitingRequest) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            del work.running[request.number]
            if not task.cancelled() and (fault := task.exception()) is not None:
                _LOG.error("a request of %s has no result yet", work.batch.id, exc_info=fault)
                self._try_again(work, request, LEAST_WAIT_S)
            self._news.set()

        return ended

    # -- one request

    async def _carry_out(self, work: _Work, request: WaitingRequest) -> None:
        batch = work.batch
        CALLER.set(batch.namespace)
        tenant = self._keys.named(batch.tenant)
        if tenant is None or not tenant.has_role(("client",)) or tenant.namespace != batch.namespace:
            self._try_again(work, request, MOST_WAIT_S)  # its tenant may get a key again
            return
        found = await self._batches.request(batch, request.number)
        if found is None:
            return
        custom_id, body = found
        if await self._batches.is_over_quota(batch):
            message = f"at most {self._batches.limits.max_bytes:,} bytes of files and batches are kept for one tenant"
            refusal = ApiError(400, message, code="quota_exceeded")
            line = error_line(batch.protocol, custom_id, refusal)
            await self._batches.answered(batch, request.number, FAILED, line)
            return
        answer = await post(self._app, tenant, batch.endpoint, body)
        if self._is_temporary(work, request, answer):
            self._try_again(work, request, answer.retry_after_s)
            return
        line = answer_line(batch.protocol, custom_id, answer.status, answer.body, answer.request_id)
        state = COMPLETED if answer.status < 400 else FAILED
        await self._batches.answered(batch, request.number, state, line)
        work.num_refused.pop(request.number, None)

    def _is_temporary(self, work: _Work, request: WaitingRequest, answer: Answer) -> bool:
        """Whether the request must be retried."""
        if answer.code in _NO_ROOM:
            work.num_refused[request.number] += 1
        has_tries = work.num_refused[request.number] < MAX_TRIES
        return answer.code in _NOT_NOW or (answer.code in _NO_ROOM and has_tries)

    def _try_again(self, work: _Work, request: WaitingRequest, wait_s: float) -> None:
        """Put a request back at the head of its batch, and pause the batch."""
        work.queue.appendleft(request)
        wait_s = min(MOST_WAIT_S, max(LEAST_WAIT_S, wait_s))
        work.paused_until_s = max(work.paused_until_s, asyncio.get_running_loop().time() + wait_s)

    # -- one batch

    async def _validate(self, work: _Work) -> None:
        batch = work.batch
        await self._batches.remove_requests(batch)  # leftovers of a killed process
        try:
            errors = await self._read_file(batch)
        except ApiError as error:
            errors = [error_entry(error.code or "invalid_file", error.message, error.param)]
        if errors:
            await self._batches.remove_requests(batch)
            await self._batches.fail(batch, errors[:MAX_ERRORS])
        else:
            try:
                await self._batches.begin(batch)
            except RadixKVError:
                work.changing = None  # it may have begun; otherwise it is validated again
                raise
        work.changing = None

    async def _read_file(self, batch: Batch) -> list[dict[str, Any]]:
        """Store the requests of a batch's file; returns its faults."""
        file = await self._files.find(batch.namespace, batch.details["input_file_id"])
        errors: list[dict[str, Any]] = []
        max_bytes = self._max_body_bytes + _LINE_EXTRA_BYTES
        async for lines in read_lines(self._files.content(file), batch.endpoint, max_bytes, self._calls.call):
            errors += lines.errors
            if len(errors) >= MAX_ERRORS:
                break
            try:
                await self._batches.add_requests(batch, lines.requests)
            except LineError as error:
                errors.append(error_entry(error.code, str(error), error.param, lines.numbers[error.place]))
        await self._files.find(batch.namespace, file.id)  # one that was deleted meanwhile ended early
        return errors

    async def _end(self, work: _Work, state: int, status: str) -> None:
        """Cancel running requests, keep results, and give all other requests a result with the reason."""
        tasks = [task for task, _ in work.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        batch = work.batch
        await self._batches.end_waiting(
            batch, state, lambda custom_id: ended_line(batch.protocol, custom_id, f"batch_{status}")
        )
        await self._batches.finish(batch, status)

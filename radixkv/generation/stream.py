"""Events of a running generation, and the stream that they are read from.

    Started, PromptLogprobs ..., then Delta ... BranchFinished per branch, Completed at the end

The same in process and over gRPC. Closing or dropping a stream cancels its generation: its blocks are free within a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from typing import NamedTuple

from radixkv.generation.params import SampledToken
from radixkv.util.closing import Closing

__all__ = [
    "BranchFinished",
    "Completed",
    "Delta",
    "EventQueue",
    "FinishReason",
    "GenerationEvent",
    "GenerationStream",
    "PromptLogprobs",
    "Started",
    "StreamItem",
    "Usage",
]


class FinishReason(Enum):
    """Reason of a branch's end."""

    STOP = "stop"
    """End of sequence, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens`, or the model's or the pool's length."""


class Usage(NamedTuple):
    """Cost of a generation, in tokens, all branches together.

    num_prompt_tokens: length of the prompt.
    num_cached_tokens: of these, found in the cache and not computed. num_loaded_tokens: of these, in the worker's block store.
    num_generated_tokens: tokens sampled.
    num_computed_tokens: positions run through the model, prompt and generated, recomputed ones again.
    time_to_first_token_s: from the request to the first sampled token, in seconds.
    num_accepted_tokens, num_rejected_tokens: guessed by speculation, and sampled or not. The other numbers are as without it.
    cost: by the worker's price list; None: it has none.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    time_to_first_token_s: float
    num_loaded_tokens: int = 0
    num_accepted_tokens: int = 0
    num_rejected_tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream. `prompt`: packed token ids of history and prompt. `sharing`: that applies; None: not known."""

    generation_id: str
    prompt: bytes
    sharing: str | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of n prompt tokens from position `start` on, each given all before it; temperature 1, unfiltered.

    logprobs: [n]. ranks: [n], the token's rank among all by likelihood, from 1. top_ids, top_logprobs: [n * k], the k most
    likely tokens at each position, most likely first, as many as requested.
    """

    start: int
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.start + len(self.logprobs)

    def top(self, index: int) -> tuple[tuple[int, float], ...]:
        """(id, logprob) of the most likely tokens at position `start + index`."""
        num_top = len(self.top_ids) // len(self.logprobs)
        at = slice(index * num_top, (index + 1) * num_top)
        return tuple(zip(self.top_ids[at], self.top_logprobs[at], strict=True))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens sampled for one branch and the text that became certain with them.

    Text is held back while it may start a stop string or a character is incomplete, so it can lag the tokens. `logprobs` has
    one entry per token if requested, otherwise none. `num_cached_tokens`: with the first tokens of a branch, the prompt's
    tokens found in the cache.
    """

    branch: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[SampledToken, ...] = ()
    num_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BranchFinished:
    """A branch has ended. `stop`: the stop string or stop token id that ended it, if any; not part of the text.

    `score`: with `best_of` or beams, the value that ranked the branches (log probability over length).
    """

    branch: int
    reason: FinishReason
    stop: str | int | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Last event of a stream: all branches have ended.

    `pinned`: tokens protected by each of the request's pins; 0: no room in the budget.
    """

    usage: Usage
    pinned: tuple[int, ...] = ()


GenerationEvent = Started | PromptLogprobs | Delta | BranchFinished | Completed

StreamItem = GenerationEvent | Exception | None
"""Item of a stream: an event, the error it ends with, or None for its end."""


MAX_UNREAD_EVENTS = 4096
"""Unread events of one stream at which its queue is full."""

UNREAD_S = 10.0
"""A consumer that reads nothing from a full queue for so long is overrun."""


class EventQueue(SimpleQueue[StreamItem]):
    """Events of one stream, from the generating thread to a consumer that waits or listens.

    Args:
        max_unread: items in a full queue; None: unlimited. A full queue is no error by itself, since a reply may come all at
            once. If the consumer takes nothing at all for `UNREAD_S`, `overrun` is called, once. Later items are dropped,
            except the final error.
        clock: seconds, monotonic.
    """

    def __init__(self, max_unread: int | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._notify: Callable[[], None] | None = None
        self._max_unread = math.inf if max_unread is None else max_unread
        self._clock = clock
        self._overrun: Callable[[], None] | None = None
        self._is_overrun = False
        self._num_put = 0
        self._num_taken = -1  # when it was last full
        self._full_since_s = 0.0

    def bound(self, overrun: Callable[[], None]) -> None:
        """Set `overrun`, called if the consumer does not read. Before the first item."""
        self._overrun = overrun

    def put(self, item: StreamItem, block: bool = True, timeout: float | None = None) -> None:
        """Append an item; never waits."""
        self._num_put += 1
        if self.qsize() >= self._max_unread and self._overrun is not None:
            self._look_whether_anybody_reads()
        if self._is_overrun and item is not None and not isinstance(item, Exception):
            return
        super().put(item, block, timeout)
        notify = self._notify
        if notify is not None:
            notify()

    def _look_whether_anybody_reads(self) -> None:
        num_taken, now_s = self._num_put - self.qsize(), self._clock()
        if num_taken != self._num_taken:
            self._full_since_s = now_s
        elif now_s - self._full_since_s >= UNREAD_S and not self._is_overrun and self._overrun is not None:
            self._is_overrun = True
            self._overrun()
        self._num_taken = num_taken

    def listen(self, notify: Callable[[], None]) -> None:
        """Have `notify` called after every further item, on the thread that puts it, and once now for earlier items."""
        self._notify = notify
        notify()


class GenerationStream(Iterator[GenerationEvent], Closing):
    """Events of one generation, in order. One consumer; `close` may come from any thread.

    Iterating raises the `RadixKVError` that ended the generation, if any.

    Args:
        generation_id: for `ForkParams`.
        receive: waits for the next item; or the queue of the items, which allows `listen`.
        cancel: ends the generation and makes a waiting `receive` return.
        route: why a router chose its worker, for operators; empty: none did.
    """

    def __init__(
        self,
        generation_id: str,
        receive: EventQueue | Callable[[], StreamItem],
        cancel: Callable[[], None],
        route: str = "",
    ) -> None:
        self.generation_id = generation_id
        self.route = route
        self.usage: Usage | None = None
        self._queue = receive if isinstance(receive, EventQueue) else None
        self._receive = receive.get if isinstance(receive, EventQueue) else receive
        self._cancel = cancel
        self._ended = False
        self._error: Exception | None = None  # read by `take` after events that it returned first

    def __next__(self) -> GenerationEvent:
        if self._ended:
            raise StopIteration
        item = self._receive()
        if item is None or self._ended:
            self._ended = True
            raise StopIteration
        if isinstance(item, Exception):
            self._ended = True
            raise item
        if isinstance(item, Completed):
            self.usage = item.usage
        return item

    def listen(self, notify: Callable[[], None]) -> bool:
        """Have `notify` called, briefly and on any thread, whenever `take` may return events, and once now.

        Returns False if the stream has no queue: it must be iterated.
        """
        if self._queue is None:
            return False
        self._queue.listen(notify)
        return True

    @property
    def has_ended(self) -> bool:
        """Whether no event can follow those taken."""
        return self._ended and self._error is None

    def take(self) -> list[GenerationEvent]:
        """Events that have come, without waiting; for a stream with `listen`. Empty if there are none now.

        Raises:
            RadixKVError: the error that ended the generation, once all events before it were returned.
        """
        assert self._queue is not None, "listen answered False"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        events: list[GenerationEvent] = []
        while not self._ended:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if item is None or isinstance(item, Exception):
                self._ended = True
                if item is not None and not events:
                    raise item
                self._error = item
            else:
                if isinstance(item, Completed):
                    self.usage = item.usage
                events.append(item)
        return events

    def close(self) -> None:
        """Cancel a running generation; a waiting consumer wakes up and reads the end. Idempotent."""
        if not self._ended:
            self._ended = True
            self._cancel()

    def __del__(self) -> None:
        self.close()

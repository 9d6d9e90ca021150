"""What a generation tells while it runs: its events, and the stream that they are read from.

    Started, PromptLogprobs ..., then Delta ... BranchFinished per branch, Completed at the end

The same in process and over gRPC. A stream that is closed, or dropped, cancels its generation: the blocks are free within a
step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple

from radixkv.generation.params import SampledToken

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
    """Why a branch ended."""

    STOP = "stop"
    """End of sequence, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens`, or the model's or the pool's length."""


class Usage(NamedTuple):
    """What a generation cost, in tokens, all branches together.

    num_prompt_tokens: length of the prompt.
    num_cached_tokens: how many of them were found in the cache and not computed.
    num_generated_tokens: tokens sampled.
    num_computed_tokens: positions run through the model, prompt and generated, recomputed ones again.
    time_to_first_token_s: from the request to the first sampled token, in seconds.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    time_to_first_token_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream. `prompt`: the packed token ids that are continued."""

    generation_id: str
    prompt: bytes


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """How likely n tokens of the prompt from position `start` on were, each behind all before it; at temperature 1, unfiltered.

    logprobs: [n]. ranks: [n], the token's place among all by likelihood, from 1. top_ids, top_logprobs: [n * k], the k most
    likely tokens at each position, most likely first, as many as were asked for.
    """

    start: int
    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]

    @property
    def end(self) -> int:
        """The position behind them."""
        return self.start + len(self.logprobs)

    def top(self, index: int) -> tuple[tuple[int, float], ...]:
        """(id, logprob) of the most likely tokens at position `start + index`."""
        num_top = len(self.top_ids) // len(self.logprobs)
        at = slice(index * num_top, (index + 1) * num_top)
        return tuple(zip(self.top_ids[at], self.top_logprobs[at], strict=True))


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens sampled for one branch and the text that became certain with them.

    Text is held back while it may be the beginning of a stop string or half a character: it can lag behind the tokens.
    `logprobs` has one entry per token where they were asked for, else none. `num_cached_tokens`: with the first tokens of a
    branch, how many tokens of the prompt were found in the cache.
    """

    branch: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[SampledToken, ...] = ()
    num_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BranchFinished:
    """A branch has ended. `stop`: the stop string or stop token id that ended it, if one did; it is not in the text.

    `score`: with `best_of` or beams, what the branches were ranked by (log probability over length).
    """

    branch: int
    reason: FinishReason
    stop: str | int | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Last event of a stream: all branches have ended.

    `pinned`: how many tokens each of the request's pins protects; 0 where there was no room for it.
    """

    usage: Usage
    pinned: tuple[int, ...] = ()


GenerationEvent = Started | PromptLogprobs | Delta | BranchFinished | Completed

StreamItem = GenerationEvent | Exception | None
"""What travels to a stream: an event, the error it ends with, or None for its end."""


MAX_UNREAD_EVENTS = 4096
"""Events of one stream that may wait to be read."""

UNREAD_S = 10.0
"""How long a full queue may stand before its consumer counts as one that does not read."""


class EventQueue(SimpleQueue[StreamItem]):
    """What one stream is told, from the thread that generates to its consumer, who waits for it or listens.

    Args:
        max_unread: items that may wait; None: any number. A queue that is full is no error by itself, since a reply may come
            all at once: it is one where nothing at all was taken from it for `UNREAD_S`. Then `overrun` is called, once, and
            what comes after is dropped, but for the error that it ends with.
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
        self._num_taken = -1  # when it was last found full
        self._full_since_s = 0.0

    def bound(self, overrun: Callable[[], None]) -> None:
        """Have `overrun` called where nobody reads. Before the first item."""
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
        """Have `notify` called after every further item, on the thread that puts it, and once now for those before."""
        self._notify = notify
        notify()


class GenerationStream(Iterator[GenerationEvent]):
    """Events of one generation, in order. One consumer; `close` may come from any thread.

    Iterating raises the `RadixKVError` that ended the generation, if one did.

    Args:
        generation_id: for `ForkParams`.
        receive: waits for the next item; or the queue that they come from, which makes `listen` possible.
        cancel: ends the generation and lets a `receive` that waits return.
    """

    def __init__(
        self, generation_id: str, receive: EventQueue | Callable[[], StreamItem], cancel: Callable[[], None]
    ) -> None:
        self.generation_id = generation_id
        self.usage: Usage | None = None
        self._queue = receive if isinstance(receive, EventQueue) else None
        self._receive = receive.get if isinstance(receive, EventQueue) else receive
        self._cancel = cancel
        self._ended = False
        self._error: Exception | None = None  # met by `take` behind events that it answered first

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
        """Have `notify` called, briefly and on any thread, whenever `take` may find something, and once now.

        False where that cannot be had: this stream must be iterated.
        """
        if self._queue is None:
            return False
        self._queue.listen(notify)
        return True

    @property
    def has_ended(self) -> bool:
        """Whether no event can follow those already taken."""
        return self._ended and self._error is None

    def take(self) -> list[GenerationEvent]:
        """The events that are there, without waiting; for a stream that is listened to. Empty where there are none now.

        Raises:
            RadixKVError: what ended the generation, once all events before it were answered.
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
        """Cancel what is still running; a consumer that waits is woken and sees the end. Harmless when repeated."""
        if not self._ended:
            self._ended = True
            self._cancel()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

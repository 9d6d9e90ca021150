"""What a caller asks of a worker and the events it gets back; the same in process and over gRPC.

    stream = engine.generate(GenerateParams(text="Once upon", sampling=SamplingParams(max_tokens=16)))
    for event in stream:                      # Started, then Delta ... BranchFinished per branch, Completed at the end
        if isinstance(event, Delta):
            print(event.text, end="")
    stream.usage                              # what it cost

A stream that is closed, or dropped, cancels its generation: the blocks are free within a step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from radixkv.core.api import DEFAULT_NAMESPACE, Retention
from radixkv.core.errors import InvalidArgumentError, UnknownSequenceError
from radixkv.core.tokens import TokensLike
from radixkv.core.validation import check_retention, check_unicode
from radixkv.worker.pinning import PrefixPin, check_pins
from radixkv.worker.sampling import SampledToken, SamplingParams
from radixkv.worker.stats import WorkerStats
from radixkv.worker.text import Message
from radixkv.worker.verification import Verification

__all__ = [
    "BranchFinished",
    "Completed",
    "Delta",
    "EventQueue",
    "FinishReason",
    "ForkParams",
    "GenerateParams",
    "GenerationEvent",
    "GenerationStream",
    "Generator",
    "ModelInfo",
    "Prompt",
    "Started",
    "StreamItem",
    "UnknownGenerationError",
    "Usage",
]

MAX_PRIORITY = 100
MAX_REQUEST_ID_CHARACTERS = 128
MAX_TIMEOUT_S = 30 * 24 * 3600.0


class UnknownGenerationError(UnknownSequenceError):
    """No generation of this id runs or is remembered."""

    def __init__(self, generation_id: str) -> None:
        super().__init__(0)
        self.args = (f"no generation {generation_id!r} runs here or is still remembered",)
        self.generation_id = generation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Tokens in one of three forms; at most one is given.

    Attributes:
        token_ids: packed bytes or ints, used as they are.
        text: encoded with the model's tokenizer.
        messages: put through the chat template. Where they follow a kept history, only what the template adds behind it
            is encoded: the history's own tokens stay as they are.
        tools: with messages, what the model may call, as the chat template takes it (JSON schemas of functions).
        template_arguments: with messages, further variables for the chat template.
    """

    token_ids: TokensLike | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [name for name in ("token_ids", "text", "messages") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgumentError("prompt", given, "one of token_ids, text and messages")
        for name in ("text", "messages", "tools", "template_arguments"):
            check_unicode(name, getattr(self, name))

    @property
    def is_empty(self) -> bool:
        """Whether none of the forms is given."""
        return self.token_ids is None and self.text is None and self.messages is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateParams(Prompt):
    """A request to continue a prompt.

    Attributes:
        history: token ids of a conversation so far that `messages` (and only they) go on from.
        sampling: how to choose tokens and when to stop.
        namespace: isolation domain of what is cached; nothing matches across two. None: the caller's own, where a
            worker knows its callers, and else "default".
        adapter: name of the low-rank adapter to generate with; empty: the model alone. Nothing matches across two of them.
        priority: the higher, the earlier it is served, -100 to 100.
        timeout_s: the generation ends with `DeadlineExceededError` this many seconds after it was asked for; None: never.
        shares_prefix: False neither uses what is cached nor leaves anything there.
        request_id: whose request this is, for logs; at most 128 characters.
        retention: what ranges of its branches' histories are worth to be kept, prompt and generated tokens alike.
        pins: prefixes of history and prompt that are pinned once they are computed, at most 16. One for which the budget of its
            namespace has no room is left out; `Completed` tells.
    """

    history: TokensLike = b""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str | None = None
    adapter: str = ""
    priority: int = 0
    timeout_s: float | None = None
    shares_prefix: bool = True
    request_id: str = ""
    retention: Sequence[Retention] = ()
    pins: Sequence[PrefixPin] = ()

    def __post_init__(self) -> None:
        Prompt.__post_init__(self)
        _check_service(self.priority, self.timeout_s, self.request_id)
        check_retention(self.retention)
        check_pins(self.pins)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkParams(Prompt):
    """A request to go on from a token position of a running or remembered generation.

    Attributes:
        generation_id: as its `Started` event told.
        branch: which of its branches, as answered. Before its end, a generation with `best_of` or beams has nothing but its
            prompt to share.
        position: tokens of that branch's history (prompt and generated) to be shared; None: all there are.
        sampling: as for a generation of its own. Namespace and adapter are the other generation's.
        priority, timeout_s, request_id: as in `GenerateParams`.
        retention: the same; empty: that of the other generation.
        sees: whether who asks may know of what is generated in a namespace; a generation of another one is unknown to it.
            None: it may know of all.

    The prompt, if any, is appended behind the shared history.
    """

    generation_id: str
    branch: int = 0
    position: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    timeout_s: float | None = None
    request_id: str = ""
    retention: Sequence[Retention] = ()
    sees: Callable[[str], bool] | None = None

    def __post_init__(self) -> None:
        Prompt.__post_init__(self)
        _check_service(self.priority, self.timeout_s, self.request_id)
        check_retention(self.retention)


def _check_service(priority: int, timeout_s: float | None, request_id: str) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidArgumentError("priority", priority, f"between -{MAX_PRIORITY} and {MAX_PRIORITY}")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgumentError("timeout_s", timeout_s, f"above 0 and at most {MAX_TIMEOUT_S:,.0f}")
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        bound = f"of at most {MAX_REQUEST_ID_CHARACTERS} characters"
        raise InvalidArgumentError("request_id", request_id[:MAX_REQUEST_ID_CHARACTERS], bound)


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
class Delta:
    """Tokens sampled for one branch and the text that became certain with them.

    Text is held back while it may be the beginning of a stop string or half a character: it can lag behind the tokens.
    `logprobs` has one entry per token where they were asked for, else none.
    """

    branch: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[SampledToken, ...] = ()


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


GenerationEvent = Started | Delta | BranchFinished | Completed

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


class ModelInfo(NamedTuple):
    """What a frontend needs to know of the model served.

    max_length: longest history in tokens. has_chat_template: whether messages can be given. adapters: what requests may name.
    """

    name: str
    max_length: int
    vocab_size: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    adapters: tuple[str, ...] = ()


class Generator(Protocol):
    """What a frontend talks to: an `Engine` in its process, or a `GenerationClient`."""

    def model(self) -> ModelInfo: ...

    def generate(self, params: GenerateParams) -> GenerationStream: ...

    def fork(self, params: ForkParams) -> GenerationStream: ...

    def tokenize(self, prompt: Prompt, history: TokensLike = b"") -> bytes: ...

    def detokenize(self, token_ids: TokensLike) -> str: ...

    def spell(self, token_ids: TokensLike) -> list[bytes]: ...

    def stats(self) -> WorkerStats: ...

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification: ...

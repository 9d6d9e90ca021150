"""What a caller asks of a worker and the events it gets back; the same in process and over gRPC.

    stream = engine.generate(GenerateParams(text="Once upon", sampling=SamplingParams(max_tokens=16)))
    for event in stream:                      # Started, then Delta ... BranchFinished per branch, Completed at the end
        if isinstance(event, Delta):
            print(event.text, end="")
    stream.usage                              # what it cost

A stream that is closed, or dropped, cancels its generation: the blocks are free within a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Protocol

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError, UnknownSequenceError
from radixkv.core.tokens import TokensLike
from radixkv.worker.sampling import SampledToken, SamplingParams
from radixkv.worker.text import Message

__all__ = [
    "BranchFinished",
    "Completed",
    "Delta",
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
    """

    token_ids: TokensLike | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("token_ids", "text", "messages") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgumentError("prompt", given, "one of token_ids, text and messages")

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
        namespace: isolation domain of what is cached; nothing matches across two.
    """

    history: TokensLike = b""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkParams(Prompt):
    """A request to go on from a token position of a running or remembered generation.

    Attributes:
        generation_id: as its `Started` event told.
        branch: which of its branches.
        position: tokens of that branch's history (prompt and generated) to be shared; None: all there are.
        sampling: as for a generation of its own.

    The prompt, if any, is appended behind the shared history.
    """

    generation_id: str
    branch: int = 0
    position: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


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
    """A branch has ended. `stop`: the stop string or stop token id that ended it, if one did; it is not in the text."""

    branch: int
    reason: FinishReason
    stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """Last event of a stream: all branches have ended."""

    usage: Usage


GenerationEvent = Started | Delta | BranchFinished | Completed

StreamItem = GenerationEvent | Exception | None
"""What travels to a stream: an event, the error it ends with, or None for its end."""


class GenerationStream(Iterator[GenerationEvent]):
    """Events of one generation, in order. One consumer; `close` may come from any thread.

    Iterating raises the `RadixKVError` that ended the generation, if one did.

    Args:
        generation_id: for `ForkParams`.
        receive: waits for the next item.
        cancel: ends the generation and lets a `receive` that waits return.
    """

    def __init__(self, generation_id: str, receive: Callable[[], StreamItem], cancel: Callable[[], None]) -> None:
        self.generation_id = generation_id
        self.usage: Usage | None = None
        self._receive = receive
        self._cancel = cancel
        self._ended = False

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

    max_length: longest history in tokens. has_chat_template: whether messages can be given.
    """

    name: str
    max_length: int
    vocab_size: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool


class Generator(Protocol):
    """What a frontend talks to: an `Engine` in its process, or a `GenerationClient`."""

    def model(self) -> ModelInfo: ...

    def generate(self, params: GenerateParams) -> GenerationStream: ...

    def fork(self, params: ForkParams) -> GenerationStream: ...

    def tokenize(self, prompt: Prompt, history: TokensLike = b"") -> bytes: ...

    def detokenize(self, token_ids: TokensLike) -> str: ...

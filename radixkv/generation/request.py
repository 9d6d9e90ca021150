"""What a caller asks of a worker; the same in process and over gRPC.

stream = engine.generate(GenerateParams(text="Once upon", sampling=SamplingParams(max_tokens=16)))
for event in stream:                      # see `stream`
    if isinstance(event, Delta):
        print(event.text, end="")
stream.usage                              # what it cost
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from radixkv.core.api import DEFAULT_NAMESPACE, Retention
from radixkv.core.errors import InvalidArgumentError, UnknownSequenceError
from radixkv.core.namespaces import check_salt
from radixkv.core.tokens import TokensLike
from radixkv.core.validation import check_retention, check_ttl, check_unicode
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults, SamplingParams
from radixkv.generation.stats import WorkerStats
from radixkv.generation.stream import GenerationStream
from radixkv.generation.thinking import ThinkingMarks
from radixkv.generation.verification import Verification

__all__ = [
    "BACKGROUND_PRIORITY",
    "ForkParams",
    "GenerateParams",
    "Generator",
    "Message",
    "ModelInfo",
    "PrefixPin",
    "Prompt",
    "UnknownGenerationError",
    "check_pins",
]

Message = Mapping[str, Any]
"""One turn: ``{"role": "system" | "user" | "assistant" | "tool", "content": text}`` and what else the model's chat template
reads, such as ``tool_calls``."""

ROLES = ("system", "user", "assistant", "tool")
"""Who may have said a message. A chat template may write a role into a control token, so others are refused."""

BACKGROUND_PRIORITY = -100
"""The lowest: a request of this priority is never due, and runs in no batch that brings another one's first token."""

MAX_PRIORITY = 100
MAX_REQUEST_ID_CHARACTERS = 128
MAX_ROLE_CHARACTERS = 64  # of a refused one, in the error
MAX_TIMEOUT_S = 30 * 24 * 3600.0


class UnknownGenerationError(UnknownSequenceError):
    """No generation of this id runs or is remembered."""

    def __init__(self, generation_id: str) -> None:
        super().__init__(0)
        self.args = (f"no generation {generation_id!r} runs here or is still remembered",)
        self.generation_id = generation_id


MAX_PINS = 16
"""Of one request."""


class PrefixPin(NamedTuple):
    """The first `num_tokens` of a prompt are not to be evicted for `ttl_s` seconds after each use."""

    num_tokens: int
    ttl_s: float


def check_pins(pins: Sequence[PrefixPin]) -> None:
    """Refuse too many of them and a bad time; lengths are checked where the prompt is known.

    Raises:
        InvalidArgumentError: named by its argument.
    """
    if len(pins) > MAX_PINS:
        raise InvalidArgumentError("pins", f"{len(pins)} prefixes", f"at most {MAX_PINS}")
    for pin in pins:
        check_ttl(pin.ttl_s)


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
        continue_final_message: with messages, of which the last is an assistant's: the reply goes on from its text. As the only
            one behind a kept history, which ends within a reply, its text goes on within that one; it may be empty.
    """

    token_ids: TokensLike | None = None
    text: str | None = None
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("token_ids", "text", "messages") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidArgumentError("prompt", given, "one of token_ids, text and messages")
        for name in ("text", "messages", "tools", "template_arguments"):
            check_unicode(name, getattr(self, name))
        for index, message in enumerate(self.messages or ()):
            if message.get("role") not in ROLES:
                role = str(message.get("role"))[:MAX_ROLE_CHARACTERS]
                raise InvalidArgumentError(f"messages[{index}].role", role, f"one of {', '.join(ROLES)}")
        if self.continue_final_message:
            _check_continued(self.messages or ())

    @property
    def is_empty(self) -> bool:
        """Whether none of the forms is given."""
        return self.token_ids is None and self.text is None and self.messages is None

    @property
    def goes_on_from_text(self) -> bool:
        """Whether the reply goes on from text of its own turn."""
        if not self.continue_final_message or not self.messages:
            return False
        return len(self.messages) == 1 or bool(self.messages[-1]["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateParams(Prompt):
    """A request to continue a prompt.

    Attributes:
        history: token ids of a conversation so far that `messages` (and only they) go on from.
        sampling: how to choose tokens and when to stop.
        namespace: isolation domain of what is cached; nothing matches across two. None: the caller's own, where a
            worker knows its callers, and else "default".
        adapter: name of the low-rank adapter to generate with; empty: the model alone. Nothing matches across two of them.
        cache_salt: nothing matches across two salts of a namespace, in whose books all of them are; at most 256 characters. A
            secret: what is cached and told names a hash. Empty: none, which is one of its own.
        priority: among those of the same namespace, the higher, the earlier it is served, -100 to 100. -100 is the background,
            which gives way to all others, also of other namespaces, whose first token is awaited.
        timeout_s: the generation ends with `DeadlineExceededError` this many seconds after it was asked for; None: never.
        shares_prefix: False neither uses what is cached nor leaves anything there.
        request_id: whose request this is, for logs; at most 128 characters.
        retention: what ranges of its branches' histories are worth to be kept, prompt and generated tokens alike.
        pins: prefixes of history and prompt that are pinned once they are computed, at most 16. One for which the budget of its
            namespace has no room is left out; `Completed` tells.
        truncate_prompt_tokens: of history and prompt no more than so many tokens at their end are read; -1: as many as the
            model takes, 1 less than its length. 0: all.
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
    cache_salt: str = field(default="", repr=False)
    truncate_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        Prompt.__post_init__(self)
        _check_service(self.priority, self.timeout_s, self.request_id)
        check_retention(self.retention)
        check_pins(self.pins)
        check_salt(self.cache_salt)
        if self.truncate_prompt_tokens < -1:
            raise InvalidArgumentError("truncate_prompt_tokens", self.truncate_prompt_tokens, "at least -1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkParams(Prompt):
    """A request to go on from a token position of a running or remembered generation.

    Attributes:
        generation_id: as its `Started` event told.
        branch: which of its branches, as answered. Before its end, a generation with `best_of` or beams has nothing but its
            prompt to share.
        position: tokens of that branch's history (prompt and generated) to be shared; None: all there are.
        sampling: as for a generation of its own. Namespace, salt and adapter are the other generation's.
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


def _check_continued(messages: Sequence[Message]) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        found = f"a last message of role {last.get('role')}" if messages else "no messages"
        raise InvalidArgumentError("continue_final_message", found, "set where the last message is an assistant's text")
    if last.get("tool_calls"):
        raise InvalidArgumentError(
            "continue_final_message", "a last message with tool calls", "set where it is text alone"
        )


def _check_service(priority: int, timeout_s: float | None, request_id: str) -> None:
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidArgumentError("priority", priority, f"between -{MAX_PRIORITY} and {MAX_PRIORITY}")
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise InvalidArgumentError("timeout_s", timeout_s, f"above 0 and at most {MAX_TIMEOUT_S:,.0f}")
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        bound = f"of at most {MAX_REQUEST_ID_CHARACTERS} characters"
        raise InvalidArgumentError("request_id", request_id[:MAX_REQUEST_ID_CHARACTERS], bound)


class ModelInfo(NamedTuple):
    """What a frontend needs to know of the model served.

    max_length: longest history in tokens. has_chat_template: whether messages can be given. adapters: what requests may name.
    sampling: how tokens are drawn where a request leaves it out. thinking: what stands around its thoughts, if it shows any.
    template_variables: those that steer thinking and that its chat template reads. num_parameters: 0: not known.
    """

    name: str
    max_length: int
    vocab_size: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    adapters: tuple[str, ...] = ()
    sampling: SamplingDefaults = NO_DEFAULTS
    thinking: ThinkingMarks | None = None
    template_variables: tuple[str, ...] = ()
    num_parameters: int = 0


class Generator(Protocol):
    """What a frontend talks to: an `Engine` in its process, or a `GenerationClient`."""

    def model(self) -> ModelInfo: ...

    def generate(self, params: GenerateParams) -> GenerationStream: ...

    def fork(self, params: ForkParams) -> GenerationStream: ...

    def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes: ...

    def detokenize(self, token_ids: TokensLike) -> str: ...

    def spell(self, token_ids: TokensLike) -> list[bytes]: ...

    def stats(self) -> WorkerStats: ...

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification: ...

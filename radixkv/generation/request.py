"""Requests of a worker's callers, the same in process and over gRPC.

stream = engine.generate(GenerateParams(text="Once upon", sampling=SamplingParams(max_tokens=16)))
for event in stream:                      # see `stream`
    if isinstance(event, Delta):
        print(event.text, end="")
stream.usage                              # its cost
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from radixkv.core.api import DEFAULT_NAMESPACE, Retention
from radixkv.core.errors import InvalidArgumentError, UnknownSequenceError
from radixkv.core.namespaces import check_salt, check_sharing
from radixkv.core.tokens import TokensLike
from radixkv.core.validation import check_retention, check_ttl, check_unicode
from radixkv.generation.block_file import ImportedBlocks
from radixkv.generation.erasure import ErasedLevel, StoredPrefix
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults, SamplingParams
from radixkv.generation.prices import Prices
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
"""One turn: ``{"role": "system" | "user" | "assistant" | "tool", "content": text}`` and further fields of the model's chat
template, such as ``tool_calls``."""

ROLES = ("system", "user", "assistant", "tool")
"""Roles of messages. A chat template may write a role into a control token, so other roles are rejected."""

BACKGROUND_PRIORITY = -100
"""The lowest priority: such a request is never due, and runs in no batch that brings another one's first token."""

MAX_PRIORITY = 100
MAX_REQUEST_ID_CHARACTERS = 128
MAX_ROLE_CHARACTERS = 64  # of a rejected one, in the error
MAX_TIMEOUT_S = 30 * 24 * 3600.0


class UnknownGenerationError(UnknownSequenceError):
    """No generation of this id runs or is remembered."""

    def __init__(self, generation_id: str) -> None:
        super().__init__(0)
        self.args = (f"no generation {generation_id!r} runs here or is still remembered",)
        self.generation_id = generation_id


MAX_PINS = 16
"""Per request."""


class PrefixPin(NamedTuple):
    """Protects the first `num_tokens` of a prompt from eviction for `ttl_s` seconds after each use."""

    num_tokens: int
    ttl_s: float


def check_pins(pins: Sequence[PrefixPin]) -> None:
    """Reject too many pins or an invalid TTL; lengths are checked once the prompt is known.

    Raises:
        InvalidArgumentError: names the argument.
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
        messages: put through the chat template. After a kept history, only the template's additions are encoded: the history's
            own tokens stay as they are.
        tools: with messages, functions that the model may call, as the chat template takes them (JSON schemas of functions).
        template_arguments: with messages, further variables for the chat template.
        continue_final_message: with messages, of which the last is an assistant's: the reply continues its text. A single
            message after a history that ends within a reply continues that reply; its text may be empty.
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
        """Whether no form is given."""
        return self.token_ids is None and self.text is None and self.messages is None

    @property
    def goes_on_from_text(self) -> bool:
        """Whether the reply continues text of its own turn."""
        if not self.continue_final_message or not self.messages:
            return False
        return len(self.messages) == 1 or bool(self.messages[-1]["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateParams(Prompt):
    """A request to continue a prompt.

    Attributes:
        history: token ids of a conversation so far that `messages` (and only they) continue.
        sampling: how to choose tokens and when to stop.
        namespace: isolation domain of cached prefixes; nothing matches across two. None: the caller's own, if the worker
            knows its callers, otherwise "default".
        adapter: name of the low-rank adapter to generate with; empty: the model alone. Nothing matches across two of them.
        cache_salt: nothing matches across two salts of a namespace, which share its quota; at most 256 characters. A secret:
            cached and reported names hold a hash. Empty: no salt, a domain of its own.
        priority: within the namespace, higher is served earlier, -100 to 100. -100 is the background, which yields to all
            other requests, also of other namespaces, that await their first token.
        timeout_s: the generation ends with `DeadlineExceededError` this many seconds after its request; None: never.
        sharing: of cached prefixes: "on", "own": within its `cache_salt`, "off": it neither uses nor publishes any; None:
            the caller's tenant's, or "on". See `core.namespaces`.
        request_id: the caller's id of this request, for logs; at most 128 characters.
        retention: of ranges of its branches' histories, prompt and generated tokens alike.
        pins: prefixes of history and prompt that are pinned once computed, at most 16. A pin without room in the namespace's
            budget is left out; `Completed` reports it.
        truncate_prompt_tokens: read at most the last so many tokens of history and prompt; -1: as many as fit, 1 less than
            the model's length. 0: all.
        tokenizer: that of history and token ids, as `ModelInfo` has it; a worker with another one rejects them. Empty: any.
    """

    history: TokensLike = b""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    namespace: str | None = None
    adapter: str = ""
    priority: int = 0
    timeout_s: float | None = None
    sharing: str | None = None
    request_id: str = ""
    retention: Sequence[Retention] = ()
    pins: Sequence[PrefixPin] = ()
    cache_salt: str = field(default="", repr=False)
    truncate_prompt_tokens: int = 0
    tokenizer: str = ""

    def __post_init__(self) -> None:
        Prompt.__post_init__(self)
        _check_service(self.priority, self.timeout_s, self.request_id)
        check_retention(self.retention)
        check_pins(self.pins)
        check_salt(self.cache_salt)
        if self.sharing is not None:
            check_sharing(self.sharing)
        if self.truncate_prompt_tokens < -1:
            raise InvalidArgumentError("truncate_prompt_tokens", self.truncate_prompt_tokens, "at least -1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkParams(Prompt):
    """A request to continue from a token position of a running or remembered generation.

    Attributes:
        generation_id: of its `Started` event.
        branch: one of its branches, as emitted. Before its end, a generation with `best_of` or beams can only share its
            prompt.
        position: tokens of that branch's history (prompt and generated) to share; None: all.
        sampling: as for a new generation. Namespace, salt and adapter are the other generation's.
        priority, timeout_s, request_id: as in `GenerateParams`.
        retention: the same; empty: that of the other generation.
        sees: whether the caller may see generations of a namespace; other generations are unknown to it. None: it may see
            all.
        sharing: of the caller's tenant, see `core.namespaces`. Where it is stricter than that of the other generation, the
            history is computed again and shared with no other.

    The prompt, if any, is appended to the shared history.
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
    sharing: str = "on"

    def __post_init__(self) -> None:
        Prompt.__post_init__(self)
        _check_service(self.priority, self.timeout_s, self.request_id)
        check_retention(self.retention)
        check_sharing(self.sharing)


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
    """Facts of the served model for a frontend.

    max_length: longest history in tokens. has_chat_template: whether requests may have messages. adapters: names for requests.
    sampling: defaults of a request's sampling. thinking: marks around its thoughts, if any. template_variables: thinking
    variables that its chat template reads. num_parameters: 0: not known. prices: of its tokens; None: there is no price list.
    tokenizer: stands for vocabulary and chat template; empty: there is none.
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
    prices: Prices | None = None
    tokenizer: str = ""


class Generator(Protocol):
    """The worker of a frontend: an `Engine` in its process, or a `GenerationClient`."""

    def model(self) -> ModelInfo: ...

    def generate(self, params: GenerateParams) -> GenerationStream: ...

    def fork(self, params: ForkParams) -> GenerationStream: ...

    def tokenize(self, prompt: Prompt, history: TokensLike = b"", namespace: str | None = None) -> bytes: ...

    def detokenize(self, token_ids: TokensLike) -> str: ...

    def spell(self, token_ids: TokensLike) -> list[bytes]: ...

    def stats(self) -> WorkerStats: ...

    def verify_block(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Verification: ...

    def find_stored(
        self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE, num_cached_tokens: int = 0
    ) -> StoredPrefix: ...

    def erase(self, namespace: str = DEFAULT_NAMESPACE) -> list[ErasedLevel]: ...

    def export(self, tokens: TokensLike, namespace: str = DEFAULT_NAMESPACE) -> Iterable[bytes]: ...

    def import_(self, file: bytes | Iterable[bytes], namespace: str = DEFAULT_NAMESPACE) -> ImportedBlocks: ...

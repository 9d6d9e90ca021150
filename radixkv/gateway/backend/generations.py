"""Tokens and texts of running and recent generations, so that forks can start from within them."""

from __future__ import annotations

import weakref
from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence

from radixkv.core.tokens import TOKEN_BYTES
from radixkv.gateway.storage.transcript import Transcript
from radixkv.generation.stream import Delta

__all__ = ["GeneratedBranch", "Generations", "ToldGeneration"]

MAX_REMEMBERED = 1024
MAX_REMEMBERED_TOKENS = 4_000_000
"""Of generations without a reader, prompts included. The namespace that holds most loses its oldest first."""


class GeneratedBranch:
    """One branch, as far as it was emitted."""

    __slots__ = ("_text", "tokens")

    def __init__(self, tokens: bytes = b"", text: str = "") -> None:
        self.tokens = array("I", tokens)
        self._text = [text]

    @property
    def text(self) -> str:
        """All its text so far, including tool calls."""
        if len(self._text) > 1:
            self._text = ["".join(self._text)]
        return self._text[0]

    def grow(self, event: Delta) -> None:
        """Append the tokens and the text of an event."""
        self.tokens.extend(event.token_ids)
        if event.text:
            self._text.append(event.text)


class ToldGeneration:
    """One generation.

    Attributes:
        generation_id: as in the response.
        transcript: the conversation that it replies to, in the caller's namespace; without a key where it has no messages.
        adapter, cache_salt: with which it was generated.
        prompt: packed ids that it continues. branches: by index.
    """

    def __init__(
        self,
        generation_id: str,
        transcript: Transcript,
        adapter: str,
        prompt: bytes,
        branches: Sequence[GeneratedBranch],
        cache_salt: str = "",
    ) -> None:
        self.generation_id = generation_id
        self.transcript = transcript
        self.adapter = adapter
        self.cache_salt = cache_salt
        self.prompt = prompt
        self.branches = branches


class Generations:
    """All known generations. One event loop uses it.

    A stream's reader holds a reference to its generation. Apart from those, the most recently begun generations stay.
    """

    def __init__(self, max_remembered: int = MAX_REMEMBERED, max_tokens: int = MAX_REMEMBERED_TOKENS) -> None:
        self._max_remembered = max_remembered
        self._max_tokens = max_tokens
        self._known: weakref.WeakValueDictionary[str, ToldGeneration] = weakref.WeakValueDictionary()
        self._last: dict[str, OrderedDict[str, ToldGeneration]] = {}  # by namespace, oldest first
        self._sizes: dict[str, int] = {}  # tokens per remembered generation
        self._num_tokens: Counter[str] = Counter()  # tokens per namespace

    def begin(self, told: ToldGeneration) -> None:
        """Add a started generation. O(namespaces) per dropped one."""
        self._known[told.generation_id] = told
        self._last.setdefault(told.transcript.namespace, OrderedDict())[told.generation_id] = told
        self._sizes[told.generation_id] = 0
        self._grow(told, len(told.prompt) // TOKEN_BYTES)

    def grow(self, told: ToldGeneration, event: Delta) -> None:
        """Append an event to a generation."""
        told.branches[event.branch].grow(event)
        if told.generation_id in self._sizes:
            self._grow(told, len(event.token_ids))

    def find(self, namespace: str, generation_id: str) -> ToldGeneration | None:
        """Return the generation of that id, if it belongs to this namespace."""
        told = self._known.get(generation_id)
        return told if told is not None and told.transcript.namespace == namespace else None

    def forget(self, namespace: str, keys: Collection[bytes]) -> None:
        """Drop the generations that reply to conversations of these keys, or to continuations of them. O(the namespace's)."""
        wanted = frozenset(keys)
        for told in [told for told in self._known.values() if told.transcript.namespace == namespace]:
            parent = told.transcript.parent
            above = (part.key for part in parent.path()) if parent is not None else ()
            if told.transcript.key in wanted or not wanted.isdisjoint(above):
                del self._known[told.generation_id]
                if told.generation_id in self._sizes:
                    self._drop(told)

    def _grow(self, told: ToldGeneration, num_tokens: int) -> None:
        self._sizes[told.generation_id] += num_tokens
        self._num_tokens[told.transcript.namespace] += num_tokens
        while len(self._sizes) > self._max_remembered:
            self._drop_of(max(self._last, key=lambda namespace: len(self._last[namespace])))
        while self._num_tokens.total() > self._max_tokens:
            self._drop_of(max(self._last, key=self._num_tokens.__getitem__))

    def _drop_of(self, namespace: str) -> None:
        self._drop(next(iter(self._last[namespace].values())))

    def _drop(self, told: ToldGeneration) -> None:
        namespace = told.transcript.namespace
        del self._last[namespace][told.generation_id]
        self._num_tokens[namespace] -= self._sizes.pop(told.generation_id)
        if not self._last[namespace]:
            del self._last[namespace], self._num_tokens[namespace]

"""Drafts from texts that are there already.

    own       the branch's prompt and reply so far; past their end a repetition goes on
    predicted the text of the request that its reply is expected to repeat
    recent    replies that ended lately in the same namespace, with the end of their prompts

Of the places with the longest match most decide what may follow, of equally many the latest.

A source never reads another namespace than the branch's, with its salt and adapter.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol

from radixkv.core.namespaces import covers
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.worker.generations.branch import Branch
from radixkv.worker.generations.generation import Generation
from radixkv.worker.speculation.ngrams import Match, NgramIndex, index_bytes

__all__ = ["Agreement", "Draft", "DraftSource", "OwnText", "Predictions", "RecentReplies", "Source"]

_NUM_BEFORE = 48
"""Tokens of the prompt that are kept with a reply, so that its beginning is found."""
_BETWEEN = 2**32 - 1
"""Between two replies, and past the end of a text; no token id."""
_MANY = 4
"""Places from which agreement is a kind of its own."""
_MOST_OF_ONE = 4
"""A namespace's recent replies take at most this part of the bytes of all."""


class Source(Enum):
    """Origin of a draft."""

    OWN = "own"
    PREDICTED = "predicted"
    RECENT = "recent"


class Agreement(IntEnum):
    """How many places have a draft's next token, of those that had all of it so far."""

    ONE = 0
    """There is one place."""
    MOST = 1
    ALL = 2
    """Two or three."""
    ALL_OF_MANY = 3


class Draft(NamedTuple):
    """Tokens that may follow. `length`: of the match that they follow, in tokens. `agreements`: for each token."""

    source: Source
    length: int
    tokens: Sequence[int]
    agreements: Sequence[Agreement]


class DraftSource(Protocol):
    """A source of drafts."""

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft | None:
        """At most `limit` tokens, and at least one, that may follow the branch's history after a match of `least`. O(limit)."""

    def ended(self, generation: Generation) -> None:
        """A request has ended, however."""

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """Forget the replies of a namespace, and of those derived of it, also of the running requests at their end."""


class OwnText:
    """Drafts from a branch's own history, indexed at its first draft. `max_bytes`: of all indexes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._indexes: dict[Branch, NgramIndex] = {}
        self._num_bytes = 0

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft | None:
        """See `DraftSource`. A history whose index would exceed the bytes has none."""
        tokens, end = branch.tokens, len(branch.tokens)
        index = self._indexes.get(branch)
        more = index_bytes(end) - (index.size_bytes if index is not None else 0)
        if more > 0 and self._num_bytes + more > self._max_bytes:
            return None
        if index is None:
            index = self._indexes[branch] = NgramIndex()
        size = index.size_bytes
        index.extend(tokens, end - 1)
        self._num_bytes += index.size_bytes - size
        match = index.find(tokens, tokens[-_NUM_BEFORE:])
        if match is None or match.length < least:
            return None
        return Draft(Source.OWN, match.length, *_following(tokens, match.ends, limit, repeats=True))

    def ended(self, generation: Generation) -> None:
        """See `DraftSource`."""
        for branch in generation.branches:
            index = self._indexes.pop(branch, None)
            self._num_bytes -= index.size_bytes if index is not None else 0

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """Nothing: a running reply has its own text alone."""


class Predictions:
    """Drafts from a request's prediction: of its beginning at first, and then of what followed there. `max_bytes`: of all."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._indexes: dict[Generation, NgramIndex] = {}
        self._num_bytes = 0

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft | None:
        """See `DraftSource`."""
        generation = branch.generation
        text = generation.rules.prediction
        if not text:
            return None
        index = self._indexes.get(generation)
        if index is None:
            if self._num_bytes + index_bytes(len(text)) > self._max_bytes:
                return None
            index = self._indexes[generation] = NgramIndex()
            index.extend(text, len(text))
            self._num_bytes += index.size_bytes
        said = branch.tokens[generation.num_prompt_tokens :][-_NUM_BEFORE:]
        match = index.find(text, said)
        if match is None and said == text[: len(said)]:
            match = Match([len(said)], len(said))
        return _draft(Source.PREDICTED, text, match, limit, least)

    def ended(self, generation: Generation) -> None:
        """See `DraftSource`."""
        index = self._indexes.pop(generation, None)
        self._num_bytes -= index.size_bytes if index is not None else 0

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """Nothing: a prediction is its request's alone."""


class _Replies:
    """Replies of one namespace, one after the other."""

    def __init__(self) -> None:
        self.text = array("I")
        self.index = NgramIndex()

    @property
    def size_bytes(self) -> int:
        return TOKEN_BYTES * len(self.text) + self.index.size_bytes

    def add(self, tokens: Sequence[int], max_tokens: int) -> None:
        """Append a reply. Past `max_tokens` the older half goes."""
        self.text.append(_BETWEEN)
        self.text.extend(tokens)
        if len(self.text) > max_tokens:
            del self.text[: -max_tokens // 2]
            self.index = NgramIndex()
        self.index.extend(self.text, len(self.text))


class RecentReplies:
    """Drafts from replies that have ended. Requests without prefix sharing, or with fewer sources, neither add nor get any.

    `max_bytes`: of all, `size_bytes` in use; the namespace that was used least recently goes first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        largest = max_bytes // _MOST_OF_ONE // (TOKEN_BYTES + index_bytes(1 << 20) // (1 << 20))
        self._max_tokens = 1 << (largest.bit_length() - 1) if largest else 0
        self._replies: dict[str, _Replies] = {}  # the least recently used first
        self.size_bytes = 0
        self._cleared: set[str] = set()  # ids of running requests that are not kept

    def find(self, branch: Branch, limit: int, least: int = 0) -> Draft | None:
        """See `DraftSource`."""
        generation = branch.generation
        replies = self._replies.get(generation.namespace)
        if replies is None or not _is_shared(generation):
            return None
        match = replies.index.find(replies.text, branch.tokens[-_NUM_BEFORE:])
        return _draft(Source.RECENT, replies.text, match, limit, least)

    def ended(self, generation: Generation) -> None:
        """See `DraftSource`: keep its replies."""
        is_kept = _is_shared(generation) and generation.generation_id not in self._cleared
        self._cleared.discard(generation.generation_id)
        if not is_kept or self._max_tokens < 2 * _NUM_BEFORE:
            return
        start = max(0, generation.num_prompt_tokens - _NUM_BEFORE)
        told = [branch.tokens[start:] for branch in generation.branches if len(branch.tokens) > generation.trunk_length]
        if not told:
            return
        replies = self._take(generation.namespace) or _Replies()
        for tokens in told:
            replies.add(tokens, self._max_tokens)
        self._replies[generation.namespace] = replies
        self.size_bytes += replies.size_bytes
        while self.size_bytes > self._max_bytes:
            self._take(next(iter(self._replies)))

    def clear(self, namespace: str, running: Iterable[Generation]) -> None:
        """See `DraftSource`."""
        for name in [name for name in self._replies if covers(namespace, name)]:
            self._take(name)
        self._cleared |= {one.generation_id for one in running if covers(namespace, one.namespace)}

    def _take(self, namespace: str) -> _Replies | None:
        replies = self._replies.pop(namespace, None)
        self.size_bytes -= replies.size_bytes if replies is not None else 0
        return replies


def _is_shared(generation: Generation) -> bool:
    return generation.terms.shares_prefix and generation.sampling.speculation == "all"


def _draft(source: Source, text: Sequence[int], match: Match | None, limit: int, least: int) -> Draft | None:
    if match is None or match.length < least:
        return None
    tokens, agreements = _following(text, match.ends, limit)
    return Draft(source, match.length, tokens, agreements) if tokens else None


def _following(
    text: Sequence[int], ends: list[int], limit: int, *, repeats: bool = False
) -> tuple[list[int], list[Agreement]]:
    """What follows most places. `repeats`: past the end of the text the draft goes on. O(limit · places)."""
    tokens: list[int] = []
    agreements: list[Agreement] = []
    while len(ends) > 1 and len(tokens) < limit:
        at, num_places = len(tokens), len(ends)
        told = [text[end + at] if end + at < len(text) else _BETWEEN for end in ends]
        token = told[0]
        num_same = told.count(token)
        if num_same < num_places:
            [(token, num_same)] = Counter(told).most_common(1)
        if token == _BETWEEN:
            break
        agreements.append(_agreement(num_same, num_places))
        tokens.append(token)
        ends = [end for end, one in zip(ends, told, strict=True) if one == token]
    if len(ends) == 1:
        tokens += text[ends[0] + len(tokens) : ends[0] + limit]
        if _BETWEEN in tokens:
            del tokens[tokens.index(_BETWEEN) :]
    if repeats:
        tokens += [tokens[at % len(tokens)] for at in range(len(tokens), limit)]
    return tokens, agreements + [Agreement.ONE] * (len(tokens) - len(agreements))


def _agreement(num_same: int, num_places: int) -> Agreement:
    if num_same < num_places:
        return Agreement.MOST
    return Agreement.ALL if num_places < _MANY else Agreement.ALL_OF_MANY

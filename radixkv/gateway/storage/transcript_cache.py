"""The bounded cache of stable transcripts: token ids of conversations, each entry a delta over its parent.

    prompt of turn 1 <- reply a <- prompt of turn 2 <- reply
                     <- reply b (regenerated)

Recency: using an entry uses its whole path, the root last. So a parent is never older than its children, and the least
recently used entry is a leaf: evicting it leaves no entry without its parent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.transcript_rows import COLUMNS, TranscriptRow, forget, look_up, shrink

__all__ = ["Remembered", "TranscriptCache", "TranscriptCacheLimits"]

_SELECT = f"SELECT {COLUMNS} FROM transcripts ORDER BY number"
_INSERT = (
    f"INSERT INTO transcripts ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
    "parent = excluded.parent, tokens = excluded.tokens, num_reply = excluded.num_reply, decoded = excluded.decoded, "
    "created_s = excluded.created_s"
)
_DELETE = "DELETE FROM transcripts WHERE key = ?"

LOOK_UP_S = 1.0
"""How long a request waits for the token ids of its history, in seconds; then it tokenizes the text."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptCacheLimits:
    """Bounds of the cache.

    Attributes:
        max_tokens: of one namespace; a token is 4 bytes.
        max_entries: of one namespace; two per reply, of some 500 bytes each apart from their tokens.
        max_total_tokens, max_total_entries: of all namespaces together; the namespace that holds most loses entries first.
        ttl_s: lifetime of an entry, in seconds; its descendants are dropped with it.
    """

    max_tokens: int = 4_000_000
    max_entries: int = 50_000
    max_total_tokens: int = 16_000_000
    max_total_entries: int = 200_000
    ttl_s: float = 30 * 24 * 3600.0

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_entries", "max_total_tokens", "max_total_entries"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, getattr(self, name), "at least 1")
        if not self.ttl_s > 0:
            raise InvalidArgumentError("ttl_s", self.ttl_s, "above 0")


@dataclass(slots=True, eq=False, repr=False)
class Remembered:
    """The token ids of a conversation up to some point.

    Attributes:
        key: identifies the conversation.
        parent: the entry whose ids come before its own; None at the root.
        tokens: packed ids after the parent's.
        num_reply: bytes at the end of `tokens` that were sampled; 0 for a prompt.
        decoded: digest of the reply's text as the worker decodes it; empty until known.
        is_verified: whether the reply was generated, or decoded again, in this process.
        is_stored: whether its write to the database has ended, or it was read from there.
        created_s: seconds since 1970.
        replies: cached replies to this prompt, by key, oldest first.
    """

    namespace: str
    key: bytes
    parent: Remembered | None
    tokens: bytes
    num_reply: int
    created_s: float
    decoded: bytes = b""
    is_verified: bool = True
    is_stored: bool = False
    replies: dict[bytes, Remembered] = field(default_factory=dict)

    @property
    def reply(self) -> bytes:
        """The sampled ids, packed."""
        return self.tokens[len(self.tokens) - self.num_reply :]

    def path(self) -> Iterator[Remembered]:
        """Yield this entry, its parent, and so on to the root."""
        entry: Remembered | None = self
        while entry is not None:
            yield entry
            entry = entry.parent

    def all_tokens(self) -> bytes:
        """Return the packed ids from the beginning of the conversation. O(them)."""
        return b"".join([entry.tokens for entry in self.path()][::-1])


class _Namespace:
    """Entries of one namespace, least recently used first."""

    __slots__ = ("entries", "num_tokens")

    def __init__(self) -> None:
        self.entries: OrderedDict[bytes, Remembered] = OrderedDict()
        self.num_tokens = 0


class TranscriptCache:
    """All entries. One thread uses it; writes to the database follow asynchronously.

    Args:
        database: holds a copy, loaded here. One that is shared with other gateways holds the entries, and this is a copy of
            those that were used here: `look_up` before `find`.
        limits: bounds.
        clock: seconds since 1970.
    """

    def __init__(
        self, database: Database, limits: TranscriptCacheLimits, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._limits = limits
        self._clock = clock
        self._namespaces: dict[str, _Namespace] = {}
        self._num_tokens = self._num_entries = 0
        if not database.is_shared:
            self._load()

    def __len__(self) -> int:
        return self._num_entries

    @property
    def num_tokens(self) -> int:
        """Cached token ids, all namespaces together."""
        return self._num_tokens

    def find(self, namespace: str, key: bytes) -> Remembered | None:
        """Return the entry of that key, if any. O(1); recency is unchanged."""
        held = self._namespaces.get(namespace)
        return held.entries.get(key) if held is not None else None

    async def look_up(self, namespace: str, keys: Sequence[bytes], num_replies: int = 0) -> None:
        """Bring the entries of these keys of one conversation, in order, to what the shared database holds.

        `num_replies`: with so many latest replies to the last key, a prompt. While the database is away none is found.
        """
        if not self._database.is_shared or not keys:
            return
        held = self._namespaces.setdefault(namespace, _Namespace())
        known = frozenset(key for key in keys if key in held.entries)
        there, rows = set[bytes](), list[TranscriptRow]()
        try:
            async with asyncio.timeout(LOOK_UP_S):
                there, rows = await self._database.read(lambda c: look_up(c, keys, known, num_replies), namespace)
        except (UnavailableError, TimeoutError) as error:
            _LOG.info("replies are tokenized anew: %s", error or "the gateway's database does not answer")
        gone = {key for key in keys if key not in there and key in held.entries and held.entries[key].is_stored}
        self._drop(held, gone)
        by_key = {row.key: row for row in rows if row.namespace == namespace}
        for key in by_key:
            entry = self._restore(by_key, key)
            if entry is not None:
                self.use(entry)
        self._shrink(held)

    def use(self, entry: Remembered) -> None:
        """Make the entry and its whole path the most recently used. O(path)."""
        held = self._namespaces.get(entry.namespace)
        for part in entry.path():
            if held is not None and held.entries.get(part.key) is part:
                held.entries.move_to_end(part.key)

    def put(
        self, namespace: str, key: bytes, prompt: bytes, reply: bytes, parent: Remembered | None
    ) -> Remembered | None:
        """Cache the ids `prompt` + `reply` under a key and mark the entry as used; an existing entry stays.

        The parent's ids are shared where the prompt begins with them. Returns the entry; None where it exceeds the bounds on
        its own.
        """
        held = self._namespaces.setdefault(namespace, _Namespace())
        entry = held.entries.get(key)
        if entry is None:
            shared = self._shared(held, prompt, parent)
            entry = Remembered(
                namespace, key, parent if shared else None, prompt[shared:] + reply, len(reply), self._clock()
            )
            if len(entry.tokens) // TOKEN_BYTES > self._limits.max_tokens:
                return None
            self._insert(held, entry)
            if not reply:
                self.save(entry)
        self.use(entry)
        self._shrink(held)
        return entry if held.entries.get(key) is entry else None

    def save(self, entry: Remembered) -> None:
        """Queue a write of an entry to the database, after the writes queued before."""
        held = self._namespaces.get(entry.namespace)
        if held is None or held.entries.get(entry.key) is not entry:
            return  # forgotten meanwhile
        parent = entry.parent.key if entry.parent is not None else None
        row = (entry.key, entry.namespace, parent, entry.tokens, entry.num_reply, entry.decoded, entry.created_s)

        def stored(_: Future[Any]) -> None:
            entry.is_stored = True

        self._tell(lambda connection: connection.execute(_INSERT, row), stored)

    def forget(self, *entries: Remembered) -> None:
        """Drop entries of one namespace, their descendants, and prompts left without a reply.

        O(entries of the namespace).
        """
        held = self._namespaces.get(entries[0].namespace) if entries else None
        if held is None:
            return
        self._drop(held, {entry.key for entry in entries})
        stems = {entry.parent.key for entry in entries if entry.parent is not None and not entry.parent.num_reply}
        self._drop(held, stems - {entry.parent.key for entry in held.entries.values() if entry.parent is not None})

    def forget_keys(self, namespace: str, keys: Sequence[bytes]) -> None:
        """Drop the replies of these keys, and their continuations, at all gateways that share the database."""
        found = (self.find(namespace, key) for key in keys)
        self.forget(*(_replied(entry) for entry in found if entry is not None))
        if self._database.is_shared:
            self._tell(lambda connection: forget(connection, keys))

    def sweep(self) -> int:
        """Drop expired entries and their descendants; returns the number of entries. O(entries)."""
        oldest_s = self._clock() - self._limits.ttl_s
        before = self._num_entries
        if self._database.is_shared:
            limits = self._limits
            self._tell(lambda c: shrink(c, oldest_s, limits.max_entries, TOKEN_BYTES * limits.max_tokens))
        for held in self._namespaces.values():
            self._drop(held, {entry.key for entry in held.entries.values() if entry.created_s <= oldest_s})
        return before - self._num_entries

    def _drop(self, held: _Namespace, keys: set[bytes]) -> None:
        """Remove the entries of these keys and their descendants."""
        if not keys:
            return
        for entry in [e for e in held.entries.values() if any(part.key in keys for part in e.path())]:
            self._remove(held, entry)

    def _shared(self, held: _Namespace, prompt: bytes, parent: Remembered | None) -> int:
        if parent is None or held.entries.get(parent.key) is not parent:
            return 0
        kept = parent.all_tokens()
        return len(kept) if prompt.startswith(kept) else 0

    def _insert(self, held: _Namespace, entry: Remembered) -> None:
        held.entries[entry.key] = entry
        if entry.parent is not None and entry.num_reply:
            entry.parent.replies[entry.key] = entry
        held.num_tokens += len(entry.tokens) // TOKEN_BYTES
        self._num_tokens += len(entry.tokens) // TOKEN_BYTES
        self._num_entries += 1

    def _remove(self, held: _Namespace, entry: Remembered) -> None:
        del held.entries[entry.key]
        if entry.parent is not None:
            entry.parent.replies.pop(entry.key, None)
        held.num_tokens -= len(entry.tokens) // TOKEN_BYTES
        self._num_tokens -= len(entry.tokens) // TOKEN_BYTES
        self._num_entries -= 1
        if not self._database.is_shared:
            self._tell(lambda connection: connection.execute(_DELETE, (entry.key,)))

    def _shrink(self, held: _Namespace) -> None:
        limits = self._limits
        while held.num_tokens > limits.max_tokens or len(held.entries) > limits.max_entries:
            self._remove(held, next(iter(held.entries.values())))
        while self._num_tokens > limits.max_total_tokens or self._num_entries > limits.max_total_entries:
            by_tokens = self._num_tokens > limits.max_total_tokens
            largest = max(self._namespaces.values(), key=lambda n: n.num_tokens if by_tokens else len(n.entries))
            self._remove(largest, next(iter(largest.entries.values())))

    def _tell(
        self, job: Callable[[Connection], Any], when_done: Callable[[Future[Any]], None] = lambda _: None
    ) -> None:
        try:
            self._database.submit(job).add_done_callback(when_done)
        except UnavailableError:
            _LOG.debug("the database is closed: what is remembered now ends with the process")

    def _load(self) -> None:
        """Load the database's entries; descendants of a missing entry are left out."""
        found = self._database.submit(lambda connection: connection.execute(_SELECT).fetchall()).result()
        rows = {row[0]: TranscriptRow(*row) for row in found}
        for key in rows:
            entry = self._restore(rows, key)
            if entry is not None:
                self.use(entry)
        self.sweep()
        for held in self._namespaces.values():
            self._shrink(held)

    def _restore(self, rows: dict[bytes, TranscriptRow], key: bytes) -> Remembered | None:
        """Insert the entry of a row, its path first.

        A reply is written once its text is known, which may be after a child's row. O(path).
        """
        path: list[TranscriptRow] = []
        parent: Remembered | None = None
        next_key: bytes | None = key
        while next_key is not None and parent is None:
            row = rows.get(next_key)
            if row is None or len(path) > len(rows):
                if not self._database.is_shared:
                    self._tell(lambda connection: connection.execute(_DELETE, (key,)))
                return None
            parent = self.find(row.namespace, row.key)
            if parent is None:
                path.append(row)
                next_key = row.parent
        for row in reversed(path):
            entry = Remembered(row.namespace, row.key, parent, row.tokens, row.num_reply, row.created_s)
            entry.decoded, entry.is_verified, entry.is_stored = row.decoded, False, True
            self._insert(self._namespaces.setdefault(row.namespace, _Namespace()), entry)
            parent = entry
        return parent


def _replied(entry: Remembered) -> Remembered:
    """Return the reply that an entry is, or whose alias it is."""
    return entry if entry.num_reply or entry.parent is None else entry.parent

"""Conversations as rows of the gateway's database. No conversation crosses namespaces.

A message belongs to a conversation and to its parent; `number` is the order of creation. Triggers of the database count the
usage of a namespace. Nothing here expires: additions over a bound are rejected.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from radixkv.gateway.api.conversations.messages import Conversation, Message, new_id
from radixkv.gateway.api.conversations.shown import ALL, Shown
from radixkv.gateway.api.conversations.store.import_store import ImportStore, KnownSourceError, find_source
from radixkv.gateway.api.conversations.store.lease_store import LeaseStore
from radixkv.gateway.api.conversations.store.rows import (
    FINISH,
    INSERT_CONVERSATION,
    all_messages,
    below,
    dump_details,
    fail_lost,
    find,
    find_message,
    find_messages,
    free_update,
    last_message,
    next_update,
    path_to,
    read_conversation,
    read_message,
    size_of,
)
from radixkv.gateway.api.conversations.store.trash_store import TrashStore
from radixkv.gateway.api.conversations.writing import Change, Value, Values, Writer
from radixkv.gateway.protocol.errors import conflict
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database

__all__ = ["ConversationStore", "Growth"]


class Growth(NamedTuple):
    """The text of a reply so far."""

    conversation_id: str
    message_id: str
    text: str
    seq: int


class ConversationStore:
    """Conversations of all namespaces. Replies whose gateway has ended before them count as
    failed, see `leases`.

    The last argument of a changing call is the latest version that followers have; the change gets a higher one.

    Args:
        database: stores them.
        max_conversations, max_bytes: bounds of each namespace.
        clock: seconds since 1970.

    Every call raises ApiError 404 where the conversation, or a message that it names, does not exist in this namespace.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_conversations: int = 10_000,
        max_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._writer = Writer(max_conversations, max_bytes, clock)
        self.imports = ImportStore(database, self._writer)
        self.trash = TrashStore(database, self._writer)
        self.leases = LeaseStore(database)
        if not database.is_shared:
            database.submit(fail_lost).result()

    # -- whole conversations

    async def create(
        self,
        namespace: str,
        title: str | None = None,
        messages: Sequence[Message] = (),
        *,
        created_s: float | None = None,
        head: str | None = None,
        kept: Mapping[str, Value] | None = None,
        updated_s: float | None = None,
        source: str | None = None,
    ) -> Conversation:
        """Store a new conversation with messages, parents first; every parent must be among them.

        The default title comes from its first user's message. `head`: by default the last message. `updated_s`: by default now.
        `kept`: settings, tags (JSON) and marks, by columns. `source`: key for `imports`.

        Raises:
            ApiError: 409: the namespace is full.
            KnownSourceError: another one has that source.
        """
        now_s = self._writer.clock()
        conversation_id = new_id("conv")
        begun_s = now_s if created_s is None else created_s

        def insert(connection: Connection) -> Conversation:
            if source is not None and find_source(connection, namespace, source):
                raise KnownSourceError
            new = {
                "id": conversation_id,
                "namespace": namespace,
                "title": title,
                "created_s": begun_s,
                "updated_s": next_update(connection, namespace, now_s),
                "source": source,
            }
            connection.execute(INSERT_CONVERSATION, new)
            self._writer.change(connection, find(connection, namespace, conversation_id), kept or {}, 0)
            self._writer.check_number(connection, namespace)
            self._writer.insert(connection, find(connection, namespace, conversation_id), messages, 0)
            if head is not None:
                connection.execute("UPDATE conversations SET head = ? WHERE id = ?", (head, conversation_id))
            if updated_s is not None:
                free_s = free_update(connection, namespace, updated_s)
                connection.execute("UPDATE conversations SET updated_s = ? WHERE id = ?", (free_s, conversation_id))
            return read_conversation(find(connection, namespace, conversation_id))

        return await self._database.run(insert, namespace)

    async def page(
        self, namespace: str, limit: int, before_s: float | None = None, shown: Shown = ALL
    ) -> list[Conversation]:
        """Return the latest updated conversations, updated before a time; at most `limit`."""
        where, values = shown.where()
        query = (
            f"SELECT * FROM conversations WHERE namespace = ? AND updated_s < ?{where} ORDER BY updated_s DESC LIMIT ?"
        )
        bounds = (namespace, float("inf") if before_s is None else before_s, *values, limit)
        return await self._database.read(
            lambda connection: [read_conversation(row) for row in connection.execute(query, bounds)], namespace
        )

    async def tags(self, namespace: str) -> list[tuple[str, int]]:
        """Return all tags outside the trash with their numbers of conversations. O(the namespace's conversations)."""
        query = "SELECT tags FROM conversations WHERE namespace = ? AND trashed_s IS NULL AND tags IS NOT NULL"
        rows = await self._database.read(lambda c: c.execute(query, (namespace,)).fetchall(), namespace)
        return sorted(Counter(tag for row in rows for tag in json.loads(row["tags"])).items())

    async def open(self, namespace: str, conversation_id: str) -> tuple[Conversation, list[Message]]:
        """Return a conversation with all its messages, in order of creation."""

        def read(connection: Connection) -> tuple[Conversation, list[Message]]:
            row = find(connection, namespace, conversation_id)
            return read_conversation(row), all_messages(connection, conversation_id)

        return await self._database.read(read, namespace)

    async def about(self, namespace: str, conversation_id: str) -> Conversation:
        """Return a conversation without its messages."""
        return await self._database.read(
            lambda connection: read_conversation(find(connection, namespace, conversation_id)), namespace
        )

    async def change(self, namespace: str, conversation_id: str, values: Values, told: int) -> Conversation:
        """Set its title, settings or tags (JSON), or a mark, by columns. Only a title counts as an update.

        Raises:
            ApiError: 409: a bound is reached.
        """

        def update(connection: Connection) -> Conversation:
            row = find(connection, namespace, conversation_id)
            wanted = values(read_conversation(row)) if callable(values) else values
            return self._writer.change(connection, row, wanted, max(row["version"], told) + 1)

        return await self._database.run(update, namespace)

    async def delete(self, namespace: str, conversation_id: str, trashed: bool | None = None) -> list[Message]:
        """Remove it, also from the trash; returns all its messages, those in the trash last. `trashed`: as for `find`."""

        def remove(connection: Connection) -> list[Message]:
            find(connection, namespace, conversation_id, trashed=trashed)
            query = "SELECT * FROM trashed_messages WHERE conversation = ?"
            thrown = [read_message(row) for row in connection.execute(query, (conversation_id,))]
            messages = all_messages(connection, conversation_id)
            connection.execute("DELETE FROM messages WHERE conversation = ?", (conversation_id,))
            connection.execute("DELETE FROM trashed_messages WHERE conversation = ?", (conversation_id,))
            connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
            return messages + thrown

        return await self._database.run(remove, namespace)

    # -- messages

    async def add(self, namespace: str, conversation_id: str, message: Message, told: int) -> Change:
        """Add a message. Repeating the same message changes nothing.

        Raises:
            ApiError: 409: another message has its id, or a bound is reached.
        """

        def insert(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            there = find_messages(connection, conversation_id, [message.id])
            if not there:
                if message.parent is not None:
                    find_message(connection, conversation_id, message.parent, "parent")
                return self._writer.insert(connection, row, [message], told)
            same = there[0]
            if (same.parent, same.role, same.text) != (message.parent, message.role, message.text):
                raise conflict(f"another message has the id {message.id!r}; give every message one of its own", "id")
            return Change(read_conversation(row), there, is_repeat=True)

        return await self._database.run(insert, namespace)

    async def add_path(self, namespace: str, conversation_id: str, messages: Sequence[Message], told: int) -> Change:
        """Add messages, each below the one before it. Repeating them changes nothing.

        Raises:
            ApiError: 409: another message has one of their ids, or a bound is reached.
        """

        def insert(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            there = find_messages(connection, conversation_id, [message.id for message in messages])
            if [(each.id, each.parent, each.text) for each in there] == [(m.id, m.parent, m.text) for m in messages]:
                return Change(read_conversation(row), there, is_repeat=True)
            for taken in there:
                raise conflict(f"another message has the id {taken.id!r}; give every branch one of its own", "id")
            if messages[0].parent is not None:
                find_message(connection, conversation_id, messages[0].parent, "parent")
            return self._writer.insert(connection, row, messages, told)

        return await self._database.run(insert, namespace)

    async def begin(
        self, namespace: str, conversation_id: str, replies: Sequence[Message], told: int, request: str | None = None
    ) -> Change:
        """Add replies that are about to be written below one message; all or none.

        `request`: by which another gateway can write them.

        Raises:
            ApiError: 409: one of their ids is taken, or a bound is reached.
        """

        def insert(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            find_message(connection, conversation_id, replies[0].parent or "")
            for taken in find_messages(connection, conversation_id, [reply.id for reply in replies]):
                raise conflict(f"another message has the id {taken.id!r}; give every reply one of its own", "ids")
            change = self._writer.insert(connection, row, replies, told)
            for reply in replies:
                own = "UPDATE messages SET owner = ?, request = ? WHERE conversation = ? AND id = ?"
                connection.execute(own, (self._database.owner, request, conversation_id, reply.id))
            return change

        return await self._database.run(insert, namespace)

    async def save(self, growths: Sequence[Growth]) -> set[tuple[str, str]]:
        """Store the text of running replies; returns those that are no longer this gateway's, by conversation and message."""

        def update(connection: Connection) -> set[tuple[str, str]]:
            text = (
                "UPDATE messages SET text = ?, seq = ?, size_bytes = ? "
                "WHERE conversation = ? AND id = ? AND status = 'running' AND owner = ?"
            )
            taken: set[tuple[str, str]] = set()
            for conversation_id, message_id, written, seq in growths:
                values = (written, seq, size_of(written), conversation_id, message_id, self._database.owner)
                if not connection.execute(text, values).rowcount:
                    taken.add((conversation_id, message_id))
                    continue
                connection.execute(
                    "UPDATE conversations SET version = ? WHERE id = ? AND version < ?", (seq, conversation_id, seq)
                )
            return taken

        return await self._database.run(update)

    async def finish(self, conversation_id: str, replies: Iterable[Message], told: int) -> Change | None:
        """Store the end of replies; None where all of them, or the conversation, are gone."""

        def update(connection: Connection) -> Change | None:
            row = connection.execute("SELECT * FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
            if row is None:
                return None
            version, ended = max(row["version"], told), []
            for reply in replies:
                version += 1
                values = (
                    reply.text,
                    reply.status,
                    reply.error,
                    dump_details(reply.details),
                    version,
                    size_of(reply.counted_text),
                )
                if connection.execute(FINISH, (*values, conversation_id, reply.id, self._database.owner)).rowcount:
                    reply.seq = version
                    ended.append(find_message(connection, conversation_id, reply.id))  # with its marks
            return Change(self._writer.touch(connection, row, version, ended[-1].id), ended) if ended else None

        return await self._database.keep(update)

    async def stop(self, namespace: str, conversation_id: str, message_id: str, told: int, seen: str = "") -> Change:
        """End a reply that another gateway writes; its text stays, as stored or, if longer, as `seen`. No effect on a
        finished reply.
        """

        def update(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            message = find_message(connection, conversation_id, message_id)
            if message.status != "running":
                return Change(read_conversation(row), [message], is_repeat=True)
            message.status, message.seq = "stopped", max(row["version"], told) + 1
            message.text = max(message.text, seen, key=len)
            query = (
                "UPDATE messages SET status = ?, seq = ?, text = ?, size_bytes = ?, owner = NULL, request = NULL "
                "WHERE conversation = ? AND id = ?"
            )
            written = message.status, message.seq, message.text, size_of(message.text)
            connection.execute(query, (*written, conversation_id, message_id))
            return Change(self._writer.touch(connection, row, message.seq, message_id), [message])

        return await self._database.run(update, namespace)

    async def changed(
        self, namespace: str, conversation_id: str, sent: Mapping[str, int]
    ) -> tuple[Conversation, list[Message], list[str]]:
        """Return the messages that have another `seq` than in `sent`, by id, and the ids of those that are gone."""

        def read(connection: Connection) -> tuple[Conversation, list[Message], list[str]]:
            row = find(connection, namespace, conversation_id)
            query = "SELECT id, seq FROM messages WHERE conversation = ? ORDER BY number"
            there = {each["id"]: each["seq"] for each in connection.execute(query, (conversation_id,))}
            new = [message_id for message_id, seq in there.items() if sent.get(message_id) != seq]
            gone = [message_id for message_id in sent if message_id not in there]
            return read_conversation(row), find_messages(connection, conversation_id, new), gone

        return await self._database.read(read, namespace)

    async def message(
        self, namespace: str, conversation_id: str, message_id: str, param: str = "message_id"
    ) -> Message:
        """Return one message; `param`: the request's field with its id."""

        def read(connection: Connection) -> Message:
            find(connection, namespace, conversation_id)
            return find_message(connection, conversation_id, message_id, param)

        return await self._database.read(read, namespace)

    async def mark(
        self,
        namespace: str,
        conversation_id: str,
        message_id: str,
        is_starred: bool | None,
        name: str | None,
        told: int,
    ) -> Change:
        """Set the star and the name of a message; an empty name removes it, None leaves either. The conversation's time stays.

        Raises:
            ApiError: 409: a bound is reached.
        """

        def update(connection: Connection) -> Change:
            row = find(connection, namespace, conversation_id)
            message = find_message(connection, conversation_id, message_id)
            message.is_starred = message.is_starred if is_starred is None else is_starred
            message.name = message.name if name is None else name or None
            message.seq = max(row["version"], told) + 1
            connection.execute(
                "UPDATE messages SET is_starred = ?, name = ?, seq = ?, size_bytes = ? WHERE conversation = ? AND id = ?",
                (
                    int(message.is_starred),
                    message.name,
                    message.seq,
                    size_of(message.counted_text),
                    conversation_id,
                    message.id,
                ),
            )
            self._writer.check_bounds(connection, conversation_id, namespace)
            return Change(
                self._writer.change(connection, find(connection, namespace, conversation_id), {}, message.seq),
                [message],
            )

        return await self._database.run(update, namespace)

    async def path(self, namespace: str, conversation_id: str, message_id: str) -> list[Message]:
        """Return the path from the conversation's beginning to a message. O(its length)."""

        def read(connection: Connection) -> list[Message]:
            find(connection, namespace, conversation_id)
            find_message(connection, conversation_id, message_id)
            return path_to(connection, conversation_id, message_id)

        return await self._database.read(read, namespace)

    async def replies(
        self, namespace: str, conversation_id: str, parent: str, ids: Collection[str] | None = None
    ) -> list[Message]:
        """Return replies below a message; with `ids`, the messages with these ids, which must be such replies.

        Raises:
            ApiError: 409: an id belongs to another message.
        """

        def read(connection: Connection) -> list[Message]:
            find(connection, namespace, conversation_id)
            if ids is None:
                query = "SELECT * FROM messages WHERE conversation = ? AND parent = ? AND role = 'assistant' ORDER BY number"
                return [read_message(row) for row in connection.execute(query, (conversation_id, parent))]
            there = find_messages(connection, conversation_id, ids)
            for message in there:
                if (message.parent, message.role) != (parent, "assistant"):
                    raise conflict(f"another message has the id {message.id!r}; give every reply one of its own", "ids")
            return there

        return await self._database.read(read, namespace)

    async def remove(
        self, namespace: str, conversation_id: str, message_id: str, told: int
    ) -> tuple[Change, list[Message]]:
        """Remove a message and its descendants; also returns the path above it, from the beginning."""

        def delete(connection: Connection) -> tuple[Change, list[Message]]:
            row = find(connection, namespace, conversation_id)
            above = path_to(connection, conversation_id, find_message(connection, conversation_id, message_id).parent)
            removed = below(connection, conversation_id, message_id)
            for each in removed:
                connection.execute("DELETE FROM messages WHERE conversation = ? AND id = ?", (conversation_id, each.id))
            head = row["head"]
            if head is None or head in {each.id for each in removed}:
                head = above[-1].id if above else last_message(connection, conversation_id)
            conversation = self._writer.touch(connection, row, max(row["version"], told) + 1, head)
            return Change(conversation, removed), above

        return await self._database.run(delete, namespace)

"""Storage of the Responses API's conversations: lists of items, each of one namespace, that responses read and extend.

They are separate from the trees of `conversations/`: a list has no branches, and holds tool calls. Nothing here expires:
additions over a bound are rejected.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from radixkv.gateway.api.responses.items import Item, new_id
from radixkv.gateway.protocol.errors import ApiError, not_found
from radixkv.gateway.storage.connection import Connection, Row
from radixkv.gateway.storage.database import Database

__all__ = ["MAX_ITEMS", "ItemList", "ItemLists"]

MAX_ITEMS = 10_000
"""Per list."""

MAX_LIST_BYTES = 16 * 1024 * 1024
ROW_BYTES = 256
"""Size of a list or an item apart from its text."""


class ItemList(NamedTuple):
    """A list, without its items."""

    id: str
    created_s: float
    metadata: dict[str, str]

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": int(self.created_s),
            "metadata": self.metadata,
        }


class ItemLists:
    """Lists of all namespaces; no list crosses namespaces.

    Args:
        database: stores them.
        max_lists, max_bytes: bounds of each namespace.

    Every call raises ApiError 404 where the list, or an item that it names, does not exist in this namespace. A call that
    would exceed a bound raises 409 and changes nothing.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_lists: int = 10_000,
        max_bytes: int = 1 << 30,
    ) -> None:
        self._database = database
        self._max_lists = max_lists
        self._max_bytes = max_bytes

    async def create(self, namespace: str, metadata: Mapping[str, str], items: Sequence[Item] = ()) -> ItemList:
        """Create a list."""
        made = ItemList(new_id("conv"), time.time(), dict(metadata))
        told = json.dumps(made.metadata)

        def insert(connection: Connection) -> ItemList:
            row = (made.id, namespace, made.created_s, told, ROW_BYTES + len(told))
            connection.execute("INSERT INTO item_lists VALUES (?, ?, ?, ?, 0, ?)", row)
            self._add(connection, namespace, made.id, items)
            return made

        return await self._database.run(insert, namespace)

    async def get(self, namespace: str, list_id: str) -> ItemList:
        """Return a list."""
        return await self._database.read(lambda connection: _read(_find(connection, namespace, list_id)), namespace)

    async def update(self, namespace: str, list_id: str, metadata: Mapping[str, str]) -> ItemList:
        """Replace its metadata."""
        told = json.dumps(dict(metadata))

        def change(connection: Connection) -> ItemList:
            row = _find(connection, namespace, list_id)
            size = row["size_bytes"] + len(told) - len(row["metadata"])
            connection.execute("UPDATE item_lists SET metadata = ?, size_bytes = ? WHERE id = ?", (told, size, list_id))
            self._check_room(connection, namespace, list_id)
            return _read(_find(connection, namespace, list_id))

        return await self._database.run(change, namespace)

    async def delete(self, namespace: str, list_id: str) -> None:
        """Remove it with its items. Its responses stay."""

        def remove(connection: Connection) -> None:
            _find(connection, namespace, list_id)
            connection.execute("DELETE FROM items WHERE list = ?", (list_id,))
            connection.execute("DELETE FROM item_lists WHERE id = ?", (list_id,))

        await self._database.run(remove, namespace)

    async def items(self, namespace: str, list_id: str) -> list[Item]:
        """Return all items in order of insertion."""

        def read(connection: Connection) -> list[Item]:
            _find(connection, namespace, list_id)
            query = "SELECT item FROM items WHERE list = ? ORDER BY number"
            return [json.loads(row["item"]) for row in connection.execute(query, (list_id,))]

        return await self._database.read(read, namespace)

    async def add(self, namespace: str, list_id: str, items: Sequence[Item]) -> None:
        """Append items, except those whose id is in the list already."""
        await self._database.run(lambda connection: self._add(connection, namespace, list_id, items), namespace)

    async def remove(self, namespace: str, list_id: str, item_id: str) -> ItemList:
        """Remove one item."""

        def take(connection: Connection) -> ItemList:
            found = _read(_find(connection, namespace, list_id))
            row = connection.execute("SELECT * FROM items WHERE list = ? AND id = ?", (list_id, item_id)).fetchone()
            if row is None:
                raise not_found("item", item_id, "item_id")
            connection.execute("DELETE FROM items WHERE number = ?", (row["number"],))
            connection.execute(_GROW, (-1, -row["size_bytes"], list_id))
            return found

        return await self._database.run(take, namespace)

    def _add(self, connection: Connection, namespace: str, list_id: str, items: Sequence[Item]) -> None:
        _find(connection, namespace, list_id)
        for item in items:
            text = json.dumps(item)
            row = (list_id, item["id"], text, ROW_BYTES + len(text))
            query = "INSERT INTO items (list, id, item, size_bytes) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
            if connection.execute(query, row).rowcount:
                connection.execute(_GROW, (1, ROW_BYTES + len(text), list_id))
        self._check_room(connection, namespace, list_id)

    def _check_room(self, connection: Connection, namespace: str, list_id: str) -> None:
        own = _find(connection, namespace, list_id)
        if own["num_items"] > MAX_ITEMS or own["size_bytes"] > MAX_LIST_BYTES:
            raise _full(f"a conversation holds at most {MAX_ITEMS:,} items and {MAX_LIST_BYTES >> 20} MiB")
        query = "SELECT COUNT(*) AS number, SUM(size_bytes) AS size FROM item_lists WHERE namespace = ?"
        used = connection.execute(query, (namespace,)).fetchone()
        if used["number"] > self._max_lists or used["size"] > self._max_bytes:
            raise _full(f"at most {self._max_lists:,} conversations and {self._max_bytes:,} bytes of them are kept")


_GROW = "UPDATE item_lists SET num_items = num_items + ?, size_bytes = size_bytes + ? WHERE id = ?"


def _find(connection: Connection, namespace: str, list_id: str) -> Row:
    query = "SELECT * FROM item_lists WHERE id = ? AND namespace = ?"
    row: Row | None = connection.execute(query, (list_id, namespace)).fetchone()
    if row is None:
        raise not_found("conversation", list_id, "conversation")
    return row


def _read(row: Row) -> ItemList:
    return ItemList(row["id"], row["created_s"], json.loads(row["metadata"]))


def _full(bound: str) -> ApiError:
    return ApiError(409, f"{bound}; delete some first", code="conversation_full", param="conversation")

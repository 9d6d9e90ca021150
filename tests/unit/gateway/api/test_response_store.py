"""Stored responses: a tree of points to go on from, bounded, expiring, safe against the end of the process."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_chats import add, body, item, run, texts

from radixkv.core.errors import InvalidArgumentError, LimitError
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.api.responses.response_store import ResponseStore, UnknownResponseError
from radixkv.gateway.storage.database import Database


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(any_state: Path | str) -> Iterator[Database]:
    with Database(any_state) as database:
        yield database


@pytest.fixture
def store(database: Database, clock: Clock) -> ResponseStore:
    return ResponseStore(database, ttl_s=100.0, max_responses=20, max_bytes=200_000, clock=clock)


def count(database: Database) -> int:
    answer: int = database.submit(lambda c: c.execute("SELECT COUNT(*) FROM responses").fetchone()[0]).result()
    return answer


def test_a_response_is_told_as_it_was_stored(store: ResponseStore) -> None:
    async def story() -> None:
        await store.begin("a", body("r"), [item("hi")])
        assert await store.get("a", "r") == body("r")
        await store.finish(body("r", "completed", "ho"), pack_tokens([1, 2]))
        stored = await store.get("a", "r")
        assert stored == body("r", "completed", "ho")
        assert await store.input_items("a", "r") == [item("hi")]

    run(story())


def test_every_response_knows_the_conversation_that_it_ends(store: ResponseStore) -> None:
    async def story() -> None:
        first, second = pack_tokens([1, 2, 3]), pack_tokens([1, 2, 3, 4, 5])
        await add(store, "r1", None, first)
        await add(store, "r2", "r1", second)
        await add(store, "r3", "r1", pack_tokens([1, 2, 3, 9]))
        await add(store, "r4", "r2", pack_tokens([7, 8]))  # rendered anew: shares nothing with its parent
        await add(store, "r5", "r4", pack_tokens([7, 8, 9]))
        for response_id, tokens, said in (
            ("r1", first, ["to r1", "of r1"]),
            ("r2", second, ["to r1", "of r1", "to r2", "of r2"]),
            ("r3", pack_tokens([1, 2, 3, 9]), ["to r1", "of r1", "to r3", "of r3"]),
            ("r5", pack_tokens([7, 8, 9]), ["to r1", "of r1", "to r2", "of r2", "to r4", "of r4", "to r5", "of r5"]),
        ):
            context = await store.context("a", response_id)
            assert (context.tokens, texts(context.items)) == (tokens, said)
            assert texts(await store.input_items("a", response_id)) == said[:-1]

    run(story())


def test_tokens_are_held_once_however_many_go_on_from_them(store: ResponseStore, database: Database) -> None:
    async def story() -> None:
        prompt = pack_tokens(range(2000))
        await add(store, "r", None, prompt)
        for number in range(10):
            await add(store, f"r{number}", "r", prompt + pack_tokens([number]))
        size = database.submit(lambda c: c.execute("SELECT SUM(LENGTH(tokens)) FROM responses").fetchone()[0]).result()
        assert size == len(prompt) + 10 * 4

    run(story())


def test_a_namespace_has_no_response_of_another(store: ResponseStore) -> None:
    async def story() -> None:
        await add(store, "r", None, b"")
        for call in (store.get("b", "r"), store.context("b", "r"), store.delete("b", "r"), store.input_items("b", "r")):
            with pytest.raises(UnknownResponseError, match="'r'"):
                await call
        with pytest.raises(UnknownResponseError):
            await store.begin("b", body("child"), [], "r")
        with pytest.raises(UnknownResponseError):
            await store.get("b", "child")
        assert (await store.get("a", "r"))["status"] == "completed"

    run(story())


def test_what_goes_on_from_a_deleted_response_keeps_what_was_said(store: ResponseStore, database: Database) -> None:
    async def story() -> None:
        await add(store, "r1", None, pack_tokens([1]))
        await add(store, "r2", "r1", pack_tokens([1, 2]))
        await add(store, "r3", "r2", pack_tokens([1, 2, 3]))
        await store.delete("a", "r1")
        await store.delete("a", "r2")
        for gone in ("r1", "r2"):
            with pytest.raises(UnknownResponseError):
                await store.get("a", gone)
            with pytest.raises(UnknownResponseError):
                await store.begin("a", body("r4"), [], gone)
        context = await store.context("a", "r3")
        assert context.tokens == pack_tokens([1, 2, 3])
        assert texts(context.items) == ["to r1", "of r1", "to r2", "of r2", "to r3", "of r3"]
        assert count(database) == 3
        await store.delete("a", "r3")
        assert count(database) == 0

    run(story())


def test_responses_expire_and_are_swept(store: ResponseStore, database: Database, clock: Clock) -> None:
    async def story() -> None:
        await add(store, "r1", None, pack_tokens([1]))
        clock.now_s += 60
        await add(store, "r2", "r1", pack_tokens([1, 2]))
        clock.now_s += 40
        with pytest.raises(UnknownResponseError):
            await store.get("a", "r1")
        assert await store.sweep() == 1
        assert (await store.context("a", "r2")).tokens == pack_tokens([1, 2])
        clock.now_s += 60
        assert await store.sweep() == 1
        assert count(database) == 0

    run(story())


@pytest.mark.parametrize("order", ["parents first", "children first"])
def test_a_whole_expired_tree_is_swept_at_once(
    store: ResponseStore, database: Database, clock: Clock, order: str
) -> None:
    async def story() -> None:
        for number in range(10):
            await add(
                store,
                f"r{number if order == 'parents first' else 9 - number}",
                f"{_parent(number, order)}" or None,
                b"",
            )
        clock.now_s += 1000
        assert await store.sweep() == 10
        assert count(database) == 0

    def _parent(number: int, order: str) -> str:
        if not number:
            return ""
        return f"r{number - 1 if order == 'parents first' else 10 - number}"

    run(story())


def test_the_oldest_abandoned_responses_make_room(store: ResponseStore, clock: Clock) -> None:
    async def story() -> None:
        await add(store, "root", None, b"")
        for number in range(40):
            clock.now_s += 1
            await add(store, f"r{number}", "root", b"")
        assert (await store.get("a", "root"))["status"] == "completed", "others go on from it"
        with pytest.raises(UnknownResponseError):
            await store.get("a", "r20")
        for number in range(21, 40):
            await store.get("a", f"r{number}")

    run(story())


def test_bytes_are_bounded_too(store: ResponseStore, database: Database, clock: Clock) -> None:
    async def story() -> None:
        for number in range(15):
            clock.now_s += 1
            await add(store, f"r{number}", None, pack_tokens(range(10_000)))
            used = database.submit(lambda c: c.execute("SELECT SUM(size_bytes) FROM responses").fetchone()[0]).result()
            assert used <= 200_000
        await store.get("a", "r14")

    run(story())


def test_a_namespace_that_is_full_of_what_is_needed_refuses_and_changes_nothing(
    store: ResponseStore, database: Database
) -> None:
    async def story() -> None:
        for number in range(20):
            await store.begin("a", body(f"r{number}"), [])
        with pytest.raises(LimitError, match="20 responses"):
            await store.begin("a", body("r20"), [])
        assert count(database) == 20
        await add(store, "other", None, b"", namespace="b")

    run(story())


def test_what_was_counted_is_what_is_there(store: ResponseStore, database: Database, clock: Clock) -> None:
    """Random histories; after each call the bounds hold and the books agree with a recount."""

    async def story() -> None:
        source = random.Random(5)
        known: list[tuple[str, str]] = []
        for number in range(40 if database.is_shared else 600):
            clock.now_s += source.choice((0, 1, 20))
            namespace, parent = source.choice("ab"), None
            if known and source.random() < 0.7:
                namespace, parent = source.choice(known)
            try:
                match source.randrange(6):
                    case 0 if parent:
                        await store.delete(namespace, parent)
                    case 1:
                        await store.sweep()
                    case _:
                        tokens = pack_tokens([source.randrange(4) for _ in range(source.randrange(200))])
                        kept = (await store.context(namespace, parent)).tokens if parent else b""
                        await add(store, f"r{number}", parent, kept + tokens, namespace)
                        assert (await store.context(namespace, f"r{number}")).tokens == kept + tokens
                        known.append((namespace, f"r{number}"))
            except UnknownResponseError:
                known.remove((namespace, str(parent)))
            assert database.submit(recount).result() == []

    run(story())


def recount(connection: sqlite3.Connection) -> list[str]:
    """What the books say wrongly."""
    faults = []
    for row in connection.execute("SELECT * FROM usage").fetchall():
        real = connection.execute(
            "SELECT COUNT(*), COALESCE(SUM(size_bytes), 0) FROM responses WHERE namespace = ?", (row["namespace"],)
        ).fetchone()
        if tuple(real) != (row["num_responses"], row["size_bytes"]) or real[0] > 20 or real[1] > 200_000:
            faults.append(f"{row['namespace']}: {tuple(row)} against {tuple(real)}")
    query = "SELECT parent, COUNT(*) FROM responses WHERE parent IS NOT NULL GROUP BY parent"
    num_children = dict(map(tuple, connection.execute(query)))
    for row in connection.execute("SELECT * FROM responses").fetchall():
        if num_children.get(row["id"], 0) != row["num_children"]:
            faults.append(f"{row['id']}: {row['num_children']} children")
        if row["is_hidden"] and not row["num_children"]:
            faults.append(f"{row['id']} is kept for nothing")
    return faults


def test_a_response_deleted_while_it_is_under_way_stays_deleted(store: ResponseStore, database: Database) -> None:
    async def story() -> None:
        await store.begin("a", body("r"), [])
        await store.delete("a", "r")
        await store.finish(body("r", "completed", "late"), b"")
        assert count(database) == 0

    run(story())


@pytest.mark.parametrize("bound", [{"ttl_s": 0}, {"max_responses": 0}, {"max_bytes": -1}])
def test_a_bound_that_holds_nothing_is_refused(database: Database, bound: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(bound))):
        ResponseStore(database, **bound)

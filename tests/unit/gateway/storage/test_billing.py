"""The sums of namespaces: what is counted is stored once, and held tokens follow a counter that may begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer

from radixkv.core.api import NamespaceUsage
from radixkv.core.errors import UnavailableError
from radixkv.gateway.storage.billing import Bill, BillingBook
from radixkv.gateway.storage.database import Database
from radixkv.generation.prices import Prices

PRICES = Prices(
    currency="EUR", computed=1e6, found=1e5, generated=2e6, held=3600e6
)  # 1, 0.1, 2 a token; 1 a token-second
BLOCK_SIZE = 4


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state") as database:
        yield database


def usage(namespace: str, held_block_s: float, num_blocks: int = 1) -> NamespaceUsage:
    return NamespaceUsage(namespace, num_blocks, 0, 0, None, None, held_block_s=held_block_s)


def book_of(database: Database) -> BillingBook:
    book = BillingBook()
    book.open(database)
    return book


def test_what_is_counted_is_stored_once_and_read_by_its_namespace_alone(database: Database) -> None:
    async def run() -> list[Any]:
        book = book_of(database)
        book.count("a", PRICES, num_requests=1)
        book.count("a", PRICES, num_computed=10, num_found=20)
        await asyncio.gather(book.flush(), book.flush())
        book.count("a", None, num_generated=5)
        book.count("b", PRICES, num_generated=1)
        return [await book.read("a"), await book.read("c"), await book_of(database).read("a", of_all=True)]

    mine, unknown, all_of_them = asyncio.run(run())
    assert [bill._replace(cost=0.0) for bill in mine] == [Bill("a", 1, 10, 20, 5)]
    assert mine[0].cost == pytest.approx(10 + 2)
    assert unknown == []
    assert [bill.namespace for bill in all_of_them] == ["a", "b"]


def test_held_tokens_are_what_the_counter_has_risen_and_all_of_a_new_one(database: Database) -> None:
    async def run() -> list[float]:
        told = []
        for counter in (
            2.0,
            2.0,
            5.0,
            4.9,
            1.0,
            1.5,
        ):  # the fourth comes late; the next is of a service that was started again
            book = book_of(database)  # a gateway that was, too
            await book.hold("pool", [usage("a", counter)], BLOCK_SIZE, PRICES)
            (bill,) = await book.read("a")
            assert bill.cost == pytest.approx(bill.held_token_s)
            told.append(bill.held_token_s / BLOCK_SIZE)
        return told

    assert asyncio.run(run()) == [2.0, 2.0, 5.0, 5.0, 6.0, 6.5]


def test_a_counter_of_an_earlier_version_goes_on_in_the_first_pool_that_has_reached_it(database: Database) -> None:
    async def run() -> list[float]:
        database.submit(lambda c: c.execute("INSERT INTO held VALUES ('', 'a', 5.0), ('', 'b', 5.0)")).result()
        book, told = book_of(database), []
        for pool, counter in (("new", 3.0), ("old", 7.0), ("other", 9.0)):
            await book.hold(pool, [usage("a", counter)], BLOCK_SIZE, None)
            told.append((await book.read("a"))[0].held_token_s / BLOCK_SIZE)
        return told

    assert asyncio.run(run()) == [3.0, 3.0 + 2.0, 3.0 + 2.0 + 9.0]


def test_a_namespace_that_holds_nothing_any_more_is_asked_for_once(database: Database) -> None:
    async def run() -> list[set[str]]:
        book = book_of(database)
        left = []
        for usages in ([usage("a", 1.0), usage("b", 1.0)], [usage("a", 2.0)], [usage("a", 2.0)]):
            left.append(book.left_out("pool", usages))
            gone = [usage(name, 1.5, num_blocks=0) for name in left[-1]]
            await book.hold("pool", [*usages, *gone], BLOCK_SIZE, None)
        (bill,) = await book.read("b")
        assert bill.held_token_s == 1.5 * BLOCK_SIZE
        return left

    assert asyncio.run(run()) == [set(), {"b"}, set()]


def test_what_cannot_be_stored_is_kept_for_the_next_try(tmp_path: Path) -> None:
    async def run() -> list[Bill]:
        book = BillingBook()
        with Database(tmp_path / "one") as gone:
            book.open(gone)
        book.count("a", None, num_generated=3)
        with pytest.raises(UnavailableError):
            await book.flush()
        book.count("a", None, num_generated=4)
        with Database(tmp_path / "two") as database:
            book.open(database)
            return await book.read("a")

    assert [bill.num_generated_tokens for bill in asyncio.run(run())] == [7]


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_is_counted_is_stored_once_though_the_answer_of_a_commit_is_lost(
    is_committed: bool, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    from radixkv.gateway.storage.postgresql import PostgreSQL

    transact, lost = PostgreSQL.transact, []

    def lose(self: PostgreSQL, jobs: Sequence[Any]) -> list[tuple[Any, Exception | None]]:
        if is_committed:
            transact(self, jobs)
        self.close()
        self.is_unsure = True
        lost.append(len(jobs))
        raise psycopg.OperationalError("the connection is lost")

    async def run() -> list[int]:
        told = []
        with Database(postgres.new_database()) as database:
            book = book_of(database)
            await book.read("a")  # connected
            for tokens in (3, 4):
                book.count("a", PRICES, num_generated=tokens)
                with monkeypatch.context() as patch:
                    patch.setattr(PostgreSQL, "transact", lose)
                    for _ in range(2):
                        with pytest.raises(UnavailableError):
                            await book.flush()
                book.count("a", PRICES, num_generated=10)
                told += [bill.num_generated_tokens for bill in await book.read("a")]
        return told

    assert asyncio.run(run()) == [13, 27]
    assert len(lost) == 4

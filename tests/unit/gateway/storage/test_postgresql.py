"""A PostgreSQL database of several gateways: jobs as on a file, in order with those of others, also across its restarts."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from postgres_server import PostgresServer
from stored_chats import add, body
from waiting import wait_until

from radixkv.core.errors import UnavailableError
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.api.conversations.messages import Message
from radixkv.gateway.api.conversations.store.store import ConversationStore, Growth
from radixkv.gateway.api.jobs.batches import ANTHROPIC, COMPLETED, OPENAI, BatchStore
from radixkv.gateway.api.jobs.files import FileStore
from radixkv.gateway.api.jobs.lines import BatchLine, prefix_key
from radixkv.gateway.api.jobs.quotas import JobLimits
from radixkv.gateway.api.responses.response_store import ResponseStore
from radixkv.gateway.storage import postgresql, transcript_cache
from radixkv.gateway.storage.connection import Connection
from radixkv.gateway.storage.database import Database
from radixkv.gateway.storage.owners import MAX_TAKEN, beat, num_gateways
from radixkv.gateway.storage.transcript_cache import TranscriptCache, TranscriptCacheLimits

GONE = "UPDATE gateways SET seen_s = epoch_s() - 60 WHERE id = ?"
THERE = "UPDATE gateways SET seen_s = epoch_s() + 600"  # for as long as the test takes


class Two(NamedTuple):
    """The databases of two gateways, which are one."""

    a: Database
    b: Database


@pytest.fixture
def two(postgres: PostgresServer) -> Iterator[Two]:
    url = postgres.new_database()
    with Database(url) as a, Database(url) as b:
        for each in (a, b):
            each.submit(lambda connection: connection.execute(THERE).rowcount).result()
        yield Two(a, b)


def user(name: str, parent: str | None = None, status: str = "complete") -> Message:
    role = "user" if status == "complete" else "assistant"
    return Message(name, parent, role, name if status == "complete" else "", 1.0, status=status)


def test_changes_of_one_conversation_have_one_order_whoever_makes_them(two: Two) -> None:
    stores = [ConversationStore(database) for database in two]

    async def story() -> None:
        conversation = await stores[0].create("n", None, [user("root")])

        async def write(store: ConversationStore, writer: str) -> None:
            for number in range(8):
                await store.add("n", conversation.id, user(f"{writer}{number}", "root"), 0)

        await asyncio.gather(*(write(store, f"{place}-{i}-") for place, store in enumerate(stores) for i in range(2)))
        told = [await store.open("n", conversation.id) for store in stores]
        assert told[0] == told[1]
        conversation, messages = told[0]
        assert conversation.num_messages == len(messages) == 33
        assert sorted(message.seq for message in messages) == [*range(1, 34)]
        assert conversation.version == 33

    asyncio.run(story())


def test_a_job_that_raises_is_rolled_back_alone(two: Two) -> None:
    def put(connection: Connection, name: str) -> None:
        connection.execute("INSERT INTO instructions VALUES ('n', ?, '')", (name,))
        if name == "bad":
            raise ValueError(name)

    answers = [two.a.submit(lambda c, name=name: put(c, name)) for name in ("one", "bad", "two")]  # type: ignore[misc]
    with pytest.raises(ValueError, match="bad"):
        answers[1].result()
    rows = two.b.submit(lambda c: c.execute("SELECT name FROM instructions ORDER BY name").fetchall()).result()
    assert [row["name"] for row in rows] == ["one", "two"]


def test_a_job_that_never_fits_fails_alone_and_soon(two: Two) -> None:
    """As two of one key, which looks like a race with another gateway."""

    def put(connection: Connection, *names: str) -> None:
        for name in names:
            connection.execute("INSERT INTO instructions VALUES ('n', ?, '')", (name,))

    may_begin = threading.Event()
    two.a.submit(lambda _: may_begin.wait(60))
    answers = [two.a.submit(lambda c, names=names: put(c, *names)) for names in (("a",), ("b", "b"), ("c",))]  # type: ignore[misc]
    may_begin.set()
    for answer in (answers[0], answers[2]):
        answer.result(postgresql.TRY_S / 2)
    with pytest.raises(UnavailableError):
        answers[1].result()
    rows = two.b.submit(lambda c: c.execute("SELECT name FROM instructions ORDER BY name").fetchall()).result()
    assert [row["name"] for row in rows] == ["a", "c"]


def test_a_job_that_the_server_cannot_carry_out_fails_alone(two: Two) -> None:
    """As one whose row is too long for an index."""

    def put(connection: Connection, name: str) -> None:
        connection.execute("INSERT INTO instructions VALUES ('n', ?, '')", (name,))

    may_begin = threading.Event()
    two.a.submit(lambda _: may_begin.wait(60))
    long = "".join(map(chr, random.Random(1).sample(range(0x4E00, 0x9FA5), 9000)))
    answers = [two.a.submit(lambda c, name=name: put(c, name)) for name in ("a", long, "c")]  # type: ignore[misc]
    may_begin.set()
    for answer in (answers[0], answers[2]):
        answer.result(60)
    with pytest.raises(UnavailableError):
        answers[1].result()


def test_a_batch_takes_prompts_of_any_length(two: Two) -> None:
    words = random.Random(1).choices("abcdefghijkl ", k=200_000)
    key = prefix_key({"input": "".join(words)})

    async def story() -> None:
        batches = BatchStore(two.a, JobLimits())
        batch = await batches.create("n", "t", OPENAI, "/v1/responses", {})
        await batches.add_requests(batch, [BatchLine("\U00010000" * 512, b"{}", key, None)])
        assert len(await batches.waiting(batch, None, 10)) == 1

    asyncio.run(story())


def test_sums_are_whole_numbers_of_any_size(two: Two) -> None:
    def total(connection: Connection) -> list[object]:
        cursor = connection.execute("SELECT sum(n), sum(-n), count(*) FROM (VALUES (?), (?)) AS t(n)", (2**62, 2**62))
        return list(cursor.fetchone())

    assert two.a.submit(total).result() == [2**63, -(2**63), 2]


@pytest.mark.parametrize("num_free", range(4))
def test_a_gateway_that_can_open_no_more_files_uses_its_database_again_once_it_can(
    postgres: PostgresServer, num_free: int
) -> None:
    taken: list[int] = []
    url = postgres.new_database()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Database(url) as database:
        database.submit(lambda connection: connection.execute("SELECT 1").fetchone()).result(10)
        stop_sessions(database)
        first = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + 64, before[1]))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(num_free):
                os.close(taken.pop())
            with suppress(UnavailableError):
                database.submit(lambda connection: connection.execute("SELECT 1").fetchone()).result(10)
        finally:
            for each in [first, *taken]:
                os.close(each)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        wait_until(lambda: is_served(database), 60)


def stop_sessions(database: Database) -> None:
    end = "SELECT pg_terminate_backend(pg_backend_pid())"
    with suppress(UnavailableError):
        database.submit(lambda connection: connection.execute(end).fetchone()).result(10)


def is_served(database: Database) -> bool:
    with suppress(UnavailableError):
        return bool(database.submit(lambda connection: connection.execute("SELECT 1").fetchone()).result(10))
    return False


def test_texts_come_back_as_they_are_also_with_nul(two: Two) -> None:
    text = "a\x00b\ufdd0c\ufdd01 100% :x ?"

    async def story() -> None:
        store, other = (ConversationStore(database) for database in two)
        conversation = await store.create("n", text, [Message("m", None, "user", text, 1.0)])
        told, (message,) = await other.open("n", conversation.id)
        assert (told.title, message.text) == (text, text)

    asyncio.run(story())


def test_what_a_gateway_left_unfinished_fails_once_its_lease_ends(two: Two) -> None:
    async def story() -> None:
        responses, others = (ResponseStore(database) for database in two)
        talks, other_talks = (ConversationStore(database) for database in two)
        batches, other_batches = (BatchStore(database, JobLimits()) for database in two)
        await responses.begin("n", body("r1"), [])
        conversation = await talks.create("n", None, [user("root")])
        await talks.begin("n", conversation.id, [user("reply", "root", "running")], 0)
        batch = await batches.create("n", "t", OPENAI, "/v1/responses", {})
        await others.fail_lost()
        await other_talks.leases.fail_lost()
        assert await other_batches.unfinished() == []
        assert (await others.get("n", "r1"))["status"] == "in_progress"
        await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
        await others.fail_lost()
        await other_talks.leases.fail_lost()
        assert (await others.get("n", "r1"))["status"] == "failed"
        assert (await other_talks.message("n", conversation.id, "reply")).status == "failed"
        assert [each.id for each in await other_batches.unfinished()] == [batch.id]
        await responses.finish(body("r1", "completed", "it was only slow"))
        assert (await others.get("n", "r1"))["status"] == "completed"

    asyncio.run(story())


def test_a_batch_that_another_gateway_has_taken_over_is_validated_by_that_one_alone(two: Two) -> None:
    lines = [BatchLine(name, b"{}", b"", None) for name in ("first", "second")]

    async def story() -> None:
        batches, others = (BatchStore(database, JobLimits()) for database in two)
        batch = await batches.create("n", "t", OPENAI, "/v1/responses", {})
        await batches.add_requests(batch, lines[:1])
        await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
        (taken,) = await others.unfinished()
        await others.remove_requests(taken)
        await others.add_requests(taken, lines[:1])
        with pytest.raises(UnavailableError):
            await batches.add_requests(batch, lines[1:])
        with pytest.raises(UnavailableError):
            await batches.remove_requests(batch)
        await batches.fail(batch, [])
        assert not await batches.begin(batch)
        await others.add_requests(taken, lines[1:])
        assert await others.begin(taken)
        assert (await others.find("n", OPENAI, batch.id)).num_total == 2

    asyncio.run(story())


def test_a_gateway_that_lost_a_batch_between_two_changes_leaves_its_counts(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        batches, others = (BatchStore(database, JobLimits()) for database in two)
        batch = await batches.create("n", "t", OPENAI, "/v1/responses", {})
        run = two.a.run

        async def run_slowly(job: Callable[[Connection], Any]) -> Any:
            result = await run(job)
            monkeypatch.undo()
            await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
            (taken,) = await others.unfinished()
            await others.add_requests(taken, [BatchLine("first", b"{}", b"", None)])
            assert await others.begin(taken)
            return result

        monkeypatch.setattr(two.a, "run", run_slowly)
        await batches.remove_requests(batch)
        assert (await others.find("n", OPENAI, batch.id)).num_total == 1

    asyncio.run(story())


def test_a_batch_whose_creation_a_gateway_never_answered_is_nobodys(two: Two) -> None:
    async def story() -> None:
        batches, others = (BatchStore(database, JobLimits()) for database in two)
        batch = await batches.create("n", "t", ANTHROPIC, "/v1/messages", {})
        assert await others.unfinished() == []
        assert (await others.find("n", ANTHROPIC, batch.id)).status == "validating"
        await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
        assert await others.unfinished() == []
        assert await others.page("n", ANTHROPIC, 10) == ([], False)

    asyncio.run(story())


def test_a_result_that_comes_while_the_server_restarts_is_stored_and_not_computed_again(
    two: Two, postgres: PostgresServer
) -> None:
    async def story() -> None:
        batches = BatchStore(two.a, JobLimits())
        batch = await batches.create("n", "t", OPENAI, "/v1/responses", {})
        await batches.add_requests(batch, [BatchLine("first", b"{}", b"", None)])
        (request,) = await batches.waiting(batch, None, 10)
        postgres.stop(signal.SIGQUIT)
        try:
            answered = asyncio.create_task(batches.answered(batch, request.number, COMPLETED, b"its result"))
            await asyncio.wait([answered], timeout=0.5)
        finally:
            postgres.start()
        await answered
        assert await batches.waiting(batch, None, 10) == []

    asyncio.run(story())


def test_uploads_that_a_gateway_left_incomplete_are_removed_by_another(two: Two) -> None:
    async def story() -> None:
        files, others = (FileStore(database, JobLimits()) for database in two)
        await files.append("n", await files.begin("n", "left"), b"some of it")
        await files.purge()
        await others.purge()
        used = "SELECT num_files, size_bytes FROM job_usage WHERE namespace = 'n'"
        assert tuple(await two.b.run(lambda c: c.execute(used).fetchone())) == (1, 10)
        await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
        await files.purge()
        assert tuple(await two.b.run(lambda c: c.execute(used).fetchone())) == (1, 10), "it may be only slow"
        await others.purge()
        assert await two.b.run(lambda c: c.execute(used).fetchone()[1]) == 0

    asyncio.run(story())


def test_an_upload_that_another_gateway_has_removed_is_refused_and_leaves_nothing(two: Two) -> None:
    async def story() -> None:
        files, others = (FileStore(database, JobLimits()) for database in two)
        numbers = [await files.begin("n", name) for name in ("marked", "removed")]
        for number in numbers:
            await files.append("n", number, b"first ")
        await others.discard(numbers[0])
        await two.b.run(lambda c: c.execute("DELETE FROM files WHERE number = ?", (numbers[1],)).rowcount)
        await two.b.run(lambda c: c.execute("DELETE FROM file_pieces").rowcount)
        for number in numbers:
            with pytest.raises(UnavailableError):
                await files.append("n", number, b"second")
            with pytest.raises(UnavailableError):
                await files.complete("n", number, "batch", None)
        assert await files.page("n", 10, "asc", None, None) == ([], False)
        assert await two.a.run(lambda c: c.execute("SELECT * FROM file_pieces").fetchall()) == []

    asyncio.run(story())


def test_all_that_is_lost_has_its_turn_though_some_is_lost_for_long(two: Two) -> None:
    async def story() -> None:
        responses, others = (ResponseStore(database) for database in two)
        talks, other_talks = (ConversationStore(database) for database in two)
        conversation = await talks.create("n", None, [user("root")])
        names = {f"r{number}" for number in range(MAX_TAKEN + 2)}
        for name in sorted(names):
            await responses.begin("n", body(name), [], request=name)
            await talks.begin("n", conversation.id, [user(name, "root", "running")], 0, name)
        await two.b.run(lambda c: c.execute(GONE, (two.a.owner,)).rowcount)
        for lost in (others.lost, other_talks.leases.lost):
            found: set[str] = set()
            for _ in range(200):
                found |= {each.key for each in await lost()}
            assert found == names

    asyncio.run(story())


def test_what_was_ended_elsewhere_is_no_longer_written(two: Two) -> None:
    async def story() -> None:
        responses, others = (ResponseStore(database) for database in two)
        talks, other_talks = (ConversationStore(database) for database in two)
        await responses.begin("n", body("r1"), [])
        assert (await others.cancel("n", "r1"))["status"] == "cancelled"
        assert await responses.taken(["r1"]) == {"r1"}
        await responses.finish(body("r1", "completed", "late"))
        assert (await others.get("n", "r1"))["status"] == "cancelled"
        conversation = await talks.create("n", None, [user("root")])
        await talks.begin("n", conversation.id, [user("reply", "root", "running")], 0)
        assert await talks.save([Growth(conversation.id, "reply", "so far", 5)]) == set()
        stopped = await other_talks.stop("n", conversation.id, "reply", 0)
        assert (stopped.messages[0].status, stopped.messages[0].text) == ("stopped", "so far")
        assert await talks.save([Growth(conversation.id, "reply", "so far and on", 9)]) == {(conversation.id, "reply")}

    asyncio.run(story())


def test_token_ids_are_found_and_forgotten_at_every_gateway(two: Two) -> None:
    here, there = (TranscriptCache(database, TranscriptCacheLimits()) for database in two)

    async def story() -> None:
        prompt = here.put("n", b"prompt", pack_tokens([1, 2]), b"", None)
        reply = here.put("n", b"reply", pack_tokens([1, 2]), pack_tokens([3]), prompt)
        assert reply is not None
        here.save(reply)
        await two.a.run(lambda _: None)
        await there.look_up("n", [b"reply", b"unknown"])
        found = there.find("n", b"reply")
        assert found is not None
        assert found.all_tokens() == pack_tokens([1, 2, 3])
        await there.look_up("other", [b"reply"])
        assert there.find("other", b"reply") is None
        there.forget_keys("n", [b"reply"])
        await two.b.run(lambda _: None)
        await here.look_up("n", [b"reply"])
        assert here.find("n", b"reply") is None
        rows = await two.a.run(lambda c: c.execute("SELECT key FROM transcripts").fetchall())
        assert rows == []

    asyncio.run(story())


def test_token_ids_that_are_being_stored_are_found_meanwhile(two: Two) -> None:
    cache, may_go_on = TranscriptCache(two.a, TranscriptCacheLimits()), threading.Event()

    async def story() -> None:
        before = two.a.submit(lambda _: may_go_on.wait(300))
        prompt = cache.put("n", b"prompt", pack_tokens([1, 2]), b"", None)
        reply = cache.put("n", b"reply", pack_tokens([1, 2]), pack_tokens([3]), prompt)
        assert reply is not None
        cache.save(reply)
        try:
            await cache.look_up("n", [b"prompt", b"reply"])
            assert cache.find("n", b"reply") is reply
        finally:
            may_go_on.set()
        assert before.result()
        await two.a.run(lambda c: c.execute("DELETE FROM transcripts").rowcount)
        await cache.look_up("n", [b"prompt", b"reply"])
        assert cache.find("n", b"reply") is None, "another gateway has forgotten it"

    asyncio.run(story())


def test_what_is_looked_up_counts_as_used_and_to_the_bounds(two: Two) -> None:
    here = TranscriptCache(two.a, TranscriptCacheLimits())
    there = TranscriptCache(two.b, TranscriptCacheLimits(max_entries=2))

    def held() -> str:
        return "".join(name for name in "abcd" if there.find("n", name.encode()))

    async def story() -> None:
        first = here.put("n", b"a", pack_tokens([1]), b"", None)
        for name, parent in ((b"b", None), (b"c", first), (b"d", None)):
            before = parent.all_tokens() if parent is not None else b""
            here.put("n", name, before + pack_tokens(list(name)), b"", parent)
        await two.a.run(lambda _: None)
        for name, expected in (("a", "a"), ("b", "ab"), ("c", "ac"), ("d", "ad")):
            await there.look_up("n", [name.encode()])
            assert held() == expected

    asyncio.run(story())


def test_a_history_is_not_waited_for_where_the_database_does_not_answer(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_cache, "LOOK_UP_S", 0.05)
    cache, answers = TranscriptCache(two.a, TranscriptCacheLimits()), threading.Event()

    async def story() -> None:
        waiting = asyncio.create_task(two.a.read(lambda _: answers.wait(300), "n"))
        for _ in range(3):
            await cache.look_up("n", [b"reply"])
        assert not waiting.done()
        assert cache.find("n", b"reply") is None
        answers.set()
        assert await waiting
        assert await two.a.read(lambda _: True, "n"), "those that were given up hold no turn"

    asyncio.run(story())


def test_what_was_acknowledged_survives_the_servers_end_and_jobs_fail_until_it_is_back(
    two: Two, postgres: PostgresServer
) -> None:
    async def told(store: ResponseStore) -> dict[str, Any] | None:
        with suppress(UnavailableError):
            return await store.get("a", "r1")
        return None

    async def story() -> None:
        store, other = (ResponseStore(database) for database in two)
        await add(store, "r1", None, pack_tokens([1]))
        postgres.stop(signal.SIGQUIT)
        try:
            for failing in (store.get("n", "r1"), other.begin("a", body("r2"), [])):
                with pytest.raises(UnavailableError, match="cannot be used now"):
                    await failing
        finally:
            postgres.start()
        async with asyncio.timeout(300):
            while (found := await told(other)) is None:
                await asyncio.sleep(0.02)
        assert found["status"] == "completed"
        await add(store, "r2", "r1", pack_tokens([1, 2]))

    asyncio.run(story())


def test_gateways_are_counted_while_their_lease_is_renewed_and_forgotten_after_an_hour(any_state: Path | str) -> None:
    with Database(any_state) as database:

        def do(statement: str, *values: object) -> None:
            database.submit(lambda connection: connection.execute(statement, values).rowcount).result()

        def counted() -> int:
            return database.submit(count).result()

        def count(connection: Connection) -> int:
            for name, age_s in (("late", 5), ("long gone", 3590)):  # whatever time has passed
                connection.execute("UPDATE gateways SET seen_s = epoch_s() - ? WHERE id = ?", (age_s, name))
            return num_gateways(connection)

        assert counted() == 1
        do(THERE)
        for name, age_s in (("late", 5), ("gone", 60), ("long gone", 3590), ("forgotten", 3700)):
            do("INSERT INTO gateways (id, seen_s) VALUES (?, epoch_s() - ?)", name, age_s)
        assert counted() == 2
        known = database.submit(
            lambda c: [row["id"] for row in c.execute("SELECT id FROM gateways").fetchall()]
        ).result()
        assert set(known) == {database.owner, "late", "gone", "long gone"}
        do(GONE, database.owner)
        assert counted() == 1
        for name in (database.owner, "gone", "new"):
            database.submit(lambda connection, name=name: beat(connection, name)).result()  # type: ignore[misc]
        assert counted() == 4


def test_a_database_of_a_later_version_is_left_alone(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with Database(url) as ours, Database(url) as late:
        for each in (ours, late):
            each.submit(lambda connection: connection.execute(THERE).rowcount).result()

        def add_to_version(number: int) -> None:
            statement = "UPDATE radixkv_schema SET version = version + ?"
            ours.submit(lambda connection: connection.execute(statement, (number,)).rowcount).result()

        add_to_version(1)
        with Database(url) as another, pytest.raises(UnavailableError):
            another.submit(num_gateways).result()
        assert late.submit(num_gateways).result() == 2, "none came, and what is open goes on"
        add_to_version(-1)
        with Database(url) as another:
            assert another.submit(num_gateways).result() == 3


def test_what_the_server_refuses_of_a_job_is_an_error_that_may_pass(two: Two) -> None:
    """Loops of the gateway go on after it, as after every error of ours."""

    def only_reads(is_on: str) -> None:
        two.a.submit(lambda connection: connection.execute(f"SET default_transaction_read_only = {is_on}")).result(300)

    only_reads("on")  # as a server whose disk is nearly full, or that has become a standby
    for _ in range(2):
        with pytest.raises(UnavailableError):
            two.a.submit(lambda connection: connection.execute("DELETE FROM transcripts")).result(300)
    only_reads("off")
    two.a.submit(lambda connection: connection.execute("DELETE FROM transcripts")).result(300)


def test_no_query_is_compiled_though_a_scan_that_cannot_be_avoided_counts_as_costly(two: Two) -> None:
    query = "EXPLAIN ANALYZE SELECT count(*) FROM gateways WHERE seen_s > epoch_s()"
    plan = [row[0] for row in two.a.submit(lambda connection: connection.execute(query).fetchall()).result()]
    assert any("Seq Scan on gateways" in line for line in plan), plan
    assert not any("JIT" in line for line in plan), plan

"""The gateway's state file: what anybody was told of survives, one process holds it, a job fails alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_threads import own_threads
from stored_chats import add, body, item, run

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.api.responses.response_store import ResponseStore
from radixkv.gateway.storage import database as module
from radixkv.gateway.storage.database import MAX_WRITES, Database, DatabaseError, is_in_use
from radixkv.gateway.storage.database_schema import SCHEMA_VERSION


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "state.sqlite") as database:
        yield database


def test_what_is_stored_outlives_the_process_and_what_was_under_way_has_failed(tmp_path: Path) -> None:
    async def before(store: ResponseStore) -> None:
        await add(store, "r1", None, pack_tokens([1]))
        await store.begin("a", body("r2"), [item("hi")], "r1")
        await store.begin("a", body("r3", "queued"), [])

    async def after(store: ResponseStore) -> None:
        assert await store.get("a", "r1") == body("r1", "completed", "of r1")
        for response_id in ("r2", "r3"):
            failed = await store.get("a", response_id)
            assert failed["status"] == "failed"
            assert failed["error"]["code"] == "server_error"

    for story in (before, after, after):
        with Database(tmp_path / "state.sqlite") as database:
            run(story(ResponseStore(database)))


KILLED = """
import asyncio, itertools, sys
from pathlib import Path
from radixkv.core.tokens import pack_tokens
from radixkv.gateway.storage.database import Database
from radixkv.gateway.api.responses.response_store import ResponseStore

async def main(store):
    async def chat(name):
        parent, tokens = None, b""
        for turn in itertools.count():
            response_id = f"{name}-{turn}"
            body = {"id": response_id, "status": "in_progress", "output": []}
            await store.begin("a", body, [{"id": f"in-{response_id}"}], parent)
            tokens += pack_tokens([turn] * 10)
            await store.finish(body | {"status": "completed", "output": [{"id": f"out-{response_id}"}]}, tokens)
            print(response_id, flush=True)
            parent = response_id
    await asyncio.gather(*(chat(f"chat{number}") for number in range(8)))

with Database(Path(sys.argv[1])) as database:
    asyncio.run(main(ResponseStore(database)))
"""


@pytest.mark.parametrize("num_told", [1, 25, 140])
def test_nothing_that_anybody_was_told_of_is_lost_when_the_process_is_killed(tmp_path: Path, num_told: int) -> None:
    path = tmp_path / "state.sqlite"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(num_told)]
    os.kill(process.pid, signal.SIGKILL)
    told += process.stdout.read().split("\n")[:-1]
    process.stdout.close()
    process.wait()

    async def story(store: ResponseStore) -> None:
        for response_id in told:
            name, turn = response_id.split("-")
            context = await store.context("a", response_id)
            turns = range(int(turn) + 1)
            assert context.body["status"] == "completed"
            assert context.tokens == pack_tokens([number for number in turns for _ in range(10)])
            assert [item["id"] for item in context.items] == [
                f"{kind}-{name}-{number}" for number in turns for kind in ("in", "out")
            ]

    with Database(path) as database:
        run(story(ResponseStore(database)))
        query = "SELECT COUNT(*) FROM responses WHERE status NOT IN ('completed', 'failed')"
        assert database.submit(lambda c: c.execute(query).fetchone()[0]).result() == 0


def test_a_file_belongs_to_one_gateway_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with Database(path), pytest.raises(DatabaseError, match="in use by another gateway"):
        Database(path)
    Database(path).close()


def test_conversations_are_readable_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "state.sqlite"
    with Database(path) as database:
        database.submit(lambda c: c.execute("DELETE FROM responses")).result()
        for file in path.parent.glob("state.sqlite*"):
            if not file.name.endswith(".lock"):
                assert file.stat().st_mode & 0o077 == 0, file.name


def test_a_place_where_no_file_can_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseError, match=r"file/state\.sqlite cannot be opened: "):
        Database(tmp_path / "file" / "state.sqlite")


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    with Database(path) as database:
        database.submit(lambda c: c.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")).result()
    with pytest.raises(DatabaseError, match=f"version is {SCHEMA_VERSION + 1}"):
        Database(path)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(DatabaseError, match=r"state\.sqlite"):
        Database(path)


def test_a_job_that_fails_is_undone_alone(database: Database) -> None:
    def insert(number: int) -> Callable[[sqlite3.Connection], None]:
        def job(connection: sqlite3.Connection) -> None:
            columns = "key, namespace, tokens, num_reply, decoded, created_s"
            row = (bytes([number]), "a", b"", 0, b"", 0.0)
            connection.execute(f"INSERT INTO transcripts ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
            if number % 2:
                raise InvalidArgumentError("number", number, "even")

        return job

    answers = [database.submit(insert(number)) for number in range(10)]
    failed = [answer.exception() is not None for answer in answers]
    assert failed == [number % 2 == 1 for number in range(10)]
    kept = database.submit(
        lambda c: [row["key"] for row in c.execute("SELECT key FROM transcripts ORDER BY key")]
    ).result()
    assert kept == [bytes([number]) for number in range(0, 10, 2)]


def test_what_the_database_refuses_of_a_job_is_an_error_that_may_pass(database: Database) -> None:
    """Loops of the gateway go on after it, as after every error of ours."""

    def write(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA query_only = ON")  # as a file system that was made read-only
        try:
            connection.execute("DELETE FROM transcripts")
        finally:
            connection.execute("PRAGMA query_only = OFF")

    with pytest.raises(UnavailableError, match="readonly"):
        database.submit(write).result(300)
    database.submit(lambda connection: connection.execute("DELETE FROM transcripts")).result(300)


def test_no_change_waits_for_a_read(tmp_path: Path) -> None:
    """A read that lasts, and the many of its namespace behind it, keep neither changes nor other namespaces' reads."""
    reading, may_end = threading.Event(), threading.Event()

    def read_long(connection: sqlite3.Connection) -> int:
        (count,) = connection.execute("SELECT COUNT(*) FROM responses").fetchone()
        reading.set()
        assert may_end.wait(300)
        return int(count)

    async def story(database: Database) -> None:
        store = ResponseStore(database)
        reads = [asyncio.ensure_future(database.read(read_long, "flood")) for _ in range(50)]
        await asyncio.to_thread(reading.wait)
        await add(store, "r1", None, pack_tokens([1]))
        other = asyncio.ensure_future(store.get("a", "r1"))
        await asyncio.sleep(0)
        may_end.set()
        assert await other == body("r1", "completed", "of r1")
        assert sum(read.done() for read in reads) < 25
        assert await asyncio.gather(*reads) == [0] + [1] * 49

    with Database(tmp_path / "state.sqlite") as database:
        run(story(database))


def test_a_read_changes_nothing(database: Database) -> None:
    async def story() -> None:
        with pytest.raises(UnavailableError, match="readonly"):
            await database.read(lambda connection: connection.execute("DELETE FROM responses"), "a")

    run(story())


def test_changes_of_one_namespace_wait_for_one_another_and_not_for_each_other(database: Database) -> None:
    begun, may_end, order = threading.Event(), threading.Event(), []

    def change(name: str) -> None:
        begun.set()
        assert may_end.wait(300)
        order.append(name)

    async def story() -> None:
        flood = [asyncio.ensure_future(database.run(lambda _: change("flood"), "flood")) for _ in range(200)]
        await asyncio.to_thread(begun.wait)
        other = asyncio.ensure_future(database.run(lambda _: change("other"), "other"))
        await asyncio.sleep(0)
        may_end.set()
        await asyncio.gather(other, *flood)

    run(story())
    assert order.index("other") <= MAX_WRITES


def test_a_file_is_in_use_while_its_database_is_open(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    assert not is_in_use(path)
    with Database(path):
        assert is_in_use(path)
    assert not is_in_use(path)


def test_a_closed_database_takes_no_job_and_may_be_closed_again(tmp_path: Path) -> None:
    database = Database(tmp_path / "state.sqlite")
    threads = own_threads()
    with database:
        answer = database.submit(lambda c: c.execute("SELECT 1").fetchone()[0])
    assert answer.result(300) == 1, "what was queued is carried out"
    database.close()
    with pytest.raises(UnavailableError, match="the gateway's database is closed"):
        database.submit(lambda _: None)
    assert own_threads() < threads


@pytest.fixture
def held(database: Database) -> threading.Event:
    """The database's thread is busy until this is set: what is submitted before comes together."""
    has_begun, is_over = threading.Event(), threading.Event()

    def job(_: sqlite3.Connection) -> None:
        has_begun.set()
        is_over.wait(300)

    database.submit(job)
    has_begun.wait()
    return is_over


def test_a_job_that_nobody_waits_for_any_more_is_not_carried_out(database: Database, held: threading.Event) -> None:
    carried_out: list[str] = []
    given_up = database.submit(lambda _: carried_out.append("given up"))
    last = database.submit(lambda _: carried_out.append("last"))
    assert given_up.cancel()
    held.set()
    last.result(300)
    assert carried_out == ["last"]


def test_a_server_that_does_not_answer_is_an_error_and_no_result(
    database: Database, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.01)
    database.is_shared = True
    try:
        with pytest.raises(UnavailableError, match="does not answer; try again"):
            asyncio.run(database.run(lambda _: "late"))
    finally:
        held.set()


TOO_BIG = "INSERT INTO big VALUES (zeroblob(1000000))"  # SQLite rolls the transaction back


@pytest.mark.parametrize(("ends", "place"), [(TOO_BIG, 0), (TOO_BIG, 1), (TOO_BIG, 2), ("ROLLBACK", 2)])
def test_a_job_with_which_a_transaction_fails_fails_alone(
    database: Database, held: threading.Event, ends: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    write = (
        "INSERT INTO transcripts (key, namespace, tokens, num_reply, decoded, created_s) VALUES (?, 'a', '', 0, '', 0)"
    )
    database.submit(lambda connection: connection.execute("CREATE TABLE big (content BLOB)"))
    pages = "SELECT page_count FROM pragma_page_count"
    limit = "PRAGMA max_page_count = {}"
    database.submit(lambda c: c.execute(limit.format(c.execute(pages).fetchone()[0] + 8)).fetchall())
    statements: list[tuple[str, tuple[bytes, ...]]] = [(write, (b"one",)), (write, (b"other",))]
    statements.insert(place, (ends, ()))
    jobs = [database.submit(lambda c, told=told: c.execute(*told).rowcount) for told in statements]  # type: ignore[misc]
    held.set()
    with pytest.raises(UnavailableError, match="did not take the change"):
        jobs.pop(place).result(300)
    assert [job.result(300) for job in jobs] == [1, 1]
    assert "did not take a change" in caplog.text
    kept = database.submit(lambda c: [row["key"] for row in c.execute("SELECT key FROM transcripts ORDER BY key")])
    assert kept.result(300) == [b"one", b"other"]


def test_more_jobs_than_one_transaction_holds_are_all_carried_out(database: Database, held: threading.Event) -> None:
    jobs = [database.submit(lambda _, number=number: number) for number in range(1100)]  # type: ignore[misc]
    held.set()
    assert [job.result(300) for job in jobs] == list(range(1100))


@pytest.mark.parametrize("content", [b"no database at all" * 100, None])
def test_a_file_that_could_not_be_opened_is_free_and_no_thread_is_left(content: bytes | None, tmp_path: Path) -> None:
    path, threads = tmp_path / "state.sqlite", own_threads()
    path.write_bytes(content) if content is not None else path.mkdir()
    with pytest.raises(DatabaseError, match="cannot be opened"):
        Database(path)
    assert not is_in_use(path)
    assert own_threads() <= threads


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:pa:s3cret%ZZ@localhost/radixkv",
        "postgresql://user:pa@ss:s3cret@localhost/radixkv",
        "postgresql://[s3cret/radixkv",
        "postgresql://localhost/radixkv?s3cret=1",
    ],
)
def test_a_url_that_no_server_can_have_is_refused_without_its_secrets(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(DatabaseError, match="URL") as refused:
        Database(url)
    assert "s3cret" not in str(refused.value)


def test_what_must_not_be_lost_is_tried_again_while_a_server_is_away_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    with Database() as database:
        for is_shared, patience_s, num_tries in ((True, 300.0, 3), (True, -1.0, 1), (False, 300.0, 1)):
            database.is_shared = is_shared
            monkeypatch.setattr(module, "PATIENCE_S", patience_s)
            tries: list[None] = []

            def job(_: object, tries: list[None] = tries) -> str:
                tries.append(None)
                if len(tries) < 3:
                    raise UnavailableError("away")
                return "stored"

            if num_tries == 3:
                assert asyncio.run(database.keep(job)) == "stored"
            else:
                with pytest.raises(UnavailableError, match="away"):
                    asyncio.run(database.keep(job))
            assert len(tries) == num_tries

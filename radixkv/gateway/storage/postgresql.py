"""A PostgreSQL database that any number of gateways share, in place of a file.

    jobs of one gateway -- BEGIN SERIALIZABLE; job; job ...; COMMIT -->  the server
                        <-- "another gateway changed what you read": all of them again, after a random wait

A connection that is lost is opened again at the next job. While the server is away, jobs fail at once.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict

from radixkv.core.errors import UnavailableError
from radixkv.gateway.storage.connection import Connection, Cursor
from radixkv.gateway.storage.database_schema import SCHEMA_VERSION, STEPS

__all__ = ["PostgreSQL", "carry_out", "is_url", "read_all"]

CONNECT_S = 3
AWAY_S = 1.0
"""After a failed attempt to connect, jobs fail without another attempt for so long, in seconds."""

TRY_S = 10.0
"""How long jobs are tried again that conflict with those of other gateways, in seconds."""

MAX_TAKEN = 3
"""Tries of jobs that add what is there already, by a job of another gateway or by themselves."""

_OPTIONS = {
    "enable_seqscan": "off",  # a scan of a small table would conflict with every change of it
    "jit": "off",  # an unavoidable scan has a cost of 1e10, for which the server would compile the query each time
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "10s",  # a gateway that was stopped holds no lock for longer
}
_LOST: dict[str, Any] = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
}
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation, errors.LockNotAvailable)
_SCHEMA_LOCK = 7_265_646_978
_NUL, _MARK = "\x00", "\ufdd0"
"""PostgreSQL stores no NUL; it is stored as this noncharacter and a digit, and so is the noncharacter itself."""

_AWAY = "the gateway's database cannot be used now; try again"
_FUNCTIONS = """
CREATE OR REPLACE FUNCTION epoch_s() RETURNS DOUBLE PRECISION LANGUAGE SQL VOLATILE AS
    'SELECT EXTRACT(EPOCH FROM clock_timestamp())::DOUBLE PRECISION';
CREATE OR REPLACE FUNCTION has_tag(tags TEXT, quoted TEXT) RETURNS BOOLEAN LANGUAGE SQL IMMUTABLE AS
    'SELECT EXISTS (SELECT 1 FROM json_array_elements(tags::json) AS each WHERE each::text = quoted)';
"""
_LOG = logging.getLogger(__name__)


def is_url(url: str) -> bool:
    """Whether libpq reads the URL, with numbers for ports."""
    try:
        ports = str(conninfo_to_dict(url).get("port", ""))
    except psycopg.ProgrammingError:
        return False
    return re.fullmatch("[0-9,]*", ports) is not None


class PostgreSQL:
    """One connection to the server of a URL, used by one thread. Opened at its first transaction, and again where it was lost.

    Args:
        url: ``postgresql://user:password@host:port/database``, or any other form that libpq reads.
        is_reader: its transactions only read, from one state of the database.

    Attributes:
        is_unsure: the last transaction failed in its commit.
    """

    def __init__(self, url: str, *, is_reader: bool = False) -> None:
        self._url = url
        self._begin = (
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if is_reader else "BEGIN ISOLATION LEVEL SERIALIZABLE"
        )
        self._raw: psycopg.Connection[_Row] | None = None
        self.is_unsure = False
        self._away_until_s = 0.0

    def execute(self, statement: str, values: Any = (), /) -> Cursor:
        """Run one statement, within `transact`."""
        assert self._raw is not None
        return self._raw.execute(_translated(statement), _encoded(values))

    def executemany(self, statement: str, values: Iterable[Any], /) -> None:
        """Run one statement for each of these values, within `transact`."""
        assert self._raw is not None
        with self._raw.cursor() as cursor:
            cursor.executemany(_translated(statement), [_encoded(each) for each in values])

    def transact(self, jobs: Sequence[Callable[[Connection], Any]]) -> list[tuple[Any, Exception | None]]:
        """Run jobs in one transaction; returns the result or the error of each. A job that raises is rolled back alone.

        Raises:
            Exception: nothing is changed. After the loss of the connection during the commit all may be.
        """
        self.is_unsure = False
        raw = self._connect()
        try:
            raw.execute(self._begin)
            results = [self._carry_out(raw, job, is_alone=len(jobs) == 1) for job in jobs]
            self.is_unsure = True
            raw.execute("ROLLBACK" if len(jobs) == 1 and results[0][1] is not None else "COMMIT")
            self.is_unsure = False
        except BaseException:
            self._roll_back(raw)
            raise
        return results

    @property
    def is_closed(self) -> bool:
        """Whether it was open, and is no longer."""
        return self._raw is not None and self._raw.closed

    def close(self) -> None:
        """Close the connection."""
        if self._raw is not None:
            self._raw.close()

    def _carry_out(
        self, raw: psycopg.Connection[_Row], job: Callable[[Connection], Any], *, is_alone: bool
    ) -> tuple[Any, Exception | None]:
        if not is_alone:
            raw.execute("SAVEPOINT job")
        try:
            result, fault = job(self), None
        except Exception as error:  # the caller handles every kind
            if raw.closed or isinstance(error, _CONFLICTS):
                raise  # the transaction is lost, or to be tried again
            result, fault = None, error
            if not is_alone:
                raw.execute("ROLLBACK TO job")
        if not is_alone:
            raw.execute("RELEASE job")
        return result, fault

    def _roll_back(self, raw: psycopg.Connection[_Row]) -> None:
        try:
            raw.execute("ROLLBACK")
        except psycopg.Error:
            raw.close()

    def _connect(self) -> psycopg.Connection[_Row]:
        if self._raw is not None and not self._raw.closed:
            return self._raw
        if time.monotonic() < self._away_until_s:
            raise errors.ConnectionException("it could not be reached a moment ago")
        options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
        try:
            raw = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_S,
                row_factory=_row_factory,
                application_name="radixkv gateway",
                options=options,
                **_LOST,
            )
            try:
                raw.adapters.register_loader("numeric", _Whole)
                _migrate(raw)
            except BaseException:
                raw.close()
                raise
        except Exception:
            self._away_until_s = time.monotonic() + AWAY_S
            raise
        self._raw = raw
        return raw


def carry_out(connection: PostgreSQL, batch: Sequence[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
    """Run jobs in one transaction and answer them after its commit; again where it conflicts with another gateway's."""
    _carry_out_all(connection, [each for each in batch if each[1].set_running_or_notify_cancel()])


def _carry_out_all(connection: PostgreSQL, batch: Sequence[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
    until_s, wait_s, was_lost, num_taken = time.monotonic() + TRY_S, 0.002, False, 0
    while batch:
        try:
            results = connection.transact([job for job, _ in batch])
        except Exception as error:  # also OSError, at the limit of open files
            num_taken += isinstance(error, errors.UniqueViolation)
            is_conflict = isinstance(error, _CONFLICTS) and num_taken < MAX_TAKEN
            if num_taken >= MAX_TAKEN and len(batch) > 1:  # one of them can never be carried out
                for each in batch:
                    _carry_out_all(connection, [each])
                return
            is_lost = connection.is_closed and not connection.is_unsure and not was_lost
            if (is_conflict or is_lost) and time.monotonic() < until_s:
                was_lost = was_lost or is_lost
                time.sleep(random.uniform(0, wait_s))
                wait_s = min(0.1, 2 * wait_s)
                continue
            _LOG.error("the gateway's database did not carry out %d jobs: %s", len(batch), _first_line(error))
            for _, answer in batch:
                answer.set_exception(UnavailableError(_AWAY))
            return
        for (_, answer), (result, fault) in zip(batch, results, strict=True):
            if fault is None:
                answer.set_result(result)
            elif isinstance(fault, psycopg.Error):  # e.g. the server only reads now
                _LOG.error("the gateway's database did not carry out a job: %s", _first_line(fault))
                answer.set_exception(UnavailableError(_AWAY))
            else:
                answer.set_exception(fault)
        return


def read_all(connection: PostgreSQL, batch: Sequence[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
    """Run each job in its own transaction, which sees one state of the database, and answer it at once."""
    for job in batch:
        carry_out(connection, [job])


class _Row:
    """One row, by column's name or index."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: dict[str, int], values: Sequence[Any]) -> None:
        self._places = places
        self._values = [_decoded(value) if type(value) is str and _MARK in value else value for value in values]

    def __getitem__(self, column: str | int) -> Any:
        return self._values[self._places[column] if isinstance(column, str) else column]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> list[str]:
        return list(self._places)


def _row_factory(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _Row]:
    places = {column.name: place for place, column in enumerate(cursor.description or ())}
    return lambda values: _Row(places, values)


class _Whole(Loader):
    """Sums of whole numbers."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


@lru_cache(1024)
def _translated(statement: str) -> str:
    """Return a statement with the values' places in the form of psycopg."""

    def place(match: re.Match[str]) -> str:
        if match[0] == "?":
            return "%s"
        return f"%({match[1]})s" if match[1] else match[0]

    return re.sub(r"'[^']*'|\?|(?<!:):([a-z_]\w*)", place, statement.replace("%", "%%"))


def _encoded(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _value(value) for name, value in values.items()}
    return [_value(value) for value in values]


def _value(value: Any) -> Any:
    if type(value) is str and (_NUL in value or _MARK in value):
        return value.replace(_MARK, f"{_MARK}1").replace(_NUL, f"{_MARK}0")
    return int(value) if type(value) is bool else value


def _decoded(text: str) -> str:
    return text.replace(f"{_MARK}0", _NUL).replace(f"{_MARK}1", _MARK)


def _migrate(raw: psycopg.Connection[Any]) -> None:
    """Bring the tables to this version's; one gateway does, the others wait."""
    with raw.transaction():
        raw.execute("SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '60s'")
        raw.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
        raw.execute("CREATE TABLE IF NOT EXISTS radixkv_schema (version BIGINT NOT NULL)")
        found = raw.execute("SELECT version FROM radixkv_schema").fetchall()
        version = found[0][0] if found else 0
        if version > SCHEMA_VERSION:
            told = f"its version is {version}, and this radixkv knows versions up to {SCHEMA_VERSION}"
            raise errors.FeatureNotSupported(told)
        if version == SCHEMA_VERSION:
            return
        raw.execute(_FUNCTIONS)
        for step in STEPS[version:]:
            raw.execute(_step(step).encode())
        raw.execute("DELETE FROM radixkv_schema")
        raw.execute("INSERT INTO radixkv_schema VALUES (%s)", (SCHEMA_VERSION,))


_TRIGGER = re.compile(r"CREATE TRIGGER (\w+) AFTER (.+?) ON (\w+)(?: WHEN ([^;]+?))? BEGIN(.*?)\nEND;", re.DOTALL)
_COUNT = re.compile(r"(INSERT INTO (\w+)[^;]+?DO UPDATE\s+SET (num_\w+) = )\3 \+ 1")
"""An existing row's column, which PostgreSQL asks to be named with its table."""

_TYPES = {
    "INTEGER PRIMARY KEY": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "x''": "''",
    " WITHOUT ROWID": "",
}


def _step(step: str) -> str:
    """Return a step of the schema as PostgreSQL spells it."""
    step = re.sub(r"--.*", "", step)
    for ours, theirs in _TYPES.items():
        step = step.replace(ours, theirs)
    step = _COUNT.sub(r"\1\2.\3 + 1", step)
    return _TRIGGER.sub(_trigger, step)


def _trigger(match: re.Match[str]) -> str:
    name, event, table, condition, body = match.groups()
    when = f" WHEN ({condition})" if condition else ""
    return (
        f"CREATE FUNCTION {name}() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$;\n"
        f"CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW{when} EXECUTE FUNCTION {name}();"
    )


def _first_line(error: Exception) -> str:
    """Return the part of an error that holds no value of a statement."""
    return str(error).strip().split("\n")[0]

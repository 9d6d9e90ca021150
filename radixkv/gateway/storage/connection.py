"""The part of a database connection that jobs use: the same statements for SQLite and PostgreSQL.

Values are `?` or `:name`. A statement has only what both understand; other spellings are functions of both:

    epoch_s()               seconds since 1970 on the database's clock
    has_tag(tags, quoted)   whether a JSON list of texts has this text, in JSON
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

__all__ = ["Connection", "Cursor", "Row"]


class Row(Protocol):
    """One row, by column's name or index."""

    def __getitem__(self, column: Any, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def keys(self) -> Any: ...


class Cursor(Protocol):
    """The result of a statement. `rowcount`: rows that it changed."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A transaction under way, which the database begins and ends."""

    def execute(self, statement: str, values: Any = ..., /) -> Cursor: ...
    def executemany(self, statement: str, values: Iterable[Any], /) -> Any: ...

"""Which conversations of a namespace are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ALL", "Shown"]


class Shown(NamedTuple):
    """Which ones; None: it does not matter. tag: those that have it. is_trashed: those in the trash, or those outside."""

    is_archived: bool | None = None
    is_pinned: bool | None = None
    tag: str | None = None
    is_trashed: bool = False

    def where(self) -> tuple[str, Sequence[str | int]]:
        """The same as conditions behind others, and their values."""
        conditions = ["trashed_s IS NOT NULL" if self.is_trashed else "trashed_s IS NULL"]
        values: list[str | int] = []
        for column, wanted in (("is_archived", self.is_archived), ("is_pinned", self.is_pinned)):
            if wanted is not None:
                conditions.append(f"{column} = ?")
                values.append(int(wanted))
        if self.tag is not None:
            conditions.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)")
            values.append(self.tag)
        return "".join(f" AND {each}" for each in conditions), values


ALL = Shown()
"""All that are not in the trash."""

"""Filter of the listed conversations of a namespace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ALL", "Shown"]


class Shown(NamedTuple):
    """Filter; None: any. tag: only those with it. is_trashed: those in the trash, or those outside."""

    is_archived: bool | None = None
    is_pinned: bool | None = None
    tag: str | None = None
    is_trashed: bool = False

    def where(self) -> tuple[str, Sequence[str | int]]:
        """Return SQL conditions to append to others, and their values."""
        conditions = ["trashed_s IS NOT NULL" if self.is_trashed else "trashed_s IS NULL"]
        values: list[str | int] = []
        for column, wanted in (("is_archived", self.is_archived), ("is_pinned", self.is_pinned)):
            if wanted is not None:
                conditions.append(f"{column} = ?")
                values.append(int(wanted))
        if self.tag is not None:
            conditions.append("has_tag(tags, ?)")
            values.append(json.dumps(self.tag))
        return "".join(f" AND {each}" for each in conditions), values


ALL = Shown()
"""Every conversation outside the trash."""

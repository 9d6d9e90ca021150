"""The index of a slot file after a fault: what it promises from the start still holds."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from radixkv.stores.disk.index import Index, Row

ROWS = [Row(slot, b"%016d" % slot, bytes(16), b"%016d" % 0, slot) for slot in range(8)]


@pytest.mark.parametrize("has_reopened", [False, True])
def test_the_file_is_of_one_process_also_after_a_fault(tmp_path: Path, has_reopened: bool) -> None:
    """Its log needs no memory shared with others, which a file system may not have."""
    path = tmp_path / "index"
    index = Index(path, b"model", 100)
    index.commit([], added=ROWS)
    if has_reopened:
        index.reopen()
        index.commit([], deleted=[3])
    with (
        contextlib.closing(sqlite3.connect(path, timeout=0.0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("SELECT name FROM blocks").fetchall()
    index.close()

"""The text of a keys file, read again when it changes, and never while it is half written.

A file that is replaced by renaming a new one over it is complete at every moment. A file written in place is accepted once it
has not changed for `SETTLED_S`, unless it looks cut off: without the line end that it had, or with a last table that is the
beginning of an earlier one. So no tenant loses a limit or a role to an editor that stopped half way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from radixkv.core.errors import InvalidArgumentError

__all__ = ["SETTLED_S", "KeysFile"]

SETTLED_S = 1.0
_MAX_READINGS = 3
_TABLE = re.compile(r"^[ \t]*\[\[tenant\]\]", re.MULTILINE)

_Read = TypeVar("_Read")


class _Stamp(NamedTuple):
    changed_ns: int
    size_bytes: int
    inode: int


class KeysFile:
    """One keys file. One thread at a time uses it.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: _Stamp | None = None  # of the last text read, accepted or not
        self._seen: _Stamp | None = None  # at the last check
        self._believed, self._inode = "", 0

    def load(self, parse: Callable[[str], _Read]) -> _Read:
        """Return `parse` of the text.

        Raises:
            InvalidArgumentError: the file cannot be read, or is being written; and the errors of `parse`.
        """
        text, stamp = self._read_whole()
        self._read = self._seen = stamp
        if stamp.inode == self._inode and _is_cut(text, self._believed):
            bound = "whole: it looks cut off; write a new file and rename it over this one"
            raise InvalidArgumentError("keys file", str(self._path), bound)
        parsed = parse(text)
        self._believed, self._inode = text, stamp.inode
        return parsed

    def reload(self, parse: Callable[[str], _Read]) -> _Read | None:
        """The same if the file has changed since it was read and has settled, else None. A fault is raised once."""
        stamp = self._stamp()
        seen, self._seen = self._seen, stamp
        if stamp == self._read:
            return None
        if stamp is not None and stamp != seen and time.time() - stamp.changed_ns / 1e9 < SETTLED_S:
            return None
        self._read = stamp
        return self.load(parse)

    def _read_whole(self) -> tuple[str, _Stamp]:
        try:
            for _ in range(_MAX_READINGS):
                stamp = self._stamp()
                text = self._path.read_text(encoding="utf-8")
                if stamp is not None and stamp == self._stamp():
                    return text, stamp
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError("keys file", str(self._path), f"a text file that can be read: {error}") from None
        raise InvalidArgumentError("keys file", str(self._path), "a file that nobody is writing")

    def _stamp(self) -> _Stamp | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return _Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _is_cut(text: str, before: str) -> bool:
    """Whether `text`, written in place of `before`, may be incomplete."""
    if before.endswith("\n") and not text.endswith("\n"):
        return True
    last = _TABLE.split(text)[-1].rstrip()
    whole = [table.rstrip() for table in _TABLE.split(before)[1:]]
    return last not in whole and any(table.startswith(last) for table in whole)

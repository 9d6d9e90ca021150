"""The folder of `--disk-cache`: its lock, its size, and one folder in it per model.

    DIR/radixkv-store.lock
    DIR/<fingerprint>/slots      DIR/<fingerprint>/index

All models count towards the size. Where one needs room, the folder of the least recently used other model is removed whole.
Other files and folders in DIR, also under such a name, neither count nor are touched.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.disk.index import files_of
from radixkv.stores.errors import StoreError

__all__ = ["FLAG", "LOCK", "DiskFolder", "model_folders"]

FLAG = "--disk-cache"
LOCK = "radixkv-store.lock"
NAME = re.compile(r"[0-9a-f]{32}")
FILES = {"slots", *(path.name for path in files_of(Path("index")))}


class DiskFolder:
    """The locked folder, and in it that of one model.

    Args:
        folder: created where missing. size_bytes: of everything in it but the lock. fingerprint: of the model.

    Attributes:
        slots, index: paths of the model's files.

    Raises:
        StoreError: another process has the folder, or it cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str], size_bytes: int, fingerprint: bytes) -> None:
        self.path = Path(folder).expanduser().absolute()
        self.size_bytes = size_bytes
        self._own = self.path / fingerprint.hex()[:32]
        self.slots, self.index = self._own / "slots", self._own / "index"
        self._lock = FileLock(self.path / LOCK, mode=0o600, thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(
                f"{FLAG} {self.path} is in use by another worker; give each one a folder of its own"
            ) from None
        except OSError as error:
            raise StoreError(f"{FLAG} {self.path} cannot be written to: {error.strerror}") from error
        try:
            self._own.mkdir(exist_ok=True, mode=0o700)
            self._own.touch()  # the most recently used
        except OSError as error:
            self.unlock()
            raise StoreError(f"{FLAG} {self.path} cannot be written to: {error.strerror}") from error

    def require_room(self) -> None:
        """Check that the disk has the size, where nothing is stored yet. A disk that is fuller later costs room, no start.

        Raises:
            InvalidArgumentError: it has not.
        """
        if self.slots.exists():
            return
        status = os.statvfs(self.path)
        had = status.f_bavail * status.f_frsize + self._own_bytes() + sum(map(_bytes_of, self._others()))
        if self.size_bytes > had:
            raise InvalidArgumentError(
                FLAG, f"{self.path}:{self.size_bytes}", f"at most {had:,} bytes, which the disk has left"
            )

    def make_room(self, num_bytes: int) -> bool:
        """Whether the model's files may grow by so many bytes; other models' folders are removed as it takes."""
        others = self._others()
        own_bytes = self._own_bytes()
        while own_bytes + num_bytes + sum(map(_bytes_of, others)) > self.size_bytes:
            if not others:
                return False
            shutil.rmtree(others.pop(0), ignore_errors=True)
        return True

    def discard(self) -> None:
        """Remove the model's files."""
        for path in (self.slots, *files_of(self.index)):
            path.unlink(missing_ok=True)

    def unlock(self) -> None:
        """Let another process have the folder. May be repeated."""
        self._lock.release()

    def _own_bytes(self) -> int:
        return self.slots.stat().st_size if self.slots.exists() else 0

    def _others(self) -> list[Path]:
        """Folders of other models, the least recently used first."""
        return [path for path in model_folders(self.path) if path != self._own]


def model_folders(folder: Path) -> list[Path]:
    """The folders of all models in one, the least recently used first."""
    found = (path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir() and _is_model(path))
    return sorted(found, key=lambda path: (path.stat().st_mtime, path))


def _is_model(folder: Path) -> bool:
    return all(path.name in FILES for path in folder.iterdir())


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())

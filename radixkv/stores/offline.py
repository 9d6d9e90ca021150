"""The folder of a disk level without a worker: list, check, trim and erase. A folder that a worker has open is refused.

Namespaces appear as their ids: the files do not hold their names.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import is_derived
from radixkv.stores.disk import DiskLevel
from radixkv.stores.disk.folder import LOCK, model_folders
from radixkv.stores.disk.index import VERSION, Index, Row
from radixkv.stores.disk.level import ROW_BYTES
from radixkv.stores.disk.slots import SlotFile, slot_bytes_of
from radixkv.stores.disk.table import unlisted
from radixkv.stores.errors import SealError, StoreError
from radixkv.stores.secrets.keys import NamespaceKeys, StoreKeys
from radixkv.stores.secrets.sealing import SEAL_BYTES, Sealer

__all__ = ["CheckedModel", "StoredModel", "check", "erase", "list_models", "trim"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The files of one model.

    Attributes:
        folder: its folder's name, the first 32 hexadecimal digits of `fingerprint`. is_readable: whether there is an index of
            this version; if not, the fields after `used_s` are empty.
        file_bytes: of all its files. used_s: when it was last opened or closed, in seconds since 1970.
        fingerprint: of model and layout. sealed_bytes: of a block. num_blocks: stored. num_slots: allocated.
        namespaces: blocks by the id of their namespace, in hexadecimal digits.
    """

    folder: str
    is_readable: bool
    file_bytes: int
    used_s: float
    fingerprint: bytes = b""
    sealed_bytes: int = 0
    num_blocks: int = 0
    num_slots: int = 0
    namespaces: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """Blocks of one model, by what a check found; they add up to `num_blocks`.

    Attributes:
        num_opened: open with a given key. num_damaged: do not open with the keys of their namespace, or cannot be read.
        num_erased: of namespaces that the key file has erased. num_unopened: read, of namespaces that were not given.
        is_intact: whether the index was readable to the end; no block is counted where it was not readable at all.
    """

    folder: str
    is_intact: bool
    num_blocks: int
    num_opened: int
    num_damaged: int
    num_erased: int
    num_unopened: int


def list_models(folder: str | os.PathLike[str]) -> list[StoredModel]:
    """The models whose blocks lie in a folder, the least recently used first. O(blocks).

    Raises:
        StoreError: it is no folder, a worker has it open, or it cannot be read.
    """
    with _locked(folder) as path:
        return [_describe(model) for model in _models(path)]


def check(
    folder: str | os.PathLike[str], keys: StoreKeys | None = None, namespaces: Iterable[str] = ()
) -> list[CheckedModel]:
    """Read every block, and open those of the given namespaces. Changes nothing. O(bytes).

    Raises:
        StoreError: as `list_models`.
    """
    by_id: dict[bytes, list[NamespaceKeys]] = {}
    for namespace in namespaces if keys is not None else ():
        given = keys.of(namespace)  # type: ignore[union-attr]
        by_id.setdefault(given.id, []).append(given)
    with _locked(folder) as path:
        return [_check_model(model, _describe(model), by_id, keys) for model in _models(path)]


def trim(folder: str | os.PathLike[str], size_bytes: int) -> list[StoredModel]:
    """Shrink a folder to a size: models that were used longer ago go whole, and of the last one the least recently used leaves.

    Returns:
        what is left.

    Raises:
        InvalidArgumentError: the size has no room for eight blocks of the model that was used last.
        StoreError: as `list_models`.
    """
    models = list_models(folder)
    if sum(model.file_bytes for model in models) > size_bytes:
        last = next((model for model in reversed(models) if model.is_readable), None)
        if last is None:
            raise InvalidArgumentError("size_bytes", size_bytes, "the size of a folder with a readable index")
        DiskLevel(folder, size_bytes, last.fingerprint, last.sealed_bytes).close()
    return list_models(folder)


def erase(folder: str | os.PathLike[str], keys: StoreKeys, namespace: str | None = None) -> dict[str, int]:
    """Destroy the keys of a namespace, then delete its blocks and those of all namespaces that were erased before. The remote
    levels that workers with the key file have had learn of it by their next one.

    Args:
        namespace: None: only what the key file has erased before.

    Returns:
        deleted blocks by the folder of their model.

    Raises:
        InvalidArgumentError: `namespace` is a derived one; nothing is erased.
        StoreKeyError: the key file cannot be replaced; nothing is erased.
        StoreError: as `list_models`, or some blocks cannot be deleted; their keys are destroyed.
    """
    if namespace is not None and is_derived(namespace):
        raise InvalidArgumentError("namespace", namespace, "the owner of the derived ones")
    models = list_models(folder)
    if namespace is not None:
        erased = keys.erase(namespace)
        if keys.pending.exists():
            from radixkv.stores.remote.journal import Deletion, add_for_all  # its client only where it is used

            add_for_all(keys.pending, Deletion(False, erased.id, keys.tombstone(erased.point)))
    deleted: dict[str, int] = {}
    for model in models:
        if model.is_readable:
            num_slots = model.num_slots + 8
            room = sum(each.file_bytes for each in models) + num_slots * (slot_bytes_of(model.sealed_bytes) + ROW_BYTES)
            level = DiskLevel(folder, room, model.fingerprint, model.sealed_bytes)
            try:
                if not level.erase(*keys.erased(level.namespace_ids())):
                    raise StoreError(f"the blocks in {folder} cannot be deleted; their keys are destroyed")
                deleted[model.folder] = model.num_blocks - level.stats().num_blocks
            finally:
                level.close()
    return deleted


@contextlib.contextmanager
def _locked(folder: str | os.PathLike[str]) -> Iterator[Path]:
    path = Path(folder).expanduser().absolute()
    if not path.is_dir():
        raise StoreError(f"{path} is no folder")
    is_new = not (path / LOCK).exists()
    try:
        with FileLock(path / LOCK, timeout=0, mode=0o600):
            try:
                yield path
            finally:
                if is_new:
                    (path / LOCK).unlink(missing_ok=True)
    except Timeout:
        raise StoreError(f"{path} is in use by a worker; stop it first, or ask it") from None
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _models(folder: Path) -> Iterator[Path]:
    """The folders of all models, the least recently used first. Opening their files is no use of them."""
    for model in model_folders(folder):
        status = model.stat()
        try:
            yield model
        finally:
            with contextlib.suppress(PermissionError):  # another user's
                os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))


def _describe(model: Path) -> StoredModel:
    file_bytes, used_s = sum(path.stat().st_size for path in model.iterdir()), model.stat().st_mtime
    unreadable = StoredModel(model.name, False, file_bytes, used_s)
    head = _head_of(model / "index")
    if head is None:
        return unreadable
    fingerprint, sealed_bytes = head
    with _opened(model, fingerprint, sealed_bytes) as (rows, slots, _):
        return StoredModel(
            folder=model.name,
            is_readable=True,
            file_bytes=file_bytes,
            used_s=used_s,
            fingerprint=fingerprint,
            sealed_bytes=sealed_bytes,
            num_blocks=len(rows),
            num_slots=slots.num_slots,
            namespaces=dict(Counter(row.namespace_id.hex() for row in rows)),
        )


def _head_of(index: Path) -> tuple[bytes, int] | None:
    """Fingerprint and bytes of a block, as an index of this version has them."""
    if not index.exists():
        return None
    with contextlib.closing(sqlite3.connect(index, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            ((fingerprint, sealed_bytes),) = connection.execute(
                "SELECT fingerprint, sealed_bytes FROM store"
            ).fetchall()
        except (sqlite3.Error, ValueError):
            return None
    sound = isinstance(fingerprint, bytes) and isinstance(sealed_bytes, int) and sealed_bytes > SEAL_BYTES
    sound &= version == VERSION
    return (fingerprint, sealed_bytes) if sound and fingerprint.hex()[:32] == index.parent.name else None


@contextlib.contextmanager
def _opened(model: Path, fingerprint: bytes, sealed_bytes: int) -> Iterator[tuple[list[Row], SlotFile, bool]]:
    """The rows of all blocks, the slot file, and whether the index was readable to the end."""
    index = Index(model / "index", fingerprint, sealed_bytes, may_rebuild=False)
    try:
        slots = SlotFile(model / "slots", sealed_bytes, 0)
        try:
            rows = index.rows + unlisted(index, slots, {row.slot for row in index.rows})
            yield rows, slots, index.is_intact
        finally:
            slots.close()
    finally:
        index.close()


def _check_model(
    model: Path, stored: StoredModel, by_id: Mapping[bytes, list[NamespaceKeys]], keys: StoreKeys | None
) -> CheckedModel:
    if not stored.is_readable:
        return CheckedModel(model.name, False, 0, 0, 0, 0, 0)
    sealer = Sealer(stored.fingerprint)
    sealed = memoryview(bytearray(stored.sealed_bytes))
    out = memoryview(bytearray(stored.sealed_bytes - SEAL_BYTES))
    found: Counter[str] = Counter()
    with _opened(model, stored.fingerprint, stored.sealed_bytes) as (rows, slots, is_intact):
        erased = keys.erased({row.namespace_id for row in rows}) if keys is not None else set()
        for row in rows:
            found[_verdict(row, slots, sealer, by_id, erased, sealed, out)] += 1
    return CheckedModel(
        folder=model.name,
        is_intact=is_intact,
        num_blocks=len(rows),
        num_opened=found["opened"],
        num_damaged=found["damaged"],
        num_erased=found["erased"],
        num_unopened=found["unopened"],
    )


def _verdict(
    row: Row,
    slots: SlotFile,
    sealer: Sealer,
    by_id: Mapping[bytes, list[NamespaceKeys]],
    erased: set[bytes],
    sealed: memoryview,
    out: memoryview,
) -> str:
    if row.namespace_id in erased:
        return "erased"
    try:
        if not slots.read(row.slot, sealed):
            return "damaged"
    except OSError:
        return "damaged"
    given = by_id.get(row.namespace_id)
    if given is None:
        return "unopened"
    for keys in given:
        with contextlib.suppress(SealError):
            sealer.open_into(keys, row.name, sealed, out)
            return "opened"
    return "damaged"

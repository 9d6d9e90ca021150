"""The block store of a worker whose pool is allocated, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from radixkv.stores.disk import DiskLevel
from radixkv.stores.errors import StoreError
from radixkv.stores.keys import StoreKeys
from radixkv.stores.sealing import SEAL_BYTES
from radixkv.stores.settings import StoreSettings
from radixkv.stores.store import BlockStore, Row
from radixkv.util.folders import state_folder
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.storing.fingerprint import fingerprint_of, weights_digest

__all__ = ["open_store"]


class Served(Protocol):
    """The part of a worker's settings that its blocks depend on. `on_stage` gets a line each second that reading them takes."""

    @property
    def adapters(self) -> Mapping[str, Path]: ...

    @property
    def deterministic(self) -> bool: ...

    @property
    def on_stage(self) -> Callable[[str], None]: ...


def open_store(
    served: Served, settings: StoreSettings, runner: ModelRunner, model: Path, *, first_row: int
) -> BlockStore:
    """The store for a runner's pool, whose host slots from `first_row` on are the store's rows.

    Raises:
        StoreError: a level or the key file cannot be opened; names the flag. Or the model's files cannot be read.
    """
    keys = StoreKeys(settings.key_file or state_folder() / "store.key")
    try:
        fingerprint = fingerprint_of(runner, model, is_deterministic=served.deterministic, report=served.on_stage)
        adapters = {name: weights_digest(folder, served.on_stage) for name, folder in served.adapters.items()}
    except OSError as error:
        raise StoreError(f"the files of {model}, which blocks are named by, cannot be read: {error}") from error
    rows = [Row(first_row + at, memory) for at, memory in enumerate(runner.pool.host_rows(first_row))]
    sealed_bytes = len(rows[0].memory) + SEAL_BYTES
    disk = None if settings.disk is None else DiskLevel(*settings.disk, fingerprint, sealed_bytes)
    remote = None
    if settings.remote is not None:
        from radixkv.stores.remote import RemoteLevel  # its client only where it is used

        remote = RemoteLevel(settings.remote, fingerprint, sealed_bytes)
    return BlockStore(
        keys, fingerprint, rows, adapters=adapters, disk=disk, remote=remote, save_rate=settings.save_rate
    )

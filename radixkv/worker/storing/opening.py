"""The block store of a worker whose pool is allocated, from its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels import KVFormat
from radixkv.stores.disk import DiskLevel
from radixkv.stores.errors import StoreError
from radixkv.stores.host import HostLevel, Row
from radixkv.stores.secrets.keys import StoreKeys
from radixkv.stores.secrets.sealing import SEAL_BYTES
from radixkv.stores.settings import StoreSettings
from radixkv.stores.store import BlockStore
from radixkv.util.folders import state_folder
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.storing.fingerprint import fingerprint_of, weights_digest
from radixkv.worker.storing.rounding import RoundedRows

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
    served: Served, settings: StoreSettings, runner: ModelRunner, model: Path, *, num_kept: int
) -> BlockStore:
    """The store for a runner's pool, whose host slots are its rows; the host level keeps blocks in `num_kept` of them.

    Raises:
        StoreError: a level or the key file cannot be opened; names the flag. Or the model's files cannot be read.
    """
    rounding = _rounding(served, settings.kv_dtype, runner)
    key_file = settings.key_file or state_folder() / "store.key"
    keys = StoreKeys(key_file)
    try:
        stored = f"{settings.kv_dtype}, {rounding.layout}" if rounding else ""
        fingerprint = fingerprint_of(
            runner, model, is_deterministic=served.deterministic, rounding=stored, report=served.on_stage
        )
        adapters = {name: weights_digest(folder, served.on_stage) for name, folder in served.adapters.items()}
    except OSError as error:
        raise StoreError(f"the files of {model}, which blocks are named by, cannot be read: {error}") from error
    host = HostLevel([Row(slot, memory) for slot, memory in enumerate(runner.pool.host_rows())], num_kept)
    sealed_bytes = (rounding.num_bytes if rounding else host.block_bytes) + SEAL_BYTES
    disk = None if settings.disk is None else DiskLevel(*settings.disk, fingerprint, sealed_bytes)
    remote = None
    if settings.remote is not None:
        from radixkv.stores.remote import RemoteLevel  # its client only where it is used

        remote = RemoteLevel(settings.remote, fingerprint, sealed_bytes, keys.pending)
    return BlockStore(
        keys,
        fingerprint,
        host,
        adapters=adapters,
        disk=disk,
        remote=remote,
        save_rate=settings.save_rate,
        rounding=rounding,
    )


def _rounding(served: Served, kv_dtype: str, runner: ModelRunner) -> RoundedRows | None:
    if kv_dtype == "auto":
        return None
    flag = f"--disk-kv-dtype {kv_dtype}"
    if served.deterministic:
        raise StoreError(f"{flag} rounds, and --deterministic does not: leave one of them out")
    if runner.kv_format is not None:
        raise StoreError(f"{flag} rounds the KV of a pool that has it in {runner.kv_dtype} already: leave it out")
    kv_format = KVFormat(kv_dtype)
    try:
        return RoundedRows(runner.pool.caches, kv_format)
    except InvalidArgumentError as error:
        raise StoreError(f"{flag} does not fit the model's heads: {error}") from error

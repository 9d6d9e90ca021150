"""Flags of a worker's block store, and the `StoreSettings` made from them."""

from __future__ import annotations

import argparse
from pathlib import Path

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner.sizes import parse_bytes
from radixkv.stores.settings import StoreSettings
from radixkv.util.folders import cache_folder

__all__ = ["add_store_flags", "store_settings"]

_NONE = "none"
_DEFAULT_SIZE = "2GiB"


def add_store_flags(command: argparse.ArgumentParser, *, has_disk: bool) -> None:
    """Flags of the store. `has_disk`: whether it has a disk level by default."""
    flags = command.add_argument_group(
        "block store",
        "Computed blocks outlive the pool and the process: they are saved, encrypted, when they are evicted or the worker is "
        "idle, and loaded where a prompt needs them. A level that is slow, full or gone costs time, never an answer.",
    )
    default = (
        f"{_DEFAULT_SIZE} in the cache folder, where it is free; none with --window-share below 1"
        if has_disk
        else _NONE
    )
    flags.add_argument(
        "--disk-cache",
        metavar="DIR:SIZE",
        default=None if has_disk else _NONE,
        help=f"a folder for blocks and its size, e.g. /data/blocks:50GiB; a size alone takes the cache folder; none "
        f"(default: {default})",
    )
    flags.add_argument(
        "--host-cache",
        metavar="SIZE",
        help="host memory for saved blocks, and with --preemption swap for those of preempted branches, e.g. 8GiB (default: on "
        "a GPU with another level 16GiB, with swap 4GiB, each at most a quarter of the free memory; else 0: on a CPU the "
        "system's page cache does the same for --disk-cache)",
    )
    flags.add_argument(
        "--remote",
        metavar="URL",
        help="a Valkey or Redis server that workers with the same key file share: redis://HOST:PORT, rediss:// with TLS",
    )
    flags.add_argument(
        "--disk-kv-dtype",
        default="auto",
        choices=["auto", "int8", "int4"],
        help="of blocks on disk and in the remote level: auto, as they were computed; int8 and int4 take half of bfloat16's "
        "bytes and less, at some cost in quality (default %(default)s)",
    )
    flags.add_argument(
        "--store-key",
        metavar="FILE",
        help="the key file, made at first use; erasing a namespace destroys its key there (default: in the state folder)",
    )
    flags.add_argument(
        "--save-rate",
        metavar="SIZE",
        default="256MiB",
        help="most bytes per second that an idle worker saves (default %(default)s)",
    )


def store_settings(options: argparse.Namespace) -> StoreSettings | None:
    """The settings from the flags; None without a level, also where only the default one would be in conflict with others.

    Raises:
        InvalidArgumentError: a flag is out of bounds; names it.
    """
    is_default = options.disk_cache is None
    disk = _disk(_DEFAULT_SIZE if is_default else options.disk_cache)
    save_rate = parse_bytes(options.save_rate, "--save-rate")
    if save_rate < 1:
        raise InvalidArgumentError("--save-rate", options.save_rate, "at least 1 byte per second")
    if options.disk_kv_dtype != "auto":
        if disk is None and options.remote is None:
            raise InvalidArgumentError("--disk-kv-dtype", options.disk_kv_dtype, "given with --disk-cache or --remote")
        if options.deterministic:
            raise InvalidArgumentError("--disk-kv-dtype", options.disk_kv_dtype, "auto with --deterministic")
    has_host = options.host_cache is not None and parse_bytes(options.host_cache, "--host-cache") > 0
    if disk is None and options.remote is None and not has_host:
        if options.store_key is not None:
            raise InvalidArgumentError(
                "--store-key", options.store_key, "given with --disk-cache, --host-cache or --remote"
            )
        return None
    key_file = None if options.store_key is None else Path(options.store_key).expanduser()
    is_for_swap = disk is None and options.remote is None and options.preemption == "swap"
    is_all_default = is_default and options.remote is None and not has_host and options.disk_kv_dtype == "auto"
    if is_all_default and key_file is None and 0 < options.window_share < 1:
        return None  # a store moves whole blocks
    return StoreSettings(
        disk,
        options.remote,
        key_file,
        save_rate,
        options.disk_kv_dtype,
        is_optional=is_for_swap or is_all_default,
    )


def _disk(text: str) -> tuple[Path, int] | None:
    if text == _NONE:
        return None
    folder, _, size = text.rpartition(":")
    try:
        size_bytes = parse_bytes(size, "--disk-cache")
    except InvalidArgumentError:
        size_bytes = 0
    if size_bytes < 1:
        raise InvalidArgumentError("--disk-cache", text, "DIR:SIZE, such as /data/blocks:50GiB, a size alone, or none")
    return Path(folder).expanduser() if folder else cache_folder() / "blocks", size_bytes

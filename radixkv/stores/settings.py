"""Settings of a block store, as its flags name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["DEFAULT_SAVE_RATE", "StoreSettings"]

DEFAULT_SAVE_RATE = 256 << 20
"""Bytes per second that an idle worker saves."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Levels of a store beyond the host's, and its key.

    Attributes:
        disk: folder and bytes of the disk level; None: none.
        remote: URL of the remote level; None: none.
        key_file: the key file; None: `store.key` in the user's data folder.
        save_rate: most bytes per second that an idle worker saves.
        kv_dtype: of blocks outside the worker's memory: ``"auto"``, as they are; ``"int8"``, ``"int4"``.
        is_optional: whether a worker whose store cannot be opened runs without it, with a notice.
    """

    disk: tuple[Path, int] | None = None
    remote: str | None = field(default=None, repr=False)  # it may hold a password
    key_file: Path | None = None
    save_rate: float = DEFAULT_SAVE_RATE
    kv_dtype: str = "auto"
    is_optional: bool = False

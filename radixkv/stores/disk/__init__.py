"""The disk level: one file of equal slots per model, and SQLite as its index.

folder    the folder with its lock and size, shared by the files of several models
index     the index: which block lies in which slot
level     the level itself
table     which block lies in which slot, in memory and on disk
slots     the slot file
"""

from __future__ import annotations

from radixkv.stores.disk.level import DiskLevel

__all__ = ["DiskLevel"]

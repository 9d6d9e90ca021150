"""Folders of radixkv: for files that it fetches and builds, and for what a user has made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder", "state_folder"]


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of fetched models and compiled kernels: ``RADIXKV_CACHE``, or else the platform's cache folder of this
    user.
    """
    import platformdirs

    chosen = environ.get("RADIXKV_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("radixkv"))


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of conversations and keys: ``RADIXKV_STATE``, or else the platform's state folder of this user."""
    import platformdirs

    chosen = environ.get("RADIXKV_STATE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_state_path("radixkv"))

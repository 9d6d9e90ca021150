"""The folder for files that radixkv fetches and builds, kept between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of fetched models and compiled kernels: ``RADIXKV_CACHE``, or else the platform's cache folder of this
    user.
    """
    import platformdirs

    chosen = environ.get("RADIXKV_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("radixkv"))

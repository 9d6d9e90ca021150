"""Removes models that no start can use from the cache folder.

    CACHE/models/NAME    made by a version with another format; or of a former default model, or of a GGUF file that was
                         changed or removed

Each start touches the folder it uses. So a folder untouched for `UNUSED_S` is in use by no process, of any version.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from radixkv.worker.loading.default_model import SMOLLM2_135M
from radixkv.worker.loading.gguf_model import gguf_folder_name
from radixkv.worker.loading.gguf_weights import INDEX

__all__ = ["clear_models"]

UNUSED_S = 7 * 24 * 3600.0


def clear_models(taken: Path, cache: Path) -> None:
    """Touch the folder `taken`, if it is in `cache`, and remove folders that no start can use."""
    models = cache / "models"
    if taken.parent != models:
        return
    with suppress(OSError):  # the cache may be another user's
        os.utime(taken)
        for folder in models.iterdir():
            is_made = folder.is_dir() and not folder.name.startswith(".")
            if is_made and not _can_be_taken(folder) and time.time() - _last_use_s(folder) > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _can_be_taken(folder: Path) -> bool:
    """Whether a start of this version can use the folder."""
    if folder.name == SMOLLM2_135M.folder_name:
        return True
    try:
        path = folder / json.loads((folder / INDEX).read_text(encoding="utf-8"))["path"]
        return gguf_folder_name(path) == folder.name
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _last_use_s(folder: Path) -> float:
    """Time of the last start that used the folder or, for older versions, of the last read of its files."""
    used_s = [folder.stat().st_mtime]
    for path in folder.iterdir():
        state = path.stat()
        used_s += (
            [state.st_mtime] if path.name == INDEX else [state.st_mtime, state.st_atime]
        )  # the index is read here too
    return max(used_s)

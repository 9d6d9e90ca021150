"""A user's GGUF file as a folder of configuration, tokenizer and an index of the weights, made once.

    /models/some.gguf  ->  CACHE/models/some-<digest of path, size and time of change>/

A changed file is another model. The weights stay in the file, where every start reads them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_convert import convert_gguf
from radixkv.worker.loading.gguf_file import GGUFFile
from radixkv.worker.loading.model_store import StoredModel, progress_bars, store_once

__all__ = ["find_gguf", "gguf_folder_name", "resolve_gguf"]

_MAGIC = b"GGUF"
_DISK_BYTES = 50_000_000
"""Tokenizer, configuration and index, at most."""


def find_gguf(name: str) -> Path | None:
    """The GGUF file at the path `name`; None if it is not one.

    Raises:
        ModelError: the name ends in .gguf, and the file is missing or of another kind.
    """
    path = Path(name).expanduser()
    is_gguf = path.is_file() and _begins_as_gguf(path)
    if path.suffix.lower() == ".gguf" and not path.is_dir() and not is_gguf:
        raise ModelError(f"{path} is not a GGUF file" if path.exists() else f"there is no file {path}")
    return path.resolve() if is_gguf else None


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise ModelError(f"the file {path} cannot be read: {error}") from error


def gguf_folder_name(path: Path) -> str:
    """Folder name for the model of a file in its present state.

    Raises:
        OSError: the file does not exist.
    """
    state = path.stat()
    digest = hashlib.sha256(f"index\n{path}\n{state.st_size}\n{state.st_mtime_ns}".encode()).hexdigest()
    return f"{path.stem}-{digest[:12]}"


def resolve_gguf(path: Path, cache: Path, *, progress: bool = True) -> Path:
    """The folder of the GGUF file's model in `cache`, made if missing.

    Raises:
        ModelError: the file is damaged, or of a kind that cannot be served; or the model does not fit on the disk.
    """
    folder_name = gguf_folder_name(path)
    kept = cache / "models" / folder_name
    if kept.is_dir():
        return kept
    file = GGUFFile(path)
    model = StoredModel(path.name, folder_name, _DISK_BYTES)
    return store_once(model, cache, lambda partial: _make(file, partial / "converted", progress))


def _make(file: GGUFFile, converted: Path, progress: bool) -> Path:
    with progress_bars(progress) as bars:
        convert_gguf(file, converted, bars)
    return converted

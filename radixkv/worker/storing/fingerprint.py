"""The fingerprint of a worker's KV: all that the bytes of a block depend on but its tokens and namespace.

Weights, by their content; their quantisation; dtype, format and layout of the pool; block size; the kernels that compute.
Blocks of two fingerprints never meet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from radixkv.kernels.runtime.native_build import native_library
from radixkv.util.folders import cache_folder
from radixkv.worker.model.model import ModelRunner

__all__ = ["fingerprint_of", "served_fingerprint", "weights_digest"]

_LOG = logging.getLogger(__name__)

_VERSION = 2
"""Of the meaning of a block's bytes; a change of kernels that changes them raises it.

Version 1 may have stored a block under the name of another history.
"""

_SUFFIXES = {".safetensors", ".bin", ".gguf"}
_CONFIGURATIONS = {"config.json", "adapter_config.json"}
_TEXTS = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
}
_KNOWN = "weight-digests.json"
_MAX_KNOWN = 256

_PART_BYTES = 16 << 20
"""A file is read in parts by several threads; its digest is that of the parts' digests."""

_REPORT_S = 1.0


def fingerprint_of(
    runner: ModelRunner,
    model: Path,
    *,
    is_deterministic: bool,
    rounding: str = "",
    report: Callable[[str], None] = lambda _line: None,
) -> bytes:
    """32 bytes for the blocks of a runner whose pool is allocated. Reads weights once; see `weights_digest`.

    Args:
        rounding: format and layout of blocks rounded at rest; empty: they are stored as they are.
    """
    pool = runner.pool
    caches = [(str(cache.layout), [(list(t.shape[1:]), str(t.dtype)) for t in cache.tensors]) for cache in pool.caches]
    facts: dict[str, object] = {
        "version": _VERSION,
        "weights": weights_digest(model, report).hex(),
        "quantization": "+".join(f"int{bits}" for bits in runner.weight_bits) or "none",
        "dtype": str(runner.dtype),
        "kv_dtype": runner.kv_dtype,
        "block_size": pool.block_size,
        "caches": caches,
        "native": runner.is_native,
        "device": runner.device.type,
    }
    if rounding:
        facts["stored"] = rounding
    if is_deterministic:  # what changes the last bits, too
        library = native_library()
        is_cpu = runner.device.type == "cpu"
        if not runner.is_native:  # torch's libraries may sum differently; the native decoder does not
            facts["threads"] = torch.get_num_threads()
            _LOG.info("deterministic: blocks are found again by workers with %d threads", facts["threads"])
        facts["kernels"] = None if library is None else Path(library._name).name
        facts["torch"] = torch.__version__
        facts["processor"] = (
            torch.backends.cpu.get_cpu_capability() if is_cpu else torch.cuda.get_device_name(runner.device)
        )
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def served_fingerprint(model: Path, adapters: Mapping[str, Path], facts: Mapping[str, object]) -> str:
    """Stands for all that replies depend on: weights, tokenizer, template, adapters and their names, and `facts`. 32 digits.

    Workers of one fingerprint may serve each other's requests. Reads the weights once; see `weights_digest`.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode() + weights_digest(model))
    for path in sorted(model.iterdir()) if model.is_dir() else ():
        if path.name in _TEXTS:
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    for name, folder in sorted(adapters.items()):
        digest.update(name.encode() + b"\0" + weights_digest(folder))
    return digest.hexdigest()[:32]


def weights_digest(model: Path, report: Callable[[str], None] = lambda _line: None) -> bytes:
    """SHA-256 of a model's files. `model`: a folder, a GGUF file, or the id of a model that the hub's cache has. `report` gets
    a line each second that reading them takes.

    A file is read again only if it is another file, or its size or a time of it differs from the last time. Times of writing
    alone would not do: in many images all are the same.

    Raises:
        OSError: a file cannot be read, or the hub's cache has no such model.
    """
    digest = hashlib.sha256()
    known = _read_known()
    for path in _files(model):
        status = path.stat()
        key = (
            f"{path.resolve()}|{_PART_BYTES}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
        )
        if key not in known:
            known[key] = _digest_of(path, status.st_size, report)
            _keep_known(known)
        digest.update(path.name.encode() + b"\0" + bytes.fromhex(known[key]))
    return digest.digest()


def _digest_of(path: Path, size_bytes: int, report: Callable[[str], None]) -> str:
    digest, reported_s = hashlib.sha256(), time.monotonic()
    with path.open("rb") as file, ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:

        def digest_part(start: int) -> bytes:
            return hashlib.sha256(os.pread(file.fileno(), _PART_BYTES, start)).digest()

        starts = range(0, size_bytes, _PART_BYTES)
        for start, part in zip(starts, threads.map(digest_part, starts), strict=True):
            digest.update(part)
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                report(f"digest of {path.name}, once: {start / size_bytes:.0%}")
    return digest.hexdigest()


def _files(model: Path) -> Iterator[Path]:
    if model.is_file():
        yield model
        return
    if not model.exists():
        from huggingface_hub import snapshot_download

        model = Path(snapshot_download(str(model), local_files_only=True))
    for path in sorted(model.iterdir()):
        if path.is_file() and (path.suffix in _SUFFIXES or path.name in _CONFIGURATIONS):
            yield path


def _read_known() -> dict[str, str]:
    try:
        known = json.loads((cache_folder() / _KNOWN).read_text(encoding="utf-8"))
        return {key: value for key, value in known.items() if len(bytes.fromhex(value)) == hashlib.sha256().digest_size}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _keep_known(known: dict[str, str]) -> None:
    """Keep the digests for later starts, if the folder can be written."""
    path = cache_folder() / _KNOWN
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(dict(list(known.items())[-_MAX_KNOWN:])), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with suppress(OSError):  # where nothing can be written, nothing can be removed
            partial.unlink()

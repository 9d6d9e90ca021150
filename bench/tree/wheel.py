"""Peers that are Python packages: their wheels, in folders of the user's cache and outside every environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PeerMissingError", "fetch_sources", "fetch_wheels", "peers_folder", "require_wheel", "wheel_folder"]


class PeerMissingError(RuntimeError):
    """The peer is missing or does not load, so the bars that name it stay unmet."""


def peers_folder() -> Path:
    """Folder of all peers in the user's cache."""
    chosen = os.environ.get("RADIXKV_CACHE")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen).expanduser() if chosen else cache_home / "radixkv") / "peers"


def wheel_folder(package: str, version: str, peers: Path | None = None) -> Path:
    """Folder of one peer's wheel below the folder of all peers, one per version and Python version."""
    return (peers or peers_folder()) / f"{package}-{version}-py{sys.version_info.major}{sys.version_info.minor}"


def require_wheel(package: str, version: str, peers: Path) -> Path:
    """Folder of a peer's wheel that was fetched before.

    Raises:
        PeerMissingError: it is missing.
    """
    folder = wheel_folder(package, version, peers)
    if not (folder / package).is_dir():
        raise PeerMissingError(f"{package} {version} is not in {folder}; fetch it with --peer fetch")
    return folder


def fetch_wheels(folder: Path, package: str, requirements: Sequence[str]) -> None:
    """Install wheels into `folder`, unless `package` is there; an interrupted fetch starts again cleanly.

    Raises:
        PeerMissingError: pip could not fetch them; with pip's output.
    """
    if not (folder / package).is_dir():
        with _filling(folder) as partial:
            _pip("install", *requirements, "--target", str(partial))


def fetch_sources(folder: Path, package: str, requirement: str) -> None:
    """Download a wheel and keep only its Python files in `folder`, unless `package` is there.

    For a package that is mostly compiled for devices outside the measurement. Errors as of `fetch_wheels`.
    """
    if not (folder / package).is_dir():
        with _filling(folder) as partial, tempfile.TemporaryDirectory() as downloaded:
            _pip("download", requirement, "--dest", downloaded)
            for wheel in Path(downloaded).glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(partial, [name for name in archive.namelist() if name.endswith(".py")])


@contextmanager
def _filling(folder: Path) -> Iterator[Path]:
    """A folder in `folder`'s parent that is renamed to `folder` once filled; removed if that fails."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"fetching into {folder}", file=sys.stderr)
    try:
        yield partial
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _pip(action: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", action, "--quiet", "--no-deps", "--only-binary", ":all:", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last_line = "".join(result.stderr.strip().splitlines()[-1:])
        raise PeerMissingError(f"pip could not fetch {arguments[0]}: {last_line}")

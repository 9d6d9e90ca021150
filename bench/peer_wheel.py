"""Peers that are Python packages: their wheels, in folders of the user's cache and out of every environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["PeerMissingError", "fetch_wheels", "peers_folder", "wheel_folder"]


class PeerMissingError(RuntimeError):
    """The peer is not there or does not load, so the bars that name it stay unmet."""


def peers_folder() -> Path:
    """Folder of all peers in the user's cache."""
    chosen = os.environ.get("RADIXKV_CACHE")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen).expanduser() if chosen else cache_home / "radixkv") / "peers"


def wheel_folder(package: str, version: str) -> Path:
    """Folder of one peer's wheel, one per version and Python version."""
    return peers_folder() / f"{package}-{version}-py{sys.version_info.major}{sys.version_info.minor}"


def fetch_wheels(folder: Path, package: str, requirements: Sequence[str]) -> None:
    """Download wheels into `folder`, unless `package` is there; an interrupted fetch starts again cleanly.

    Raises:
        PeerMissingError: pip could not get them; says what pip said.
    """
    if (folder / package).is_dir():
        return
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    print(f"fetching {', '.join(requirements)} into {folder}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    result = subprocess.run(
        [*command, "--target", str(partial), *requirements], capture_output=True, text=True, check=False
    )
    if result.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise PeerMissingError(f"pip could not fetch {requirements[0]}: {result.stderr.strip().splitlines()[-1:]}")
    partial.rename(folder)

"""Clients that nobody here wrote, each fetched once into the cache folder and run with a small script of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from filelock import FileLock

from radixkv.util.folders import cache_folder

__all__ = ["SCRIPTS", "Client"]

SCRIPTS = Path(__file__).parent / "scripts"
FETCH_S, RUN_S = 600.0, 150.0


class Client(NamedTuple):
    """A client and what it is run with.

    name: as its users know it. script: in `SCRIPTS`, or at a path of its own; its first line says what is run. packages: of
    PyPI for a script in Python, of npm for one in JavaScript, with their versions. is_slow: fetching or running it takes longer
    than a newcomer waits.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    is_slow: bool = True

    @property
    def is_node(self) -> bool:
        """Whether it runs on Node.js."""
        return self.script.endswith(".mjs")

    @property
    def what(self) -> str:
        """What its script runs."""
        return (SCRIPTS / self.script).read_text().split("\n", 1)[0].strip('"/ ')

    def run(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Run the script in `folder`; skips the test where the client cannot be had."""
        command, extra = self.fetched(folder)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        done = subprocess.run(
            command,
            cwd=folder,
            env=kept | extra | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=RUN_S,
        )
        assert done.returncode == 0, f"{self.name}: {done.stdout[-6000:]}"

    def fetched(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """The command, and what it needs in its environment; skips the test where the client cannot be had."""
        if not self.is_node:
            python = _once(self.name, self.packages, _install_python) / "bin" / "python"
            return [str(python), str(SCRIPTS / self.script)], {"PYTHONDONTWRITEBYTECODE": "1"}
        node = shutil.which("node")
        if node is None or shutil.which("npm") is None:
            pytest.skip(f"no Node.js with npm: {self.name} cannot be run")
        modules = _once(self.name, self.packages, _install_node) / "node_modules"
        (folder / "node_modules").symlink_to(modules)  # imports are looked for beside the script
        script = SCRIPTS / self.script
        for part in script.parent.glob("*.mjs"):
            shutil.copy(part, folder)
        return [node, str(folder / script.name)], {}


def _once(name: str, packages: Sequence[str], install: Callable[[Path, Sequence[str]], str]) -> Path:
    """The folder of packages, installed by the first of all processes that asks for them."""
    folder = cache_folder() / "clients" / name.replace(" ", "-").replace("/", "-")
    told = folder / "packages.json"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not told.exists() or json.loads(told.read_text()) != list(packages):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if error := install(folder, packages):
                shutil.rmtree(folder)
                pytest.skip(f"{name} cannot be fetched: {error}")
            told.write_text(json.dumps(list(packages)))
    return folder


def _install_python(folder: Path, packages: Sequence[str]) -> str:
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    return _fetch([*command, "--disable-pip-version-check", *packages])


def _install_node(folder: Path, packages: Sequence[str]) -> str:
    return _fetch(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), *packages])


def _fetch(command: Sequence[str]) -> str:
    """What went wrong; empty where nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr[-300:] or "no reason told" if done.returncode else ""

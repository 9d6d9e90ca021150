"""The simulation finds each planted bug within a bounded number of seeds, and none where none was planted.

Every eighth bug but the first, which takes long to find, is planted by default, the others with ``-m thorough``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import radixkv

from .planted_bugs import PLANTED_BUGS, PlantedBug

MAX_SEEDS = 2000
QUICK_EVERY = 8
HUNT_TIMEOUT_S = 1700.0
pytestmark = pytest.mark.timeout(1800)
PARTS = ("client", "core", "net", "service", "util", "v1", "wire")


def copy_package(folder: Path) -> Path:
    """A copy of the parts of radixkv that the simulation runs."""
    source, package = Path(radixkv.__file__).parent, folder / "radixkv"
    for part in PARTS:
        shutil.copytree(source / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "__init__.py", package)
    return package


def plant(package: Path, bug: PlantedBug) -> None:
    module = package / bug.module
    text = module.read_text(encoding="utf-8")
    assert text.count(bug.text) == 1, f"{bug.module} has {text.count(bug.text)} of {bug.text!r}"
    module.write_text(text.replace(bug.text, bug.bug), encoding="utf-8")


def hunt(folder: Path, max_seeds: int) -> str:
    """Run the simulation over the copy in `folder`, in a process of its own; its last line."""
    package = __package__ or ""
    parents = Path(__file__).resolve().parents
    where = os.pathsep.join(map(str, (parents[len(package.split("."))], parents[2])))
    finished = subprocess.run(
        [sys.executable, "-m", f"{package}.hunt", str(max_seeds)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": where, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=HUNT_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=[pytest.mark.thorough] if index % QUICK_EVERY or not index else [])
        for index, bug in enumerate(PLANTED_BUGS)
    ],
)
def test_the_simulation_finds(bug: PlantedBug, tmp_path: Path) -> None:
    plant(copy_package(tmp_path), bug)
    result = hunt(tmp_path, MAX_SEEDS)
    print(f"{bug.name}: {result}")
    assert result.startswith("found after "), f"{bug.name}: {result} {MAX_SEEDS} seeds"


def test_the_simulation_finds_nothing_in_an_unchanged_copy(tmp_path: Path) -> None:
    copy_package(tmp_path)
    assert hunt(tmp_path, 20) == "survived"

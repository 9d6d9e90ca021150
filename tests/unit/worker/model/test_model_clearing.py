"""A start removes from the cache folder the models that none can take any more, and no other."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from radixkv.worker.loading.default_model import SMOLLM2_135M
from radixkv.worker.loading.gguf_model import gguf_folder_name
from radixkv.worker.loading.model_clearing import UNUSED_S, clear_models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def made(folder: Path, path: str | None, unused_s: float = 2 * UNUSED_S) -> Path:
    """A folder in the cache; `path`: of the GGUF file that its index is of; None: it has no index."""
    folder.mkdir(parents=True)
    files: dict[str, dict[str, str]] = {"config.json": {}} | ({} if path is None else {"gguf.json": {"path": path}})
    then_s = time.time() - unused_s
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
        os.utime(folder / name, (then_s, then_s))
    os.utime(folder, (then_s, then_s))
    return folder


def test_what_no_start_can_take_is_removed(models: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "some.gguf"
    gguf.write_bytes(b"GGUF")
    taken = made(models / gguf_folder_name(gguf), str(gguf))
    kept = [taken, made(models / SMOLLM2_135M.folder_name, SMOLLM2_135M.gguf_file)]
    made(models / "SmolLM2-135M-Instruct-b179c9523d0e", None)
    made(models / "some-0123456789ab", str(gguf))
    made(models / "gone-0123456789ab", str(tmp_path / "gone.gguf"))
    made(models / "damaged-0123456789ab", None).joinpath("gguf.json").mkdir()
    os.utime(models / "damaged-0123456789ab", (0, 0))
    os.utime(models / "damaged-0123456789ab" / "gguf.json", (0, 0))
    clear_models(taken, models.parent)
    assert sorted(models.iterdir()) == sorted(kept)
    assert time.time() - taken.stat().st_mtime < 60


def test_a_folder_that_a_start_took_lately_or_that_is_being_made_stays(models: Path, tmp_path: Path) -> None:
    taken = made(models / SMOLLM2_135M.folder_name, SMOLLM2_135M.gguf_file)
    lately = made(models / "some-0123456789ab", str(tmp_path / "gone.gguf"))
    clear_models(lately, models.parent)  # a start takes it before its file goes
    making = made(models / ".some-0123456789ab.partial-x", None)
    read = made(models / "read-0123456789ab", None)  # by a version that notes nothing
    os.utime(read / "config.json")
    clear_models(taken, models.parent)
    assert sorted(models.iterdir()) == sorted([taken, lately, making, read])


def test_a_model_elsewhere_clears_nothing(models: Path, tmp_path: Path) -> None:
    old = made(models / "old", None)
    own = made(tmp_path / "mine", None)
    before = own.stat().st_mtime
    clear_models(own, models.parent)
    assert old.is_dir()
    assert own.stat().st_mtime == before

"""The digest of a model's files: of what they hold, however they came to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from radixkv.worker.storing.fingerprint import weights_digest


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_another_model(model: Path) -> None:
    weights = model / "model.safetensors"
    os.utime(weights, ns=(0, 0))  # as in images built so that they can be built again
    before = weights_digest(model)
    assert weights_digest(model) == before
    weights.unlink()
    weights.write_bytes(b"\1" * 100)
    os.utime(weights, ns=(0, 0))
    replaced = weights_digest(model)
    assert replaced != before
    weights.write_bytes(b"\2" * 100)
    os.utime(weights, ns=(0, 0))
    assert weights_digest(model) not in (before, replaced)


def test_without_a_folder_that_can_be_written_a_model_has_the_same_digest(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = weights_digest(model)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "file" / "cache"))
    assert weights_digest(model) == digest


def test_a_model_of_the_hub_is_found_by_its_id(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = tmp_path / "hub" / "models--some--model"
    (at / "refs").mkdir(parents=True)
    (at / "refs" / "main").write_text("0" * 40)
    (at / "snapshots").mkdir()
    (at / "snapshots" / ("0" * 40)).symlink_to(model)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert weights_digest(Path("some/model")) == weights_digest(model)

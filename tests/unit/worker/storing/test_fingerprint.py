"""The digest of a model's files: of what they hold, however they came to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from tiny_models import save_wide

from radixkv.kernels.runtime.native_build import native_library
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.storing import fingerprint
from radixkv.worker.storing.fingerprint import weights_digest


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


def rewrite(path: Path, content: bytes, *, has_time: bool = True) -> None:
    """In place, and later than before by the clock of the file system, which may stand still for milliseconds."""
    before_ns = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before_ns:
        path.write_bytes(content)
        if not has_time:  # as in images built so that they can be built again
            os.utime(path, ns=(0, 0))


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
    rewrite(weights, b"\2" * 100, has_time=False)
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


def test_a_change_anywhere_in_a_large_file_is_another_model_and_long_reading_is_reported(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PART_BYTES", 10)
    monkeypatch.setattr(fingerprint, "_REPORT_S", 0.0)
    lines: list[str] = []
    digests = {weights_digest(model, lines.append)}
    assert lines[-1] == "digest of model.safetensors, once: 90%"
    for at in range(0, 100, 7):
        rewrite(model / "model.safetensors", bytes(at) + b"x" + bytes(99 - at))
        digests.add(weights_digest(model))
    (model / "model.safetensors").write_bytes(bytes(101))
    digests.add(weights_digest(model))
    assert len(digests) == 17


@pytest.mark.parametrize("quantization", ["int8", "none"])
def test_blocks_of_the_native_decoder_are_found_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    """Its bits do not depend on them: tests/unit/worker/model/test_deterministic.py."""
    if native_library() is None:
        pytest.skip("there is no C++ compiler here")
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    folder = save_wide("llama", tmp_path, head_dim=32)
    runner = ModelRunner(
        folder, num_blocks=8, block_size=4, dtype="float32", device="cpu", quantization=quantization, deterministic=True
    )
    before, found = torch.get_num_threads(), set()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            found.add(fingerprint.fingerprint_of(runner, Path(folder), is_deterministic=True))
    finally:
        torch.set_num_threads(before)
    assert runner.is_native == (quantization == "int8")
    assert len(found) == (1 if runner.is_native else 2)

"""Where a model is put, and that nothing in its forward makes the host wait for a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, save_model
from waits import Waits

from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.model.attention import ShapeProbe
from radixkv.worker.model.model import ModelRunner
from radixkv.worker.placement import choose_device
from radixkv.worker.scheduling.limits import LimitsWish, SchedulerLimits


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_no_operation_of_a_forward_waits_for_the_device(family: str, tmp_path: Path) -> None:
    runner = ModelRunner(save_model(family, tmp_path), num_blocks=2, dtype="float32", device="cpu")
    ids = torch.tensor([3, 4, 5])
    with Waits() as waits:
        runner._answer(ids, ids, torch.arange(3), ShapeProbe())
    assert waits.found == set()


@pytest.mark.parametrize(
    "read",
    [lambda t: int(t.argmax()), lambda t: t[t > 0], torch.nonzero, lambda t: bool((t > 0).all()), torch.Tensor.tolist],
)
def test_what_reads_the_device_is_noted(read: Callable[[torch.Tensor], Any]) -> None:
    with Waits() as waits:
        read(torch.tensor([1, 2]))
    assert waits.found


def test_a_device_has_a_number_as_the_tensors_on_it_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:0")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")


def test_bounds_of_a_round_are_the_devices_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for has_gpu, usual in (
        (False, SchedulerLimits(64, 320, 256, max_beside=4)),
        (True, SchedulerLimits(256, 8192, 2048, max_beside=64)),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        device = choose_device("auto").type
        assert LimitsWish().fill(device) == usual
        assert LimitsWish(max_running=3, max_wait_s=1.0).fill(device) == replace(usual, max_running=3, max_wait_s=1.0)
        assert LimitsWish(max_batch_tokens=100).fill(device) == replace(usual, max_batch_tokens=100, chunk_tokens=100)
        assert LimitsWish(chunk_tokens=9000).fill(device) == replace(usual, chunk_tokens=9000)
        given = SchedulerLimits(4, 32, 16, admission="worst-case")
        assert given.fill(device) == given


def test_a_device_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    for device in ("cuda", "cuda:1", "tpu"):
        with pytest.raises(InvalidArgumentError, match=rf"^device is '{device}'"):
            choose_device(device)

"""Where a model is put, and that nothing in its forward makes the host wait for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CONFIGS, save_model
from torch.utils._python_dispatch import TorchDispatchMode

from radixkv.worker.attention import ShapeProbe
from radixkv.worker.model import ModelRunner
from radixkv.worker.placement import choose_device

WAITING = {"_local_scalar_dense", "equal", "masked_select", "nonzero", "unique_consecutive", "unique_dim", "_unique2"}
"""Operations that read what they compute, so that on a GPU the host waits; no graph can hold them."""


class Waits(TorchDispatchMode):
    """Notes which of them run within."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        by_mask = name.startswith("index") and any(
            index is not None and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], (list, tuple)) else ())
        )
        if name in WAITING or by_mask:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_no_operation_of_a_forward_waits_for_the_device(family: str, tmp_path: Path) -> None:
    runner = ModelRunner(save_model(family, tmp_path), num_blocks=2, dtype="float32", device="cpu")
    ids = torch.tensor([3, 4, 5])
    with Waits() as waits:
        runner._answer(ids, ids, torch.arange(3), ShapeProbe())
    assert waits.found == set()


@pytest.mark.parametrize(
    "read",
    [lambda t: int(t.argmax()), lambda t: t[t > 0], torch.nonzero, lambda t: bool((t > 0).all())],
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

"""Which calls would make the host wait for a GPU, found where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Waits"]

WAITING = {"_local_scalar_dense", "equal", "masked_select", "nonzero", "unique_consecutive", "unique_dim", "_unique2"}
"""Operations that read what they compute; no graph can hold them."""

READING = {"__array__", "cpu", "item", "numpy", "tolist"}
"""Methods of a tensor that read it."""


class Waits:
    """Notes which of them run within: `found`."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._modes = ExitStack()

    def __enter__(self) -> Waits:
        self._modes.enter_context(_Operations(self.found))
        self._modes.enter_context(_Methods(self.found))
        return self

    def __exit__(self, *_: object) -> None:
        self._modes.close()


class _Operations(TorchDispatchMode):
    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().partition("::")[2].partition(".")[0]
        by_mask = name.startswith("index") and any(
            index is not None and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], (list, tuple)) else ())
        )
        if name in WAITING or by_mask:
            self._found.add(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in READING:
            self._found.add(func.__name__)
        return func(*args, **(kwargs or {}))

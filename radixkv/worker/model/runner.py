"""Protocol of the model runner: the part of a `ModelRunner` that the engine uses, and that tests replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_int32
from typing import Protocol, runtime_checkable

from torch import Tensor

from radixkv.core.api import Copy
from radixkv.generation.verification import BlockDifference
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.model.window_rows import WindowRows

__all__ = ["Interruptible", "Pool", "Runner", "forward_unless"]


class Pool(Protocol):
    """The block pool of a runner."""

    num_blocks: int
    block_size: int
    windows: WindowRows | None

    @property
    def copies_at_once(self) -> bool: ...

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None: ...

    def fence(self) -> Callable[[], None]: ...

    def difference(self, block_id: int, other_id: int) -> BlockDifference | None: ...

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None: ...


class Runner(Protocol):
    """The part of a `ModelRunner` that the engine uses."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]

    @property
    def takes_drawn_ids(self) -> bool: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def num_uncaptured_sizes(self) -> int: ...

    def carry_out(self, ops: Sequence[Copy]) -> None: ...

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class Interruptible(Protocol):
    """A runner that can give up a forward."""

    def forward_unless(
        self, is_unwanted: c_int32, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None
    ) -> Tensor | None:
        """As `forward`; None if `is_unwanted` became 1 meanwhile and it was given up: then its rows count as not run."""


def forward_unless(
    runner: Runner, is_unwanted: c_int32, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None
) -> Tensor | None:
    """As `Interruptible`, of any runner: one that is none goes on to the end."""
    if isinstance(runner, Interruptible):
        return runner.forward_unless(is_unwanted, rows, drawn_ids)
    return runner.forward(rows, drawn_ids)

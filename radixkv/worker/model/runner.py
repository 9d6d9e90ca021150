"""Protocol of the model runner: the part of a `ModelRunner` that the engine uses, and that tests replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from radixkv.core.api import Copy
from radixkv.generation.verification import BlockDifference
from radixkv.worker.model.model import ForwardRow

__all__ = ["Pool", "Runner"]


class Pool(Protocol):
    """The block pool of a runner."""

    num_blocks: int
    block_size: int

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None: ...

    def fence(self) -> Callable[[], None]: ...

    def difference(self, block_id: int, other_id: int) -> BlockDifference: ...

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

"""A device that computes on its own time, and as far as somebody waits for it: a wrong read finds nothing there, or too much.

Forwards, draws and copies are queued, and done in order. All logits lie in one buffer, which each forward overwrites. Token ids
are -1 until they are drawn. By chance the device gets further than it has to.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.generation.params import SampledToken
from radixkv.testing.hash_model import VOCAB_SIZE, HashPool, HashRunner
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.sampling.device_sampler import LaunchedDraws
from radixkv.worker.sampling.sampler import SamplerRow

__all__ = ["LOGITS", "SimulatedDevice", "VariedRunner"]

LOGITS = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
"""By the one token that the hash model would take."""

_MOST_ROWS = 256


class VariedRunner(HashRunner):
    """A hash model with a distribution over all tokens."""

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        return LOGITS[super().forward(rows, drawn_ids).argmax(-1)]


class SimulatedDevice(VariedRunner):
    """A runner, and the draws from its logits.

    Attributes:
        eagerness: chance that the device does the next piece of work before it has to.
        log: forwards launched ("launch", and "ahead" over tokens on the device) and tokens "read".
        meanwhile: called while the host waits for tokens.
    """

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, eagerness: float = 0.0) -> None:
        super().__init__(num_blocks, block_size)
        self.eagerness = eagerness
        self.log: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._rng = rng
        self._work: deque[Callable[[], object]] = deque()
        self._num_done = 0
        self._logits = torch.full((_MOST_ROWS, VOCAB_SIZE), torch.nan)
        self.pool = _DevicePool(self, self.pool)

    # -- its own time

    def queue(self, work: Callable[[], object]) -> int:
        """Returns the number of the work in the queue."""
        self._work.append(work)
        number = self._num_done + len(self._work)
        while self._work and self._rng.random() < self.eagerness:
            self._do()
        return number

    def wait(self, number: int) -> None:
        """Until so much is done."""
        while self._num_done < number:
            self._do()

    def wait_for_all(self) -> None:
        """Until nothing is left to do."""
        self.wait(self._num_done + len(self._work))

    def _do(self) -> None:
        self._num_done += 1
        self._work.popleft()()

    # -- of the host

    def carry_out(self, ops: Sequence[Copy]) -> None:
        super_ = super()
        self.queue(lambda: super_.carry_out(list(ops)))

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        self.log.append("launch" if drawn_ids is None else "ahead")
        super_, logits = super(), self._logits[: sum(row.num_logits for row in rows)]
        as_given = [row._replace(token_ids=list(row.token_ids), block_table=row.block_table[:]) for row in rows]

        def work() -> None:
            assert drawn_ids is None or drawn_ids.min() >= 0, "not drawn yet"
            logits.copy_(super_.forward(as_given, drawn_ids))

        self.queue(work)
        return logits

    def draws(self, logits: Tensor, rows: Sequence[SamplerRow], sources: Sequence[int]) -> LaunchedDraws:
        """In place of `LaunchedDraws`."""
        return _SimulatedDraws(self, logits, rows, sources)


class _SimulatedDraws(LaunchedDraws):
    def __init__(
        self, device: SimulatedDevice, logits: Tensor, rows: Sequence[SamplerRow], sources: Sequence[int]
    ) -> None:
        self._device = device
        self.token_ids = on_device = torch.full((len(rows),), -1)
        super_ = super()

        def work() -> None:
            super_.__init__(logits, rows, sources)  # type: ignore[misc]  # only now the logits are there
            on_device.copy_(self.token_ids)
            self.token_ids = on_device

        self._number = device.queue(work)

    def tokens(self) -> list[SampledToken]:
        self._device.wait(self._number)
        self._device.meanwhile()
        self._device.log.append("read")
        return super().tokens()


class _DevicePool(HashPool):
    def __init__(self, device: SimulatedDevice, pool: HashPool) -> None:
        super().__init__(pool.num_blocks, pool.block_size, pool.slots, copies_at_once=False)
        self._device = device

    def fence(self) -> Callable[[], None]:
        number = self._device.queue(lambda: None)
        return lambda: self._device.wait(number)

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        super_, of, to = super(), list(block_ids), list(slots)
        self._device.queue(lambda: super_.save(of, to))

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        super_, of, to = super(), list(slots), list(block_ids)
        self._device.queue(lambda: super_.load(of, to))

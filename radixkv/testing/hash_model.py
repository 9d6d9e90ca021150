"""A model that can be wrong only if its KV is: a stand-in for `ModelRunner` with an oracle that needs no cache.

The KV of a position is a hash of the history up to it, computed from the token and the KV before it, and lies in slots found
through block tables, as a real model's would. The logits after a position depend on the KV of every position up to it. So a
block that was freed early, copied short or mapped wrongly changes the tokens that come out.

With a window there is a second layer: its KV follows from that of the first, and the first layer's next KV depends on what the
window shows of it.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from ctypes import c_int32
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.generation.verification import BlockDifference
from radixkv.worker.model.attention import GivenUpError
from radixkv.worker.model.model import ForwardRow
from radixkv.worker.model.rows import with_drawn
from radixkv.worker.model.window_rows import WindowRows

__all__ = ["EOS", "VOCAB_SIZE", "Gate", "HashRunner", "generate"]

VOCAB_SIZE = 40
EOS = 0
_GARBAGE = 0xDEAD


def _kv(before: int, token_id: int) -> int:
    digest = hashlib.blake2b(f"{before},{token_id}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")


def _windowed(kv: int) -> int:
    return _kv(kv, -1)


def _next_token(kv: Sequence[int]) -> int:
    return _kv(sum(kv), len(kv)) % VOCAB_SIZE


def generate(prompt: Sequence[int], max_tokens: int, eos: int | None = None, window: int | None = None) -> list[int]:
    """The greedy continuation, straight from the definition; it ends with `eos` if that comes."""
    kv: list[int] = []

    def run(token_id: int) -> None:
        shown = map(_windowed, kv[max(0, len(kv) - window + 1) :]) if window else ()
        kv.append(_kv((kv[-1] if kv else 0) + sum(shown), token_id))

    for token_id in prompt:
        run(token_id)
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        tokens.append(_next_token(kv))
        run(tokens[-1])
        if tokens[-1] == eos:
            break
    return tokens


@dataclass
class HashPool:
    """`slots` hold the KV, `host` what was saved of them, by host slot, 8 bytes a token."""

    num_blocks: int
    block_size: int
    slots: list[int] = field(default_factory=list)
    host: dict[int, memoryview] = field(default_factory=dict)
    windows: WindowRows | None = None
    copies_at_once: bool = True

    def host_row(self, slot: int) -> memoryview:
        """Bytes of a host slot."""
        if slot not in self.host:
            self.host[slot] = memoryview(bytearray(8 * self.block_size))
        return self.host[slot]

    def fence(self) -> Callable[[], None]:
        """All is done at once."""
        return lambda: None

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        size = self.block_size
        for block_id, slot in zip(block_ids, slots, strict=True):
            self.host_row(slot).cast("q")[:] = array("q", self.slots[block_id * size : (block_id + 1) * size])

    def difference(self, block_id: int, other_id: int) -> BlockDifference:
        size = self.block_size
        values, others = (self.slots[number * size : (number + 1) * size] for number in (block_id, other_id))
        share = sum(a != b for a, b in zip(values, others, strict=True)) / size
        return BlockDifference(0, share, math.inf if share else 0.0)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        size = self.block_size
        for slot, block_id in zip(slots, block_ids, strict=True):
            self.slots[block_id * size : (block_id + 1) * size] = self.host_row(slot).cast("q").tolist()


class Gate:
    """Forwards go through it one by one; while it is closed, the next one waits."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._num_until_closed = 0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._is_open.is_set()

    @property
    def is_held(self) -> bool:
        """Is it closed, or to be closed after some?"""
        with self._lock:
            return self._num_until_closed > 0 or not self.is_open

    def open(self) -> None:
        """For all that come, also where it was to be closed after some."""
        with self._lock:
            self._num_until_closed = 0
            self._is_open.set()

    def close(self) -> None:
        self._is_open.clear()

    def close_after(self, num_forwards: int) -> None:
        """Let so many through, then hold the next one until it is opened."""
        with self._lock:
            self._num_until_closed = num_forwards

    def enter(self, is_unwanted: c_int32 | None = None) -> None:
        """Begin a forward: wait until the gate is open. Raises `GivenUpError` if it became unwanted meanwhile."""
        until_s = time.monotonic() + 600
        flag, pause_s = (c_int32(), 600.0) if is_unwanted is None else (is_unwanted, 0.001)
        while not flag.value and not self._is_open.wait(pause_s):
            assert time.monotonic() < until_s
        if flag.value:
            raise GivenUpError
        with self._lock:
            if self._num_until_closed:
                self._num_until_closed -= 1
                if not self._num_until_closed:
                    self._is_open.clear()


class HashRunner:
    """Runs rows over a pool of slots. Each forward begins at the `gate`; `rows` counts positions run. `window`: of a second
    layer, which has rows for `num_window_blocks` blocks.
    """

    takes_drawn_ids = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int = 4096,
        window: int | None = None,
        num_window_blocks: int = 0,
    ) -> None:
        self.vocab_size = VOCAB_SIZE
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset([EOS])
        self.pool = HashPool(num_blocks, block_size, [_GARBAGE] * (num_blocks * block_size))
        self.gate = Gate()
        self.rows: list[tuple[int, int]] = []
        self.num_uncaptured_sizes = 0
        self._is_unwanted: c_int32 | None = None  # of the forward that runs
        self._slots = self.pool.slots
        self._window_slots = [_GARBAGE] * ((num_window_blocks + 1) * block_size)
        if window is not None:
            self.pool.windows = WindowRows(num_blocks, num_window_blocks, block_size, window)

    def carry_out(self, ops: Sequence[Copy]) -> None:
        self._copy(ops, self._slots)
        if self.pool.windows:
            self._copy(self.pool.windows.copied(ops), self._window_slots)

    def _copy(self, ops: Sequence[Copy], slots: list[int]) -> None:
        size = self.pool.block_size
        for src, dst, num_tokens in ops:
            assert 0 < num_tokens <= size
            slots[dst * size : dst * size + num_tokens] = slots[src * size : src * size + num_tokens]

    def forward_unless(
        self, is_unwanted: c_int32, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None
    ) -> Tensor | None:
        """See `Interruptible`. A forward that is given up leaves something else where it would have written."""
        self._is_unwanted = is_unwanted
        try:
            return self.forward(rows, drawn_ids)
        except GivenUpError:
            size = self.pool.block_size
            for row in rows:
                for position in range(max(row.start, row.num_stored), row.start + len(row.token_ids)):
                    self._slots[row.block_table[position // size] * size + position % size] = _GARBAGE
            if windows := self.pool.windows:
                windows.take(rows)
                for slot in windows.slots(rows):
                    self._window_slots[slot] = _GARBAGE if slot >= 0 else self._window_slots[slot]
            return None
        finally:
            self._is_unwanted = None

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        self.gate.enter(self._is_unwanted)
        logits: list[Tensor] = []
        size = self.pool.block_size
        written: set[int] = set()
        windows = self.pool.windows
        if windows:
            windows.take(rows)
        window_slots = iter(windows.slots(rows).tolist() if windows else ())
        for row in rows:
            self.rows.append((row.start, row.start + len(row.token_ids)))
            slots = [row.block_table[p // size] * size + p % size for p in range(row.start + len(row.token_ids))]
            token_ids = torch.tensor(row.token_ids, dtype=torch.int64)
            if drawn_ids is not None:
                token_ids = with_drawn(token_ids, drawn_ids)
            for position, token_id in enumerate(token_ids.tolist(), row.start):
                if position < row.num_stored and not windows:
                    continue
                before = self._slots[slots[position - 1]] if position else 0
                kv = _kv(before + sum(self._shown(row, position)), token_id)
                if windows and (slot := next(window_slots)) >= 0:
                    self._window_slots[slot] = _windowed(kv)
                if position >= row.num_stored:
                    assert slots[position] not in written, "two rows write one slot"
                    written.add(slots[position])
                    self._slots[slots[position]] = kv
            for length in range(len(slots) - row.num_logits + 1, len(slots) + 1):
                chosen = torch.zeros(VOCAB_SIZE)
                chosen[_next_token([self._slots[slot] for slot in slots[:length]])] = 10.0
                logits.append(chosen)
        if windows:
            windows.written(rows)
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

    def _shown(self, row: ForwardRow, position: int) -> list[int]:
        """KV of the second layer that the window shows at a position."""
        windows, size = self.pool.windows, self.pool.block_size
        if windows is None:
            return []
        first = max(0, position - windows.window + 1)
        table = windows.tables(np.frombuffer(row.block_table, dtype=np.int32))
        return [self._window_slots[table[at // size] * size + at % size] for at in range(first, position)]

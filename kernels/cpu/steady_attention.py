"""Paged attention on a CPU, in torch, in which a row is bitwise independent of the rest of the batch.

    keys       chunks [i * CHUNK_KEYS, (i + 1) * CHUNK_KEYS) of a sequence, the last padded with zeros, one after another:
               m' = max(m, max s)    sum = sum e^(m - m') + sum e^(s - m')    acc = acc e^(m - m') + e^(s - m') v
    queries    tiles of about `TILE_ROWS` rows, a row being a query head of one kv head's group, padded with zeros

Every product has one shape, so that the library computes it in one way. A row's place in its tile then does not matter, which
the tests verify. A chunk of which a row sees no key leaves that row bitwise unchanged. In fp32 at least, one sequence after
another: slower than `torch_attention`, which is for speed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixkv.kernels.batch import AttentionBatch
from radixkv.kernels.kv.kv_cache import KVCache
from radixkv.kernels.spec import AttentionSpec

__all__ = ["CHUNK_KEYS", "TILE_ROWS", "attend_steadily"]

CHUNK_KEYS = 256
TILE_ROWS = 32


class _Tile:
    """Queries of one sequence, `tokens` [n] in the batch at `positions` [n], and their attention so far."""

    def __init__(self, q: Tensor, tokens: slice, positions: Tensor, cache: KVCache, size: int) -> None:
        self.tokens = tokens
        rows = q[tokens]
        self._missing = size - rows.shape[0]
        exact = torch.promote_types(q.dtype, torch.float32)
        group = rows.shape[1] // cache.num_kv_heads
        filled = functional.pad(rows.to(exact), (0, 0, 0, 0, 0, self._missing))
        self._queries = filled.view(size, cache.num_kv_heads, group, -1).transpose(0, 1).flatten(1, 2).contiguous()
        self._positions = functional.pad(positions, (0, self._missing), value=-1).repeat_interleave(group)[:, None]
        self.first, self.last = int(positions[0]), int(positions[-1])
        shape = self._queries.shape[:2]
        self._highest = filled.new_full((*shape, 1), -torch.inf)
        self._sums = filled.new_zeros((*shape, 1))
        self._acc = filled.new_zeros((*shape, cache.v_head_dim))

    def attend(self, keys: Tensor, values: Tensor, first_key: int, spec: AttentionSpec) -> None:
        """Attend to a chunk of keys [Hkv, CHUNK_KEYS, D] and values that starts at the position `first_key`."""
        scores = torch.bmm(self._queries, keys.transpose(1, 2)).mul_(spec.scale)
        if spec.softcap is not None:
            scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
        at = torch.arange(first_key, first_key + CHUNK_KEYS)
        hidden = at > self._positions
        if spec.sliding_window is not None:
            hidden |= at <= self._positions - spec.sliding_window
        scores.masked_fill_(hidden, -torch.inf)
        highest = torch.maximum(self._highest, scores.amax(-1, keepdim=True))
        base = highest.masked_fill(highest == -torch.inf, 0.0)
        weights = scores.sub_(base).exp_()
        decay = (self._highest - base).exp_()
        self._sums = self._sums * decay + weights.sum(-1, keepdim=True)
        self._acc = self._acc * decay + torch.bmm(weights, values)
        self._highest = highest

    def answer(self, sinks: Tensor | None, out: Tensor) -> None:
        """Fill the rows of `out` [T, Hq, Dv]."""
        num_kv_heads, num_rows, width = self._acc.shape
        acc, sums = self._acc, self._sums
        if sinks is not None:
            by_row = sinks.to(acc.dtype).view(num_kv_heads, 1, -1, 1)
            by_row = by_row.expand(-1, num_rows // by_row.shape[2], -1, -1).reshape(num_kv_heads, num_rows, 1)
            top = torch.maximum(self._highest, by_row)
            decay = (self._highest - top).exp()
            acc, sums = acc * decay, sums * decay + (by_row - top).exp()
        num_queries = self.tokens.stop - self.tokens.start
        size = num_queries + self._missing
        rows = (acc / sums).view(num_kv_heads, size, -1, width).transpose(0, 1).flatten(1, 2)
        out[self.tokens] = rows[:num_queries].to(out.dtype)


class _Numbers(NamedTuple):
    """A cache's tensors by slot, [num_slots, Hkv, .]."""

    cache: KVCache
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, cache: KVCache) -> _Numbers:
        """The tensors of a token-major cache."""
        return cls(cache, tuple(tensor.flatten(0, 1) for tensor in cache.tensors))

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [Hkv, CHUNK_KEYS, .] of the slots, at most CHUNK_KEYS, then zeros."""
        exact = torch.promote_types(self.cache.dtype, torch.float32)
        taken = [
            tensor.view(torch.uint8).index_select(0, slots).view(tensor.dtype)
            if tensor.itemsize == 1
            else tensor.index_select(0, slots)
            for tensor in self.tensors
        ]
        if self.cache.format is not None:
            taken = [rows.to(self.cache.dtype) for rows in self.cache.dequantise(*taken)]
        keys, *rest = (
            functional.pad(rows.to(exact), (0, 0, 0, 0, 0, CHUNK_KEYS - len(slots))).transpose(0, 1).contiguous()
            for rows in taken
        )
        return keys, rest[0] if rest else keys[..., : self.cache.v_head_dim].contiguous()


def attend_steadily(q: Tensor, cache: KVCache, batch: AttentionBatch, spec: AttentionSpec, out: Tensor) -> None:
    """Fill `out` [T, Hq, Dv]. A token-major cache; arguments as checked by `paged_attention`."""
    numbers = _Numbers.of(cache)
    size = max(1, TILE_ROWS // (q.shape[1] // cache.num_kv_heads))
    starts = batch.host_query_starts
    for row, context in enumerate(batch.host_context_lens):
        begin, end = starts[row], starts[row + 1]
        shift = context - end
        tiles = [
            _Tile(
                q,
                slice(first, min(end, first + size)),
                torch.arange(first, min(end, first + size)) + shift,
                cache,
                size,
            )
            for first in range(begin, end, size)
        ]
        if not tiles:
            continue
        table = torch.from_numpy(batch.host_tables[row].astype("int64"))
        first_seen = spec.first_visible(tiles[0].first)
        for first_key in range(first_seen // CHUNK_KEYS * CHUNK_KEYS, context, CHUNK_KEYS):
            at = torch.arange(first_key, min(context, first_key + CHUNK_KEYS))
            slots = table[at // batch.block_size] * batch.block_size + at % batch.block_size
            keys, values = numbers.gather(slots)
            for tile in tiles:
                if tile.last >= first_key and spec.first_visible(tile.first) < first_key + CHUNK_KEYS:
                    tile.attend(keys, values, first_key, spec)
        for tile in tiles:
            tile.answer(spec.sinks, out)

"""One layer's attention on a CPU, for `cpu_attention`: a workload, its K and V, and ways to attend to them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from radixkv.kernels import Scratch, allocate_kv, paged_attention, plan_attention
from radixkv.kernels.kv.kv_cache import Layout

__all__ = ["BLOCK_SIZE", "SEED", "Heads", "Sequences", "Workload"]

SEED = 0
BLOCK_SIZE = 16

Heads = tuple[int, int, int]


@dataclass(frozen=True)
class Workload:
    """`queries` new tokens at the end of each of `batch` sequences of `context` tokens, `shared` of them in common."""

    heads: Heads
    dtype: str
    batch: int
    queries: int
    context: int
    shared: int = 0

    @property
    def name(self) -> str:
        return f"{'/'.join(map(str, self.heads))} {self.dtype}"

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V, with shared ones counted once."""
        tokens = self.shared + self.batch * (self.context - self.shared)
        return 2 * tokens * self.heads[1] * self.heads[2] * getattr(torch, self.dtype).itemsize

    @property
    def flops(self) -> int:
        seen = self.queries * self.context - self.queries * (self.queries - 1) // 2
        return 4 * self.batch * seen * self.heads[0] * self.heads[2]


@dataclass(frozen=True)
class Sequences:
    """Random q [B, n, Hq, D] and K, V [B, L, Hkv, D] of a workload."""

    work: Workload
    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def of(cls, work: Workload) -> Sequences:
        num_heads, num_kv_heads, head_dim = work.heads
        dtype = getattr(torch, work.dtype)
        generator = torch.Generator().manual_seed(SEED)
        q = torch.randn(work.batch, work.queries, num_heads, head_dim, generator=generator).to(dtype)
        k, v = (
            torch.randn(work.batch, work.context, num_kv_heads, head_dim, generator=generator).to(dtype) for _ in "kv"
        )
        for tensor in (k, v):
            tensor[:, : work.shared] = tensor[0, : work.shared]
        return cls(work, q, k, v)

    def over_blocks(
        self,
        *,
        in_order: bool = False,
        block_size: int = BLOCK_SIZE,
        layout: Layout | None = None,
        shares: bool = True,
    ) -> Callable[[], Tensor]:
        """`paged_attention` over a cache filled from K and V."""
        work = self.work
        num_shared, num_each = work.shared // block_size, -(-work.context // block_size)
        ids = list(range(num_shared + work.batch * (num_each - num_shared)))
        if not in_order:
            random.Random(SEED).shuffle(ids)
        own = ids[num_shared:]
        size = num_each - num_shared
        tables = [array("i", ids[:num_shared] + own[row * size : (row + 1) * size]) for row in range(work.batch)]
        _, num_kv_heads, head_dim = work.heads
        cache = allocate_kv(len(ids), block_size, num_kv_heads, head_dim, self.k.dtype, "cpu", layout=layout)
        blocks = torch.tensor([list(table) for table in tables])
        cache.fill(*(self._in_blocks(tensor, blocks, block_size) for tensor in (self.k, self.v)))
        lens = [work.queries] * work.batch, [work.context] * work.batch
        batch = plan_attention(*lens, tables, block_size, "cpu", scratch=Scratch(), shares=shares)
        rows = self.q.flatten(0, 1)
        return lambda: paged_attention(rows, cache, batch, scale=head_dim**-0.5)

    @staticmethod
    def _in_blocks(tensor: Tensor, blocks: Tensor, block_size: int) -> Tensor:
        padding = blocks.shape[1] * block_size - tensor.shape[1]
        padded = functional.pad(tensor, (0, 0, 0, 0, 0, padding))
        filled = tensor.new_zeros(int(blocks.max()) + 1, block_size, *tensor.shape[2:])
        filled[blocks.flatten()] = padded.view(-1, block_size, *tensor.shape[2:])
        return filled

    def gathered(self) -> Callable[[], Tensor]:
        """Blocks copied together into reused memory, then SDPA."""
        blocks_each = -(-self.work.context // BLOCK_SIZE)
        blocks = torch.randperm(self.work.batch * blocks_each).view(self.work.batch, -1)
        caches = [self._in_blocks(tensor, blocks, BLOCK_SIZE) for tensor in (self.k, self.v)]
        gathered = [tensor.new_empty(blocks.numel(), *tensor.shape[1:]) for tensor in caches]

        def call() -> Tensor:
            for cache, to in zip(caches, gathered, strict=True):
                torch.index_select(cache, 0, blocks.flatten(), out=to)
            return self._attend(
                *(to.view(self.work.batch, -1, *to.shape[2:])[:, : self.work.context] for to in gathered)
            )

        return call

    def contiguous(self) -> Callable[[], Tensor]:
        """SDPA over one contiguous piece per sequence and head."""
        k, v = (tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (self.k, self.v))
        return partial(self._attend, k, v)

    def over_heads(self, k: Tensor, v: Tensor) -> Callable[[], Tensor]:
        """SDPA over K and V in memory of the caller's, [Hkv, B, L, D], which are filled here."""
        k, v = (to.permute(1, 2, 0, 3).copy_(tensor) for to, tensor in ((k, self.k), (v, self.v)))
        return partial(self._attend, k, v)

    def _attend(self, k: Tensor, v: Tensor) -> Tensor:
        """Query heads packed as queries in decode; a dense mask in prefill."""
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        work = self.work
        if work.queries == 1:
            groups = self.q.view(work.batch, work.heads[1], -1, work.heads[2])
            return functional.scaled_dot_product_attention(groups, k, v).view(work.batch, *self.q.shape[2:])
        mask = torch.ones(work.queries, work.context).tril(work.context - work.queries).log().to(k.dtype)
        heads_first = self.q.transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads_first, k, v, attn_mask=mask, enable_gqa=True)
        return attended.transpose(1, 2).flatten(0, 1)

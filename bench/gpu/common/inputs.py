"""Inputs of the GPU bench: a pool of random KV, trees over shuffled blocks of it, and checks of the results.

    pool     one cache for all cases of a layer, filled once
    case     a tree over it: tables for one or more input sets without common blocks, one work list for all of them

A result is right if every output is finite, with outputs and parts NaN beforehand, and a sample of rows and heads is within
`MAX_ERROR` of attention in float64 over the same blocks, by the norm of the error over the norm of the result.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bench.gpu.workloads import BLOCK_SIZE, DTYPE, Layer, Tree, blocks_of
from radixkv.kernels import AttentionBatch, allocate_kv, allocate_latents, paged_attention, plan_attention
from radixkv.kernels.gpu.device_work import DeviceWork, Launches, take_device_work
from radixkv.kernels.gpu.tree_attention import KVScales, attend_by_work, form_limits, layer_shape
from radixkv.kernels.kv.kv_cache import Layout
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.rotation import rotate
from radixkv.kernels.spec import AttentionSpec

__all__ = ["MAX_ERROR", "Case", "Pool", "relative_error"]

MAX_ERROR = 1e-2
_FILL_BLOCKS = 1 << 15
_SAMPLES = 4
_SAMPLED_KV_HEADS = 2


class Pool:
    """Random K and V of a layer in `num_blocks` blocks, and the shuffled order in which they are allocated."""

    def __init__(self, layer: Layer, num_blocks: int, device: torch.device) -> None:
        self.layer = layer
        self.order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
        sizes, form = (num_blocks, BLOCK_SIZE), {"format": layer.format, "layout": Layout.HEAD_MAJOR}
        if layer.is_latent:
            self.cache = allocate_latents(*sizes, layer.head_dim, layer.v_head_dim, DTYPE, device, **form)
        else:
            heads = (layer.num_kv_heads, layer.head_dim)
            self.cache = allocate_kv(*sizes, *heads, DTYPE, device, v_head_dim=layer.v_head_dim, **form)
        for tensor in self.cache.tensors[: self.cache.rows_per_token]:
            for first in range(0, num_blocks, _FILL_BLOCKS):
                _fill(tensor[first : first + _FILL_BLOCKS], layer.format)
        for scales in self.cache.tensors[self.cache.rows_per_token :]:
            if layer.format is KVFormat.INT4:  # steps and lowest values alternate
                steps = scales[:, :, ::2].uniform_(0.5, 1.5).div_(5.0)
                scales[:, :, 1::2] = -7.5 * steps
            else:
                scales.uniform_(0.5, 1.5).div_(60.0)

    @property
    def device(self) -> torch.device:
        return self.cache.device

    @property
    def scales(self) -> KVScales | None:
        if self.cache.k_scales is None or self.cache.v_scales is None:
            return None
        return KVScales(self.cache.k_scales, self.cache.v_scales)

    def gather(self, table: Tensor, heads: slice, num_tokens: int) -> tuple[Tensor, Tensor]:
        """K and V [heads, num_tokens, width] of a row of the block tables, in float64."""
        taken = [tensor[table.long(), heads] for tensor in self.cache.tensors]
        if self.layer.format is not None:
            count = self.cache.rows_per_token
            taken = self.cache.dequantise(*taken[:count], *(scales.transpose(2, 3) for scales in taken[count:]))
        keys, *values = (rows.double().transpose(0, 1).flatten(1, 2)[:, :num_tokens] for rows in taken)
        return keys, values[0] if values else keys[..., : self.layer.v_head_dim]


def _fill(blocks: Tensor, format: KVFormat | None) -> None:
    if format is KVFormat.INT8:
        blocks.random_(-127, 128)
    elif format is KVFormat.INT4:
        blocks.random_(0, 256)
    elif format is KVFormat.FP8:
        blocks.copy_(torch.randn(blocks.shape, device=blocks.device).mul_(60.0).clamp_(-448.0, 448.0))
    else:
        blocks.normal_()


@dataclass
class Case:
    """A tree over a pool, in up to `num_sets` sets of blocks. `shares`: whether common blocks of branches are read once."""

    pool: Pool
    tree: Tree
    shares: bool = True
    num_sets: int = 1
    batch: AttentionBatch = field(init=False)
    work: DeviceWork = field(init=False)
    tables: list[Tensor] = field(init=False)
    q: Tensor = field(init=False)
    out: Tensor = field(init=False)

    def __post_init__(self) -> None:
        layer, device = self.pool.layer, self.pool.device
        own = numbered_tables(self.tree)
        size = self.tree.num_blocks
        self.num_sets = max(1, min(self.num_sets, len(self.pool.order) // size))
        hosts = [self.pool.order[size * index : size * (index + 1)][own] for index in range(self.num_sets)]
        self.batch = self.plan(hosts[0])
        self.tables = [torch.from_numpy(host).to(device) for host in hosts]
        num_rows = self.tree.branches * self.tree.queries
        self.q = torch.randn(num_rows, layer.num_heads, layer.head_dim, device=device).to(DTYPE)
        self.out = self.q.new_empty(num_rows, layer.num_heads, layer.v_head_dim)
        limits = form_limits(
            layer_shape(self.q, self.pool.cache.k, layer.v_head_dim, is_latent=layer.is_latent), device
        )
        self.work = take_device_work(self.batch, self.spec, layer.group, limits, layer.num_heads, layer.v_head_dim)

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.pool.layer.head_dim**-0.5)

    def plan(self, host_tables: npt.NDArray[np.int32], more: int = 0) -> AttentionBatch:
        """A batch with `more` tokens in every branch's last block."""
        tree = self.tree
        rows = [array("i", row.tobytes()) for row in host_tables]
        lens = [tree.queries] * tree.branches, [tree.context + more] * tree.branches
        return plan_attention(*lens, rows, BLOCK_SIZE, self.pool.device, shares=self.shares)

    def attend(self, tables: Tensor, launches: Launches | None = None) -> Tensor:
        """Run only the kernels, over one set."""
        cache = self.pool.cache
        values = None if cache.is_latent else cache.v
        return attend_by_work(
            self.q, cache.k, values, tables, self.work, self.spec, self.out, self.pool.scales, launches
        )

    def attend_publicly(self) -> Tensor:
        """Run `paged_attention` over the first set, including checks and rotations."""
        return paged_attention(self.q, self.pool.cache, self.batch, scale=self.spec.scale)

    def calls(self) -> list[Callable[[], Tensor]]:
        """A call per set."""
        return [partial(self.attend, tables) for tables in self.tables]

    def error(self) -> float:
        """Relative error of the kernels' result over the first set; NaN if an output was not written."""
        for tensor in (self.out, self.work.parts, self.work.lse):
            tensor.fill_(torch.nan)
        return self.error_of(self.attend(self.tables[0]))

    def public_error(self) -> float:
        """The same for `paged_attention`, which rotates if the cache has a format."""
        is_rotated = self.pool.layer.format is not None
        for tensor in (self.work.parts, self.work.lse):
            tensor.fill_(torch.nan)
        out = self.attend_publicly()
        return self.error_of(rotate(out.double()) if is_rotated else out, rotates=is_rotated)

    def error_of(self, out: Tensor, *, rotates: bool = False) -> float:
        """Error of a result [T, Hq, Dv] over the first set."""
        if not bool(out.isfinite().all()):
            return float("nan")
        layer, tree = self.pool.layer, self.tree
        q = rotate(self.q.float(), self.pool.cache.key_parts).to(DTYPE) if rotates else self.q
        error = norm = 0.0
        branches = np.linspace(0, tree.branches - 1, min(_SAMPLES, tree.branches)).astype(int)
        heads = {*np.linspace(0, layer.num_kv_heads - 1, min(_SAMPLED_KV_HEADS, layer.num_kv_heads)).astype(int)}
        queries = {*np.linspace(0, tree.queries - 1, min(_SAMPLES, tree.queries)).astype(int)}
        for branch, kv_head in itertools.product(branches, heads):
            k, v = self.pool.gather(self.tables[0][branch], slice(kv_head, kv_head + 1), tree.context)
            group = slice(kv_head * layer.group, (kv_head + 1) * layer.group)
            for query in queries:
                row = branch * tree.queries + query
                seen = tree.context - tree.queries + query + 1
                weights = torch.softmax(q[row, group].double() @ k[0, :seen].T * self.spec.scale, dim=-1)
                expected = weights @ v[0, :seen]
                error += float((out[row, group].double() - expected).square().sum())
                norm += float(expected.square().sum())
        return (error / norm) ** 0.5


def numbered_tables(tree: Tree) -> npt.NDArray[np.int32]:
    """[branches, blocks] with the tree's blocks numbered from 0, level by level."""
    columns, first = [], 0
    branch = np.arange(tree.branches)
    for nodes, tokens in tree.levels:
        size = blocks_of(tokens)
        node = branch * nodes // tree.branches
        columns.append(first + node[:, None] * size + np.arange(size))
        first += nodes * size
    return np.concatenate(columns, axis=1).astype(np.int32)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of the expected tensor."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())

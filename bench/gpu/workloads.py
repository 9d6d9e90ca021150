"""Workloads of the GPU bench, and their least cost: layers, trees of tokens, bytes, operations, bounds.

A tree is a list of levels from the root to the branches, (nodes, tokens of a node); every branch has `queries` new tokens at
its end. A batch without sharing is a tree of one level.

    bytes      distinct tokens x bytes of a token in the cache, and the queries and outputs
    flops      2 x (D + Dv) for every query head and every key that it sees
    roofline   max(bytes / copy bandwidth, flops / rate of the matrix product)
    bound      tokens that paged attention reads / distinct tokens, for a prompt of P and branches of S: (P + S) / (P / B + S)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from radixkv.kernels.kv.kv_format import KVFormat

__all__ = ["LATENTS", "LLAMA", "TINY", "TINY_LATENTS", "Layer", "Machine", "Tree", "branches_of", "sequences"]

BLOCK_SIZE = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Layer:
    """Heads and widths of an attention layer, and the format of a token in its cache; bfloat16 if there is none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    format: KVFormat | None = None
    is_latent: bool = False

    @property
    def name(self) -> str:
        widths = f"{self.head_dim}/{self.v_head_dim}" if self.is_latent else str(self.head_dim)
        return f"{self.num_heads}/{self.num_kv_heads}/{widths} {self.format.value if self.format else 'bf16'}"

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's K and V, including scales."""
        widths = (
            (self.v_head_dim, self.head_dim - self.v_head_dim) if self.is_latent else (self.head_dim, self.v_head_dim)
        )
        bytes_of = self.format.row_bytes if self.format is not None else DTYPE.itemsize.__mul__
        return self.num_kv_heads * sum(map(bytes_of, widths))

    @property
    def row_bytes(self) -> int:
        """Bytes of a query row and its output."""
        return self.num_heads * (self.head_dim + self.v_head_dim) * DTYPE.itemsize


LLAMA = Layer(32, 8, 128, 128)
"""Layer of Llama 3 8B."""
LATENTS = Layer(128, 1, 576, 512, is_latent=True)
"""Layer of DeepSeek-V3."""
TINY = Layer(4, 2, 32, 32)
TINY_LATENTS = Layer(5, 1, 80, 64, is_latent=True)


@dataclass(frozen=True)
class Tree:
    """See the module's text. Node counts divide those of the next level; only branches end within a block."""

    levels: tuple[tuple[int, int], ...]
    queries: int = 1

    @property
    def name(self) -> str:
        """Branches x lengths from the root, as '32 x 4k+128'."""
        lengths = "+".join(short(tokens) for _, tokens in self.levels)
        new = "" if self.queries == 1 else f" ({short(self.queries)} new)"
        return f"{self.branches} x {lengths}{new}"

    @property
    def branches(self) -> int:
        return self.levels[-1][0]

    @property
    def context(self) -> int:
        """Tokens from the root to a branch's end."""
        return sum(tokens for _, tokens in self.levels)

    @property
    def num_tokens(self) -> int:
        """Number of distinct tokens."""
        return sum(nodes * tokens for nodes, tokens in self.levels)

    @property
    def bound(self) -> float:
        """Tokens seen by all branches over distinct tokens."""
        return self.branches * self.context / self.num_tokens

    @property
    def paged(self) -> Tree:
        """The same branches without sharing."""
        return Tree(((self.branches, self.context),), self.queries)

    @property
    def num_blocks(self) -> int:
        return sum(nodes * blocks_of(tokens) for nodes, tokens in self.levels)

    def num_bytes(self, layer: Layer) -> int:
        return self.num_tokens * layer.token_bytes + self.branches * self.queries * layer.row_bytes

    def flops(self, layer: Layer) -> int:
        seen = self.queries * self.context - self.queries * (self.queries - 1) // 2
        return 2 * self.branches * seen * layer.num_heads * (layer.head_dim + layer.v_head_dim)


@dataclass(frozen=True)
class Machine:
    """Measured in the same run: bytes per second read and written by a copy, operations per second of a product."""

    copy: float
    matmul: float
    l2_bytes: int

    def roofline_us(self, tree: Tree, layer: Layer) -> float:
        """A practical lower bound of any kernel's time."""
        return max(tree.num_bytes(layer) / self.copy, tree.flops(layer) / self.matmul) * 1e6

    def copy_share(self, tree: Tree, layer: Layer, time_us: float) -> float:
        """Share of the copy's bandwidth, on the tree's distinct bytes."""
        return tree.num_bytes(layer) / time_us * 1e6 / self.copy

    def matmul_share(self, tree: Tree, layer: Layer, time_us: float) -> float:
        return tree.flops(layer) / time_us * 1e6 / self.matmul

    def num_sets(self, num_bytes: int, most: int) -> int:
        """Number of input sets to take turns, so that none is found in the L2."""
        return max(1, min(most, math.ceil(3 * self.l2_bytes / num_bytes)))


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


def sequences(count: int, context: int, queries: int = 1) -> Tree:
    """A batch without sharing."""
    return Tree(((count, context),), queries)


def branches_of(count: int, prompt: int, own: int) -> Tree:
    """Branches of one prompt."""
    return Tree(((1, prompt), (count, own)))


def short(tokens: int) -> str:
    """131072 as '128k'."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 and tokens else str(tokens)

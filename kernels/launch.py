"""Launch configurations: a table to read and to edit, in place of autotuning at run time.

Split and tile lengths are part of the result: reductions run over tiles at absolute positions in ascending order, so a
row's value depends neither on what was cached nor on which chunk computed it. Change them for all rows or for none.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "MAX_HEAD_DIM",
    "PLAIN_OPTIONS",
    "SPLIT_TOKENS",
    "TileConfig",
    "decode_config",
    "next_power_of_2",
    "prefill_config",
]

MAX_HEAD_DIM = 256
"""Widest head of the Triton kernels: one head's tile of queries stays in registers."""

SPLIT_TOKENS = 256
"""Tokens of context per decode split; split s covers positions [s * SPLIT_TOKENS, (s + 1) * SPLIT_TOKENS)."""

PLAIN_OPTIONS: dict[str, int | bool] = {"num_warps": 4, "enable_fp_fusion": True}
"""Compiler options of a launch without a tile. Fused multiply-adds are asked for: Triton's default differs by version."""


class TileConfig(NamedTuple):
    """`block_m` query rows x `block_n` keys per step. `block_n` divides SPLIT_TOKENS."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    @property
    def options(self) -> dict[str, int | bool]:
        """Compiler options of a launch."""
        return {**PLAIN_OPTIONS, "num_warps": self.num_warps, "num_stages": self.num_stages}


#        (bytes per element, widest head up to): rows, keys, warps, stages
_PREFILL = {
    (2, 64): TileConfig(64, 64, 4, 3),
    (2, 128): TileConfig(64, 64, 4, 3),
    (2, 256): TileConfig(64, 32, 8, 2),
    (4, 64): TileConfig(32, 32, 8, 2),
    (4, 128): TileConfig(32, 16, 8, 1),
    (4, 256): TileConfig(32, 16, 8, 1),
}

_DECODE = {
    (2, 64): TileConfig(16, 64, 4, 3),
    (2, 128): TileConfig(16, 64, 4, 3),
    (2, 256): TileConfig(16, 32, 4, 2),
    (4, 64): TileConfig(16, 32, 8, 2),
    (4, 128): TileConfig(16, 32, 8, 2),
    (4, 256): TileConfig(16, 32, 8, 2),
}


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` (1 or more)."""
    return 1 << (value - 1).bit_length()


def _head_class(head_dim: int, v_head_dim: int) -> int:
    return max(64, next_power_of_2(max(head_dim, v_head_dim)))


def prefill_config(element_size: int, head_dim: int, v_head_dim: int, group_size: int) -> TileConfig:
    """Tile of the prefill kernel; rows hold whole groups of query heads."""
    config = _PREFILL[element_size, _head_class(head_dim, v_head_dim)]
    return config._replace(block_m=max(config.block_m, next_power_of_2(group_size)))


def decode_config(element_size: int, head_dim: int, v_head_dim: int, group_size: int) -> TileConfig:
    """Tile of the decode kernel; its rows are the query heads of one kv head."""
    config = _DECODE[element_size, _head_class(head_dim, v_head_dim)]
    return config._replace(block_m=max(config.block_m, next_power_of_2(group_size)))

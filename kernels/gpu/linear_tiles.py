"""Tiles of rounded linear layers: a table to read and to edit, as `launch` is for attention.

narrow    up to 16 rows: bound by the weight's bytes; two warps, so that sm_90 multiplies without fences
large     of 32, 64 or 128 rows, of operands of 16 bits on sm_90
small     more than 16 rows, elsewhere

On an H200, more outputs to a program took less time: 128 for 32 rows 0.48 to 0.88 of that of 64 rows with 64 outputs, 256 for
64 rows 0.41 to 0.82 of it, and for 128 rows 0.67 to 1.02 of that with 128 outputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from radixkv.kernels.runtime.triton_port import PLAIN_OPTIONS

__all__ = ["Tile", "options_of", "tile_of"]


class Tile(NamedTuple):
    """`rows` of x by `outputs`; programs per processor that splitting aims at; bound of a thread's registers on NVIDIA's chips,
    0: none.
    """

    rows: int
    outputs: int
    num_warps: int
    num_stages: int
    programs: int
    most_registers: int = 0


_NARROW = Tile(16, 64, 2, 4, 4, 128)
_LARGE = Tile(32, 128, 4, 3, 3), Tile(64, 256, 8, 3, 1), Tile(128, 256, 8, 3, 1)
_LARGE_OF_STACKS = *_LARGE[:2], Tile(128, 128, 8, 3, 1)
"""Scattered rows take more registers."""
_SMALL = (Tile(64, 64, 4, 2, 2, 128),)
_LARGE_TARGET = "sm_90"
"""Of large tiles. For sm_100, Triton 3.6 makes kernels of some of them that multiply nothing."""


def tile_of(num_rows: int, dtype: torch.dtype, target: str, *, is_stacked: bool = False) -> Tile:
    """The tile for so many rows, of a stack for so many rows of each of its weights."""
    if num_rows <= _NARROW.rows:
        return _NARROW if dtype != torch.float32 else _NARROW._replace(num_warps=4)
    tiles: tuple[Tile, ...] = _SMALL
    if target == _LARGE_TARGET and dtype != torch.float32:
        tiles = _LARGE_OF_STACKS if is_stacked else _LARGE
    return next((tile for tile in tiles if num_rows <= tile.rows), tiles[-1])


def options_of(tile: Tile, target: str) -> dict[str, int | bool]:
    """Compiler options of a launch. The bound of registers keeps NVIDIA's compiler from spilling some of a narrow tile's, and
    from taking too many for a small one's scattered rows.
    """
    bound = {"maxnreg": tile.most_registers} if tile.most_registers and target.startswith("sm_") else {}
    return {**PLAIN_OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages, **bound}

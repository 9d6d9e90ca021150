"""Tiles of rounded linear layers: a table to read and to edit, as `launch` is for attention.

narrow    up to 16 rows: bound by the weight's bytes; two warps, so that sm_90 multiplies without fences
middle    up to 64 rows
wide      more, where shared memory holds it, and operands have 16 bits; elsewhere the middle one
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
_MIDDLE = {True: Tile(64, 64, 4, 3, 2, 168), False: Tile(64, 64, 4, 2, 2, 128)}
_WIDE = Tile(128, 128, 8, 3, 1)
_LARGE_TARGETS = ("sm_90", "sm_100")
"""With shared memory for the wide form, and for three stages."""


def tile_of(num_rows: int, dtype: torch.dtype, target: str) -> Tile:
    """The tile for so many rows."""
    is_large = target in _LARGE_TARGETS and dtype != torch.float32
    if num_rows <= _NARROW.rows:
        return _NARROW if dtype != torch.float32 else _NARROW._replace(num_warps=4)
    return _WIDE if is_large and num_rows > _MIDDLE[True].rows else _MIDDLE[is_large]


def options_of(tile: Tile, target: str) -> dict[str, int | bool]:
    """Compiler options of a launch. The bound of registers keeps NVIDIA's compiler from spilling some of a narrow tile's, and
    from taking too many for a middle one's scattered rows.
    """
    bound = {"maxnreg": tile.most_registers} if tile.most_registers and target.startswith("sm_") else {}
    return {**PLAIN_OPTIONS, "num_warps": tile.num_warps, "num_stages": tile.num_stages, **bound}

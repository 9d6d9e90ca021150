"""Rotation of head vectors: an orthonormal Hadamard matrix spreads an outlier channel over all channels.

    rotate(x) = x R        R = H_n / sqrt(n), block-diagonal, n the largest power of two that divides D

R is symmetric and its own inverse, so rotate(rotate(x)) = x and q . k = rotate(q) . rotate(k): with keys and queries rotated,
scores are unchanged, up to rounding. Rotation lowers the cost of rounding: the keys of many models have a few channels far
above the rest, and a step or an exponent for those wastes bits on all others (QuaRot, Ashkboos et al. 2024, section 4). A
head of 80 channels is rotated as 5 vectors of 16, one of 96 as 3 of 32. The parts of a latent, its value and the rest of its
key, are rotated each by itself.

Attention is linear in its values, so with rotated values its output is rotate(output). Keys are rotated after their rotary
embedding, as they are cached; weights are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["hadamard_matrix", "rotate"]


@lru_cache(maxsize=32)
def hadamard_matrix(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[size, size], the orthonormal matrix R of the module's formula for heads of `size` channels; read-only.

    Signs are Sylvester's: of rows i and columns j of a block, minus where popcount(i & j) is odd.
    """
    block = size & -size
    with torch.inference_mode(False):  # a tensor made in inference mode cannot be used outside it
        matrix = torch.ones(1, 1, dtype=torch.float64)
        pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        while matrix.shape[0] < block:
            matrix = torch.kron(pair, matrix)
        matrix = torch.kron(torch.eye(size // block, dtype=torch.float64), matrix / block**0.5)
        return matrix.to(dtype=dtype, device=device)


def rotate(rows: Tensor, parts: Sequence[int] = ()) -> Tensor:
    """x R for each vector of `rows` [..., D], in the dtype of `rows`. Its own inverse, up to rounding.

    Non-finite values spread within their vector only. `parts`: widths of the vectors that a row consists of; none: one.
    """
    if len(parts) > 1:
        return torch.cat([rotate(part) for part in torch.split(rows, list(parts), dim=-1)], dim=-1)
    return rows @ hadamard_matrix(rows.shape[-1], rows.dtype, rows.device)

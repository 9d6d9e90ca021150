"""Storage of K and V by the names that users give: the model's dtype, or a format of fewer bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixkv.core.errors import InvalidArgumentError
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.worker.model.kv_pool import LayerShape

__all__ = ["check_heads", "choose_kv_format", "dtype_name"]

_FORMATS = {kv_format.value: kv_format for kv_format in KVFormat}


def choose_kv_format(kv_dtype: str, dtype: torch.dtype) -> KVFormat | None:
    """The format of this name, or None: K and V are stored as a model of `dtype` computes them.

    Args:
        kv_dtype: ``"auto"`` or the name of `dtype`: None. ``"fp8"``, ``"int8"``, ``"int4"``: that format.

    Raises:
        InvalidArgumentError: another name, including a dtype that the model does not compute in.
    """
    own = dtype_name(dtype)
    if kv_dtype in ("auto", own):
        return None
    if kv_dtype not in _FORMATS:
        raise InvalidArgumentError("kv_dtype", kv_dtype, f"auto, {', '.join(_FORMATS)}, or {own} as the model computes")
    return _FORMATS[kv_dtype]


def check_heads(kv_format: KVFormat, layers: Sequence[LayerShape]) -> None:
    """Reject a format that cannot hold some layer's K and V, or latents.

    Raises:
        InvalidArgumentError: names the heads.
    """
    for layer in layers:
        for width in layer.row_dims:
            try:
                kv_format.data_width(width)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    "kv_dtype", kv_format.value, f"another one for the model's heads: {error}"
                ) from error


def dtype_name(dtype: torch.dtype) -> str:
    """User-facing name: ``"bfloat16"``."""
    return str(dtype).removeprefix("torch.")

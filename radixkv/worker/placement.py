"""Device, dtype and quantization of a model, from the user's settings."""

from __future__ import annotations

import torch

from radixkv.core.errors import InvalidArgumentError

__all__ = ["choose_device", "choose_dtype", "wants_rounding"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICES = ("cpu", "cuda")
QUANTIZATIONS = ("auto", "none", "int8", "int4")


def choose_device(device: str) -> torch.device:
    """``"auto"`` is cuda where there is one; a device without a number is the current one of its kind."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.partition(":")[0] not in DEVICES:
        raise InvalidArgumentError("device", device, "auto, cpu, or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidArgumentError("device", device, "cpu on this machine, where torch finds no CUDA device")
    chosen = torch.device(device)
    if chosen.type == "cpu":  # a tensor's device has no index there, and always one on CUDA
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """``"auto"`` is bfloat16 where the device computes in it, else float32."""
    if dtype == "auto":
        fast_bf16 = torch.cpu._is_avx512_bf16_supported() if device.type == "cpu" else torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast_bf16 else torch.float32
    if dtype not in DTYPES:
        raise InvalidArgumentError("dtype", dtype, f"auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def wants_rounding(quantization: str, by_default: bool) -> bool:
    """Whether to round the linear layers' weights, or to keep those of a file in its 4 bits."""
    if quantization not in QUANTIZATIONS:
        raise InvalidArgumentError("quantization", quantization, ", ".join(QUANTIZATIONS))
    return quantization in ("int8", "int4") or (quantization == "auto" and by_default)

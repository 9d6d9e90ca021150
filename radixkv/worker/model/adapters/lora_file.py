"""A low-rank adapter as peft saves it: a folder of `adapter_config.json` and `adapter_model.safetensors`.

    base_model.model.<module>.lora_A.weight    [rank, inputs]
    base_model.model.<module>.lora_B.weight    [outputs, rank]

The configuration gives the scale of each module's update. Unsupported settings are rejected by name: an adapter applied in part
would be another model than was trained.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from radixkv.worker.errors import ModelError

__all__ = ["AdapterFile", "LowRank", "read_adapter"]

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")

_UNSUPPORTED = (
    "use_dora",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "megatron_config",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
)
"""Settings of peft that change the computation and are not supported; each is off where absent, false or empty."""

_PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the model's own weights unchanged."""


class LowRank(NamedTuple):
    """The update of one module: its outputs grow by `up` `down` x. `down` [rank, inputs]; `up` [outputs, rank], scaled."""

    down: Tensor
    up: Tensor


class AdapterFile(NamedTuple):
    """One adapter, in fp32 on the CPU. `updates` by the module's path in the model."""

    name: str
    updates: Mapping[str, LowRank]


def read_adapter(name: str, folder: Path) -> AdapterFile:
    """Read the adapter in `folder`.

    Raises:
        ModelError: the adapter is incomplete, or uses an unsupported setting.
    """
    config = _read_config(name, folder)
    _check_config(name, config)
    sides = _read_weights(name, folder / _WEIGHTS)
    updates = {module: _update(name, module, pair, config) for module, pair in sorted(sides.items())}
    if not updates:
        raise _refusal(name, f"{folder / _WEIGHTS} holds no updates")
    return AdapterFile(name, updates)


def _refusal(name: str, why: str) -> ModelError:
    return ModelError(f"the adapter {name!r} cannot be served: {why}")


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _refusal(name, f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise _refusal(name, f"{path} is no JSON object")
    return config


def _check_config(name: str, config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise _refusal(name, f"its peft_type is {config.get('peft_type')!r}; LORA is supported")
    for setting in _UNSUPPORTED:
        if config.get(setting):
            raise _refusal(name, f"{setting} is not supported")
    if config.get("bias", "none") != "none":
        raise _refusal(name, f"bias is {config['bias']!r}, which is not supported; none is")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise _refusal(
            name, f"init_lora_weights is {start!r}, which changes the model's own weights; convert it to plain LoRA"
        )
    for setting in ("r", "lora_alpha"):
        value = config.get(setting)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise _refusal(name, f"{setting} is {value!r}; it must be a number above 0")
    for setting in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(setting) or {}, dict):
            raise _refusal(name, f"{setting} is {config[setting]!r}; it must be an object")


def _read_weights(name: str, path: Path) -> dict[str, dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise _refusal(name, f"{path} cannot be read: {' '.join(str(error).split())}") from error
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or tensor.dim() != 2 or not tensor.is_floating_point():
            raise _refusal(name, f"its tensor {key} is not the A or B of a linear layer")
        sides.setdefault(match["module"], {})[match["side"]] = tensor.float()
    return sides


def _update(name: str, module: str, sides: Mapping[str, Tensor], config: Mapping[str, Any]) -> LowRank:
    if len(sides) != 2:
        raise _refusal(name, f"of {module} it has lora_{next(iter(sides))} alone")
    down, up = sides["A"], sides["B"]
    rank = int(_by_pattern(config.get("rank_pattern"), module, config["r"]))
    if down.shape[0] != rank or up.shape[1] != rank:
        raise _refusal(name, f"of {module} A is {_shape(down)} and B {_shape(up)}; its rank is {rank}")
    alpha = float(_by_pattern(config.get("alpha_pattern"), module, config["lora_alpha"]))
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(down, up * scale)


def _by_pattern(patterns: Mapping[str, Any] | None, module: str, otherwise: Any) -> Any:
    """The value of the first pattern that the end of a module's path matches."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module):
            return value
    return otherwise


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))

"""Random low-rank adapters of tiny models, as peft lays them out, and the models that they make."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

__all__ = ["linear_paths", "merged", "save_adapter"]


def linear_paths(model: Any, *names: str) -> list[str]:
    """Paths of the model's linear layers, all or those of the given names."""
    linear = [path for path, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D))]
    return [path for path in linear if not names or path.rpartition(".")[2] in names]


def save_adapter(
    folder: Path, model: Any, paths: Sequence[str], *, seed: int, rank: int = 4, **config: Any
) -> dict[str, torch.Tensor]:
    """Write an adapter of the modules at `paths`, and return its tensors. `config` is put beside the usual settings."""
    draws = torch.Generator().manual_seed(seed)
    ranks = config.get("rank_pattern", {})
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        inputs, outputs = _widths(model.get_submodule(path))
        own = ranks.get(path.rpartition(".")[2], rank)
        prefix = f"base_model.model.{path}.lora_"
        tensors[f"{prefix}A.weight"] = torch.randn(own, inputs, generator=draws) * 0.3
        tensors[f"{prefix}B.weight"] = torch.randn(outputs, own, generator=draws) * 0.3
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    names = sorted({path.rpartition(".")[2] for path in paths})
    usual = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "bias": "none", "target_modules": names}
    usual |= {"use_rslora": False, "use_dora": False, "modules_to_save": None, "init_lora_weights": True}
    (folder / "adapter_config.json").write_text(json.dumps(usual | config))
    return tensors


def merged(model: Any, tensors: Mapping[str, torch.Tensor], alpha: float = 6, **config: Any) -> Any:
    """A copy of the model with W + scale B A in place of each W."""
    model = copy.deepcopy(model)
    for key, down in tensors.items():
        path, _, side = key.removeprefix("base_model.model.").partition(".lora_")
        if side != "A.weight":
            continue
        module, up = model.get_submodule(path), tensors[key.replace("lora_A", "lora_B")]
        rank = len(down)
        own_alpha = config.get("alpha_pattern", {}).get(path.rpartition(".")[2], alpha)
        update = up @ down * (own_alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
        with torch.no_grad():
            weight = torch.nn.Parameter(module.weight + (update.T if isinstance(module, Conv1D) else update))
        module.weight = weight  # a tied embedding keeps its own
    return model


def _widths(module: Any) -> tuple[int, int]:
    if isinstance(module, Conv1D):
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    return module.in_features, module.out_features

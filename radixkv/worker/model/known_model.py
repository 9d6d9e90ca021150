"""Facts that a start learns about a GGUF model on the native decoder, kept for later starts, which need no model code.

    first start    the model's own code, its shapes probed, its logits compared  ->  known-DTYPE-QUANTIZATION.json
    later starts   that file and the weights  ->  modules that hold weights, and the native decoder over them

Importing transformers' model code takes longer than loading a small model. Facts of other versions or kernels are not used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixkv.generation.params import SamplingDefaults
from radixkv.kernels.runtime.native_build import native_library
from radixkv.kernels.spec import AttentionSpec
from radixkv.util.folders import cache_folder
from radixkv.worker.loading.gguf_weights import (
    WeightIndex,
    fill_weights,
    has_index,
    layout_of,
    moves_heads,
    only_moves_rows,
)
from radixkv.worker.model.kv_dtype import dtype_name
from radixkv.worker.model.kv_pool import LayerShape
from radixkv.worker.model.model_facts import LENGTH_DEPENDENT_ROPE, max_model_len_of

__all__ = ["KnownModel", "can_be_known", "find_known", "keep_known", "load_known"]

_PACKAGES = ("radixkv", "torch", "transformers")
_EMBEDDINGS, _HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Facts about a model of the Llama family.

    Attributes:
        num_parameters, vocab_size, max_model_len, eos_token_ids, sampling, widest_output: as `ModelRunner` has them.
        layers, specs: each layer's stored shape and attention; none has sinks.
        num_heads, norm_epsilon: of the decoder.
        frequencies, attention_scaling: of the rotation: float32 per pair of channels, and a factor of cosines and sines.
        num_moved_heads: query and key heads whose rows are in llama.cpp's order in the file; None: in the model's.
    """

    num_parameters: int
    vocab_size: int
    max_model_len: int
    eos_token_ids: Sequence[int]
    sampling: SamplingDefaults
    widest_output: int
    layers: Sequence[LayerShape]
    specs: Sequence[AttentionSpec]
    num_heads: int
    norm_epsilon: float
    frequencies: Sequence[float]
    attention_scaling: float
    num_moved_heads: tuple[int, int] | None


class LearnedFacts(Protocol):
    """Facts that a `ModelRunner` has learned from its model's own code."""

    dtype: torch.dtype
    num_parameters: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    sampling_defaults: SamplingDefaults
    widest_output: int


def can_be_known(folder: Path) -> bool:
    """Whether the folder is of a GGUF file and in the cache folder; any other file may be a stranger's."""
    return folder.parent == cache_folder() / "models" and has_index(folder)


def find_known(folder: Path, dtype: torch.dtype, quantization: str) -> KnownModel | None:
    """Facts that these versions kept about the model in `folder`, loaded in this way; None: none."""
    try:
        said = json.loads(_path(folder, dtype, quantization).read_text(encoding="utf-8"))
        if said.pop("found_by") != _finder():
            return None
        specs = [AttentionSpec(**spec) for spec in said.pop("specs")]
        shapes = zip(said.pop("layers"), specs, strict=True)
        layers = [LayerShape(*layer)._replace(window=spec.sliding_window) for layer, spec in shapes]
        sampling = SamplingDefaults(*said.pop("sampling"))
        return KnownModel(**said, layers=layers, specs=specs, sampling=sampling)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # missing or damaged
        return None


def keep_known(
    learned: LearnedFacts,
    model: Any,
    layers: Sequence[LayerShape],
    specs: Sequence[AttentionSpec],
    folder: Path,
    quantization: str,
) -> None:
    """Keep the facts about `model`, run by the native decoder, for later starts.

    Keeps nothing if its frequencies change with the length, if only transformers can reorder its weights, or if the folder
    cannot be written.
    """
    config, rotary = model.config, model.model.rotary_emb
    layout = layout_of(WeightIndex.load(folder).architecture, config)
    if rotary.rope_type in LENGTH_DEPENDENT_ROPE or not only_moves_rows(layout):
        return
    known = KnownModel(
        num_parameters=learned.num_parameters,
        vocab_size=learned.vocab_size,
        max_model_len=max_model_len_of(config),
        eos_token_ids=sorted(learned.eos_token_ids),
        sampling=learned.sampling_defaults,
        widest_output=learned.widest_output,
        layers=layers,
        specs=specs,
        num_heads=config.num_attention_heads,
        norm_epsilon=config.rms_norm_eps,
        frequencies=rotary.inv_freq.tolist(),
        attention_scaling=rotary.attention_scaling,
        num_moved_heads=(config.num_attention_heads, config.num_key_value_heads) if moves_heads(layout) else None,
    )
    path = _path(folder, learned.dtype, quantization)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({"found_by": _finder(), **asdict(known)}), encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def _path(folder: Path, dtype: torch.dtype, quantization: str) -> Path:
    return folder / f"known-{dtype_name(dtype)}-{quantization}.json"


def _finder() -> str:
    """Digest of the versions that the facts hold for."""
    library = native_library()
    parts = [*(f"{package} {version(package)}" for package in _PACKAGES), Path(library._name if library else "").name]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def load_known(known: KnownModel, folder: Path, dtype: torch.dtype, quantization: str, *, progress: bool) -> Any:
    """A module that holds the weights of the index in `folder`, at the model's names, and runs nothing.

    Raises:
        ModelError: as `load_gguf`.
    """
    index = WeightIndex.load(folder)
    model = _Holder(known, index, dtype)
    fill_weights(model, index, folder, quantization, _Layout(known.num_moved_heads), progress=progress)
    return model


class _Holder(torch.nn.Module):
    """Modules by the names in an index."""

    def __init__(self, known: KnownModel, index: WeightIndex, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_attention_heads=known.num_heads, rms_norm_eps=known.norm_epsilon)
        shapes = {name: tensor.shape for name, tensor in index.tensors}
        self._is_tied = f"{_HEAD}.weight" not in shapes
        if self._is_tied:
            shapes[f"{_HEAD}.weight"] = shapes[f"{_EMBEDDINGS}.weight"]
        for name, shape in sorted(shapes.items(), key=_place):
            path, _, leaf = name.rpartition(".")
            matrix = shapes.get(f"{path}.weight", ())
            owner = self._module(path, matrix if len(matrix) == 2 and path != _EMBEDDINGS else None)
            owner.register_parameter(leaf, torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), False))
        self.tie_weights()
        self.get_submodule("model").rotary_emb = _Rotation(known)  # type: ignore[assignment]  # no module

    def _module(self, path: str, linear: tuple[int, ...] | None) -> torch.nn.Module:
        """The module at a path, created with missing parents; `linear`: shape of its weight."""
        owner: torch.nn.Module = self
        *parents, last = path.split(".")
        for name in parents:
            if name not in owner._modules:
                owner.add_module(name, torch.nn.Module())
            owner = owner.get_submodule(name)
        if last not in owner._modules:
            module = torch.nn.Linear(linear[1], linear[0], bias=False, device="meta") if linear else torch.nn.Module()
            owner.add_module(last, module)
        return owner.get_submodule(last)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.get_submodule(_EMBEDDINGS)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.get_submodule(_HEAD)

    def tie_weights(self) -> None:
        head = self.get_output_embeddings()
        if self._is_tied and isinstance(head, torch.nn.Linear):
            head.weight = self.get_input_embeddings().weight  # type: ignore[assignment]  # a parameter, as registered


def _place(named: tuple[str, tuple[int, ...]]) -> list[int]:
    """Sort key: the layers' numbers, whatever the order in the file."""
    return [int(part) if part.isdecimal() else -1 for part in named[0].split(".")]


class _Rotation:
    """Cosines and sines of positions, as transformers computes them."""

    def __init__(self, known: KnownModel) -> None:
        self._frequencies = torch.tensor(known.frequencies, dtype=torch.float32)
        self._scaling = known.attention_scaling

    def __call__(self, _like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * self._frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self._scaling, angles.sin() * self._scaling


class _Layout:
    """Reorders rows of queries and keys from llama.cpp's order, pairs side by side, to the model's, as transformers does."""

    moves_rows = True

    def __init__(self, num_moved_heads: tuple[int, int] | None) -> None:
        self._num_heads = dict(zip((".attn_q.", ".attn_k."), num_moved_heads or (), strict=False))

    def process(self, weights: npt.NDArray[Any], name: str, **_: Any) -> Any:
        for part, num_heads in self._num_heads.items():
            if part in name:
                pairs = weights.reshape(num_heads, len(weights) // num_heads // 2, 2, *weights.shape[1:])
                weights = np.swapaxes(pairs, 2, 1).reshape(weights.shape)
        return SimpleNamespace(weights=weights, name=name)

"""Facts about a loaded transformers model, from its configuration and weights."""

from __future__ import annotations

from typing import Any

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import NO_DEFAULTS, SamplingDefaults, SamplingParams
from radixkv.worker.loading.packed_linear import RoundedLinear

__all__ = [
    "LENGTH_DEPENDENT_ROPE",
    "eos_token_ids_of",
    "max_model_len_of",
    "num_parameters_of",
    "sampling_defaults_of",
    "shortened",
    "widest_output_of",
]

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_MAX_LEN_WITHOUT_CONFIG = 2048


def widest_output_of(model: Any, vocab_size: int) -> int:
    matrices = (matrix for matrix in model.parameters() if matrix.dim() > 1 and vocab_size not in matrix.shape)
    rounded = (layer.out_features for layer in model.modules() if isinstance(layer, RoundedLinear))
    return max(*(int(matrix.shape[-2]) for matrix in matrices), *(width for width in rounded if width != vocab_size))


def num_parameters_of(model: Any) -> int:
    """Elements of all weights as loaded; weights shared by two layers count once."""
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    rounded = [layer for layer in model.modules() if isinstance(layer, RoundedLinear)]
    if getattr(config, "tie_word_embeddings", False):
        rounded = [layer for layer in rounded if layer is not head]
    num_rounded = sum(layer.num_parameters for layer in rounded)
    return num_rounded + sum(int(parameter.numel()) for parameter in model.parameters())


def max_model_len_of(config: Any) -> int:
    """Positions the model was made for. If its rotary frequencies change with the length, positions before the change: one KV
    cache cannot hold keys of two frequencies.
    """
    longest = int(getattr(config, "max_position_embeddings", None) or _MAX_LEN_WITHOUT_CONFIG)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        return min(longest, int(original or longest))
    return longest


def shortened(longest: int, max_model_len: int | None) -> int:
    if max_model_len is None:
        return longest
    if not 1 <= max_model_len <= longest:
        raise InvalidArgumentError("max_model_len", max_model_len, f"from 1 to {longest}, which the model allows")
    return max_model_len


def sampling_defaults_of(model: Any) -> SamplingDefaults:
    said = model.generation_config.to_diff_dict() if model.generation_config is not None else {}
    try:
        SamplingParams(**SamplingDefaults(*map(said.get, SamplingDefaults._fields)).fill(None, None, None, None))
    except (InvalidArgumentError, TypeError):
        return NO_DEFAULTS
    return SamplingDefaults(*map(said.get, SamplingDefaults._fields))


def eos_token_ids_of(model: Any) -> frozenset[int]:
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)

"""Sizes that determine a model's memory: its number of parameters, and the KV of each layer per token.

Grouped-query attention keeps K and V of its kv heads. Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) needs only
the latent, and the rotary part of the key that all heads share: one head, without V. A layer with a sliding window needs only
the window's tokens. A layer of linear attention keeps a state of constant size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixkv.planner.config import ModelConfig
from radixkv.planner.dtypes import KVDtype
from radixkv.planner.errors import PlanError
from radixkv.planner.parameters import count_parameters

__all__ = ["LayerKV", "ModelShape"]


class LayerKV(NamedTuple):
    """KV of one layer for a sequence.

    `num_heads` vectors of `key_dim` and of `value_dim` elements per token, of the last `window` tokens (None: all), and
    `state_bytes` at any length. A `value_dim` of 0: the key's vector serves as both, but for its last `rest_dim` elements,
    which are rounded as a vector of their own.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    state_bytes: int = 0
    rest_dim: int = 0

    @property
    def is_latent(self) -> bool:
        """Whether one vector serves as key and value."""
        return self.key_dim > 0 and self.value_dim == 0

    def token_bytes(self, dtype: KVDtype) -> int:
        """Bytes of one token."""
        return self.num_heads * sum(map(dtype.vector_bytes, self.vector_dims))

    @property
    def vector_dims(self) -> tuple[int, ...]:
        """Elements of a head's vectors."""
        return self.key_dim - self.rest_dim, self.rest_dim, self.value_dim


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model.

    Attributes:
        name: as the user gave it.
        model_type: the configuration's name of the architecture.
        num_parameters: elements of all its tensors, tied ones once.
        layers: the least KV that each layer must keep.
        stored_layers: KV of each layer in this worker's pool, which holds the inputs of transformers' attention interface: all
            tokens of a window's layer, and latents expanded to every head if the worker does not know the architecture's
            attention.
        num_query_heads, hidden_size, vocab_size: as named.
        feed_forward_size: intermediate elements of a token, over its experts.
        max_length: the model's positions, in tokens; None if not configured.
        dtype: of its weights as published.
        is_tied: whether its output head is its embeddings.
    """

    name: str
    model_type: str
    num_parameters: int
    layers: tuple[LayerKV, ...]
    stored_layers: tuple[LayerKV, ...]
    num_query_heads: int
    hidden_size: int
    feed_forward_size: int
    vocab_size: int
    max_length: int | None
    dtype: str
    is_tied: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> ModelShape:
        """Read the shape from a configuration. Milliseconds for known architectures. Seconds for any other that transformers
        has: it is built there without memory for its weights.

        Raises:
            PlanError: a field is missing, or the architecture is unknown or cannot be planned.
        """
        values, num_parameters = count_parameters(config)
        try:
            layers, stored = _read_layers(values)
            num_layers = len(layers)
            return cls(
                name=config.name,
                model_type=str(values["model_type"]),
                num_parameters=num_parameters,
                layers=layers,
                stored_layers=stored,
                num_query_heads=_int(values, "num_attention_heads", "n_head"),
                hidden_size=_int(values, "hidden_size", "n_embd"),
                feed_forward_size=_feed_forward_size(values) if num_layers else 0,
                vocab_size=_int(values, "vocab_size"),
                max_length=_max_length(values),
                dtype=_dtype(config.values, values),
                is_tied=bool(values.get("tie_word_embeddings")),
            )
        except KeyError as error:
            raise PlanError(f"the configuration of {config.name} has no {error.args[0]}") from None


def _int(values: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if values.get(name) is not None:
            return int(values[name])
    raise KeyError(names[0])


def _max_length(values: Mapping[str, Any]) -> int | None:
    length = values.get("max_position_embeddings") or values.get("n_positions")
    return int(length) if length else None


def _dtype(*configs: Mapping[str, Any]) -> str:
    for values in configs:
        dtype = values.get("dtype") or values.get("torch_dtype")
        if dtype:
            return str(dtype).removeprefix("torch.")
    return "bfloat16"


def _feed_forward_size(values: Mapping[str, Any]) -> int:
    hidden = _int(values, "hidden_size", "n_embd")
    dense = values.get("intermediate_size") or values.get("n_inner") or 4 * hidden
    per_token = values.get("num_experts_per_tok") or 0
    expert = values.get("moe_intermediate_size") or values.get("intermediate_size") or 0
    return max(int(dense), (int(per_token) + int(values.get("n_shared_experts") or 0)) * int(expert))


def _read_layers(values: Mapping[str, Any]) -> tuple[tuple[LayerKV, ...], tuple[LayerKV, ...]]:
    """Least and stored KV by layer."""
    if values.get("global_head_dim"):
        raise PlanError(f"{values['model_type']} has layers with heads of several widths, which cannot be planned")
    num_layers = _int(values, "num_hidden_layers", "n_layer")
    num_heads = _int(values, "num_attention_heads", "n_head")
    hidden_size = _int(values, "hidden_size", "n_embd")
    num_sharing = int(values.get("num_kv_shared_layers") or 0)  # the last layers read KV of earlier ones
    least: list[LayerKV] = []
    stored: list[LayerKV] = []
    for index, kind in enumerate(_layer_kinds(values, num_layers)):
        window = None
        if kind == "sliding_attention":
            window = _int(values, "sliding_window")
        elif kind == "chunked_attention":
            window = _int(values, "attention_chunk_size")
        if kind == "linear_attention":
            layers = (LayerKV(0, 0, 0, None, _linear_state_bytes(values)),) * 2
        elif index >= num_layers - num_sharing:
            layers = (LayerKV(0, 0, 0),) * 2
        elif values.get("kv_lora_rank"):
            rotary, latent = _int(values, "qk_rope_head_dim"), _int(values, "kv_lora_rank")
            row = LayerKV(1, latent + rotary, 0, rest_dim=rotary)
            key_dim, value_dim = _int(values, "qk_nope_head_dim") + rotary, _int(values, "v_head_dim")
            is_kept_as_row = values["model_type"] in _KEPT_AS_LATENTS
            layers = row._replace(window=window), row if is_kept_as_row else LayerKV(num_heads, key_dim, value_dim)
        else:
            head_dim = int(values.get("head_dim") or hidden_size // num_heads)
            num_kv_heads = int(values.get("num_key_value_heads") or num_heads)
            layers = LayerKV(num_kv_heads, head_dim, head_dim, window), LayerKV(num_kv_heads, head_dim, head_dim)
        least.append(layers[0])
        stored.append(layers[1])
    return tuple(least), tuple(stored)


_KEPT_AS_LATENTS = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"})
"""Architectures whose attention the worker knows, by its classes in `worker.model.mla`."""

_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")


def _layer_kinds(values: Mapping[str, Any], num_layers: int) -> list[str]:
    kinds = values.get("layer_types")
    if kinds is None:
        has_window = bool(values.get("sliding_window")) and values.get("use_sliding_window", True)
        first = int(values.get("max_window_layers") or 0) if "use_sliding_window" in values else 0
        return [_KINDS[bool(has_window and index >= first)] for index in range(num_layers)]
    for kind in kinds:
        if kind not in _KINDS:
            raise PlanError(f"{values['model_type']} has layers of kind {kind}, whose memory cannot be planned")
    if len(kinds) != num_layers:
        raise PlanError(f"the configuration names {num_layers} layers and the kinds of {len(kinds)}")
    return list(kinds)


def _linear_state_bytes(values: Mapping[str, Any]) -> int:
    """A gated delta rule's state: per value head a matrix of key by value width in fp32, and the last inputs of a short
    convolution in two bytes each.
    """
    num_keys, num_values = _int(values, "linear_num_key_heads"), _int(values, "linear_num_value_heads")
    key_dim, value_dim = _int(values, "linear_key_head_dim"), _int(values, "linear_value_head_dim")
    channels = 2 * num_keys * key_dim + num_values * value_dim
    return 4 * num_values * key_dim * value_dim + 2 * channels * (_int(values, "linear_conv_kernel_dim") - 1)

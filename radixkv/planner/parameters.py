"""Number of a model's parameters: by formula for common open architectures, otherwise by building it in transformers
without memory for its tensors.

The formulas count a checkpoint's tensors, including DeepSeek-V3's router biases, although no gradient trains them. Modules for
predicting several tokens, in some checkpoints, are not counted: serving does not load them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from radixkv.planner.config import ModelConfig
from radixkv.planner.errors import PlanError

__all__ = ["count_parameters"]

_Values = Mapping[str, Any]
_Formula = Callable[[_Values], int]


def count_parameters(config: ModelConfig) -> tuple[_Values, int]:
    """The configuration of the text model, with the fields that sizes are read from, and its number of parameters.

    Raises:
        PlanError: a field is missing; transformers does not know the architecture; or transformers is not installed.
    """
    values = config.values
    count = _FORMULAS.get(str(values.get("model_type")))
    if count is None:
        return _build(config)
    try:
        return values, count(values)
    except KeyError as error:
        raise PlanError(f"the configuration of {config.name} has no {error.args[0]}") from None


def _embeddings(values: _Values) -> int:
    size: int = values["vocab_size"] * values["hidden_size"]
    return size if values.get("tie_word_embeddings") else 2 * size


def _grouped_attention(values: _Values, *, qkv_bias: bool, output_bias: bool, norms_heads: bool = False) -> int:
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    head_dim = values.get("head_dim") or hidden // heads
    queries, keys = heads * head_dim, (values.get("num_key_value_heads") or heads) * head_dim
    count: int = 2 * hidden * (queries + keys)
    count += (queries + 2 * keys if qkv_bias else 0) + (hidden if output_bias else 0)
    return count + (2 * head_dim if norms_heads else 0)


def _gated(hidden: int, intermediate: int, *, bias: bool = False) -> int:
    return 3 * hidden * intermediate + (2 * intermediate + hidden if bias else 0)


def _num_experts(values: _Values) -> int:
    """By the field name of the hub's files, or of files written by transformers."""
    return int(values.get("num_experts") or values["num_local_experts"])


def _is_sparse(values: _Values, layer: int) -> bool:
    """Whether a layer of Qwen's mixtures has experts."""
    step = values.get("decoder_sparse_step", 1)
    return layer not in (values.get("mlp_only_layers") or ()) and (layer + 1) % step == 0


def _dense(values: _Values, *, attention: _Formula, mlp_bias: str = "") -> int:
    """Embeddings, layers of attention, gated MLP and two norms, a last norm."""
    hidden = values["hidden_size"]
    mlp = _gated(hidden, values["intermediate_size"], bias=bool(values.get(mlp_bias)))
    layer = attention(values) + mlp + 2 * hidden
    count: int = _embeddings(values) + values["num_hidden_layers"] * layer + hidden
    return count


def _llama_attention(values: _Values) -> int:
    bias = bool(values.get("attention_bias"))
    return _grouped_attention(values, qkv_bias=bias, output_bias=bias)


def _plain_attention(values: _Values) -> int:
    return _grouped_attention(values, qkv_bias=False, output_bias=False)


def _qwen2_attention(values: _Values) -> int:
    return _grouped_attention(values, qkv_bias=True, output_bias=False)


def _qwen3_attention(values: _Values) -> int:
    bias = bool(values.get("attention_bias"))
    return _grouped_attention(values, qkv_bias=bias, output_bias=bias, norms_heads=True)


def _qwen3_moe(values: _Values) -> int:
    hidden, num_layers, num_experts = values["hidden_size"], values["num_hidden_layers"], _num_experts(values)
    experts = num_experts * (_gated(hidden, values["moe_intermediate_size"]) + hidden)
    dense = _gated(hidden, values["intermediate_size"])
    mlps = sum(experts if _is_sparse(values, layer) else dense for layer in range(num_layers))
    return int(_embeddings(values) + num_layers * (_qwen3_attention(values) + 2 * hidden) + mlps + hidden)


def _mixtral(values: _Values) -> int:
    hidden, num_experts = values["hidden_size"], _num_experts(values)
    experts = num_experts * (_gated(hidden, values["intermediate_size"]) + hidden)
    layer = _plain_attention(values) + experts + 2 * hidden
    return int(_embeddings(values) + values["num_hidden_layers"] * layer + hidden)


def _deepseek_v3(values: _Values) -> int:
    hidden, heads, num_layers = values["hidden_size"], values["num_attention_heads"], values["num_hidden_layers"]
    latent, rotary, plain = values["kv_lora_rank"], values["qk_rope_head_dim"], values["qk_nope_head_dim"]
    value_dim, query_rank = values["v_head_dim"], values.get("q_lora_rank")
    queries = heads * (plain + rotary)
    attention = (hidden * query_rank + query_rank + query_rank * queries) if query_rank else hidden * queries
    attention += hidden * (latent + rotary) + latent + latent * heads * (plain + value_dim)
    attention += heads * value_dim * hidden
    if values.get("attention_bias"):
        attention += (query_rank or 0) + (latent + rotary) + hidden
    expert = _gated(hidden, values["moe_intermediate_size"])
    num_experts = values["n_routed_experts"]
    sparse = num_experts * (expert + hidden + 1) + values["n_shared_experts"] * expert  # + 1: the router's bias
    num_dense = min(values.get("first_k_dense_replace", 0), num_layers)
    mlps = num_dense * _gated(hidden, values["intermediate_size"]) + (num_layers - num_dense) * sparse
    return int(_embeddings(values) + num_layers * (attention + 2 * hidden) + mlps + hidden)


_FORMULAS: Mapping[str, _Formula] = {
    "llama": lambda values: _dense(values, attention=_llama_attention, mlp_bias="mlp_bias"),
    "mistral": lambda values: _dense(values, attention=_plain_attention),
    "qwen2": lambda values: _dense(values, attention=_qwen2_attention),
    "qwen3": lambda values: _dense(values, attention=_qwen3_attention),
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "deepseek_v3": _deepseek_v3,
}
"""By the configuration's `model_type`."""


def _build(config: ModelConfig) -> tuple[_Values, int]:
    """transformers' view of the configuration, and its model's tensors counted."""
    model_type = str(config.values.get("model_type"))
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging
    except ModuleNotFoundError as error:
        raise PlanError(
            f"planning for the architecture {model_type} needs {error.name}: pip install 'radixkv[worker]'"
        ) from None
    reporter: Any = logging  # its functions have no types
    verbosity = reporter.get_verbosity()
    reporter.set_verbosity_error()
    try:
        values = {name: value for name, value in config.values.items() if name != "model_type"}
        known: Any = AutoConfig.for_model(model_type, **values)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(known)  # type: ignore[no-untyped-call]  # it ships untyped
    except Exception as error:  # any error of transformers for a configuration it cannot build
        reason = " ".join(str(error).split())[:200]
        raise PlanError(f"transformers can build no language model of {config.name} ({model_type}): {reason}") from None
    finally:
        reporter.set_verbosity(verbosity)
    stored = model.state_dict().keys()
    num_elements = sum(parameter.numel() for parameter in model.parameters())
    num_elements += sum(buffer.numel() for name, buffer in model.named_buffers() if name in stored)
    return known.get_text_config().to_dict(), num_elements

"""GGUF files of tiny models, written as llama.cpp's converter lays them out, with a byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny_models
import torch
import transformers as tf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "qwen3_moe": "qwen3moe",
}
"""Families whose files transformers reads, and what they are called in there."""

_CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 8},  # the files of all sizes but one mean the width of a head
    "gemma3": {
        "query_pre_attn_scalar": 8,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
}
"""What their files cannot tell otherwise."""

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["1 2", "t h", "th e", "Ġ a", "Ġ the", "i n", "h e"]
TOKENS = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

Kind = gguf.GGMLQuantizationType
Facts = Mapping[str, Any]


def can_round(tensor: torch.Tensor) -> bool:
    """Whether a type of blocks of 32 can hold a tensor."""
    return tensor.dim() == 2 and tensor.shape[1] % 32 == 0


def round_weights(model: Any, kinds: Callable[[str], Kind]) -> None:
    """Put in place of every weight what the type of its name makes of it."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if can_round(parameter):
                kind = kinds(name)
                rounded = gguf.dequantize(gguf.quantize(parameter.detach().numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(rounded))


def tiny_model(family: str, **changes: Any) -> Any:
    """A random model of `family` over `TOKENS`."""
    torch.manual_seed(3)
    config = tiny_models.CONFIGS[family]()
    config.vocab_size = len(TOKENS)
    for name, value in (_CHANGES.get(family, {}) | changes).items():
        setattr(config, name, value)
    model: Any = tf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
            else:
                parameter.normal_(1.0, 0.1)
    return model


def reference_tokenizer(pre_tokenizer: Any) -> Tokenizer:
    """The tokenizer whose tokens and merges the files have."""
    vocab = {token: index for index, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def write_gguf(
    model: Any,
    family: str,
    path: Path,
    *,
    split: str | None = "gpt-2",
    facts: Facts | None = None,
    tensors: Facts | None = None,
    kinds: Callable[[str], Kind] | None = None,
) -> None:
    """The model as a GGUF file, `facts` and `tensors` beside what it says; matrices that can be are of the type that
    `kinds` says of their names in the model.
    """
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, architecture)
    _write_facts(writer, model.config, architecture)
    for key, value in (facts or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(key.replace("ARCH", architecture), value)
    _write_tokenizer(writer, split)
    for own_name, name, tensor in _tensors(model, architecture):
        array = np.ascontiguousarray(tensor.float().numpy())
        if kinds and can_round(tensor):
            kind = kinds(own_name)
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_facts(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "attn_logit_softcapping", None):
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _write_tokenizer(writer: gguf.GGUFWriter, split: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    if split is not None:
        writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(TOKENS) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _tensors(model: Any, architecture: str) -> list[tuple[str, str, torch.Tensor]]:
    config = model.config
    [arch] = [key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    written: list[tuple[str, str, torch.Tensor]] = []
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen:  # tied
            continue
        seen.add(tensor.data_ptr())
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = tensor.chunk(2, dim=1)
            written += [
                (name, f"blk.{layer}.ffn_gate_exps.weight", gate),
                (name, f"blk.{layer}.ffn_up_exps.weight", up),
            ]
            continue
        base, dot, suffix = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, ".", "weight")
        found = f"{names.get_name(base)}{dot}{suffix}"
        written.append((name, found, _as_written(tensor, found, base, architecture, config)))
    return written


def _as_written(tensor: torch.Tensor, name: str, module: str, architecture: str, config: Any) -> torch.Tensor:
    """A weight in the order and of the meaning that the files have."""
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        return tensor.view(heads, 2, -1, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)
    if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
        return tensor + 1
    is_convolution = architecture == "gpt2" and module.endswith(("c_attn", "c_proj", "c_fc"))
    return tensor.T if is_convolution and tensor.dim() > 1 else tensor

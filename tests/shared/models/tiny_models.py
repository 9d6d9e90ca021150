"""Tiny random transformers models, built from configs and saved to a folder: one per trait that the worker must
honour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as tf

VOCAB_SIZE = 97
NUM_LAYERS = 2

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_WITHOUT_HEAD_DIM = {key: value for key, value in _COMMON.items() if key != "head_dim"}

_LATENTS: dict[str, Any] = {
    **_COMMON,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,  # as head_dim, which the rotary embedding reads
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
_EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def _latent_attention() -> Any:
    return tf.DeepseekV3Config(**_LATENTS, q_lora_rank=16, first_k_dense_replace=NUM_LAYERS)


def _latent_attention_scaled_by_yarn() -> Any:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    rope |= {"original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
    return tf.DeepseekV3Config(**_LATENTS, **_EXPERTS, q_lora_rank=None, rope_parameters=rope)


def _window_and_softcap() -> Any:
    # Tied weights and soft caps make tiny Gemmas dull; small caps and a sharp query scale make them felt in the logits.
    return tf.Gemma2Config(
        **_COMMON, sliding_window=8, attn_logit_softcapping=0.7, final_logit_softcapping=5.0, query_pre_attn_scalar=1
    )


def _window_and_full_by_list() -> Any:
    layers = ["sliding_attention", "full_attention"]
    return tf.Gemma3TextConfig(**_COMMON, sliding_window=8, layer_types=layers, query_pre_attn_scalar=1)


def _full_then_window() -> Any:
    return tf.Qwen2Config(**_WITHOUT_HEAD_DIM, use_sliding_window=True, sliding_window=8, max_window_layers=1)


def _sinks() -> Any:
    return tf.GptOssConfig(
        **_COMMON,
        sliding_window=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )


CONFIGS = {
    "llama": lambda: tf.LlamaConfig(**_COMMON),
    "qwen2": lambda: tf.Qwen2Config(**_WITHOUT_HEAD_DIM),
    "qwen2_mixed": _full_then_window,
    "qwen3": lambda: tf.Qwen3Config(**_COMMON),
    "mistral": lambda: tf.MistralConfig(**_COMMON, sliding_window=8),
    "gemma2": _window_and_softcap,
    "gemma3": _window_and_full_by_list,
    "phi": lambda: tf.PhiConfig(**_WITHOUT_HEAD_DIM, partial_rotary_factor=0.5),
    "phi3": lambda: tf.Phi3Config(**_WITHOUT_HEAD_DIM),
    "mixtral": lambda: tf.MixtralConfig(**_COMMON, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(
        **_COMMON, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True
    ),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=VOCAB_SIZE, n_embd=32, n_layer=NUM_LAYERS, n_head=4, n_positions=256, eos_token_id=2, bos_token_id=1
    ),
    "deepseek_v2": lambda: tf.DeepseekV2Config(**_LATENTS, **_EXPERTS, q_lora_rank=None),
    "deepseek_v2_low_rank": lambda: tf.DeepseekV2Config(**_LATENTS, q_lora_rank=16, first_k_dense_replace=NUM_LAYERS),
    "deepseek_v3": _latent_attention,
    "deepseek_v3_yarn": _latent_attention_scaled_by_yarn,
    "glm4_moe_lite": lambda: tf.Glm4MoeLiteConfig(**_LATENTS, **_EXPERTS, q_lora_rank=16),
    "minicpm3": lambda: tf.MiniCPM3Config(**_LATENTS, q_lora_rank=16),
    "youtu": lambda: tf.YoutuConfig(**_LATENTS, q_lora_rank=16),
    "axk1": lambda: tf.AXK1Config(**_LATENTS, **_EXPERTS, q_lora_rank=16),  # latents of a kind that the worker expands
    "gpt_oss": _sinks,
}

REFUSED_CONFIGS = {
    "falcon": lambda: tf.FalconConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=NUM_LAYERS, num_attention_heads=4, eos_token_id=2
    ),
    "bloom": lambda: tf.BloomConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=NUM_LAYERS, n_head=4, eos_token_id=2
    ),
    "mamba": lambda: tf.MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=NUM_LAYERS, state_size=4),
    "t5": lambda: tf.T5Config(vocab_size=VOCAB_SIZE, d_model=32, d_ff=48, num_layers=NUM_LAYERS, num_heads=4, d_kv=8),
}


WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


def random_model(config: Any, seed: int = 0) -> Any:
    """A random model of a configuration, in float32."""
    torch.manual_seed(seed)
    make = tf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else tf.AutoModelForCausalLM
    model: Any = make.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:  # wide enough that attention is no average and logits differ
                parameter.normal_(0.0, 0.25)
    return model


def save_model(family: str, folder: Path, seed: int = 0) -> str:
    """Write a random model of `family` into `folder` and return the folder as `ModelRunner` takes it."""
    random_model((CONFIGS | REFUSED_CONFIGS)[family](), seed).save_pretrained(folder)
    return str(folder)


def save_wide(family: str, folder: Path, **changes: Any) -> str:
    """A random model of the family, wide enough for int8 weights."""
    torch.manual_seed(0)
    config = CONFIGS[family]()
    for name, value in {**WIDE, **changes}.items():
        if name != "head_dim" or family != "qwen2":
            setattr(config, name, value)
    model: Any = tf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.dim() > 1 else 1.0, 0.15)
    model.save_pretrained(folder)
    return str(folder)


def reference_model(folder: str) -> Any:
    """transformers' own model, eager attention, fp32."""
    return tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logits(model: Any, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits of every position, [len(token_ids), vocab], without any cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
    return logits


def reference_replies(model: Any, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[list[int]]:
    """What transformers' own `generate` continues a prompt with, greedily or as `options` say, whatever tokens end a reply."""
    ids = torch.tensor([list(prompt)])
    greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **(greedy | options))
    replies: list[list[int]] = out[:, len(prompt) :].tolist()
    return replies

"""Shapes of published models, so that their plans need neither a network nor their files.

Each is the part of a model's public ``config.json`` on the Hugging Face hub that determines sizes. Reports with the same
values:

- Llama 2 7B: Touvron et al. 2023, arXiv 2307.09288.
- Llama 3 8B, 70B, 405B: "The Llama 3 Herd of Models", arXiv 2407.21783, table 3.
- Mistral 7B: Jiang et al. 2023, arXiv 2310.06825, table 1 (v0.1, with its window of 4,096; v0.2 has none).
- DeepSeek-V3: arXiv 2412.19437, section 4.2: 61 layers of 128 heads, KV latents of 512, a shared rotary key of 64; 671B in all.
- Qwen2.5 and Qwen3: arXiv 2412.15115 and 2505.09388, table 1 of each.
- SmolLM2: arXiv 2502.02737.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PUBLISHED"]


def _dense(
    model_type: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    heads: tuple[int, int, int],
    max_length: int,
    *,
    tied: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """`heads`: query heads, kv heads, width of a head."""
    return {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "max_position_embeddings": max_length,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **more,
    }


_DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": _dense("llama", 49152, 576, 1536, 30, (9, 3, 64), 8192, tied=True),
    "smollm2-360m": _dense("llama", 49152, 960, 2560, 32, (15, 5, 64), 8192, tied=True),
    "smollm2-1.7b": _dense("llama", 49152, 2048, 8192, 24, (32, 32, 64), 8192, tied=True),
    "llama-2-7b": _dense("llama", 32000, 4096, 11008, 32, (32, 32, 128), 4096),
    "llama-3-8b": _dense("llama", 128256, 4096, 14336, 32, (32, 8, 128), 8192),
    "llama-3-70b": _dense("llama", 128256, 8192, 28672, 80, (64, 8, 128), 8192),
    "llama-3.1-8b": _dense("llama", 128256, 4096, 14336, 32, (32, 8, 128), 131072),
    "llama-3.1-70b": _dense("llama", 128256, 8192, 28672, 80, (64, 8, 128), 131072),
    "llama-3.1-405b": _dense("llama", 128256, 16384, 53248, 126, (128, 8, 128), 131072),
    "mistral-7b": _dense("mistral", 32000, 4096, 14336, 32, (32, 8, 128), 32768, sliding_window=None),
    "mistral-7b-v0.1": _dense("mistral", 32000, 4096, 14336, 32, (32, 8, 128), 32768, sliding_window=4096),
    "qwen2.5-72b": _dense("qwen2", 152064, 8192, 29568, 80, (64, 8, 128), 131072, use_sliding_window=False),
    "qwen3-0.6b": _dense("qwen3", 151936, 1024, 3072, 28, (16, 8, 128), 40960, tied=True),
    "qwen3-8b": _dense("qwen3", 151936, 4096, 12288, 36, (32, 8, 128), 40960),
    "qwen3-32b": _dense("qwen3", 151936, 5120, 25600, 64, (64, 8, 128), 40960),
    "qwen3-30b-a3b": _dense(
        "qwen3_moe",
        151936,
        2048,
        6144,
        48,
        (32, 4, 128),
        40960,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
    ),
    "deepseek-v3": _DEEPSEEK_V3,
}
"""Configurations by name, in lower case."""

"""Paged attention and block movement over a KV cache: compiled C++ or plain torch on a CPU, Triton on CUDA.

    caches = [allocate_kv(num_blocks, block_size, num_kv_heads, head_dim, dtype, device) for _ in layers]
    batch = plan_attention(query_lens, context_lens, block_tables, block_size, device)       # once per step
    write_kv(k, v, caches[layer], slot_mapping)                                              # in each layer
    out = paged_attention(q, caches[layer], batch, scale=head_dim**-0.5)
    copy_blocks(caches, src, dst, num_tokens)                                                # copy-on-write

`allocate_kv(..., format=KVFormat.INT8)` keeps K and V in fewer bits; nothing else changes for the caller. Latent attention
keeps one row per token, `allocate_latents`, written by `write_latents`; all else is the same.

Each family is one file with its formula, its plain reference, its kernel and its wrapper.
"""

from radixkv.kernels.attention import paged_attention
from radixkv.kernels.batch import AttentionBatch, Scratch, plan_attention
from radixkv.kernels.kv.block_copy import copy_blocks
from radixkv.kernels.kv.host_blocks import HostBlocks
from radixkv.kernels.kv.kv_cache import KVCache, allocate_kv, allocate_latents
from radixkv.kernels.kv.kv_format import KVFormat
from radixkv.kernels.kv.kv_write import write_kv, write_latents

__all__ = [
    "AttentionBatch",
    "HostBlocks",
    "KVCache",
    "KVFormat",
    "Scratch",
    "allocate_kv",
    "allocate_latents",
    "copy_blocks",
    "paged_attention",
    "plan_attention",
    "write_kv",
    "write_latents",
]

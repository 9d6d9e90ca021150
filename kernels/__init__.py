"""Paged attention and block movement over a KV cache: compiled C++ or plain torch on a CPU, Triton on CUDA.

    caches = [allocate_kv(num_blocks, block_size, num_kv_heads, head_dim, dtype, device) for _ in ("k", "v")]
    batch = plan_attention(query_lens, context_lens, block_tables, block_size, device)       # once per step
    write_kv(k, v, *caches, slot_mapping)                                                    # in each layer
    out = paged_attention(q, *caches, batch, scale=head_dim**-0.5)
    copy_blocks(caches, src, dst, num_tokens)                                                # copy-on-write

Each family is one file with its formula, its plain reference, its kernel and its wrapper.
"""

from radixkv.kernels.attention import paged_attention
from radixkv.kernels.batch import AttentionBatch, Scratch, plan_attention
from radixkv.kernels.block_copy import copy_blocks
from radixkv.kernels.kv_write import write_kv
from radixkv.kernels.layout import allocate_kv

__all__ = [
    "AttentionBatch",
    "Scratch",
    "allocate_kv",
    "copy_blocks",
    "paged_attention",
    "plan_attention",
    "write_kv",
]

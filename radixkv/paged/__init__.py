"""Branching for plain transformers, without a worker: K and V in blocks, and `generate` over a radix tree.

    from radixkv import PrefixCache
    from radixkv.paged import PagedKV, generate

    cache = PrefixCache(num_blocks=1024, block_size=16)        # or a holder: radixkv.connect(address, PoolShape(1024, 16))
    kv = PagedKV(model, num_blocks=1024, block_size=16)
    reply = generate(model, tokenizer, "Once upon a time", cache, kv, max_new_tokens=64)
    print(reply.text, reply.num_cached_tokens)

    acquire ── carry_out(ops) ── gather ──▶ past_key_values ── model.generate ──▶ scatter ── insert ──▶ ... ── release

The model computes and samples with its own code, in transformers' own layout. The blocks hold K and V between calls, and each
call copies the cached prefix out of them. In float32, greedy answers are to the token those of `model.generate` on the whole
prompt. Logits are to the bit those of the model over a `DynamicCache()` filled in the same chunks.

    kv          the pool: gather, scatter, block ops
    generation  prompts, drafts, publishing
"""

from radixkv.paged.generation import Reply, generate, generate_batch
from radixkv.paged.kv import PagedKV

__all__ = ["PagedKV", "Reply", "generate", "generate_batch"]

"""`radixkv.paged.generate` with its tree in a cache service: the same calls, the same tokens."""

from __future__ import annotations

import torch
from tiny_models import CONFIGS, random_model, reference_replies

from radixkv import PoolShape, connect
from radixkv.paged import PagedKV, generate
from radixkv.service import ServiceThread


def test_a_remote_holder_serves_turns_edits_and_drafts(service: ServiceThread) -> None:
    model = random_model(CONFIGS["gemma3"]())
    kv = PagedKV(model, 64)
    options = {"max_new_tokens": 20, "temperature": 0, "eos_token_id": None, "pad_token_id": 0}
    prompt = torch.arange(3, 43).tolist()
    with connect(service.addresses[0], PoolShape(64)) as holder:
        cold = generate(model, None, prompt, holder, kv, **options)
        warm = generate(model, None, prompt, holder, kv, **options)
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 39)
        assert cold.token_ids == warm.token_ids == reference_replies(model, prompt, 20)
        edited = [*prompt[:25], 5, 6, 7]
        drafts = generate(model, None, edited, holder, kv, n=3, **options)
        assert drafts.num_cached_tokens == 25
        assert drafts.token_ids == 3 * reference_replies(model, edited, 20)
        holder.check()
        assert holder.stats().num_sequences == 0

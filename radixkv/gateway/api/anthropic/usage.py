"""`usage` of the Messages API: prompt tokens read from the cache, computed and pinned, or only computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.core.validation import PIN_CLASSES
from radixkv.gateway.turns.replies import cost_of
from radixkv.generation.request import PrefixPin
from radixkv.generation.stream import Usage

__all__ = ["usage_of"]


def usage_of(
    usage: Usage, pins: Sequence[PrefixPin] = (), pinned: Sequence[int] = (), num_thinking_tokens: int = 0
) -> dict[str, Any]:
    """Count every prompt token once: as read, else as pinned, by the longest pin over it, else as input.

    Args:
        usage: of the generation.
        num_thinking_tokens: among the generated tokens.
        pins: as requested, shortest first. pinned: tokens that each protects, 0 where it was left out.
    """
    created = dict.fromkeys(PIN_CLASSES.values(), 0)
    end = usage.num_cached_tokens
    held = [PrefixPin(num_tokens, pin.ttl_s) for pin, num_tokens in zip(pins, pinned, strict=False) if num_tokens]
    for index, pin in enumerate(held):
        created[max(each.ttl_s for each in held[index:])] += max(0, pin.num_tokens - end)
        end = max(end, pin.num_tokens)
    num_created = sum(created.values())
    return {
        "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens - num_created,
        "cache_creation_input_tokens": num_created,
        "cache_read_input_tokens": usage.num_cached_tokens,
        "cache_creation": {f"ephemeral_{name}_input_tokens": created[ttl_s] for name, ttl_s in PIN_CLASSES.items()},
        "output_tokens": usage.num_generated_tokens,
        "output_tokens_details": {"thinking_tokens": num_thinking_tokens},
        **cost_of(usage),
    }

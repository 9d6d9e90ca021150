"""Cost of a generation in its tenant's tokens, counted from its events."""

from __future__ import annotations

from radixkv.generation.stream import Completed, Delta, GenerationEvent, Started

__all__ = ["GenerationCost"]


class GenerationCost:
    """Counts one generation.

    Attributes:
        num_prompt_tokens: its prompt. num_generated_tokens: so far; at its end including branches that were not emitted.
    """

    __slots__ = ("num_generated_tokens", "num_prompt_tokens")

    def __init__(self) -> None:
        self.num_prompt_tokens = self.num_generated_tokens = 0

    def add(self, event: GenerationEvent) -> int:
        """Tokens that an event adds to the cost: read and generated; below 0 if more are given back as cached."""
        if isinstance(event, Started):
            self.num_prompt_tokens = len(event.prompt) // 4
            return self.num_prompt_tokens
        if isinstance(event, Delta):
            self.num_generated_tokens += len(event.token_ids)
            return len(event.token_ids)
        if isinstance(event, Completed):
            num_unseen = max(0, event.usage.num_generated_tokens - self.num_generated_tokens)
            self.num_generated_tokens += num_unseen
            return num_unseen - event.usage.num_cached_tokens
        return 0

"""Log probabilities of prompt tokens, gathered from the worker's events and encoded in two formats.

echo and logprobs    OpenAI's: the prompt's tokens come in the choice's `logprobs`, before those of the reply
prompt_logprobs      vLLM's: a list with null and then, for each token, {token id: {logprob, rank, decoded_token}}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.core.tokens import token_array
from radixkv.gateway.backend.backend import Backend
from radixkv.gateway.protocol.errors import invalid
from radixkv.gateway.turns.logprobs import LEAST_LOGPROB, token_text
from radixkv.generation.params import SampledToken
from radixkv.generation.stream import PromptLogprobs

__all__ = ["MAX_VALUES", "ScoredPrompt", "check_size"]

MAX_VALUES = 500_000
"""Log probabilities of prompts per response, those of the most likely tokens included."""


def check_size(num_tokens: int, num_top: int, num_choices: int) -> None:
    """Reject a request for too many log probabilities of prompt tokens.

    Raises:
        ApiError: 400.
    """
    num_values = num_tokens * (1 + num_top) * num_choices
    if num_values > MAX_VALUES:
        message = (
            f"{num_tokens:,} prompt tokens, {num_top} most likely ones at each and {num_choices} choices of each are "
            f"{num_values:,} log probabilities; at most {MAX_VALUES:,} are told in one answer"
        )
        raise invalid(message, "prompt")


class ScoredPrompt:
    """One prompt. Its first token has no predecessor, and so no log probability.

    Args:
        prompt: packed.
    """

    def __init__(self, prompt: bytes) -> None:
        self._token_ids = token_array(prompt)
        self._events: list[PromptLogprobs] = []

    def push(self, event: PromptLogprobs) -> None:
        """Take in the scores of more tokens."""
        self._events.append(event)

    @property
    def is_whole(self) -> bool:
        """Whether all scores are known."""
        return (self._events[-1].end if self._events else 1) >= len(self._token_ids)

    def tokens(self, num_top: int) -> list[SampledToken]:
        """Return all tokens as if sampled, each with `num_top` most likely ones; the first without a log probability."""
        told = [SampledToken(token_id, None, ()) for token_id in self._token_ids[:1]]
        for event in self._events:
            for index, logprob in enumerate(event.logprobs):
                token_id = self._token_ids[event.start + index]
                told.append(SampledToken(token_id, logprob, event.top(index)[:num_top]))
        return told

    async def as_vllm(self, backend: Backend, num_top: int) -> list[dict[str, Any] | None]:
        """Return `prompt_logprobs` of a response: per token its own score and `num_top` most likely ones."""
        tokens = self.tokens(num_top)
        ids = {token.token_id for token in tokens} | {token_id for token in tokens for token_id, _ in token.top}
        spelled = await backend.spell(ids)
        ranks = [rank for event in self._events for rank in event.ranks]
        told: list[dict[str, Any] | None] = [None] if tokens else []
        for token, own_rank in zip(tokens[1:], ranks, strict=True):
            ranked: Sequence[tuple[int, float | None, int]] = (
                (token.token_id, token.logprob, own_rank),
                *((token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(token.top, 1)),
            )
            entries: dict[str, Any] = {}
            for token_id, logprob, rank in ranked:
                text = token_text(spelled[token_id])
                value = max(LEAST_LOGPROB, LEAST_LOGPROB if logprob is None else logprob)
                entries.setdefault(str(token_id), {"logprob": value, "rank": rank, "decoded_token": text})
            told.append(entries)
        return told

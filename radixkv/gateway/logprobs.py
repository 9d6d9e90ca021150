"""Log probabilities in the two shapes that the API has, with the bytes of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from radixkv.gateway.backend import Backend
from radixkv.worker.sampling import SampledToken

__all__ = ["LEAST_LOGPROB", "chat_logprobs", "completion_logprobs", "token_text"]

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


async def chat_logprobs(backend: Backend, sampled: Sequence[SampledToken]) -> list[dict[str, Any]]:
    """`choices[].logprobs.content` of these tokens."""
    spelled = await _spell(backend, sampled)
    return [
        {
            **_entry(spelled[token.token_id], token.logprob),
            "top_logprobs": [_entry(spelled[token_id], logprob) for token_id, logprob in token.top],
        }
        for token in sampled
    ]


async def completion_logprobs(backend: Backend, sampled: Sequence[SampledToken], offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of completions; null of a token that stands behind nothing.

    Args:
        offset: where in the text the first token begins, in characters.
    """
    spelled = await _spell(backend, sampled)
    texts = [token_text(spelled[token.token_id]) for token in sampled]
    offsets = [offset]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": texts,
        "token_logprobs": [None if token.logprob is None else _number(token.logprob) for token in sampled],
        "top_logprobs": [
            None
            if token.logprob is None
            else {token_text(spelled[i]): _number(logprob) for i, logprob in reversed(token.top)}
            for token in sampled
        ],
        "text_offset": offsets[:-1],
    }


async def _spell(backend: Backend, sampled: Iterable[SampledToken]) -> dict[int, bytes]:
    ids = {token.token_id for token in sampled} | {token_id for token in sampled for token_id, _ in token.top}
    return await backend.spell(ids)


def _entry(spelled: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token_text(spelled), "logprob": _number(logprob), "bytes": list(spelled)}


def token_text(spelled: bytes) -> str:
    """As text; a piece of a character as the API writes it: ``bytes:\\xe2\\x82``."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _number(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(LEAST_LOGPROB, logprob)

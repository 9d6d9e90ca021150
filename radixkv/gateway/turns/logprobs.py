"""Log probabilities in the two shapes of the API, with the bytes of each token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from radixkv.gateway.backend.backend import Backend
from radixkv.generation.params import SampledToken

__all__ = ["LEAST_LOGPROB", "chat_logprobs", "completion_logprobs", "token_text"]

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


async def chat_logprobs(
    backend: Backend, sampled: Sequence[SampledToken], *, by_id: bool = False
) -> list[dict[str, Any]]:
    """Return `choices[].logprobs.content` of these tokens; `by_id`: each is named ``token_id:17``."""
    spelled = await _spell(backend, sampled, by_id)
    return [
        {
            **_entry(spelled[token.token_id], token.logprob),
            "top_logprobs": [_entry(spelled[token_id], logprob) for token_id, logprob in token.top],
        }
        for token in sampled
    ]


async def completion_logprobs(
    backend: Backend, sampled: Sequence[SampledToken], offset: int, *, by_id: bool = False
) -> dict[str, Any]:
    """Return `choices[].logprobs` of completions; null for a token without a predecessor.

    Args:
        backend: the worker.
        sampled: the tokens.
        offset: where the first of them begins in the text, in characters.
        by_id: each is named ``token_id:17``.
    """
    spelled = await _spell(backend, sampled, by_id)
    offsets = [offset]
    for token in sampled:
        offsets.append(offsets[-1] + len(token_text(spelled[token.token_id].text)))
    return {
        "tokens": [spelled[token.token_id].name for token in sampled],
        "token_logprobs": [None if token.logprob is None else _number(token.logprob) for token in sampled],
        "top_logprobs": [
            None if token.logprob is None else {spelled[i].name: _number(logprob) for i, logprob in reversed(token.top)}
            for token in sampled
        ],
        "text_offset": offsets[:-1],
    }


class _Spelled(NamedTuple):
    """Name of a token, and its text as bytes."""

    name: str
    text: bytes


async def _spell(backend: Backend, sampled: Iterable[SampledToken], by_id: bool) -> dict[int, _Spelled]:
    ids = {token.token_id for token in sampled} | {token_id for token in sampled for token_id, _ in token.top}
    texts = await backend.spell(ids)
    return {i: _Spelled(f"token_id:{i}" if by_id else token_text(text), text) for i, text in texts.items()}


def _entry(spelled: _Spelled, logprob: float | None) -> dict[str, Any]:
    return {"token": spelled.name, "logprob": _number(logprob), "bytes": list(spelled.text)}


def token_text(spelled: bytes) -> str:
    """Return the token as text; an incomplete character in the API's form: ``bytes:\\xe2\\x82``."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _number(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(LEAST_LOGPROB, logprob)

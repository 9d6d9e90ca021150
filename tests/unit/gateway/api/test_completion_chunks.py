"""Chunks of streamed completions that hold no text."""

from __future__ import annotations

from radixkv.core.tokens import pack_tokens
from radixkv.gateway.api.openai.completion_chunks import CompletionChunks
from radixkv.gateway.turns.options import GenerationOptions


def test_the_scores_of_an_echo_without_text_are_told_and_nothing_where_there_are_none() -> None:
    chunks = CompletionChunks({"id": "cmpl-1"}, GenerationOptions())
    assert chunks.opened(0, "", pack_tokens([1])) == b""
    assert b'"logprobs":{"tokens":["<s>"]}' in chunks.opened(0, "", pack_tokens([1]), {"tokens": ["<s>"]})

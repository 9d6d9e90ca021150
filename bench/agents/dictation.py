"""A generator with scripted replies: an agent's next request depends on the reply before it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams, Generator
from radixkv.generation.stream import GenerationStream
from radixkv.worker.generations.text import ChatText

__all__ = ["Dictated", "odd_ids"]

_SURELY = 100.0


class Dictated:
    """A `Generator` whose replies are given, in front of one that computes them. For one request at a time.

    Attributes:
        asked: the last request, as the gateway passes it to the worker.
        reply_ids: the reply generated for it, with its end.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._sampling: Callable[[SamplingParams], SamplingParams] = lambda sampling: sampling
        self._end_id = generator.model().eos_token_ids[0]
        self.asked: GenerateParams | None = None
        self.reply_ids: list[int] = []

    def dictate(self, token_ids: Sequence[int]) -> None:
        """Give the next reply exactly these tokens, and an end."""
        self.reply_ids = [*token_ids, self._end_id]
        self._sampling = lambda asked: replace(
            asked,
            forced_token_ids=tuple(token_ids),
            max_tokens=len(token_ids) + 2,
            temperature=0.0,
            logit_bias={self._end_id: _SURELY},
            grammar=None,
        )

    def repeat(self, token_id: int, num_tokens: int) -> None:
        """Make the next reply of one token, repeated."""
        self.reply_ids = [token_id] * num_tokens
        self._sampling = lambda asked: replace(
            asked, max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logit_bias={token_id: _SURELY}, grammar=None
        )

    def generate(self, params: GenerateParams) -> GenerationStream:
        self.asked = params
        return self._generator.generate(replace(params, sampling=self._sampling(params.sampling)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def odd_ids(text: ChatText, said: str, source: random.Random) -> list[int]:
    """Token ids of a text as a model may draw them: it is cut anywhere, and each piece is encoded separately."""
    ids: list[int] = []
    at = 0
    while at < len(said):
        length = source.randint(1, 12)
        ids += text.encode(said[at : at + length], special=False)
        at += length
    return ids

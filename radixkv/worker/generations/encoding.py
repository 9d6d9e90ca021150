"""Text to token ids within bounds: too long a text is rejected before it is fully encoded, and callers take turns.

characters   |--- a little more than 2 per token allowed ---|--- as many as should exceed the bound ---|--- ...
encoded      more than 2 tokens per token allowed: rejected     else the next, longer prefix, and at last the whole
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.turns import Turns

__all__ = ["ANYBODY", "Asker", "TextEncoder"]

SHORT_CHARACTERS = 4096
"""Texts up to this length do not wait for longer ones."""

MAX_EXCESS = 2
"""Texts up to this many times too long are counted to their end."""

_MAX_SHRINK = 4
"""Characters that a Unicode normal form may merge into one."""


class Asker(NamedTuple):
    """Caller of an encoding: the namespace whose turn it takes, and the tokens allowed; None: unlimited."""

    namespace: str = DEFAULT_NAMESPACE
    max_tokens: int | None = None


ANYBODY = Asker()


class TextEncoder:
    """Encodes with one tokenizer. Safe to call from any thread.

    Args:
        tokenizer: transformers' tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._encode = _plain_encode(tokenizer)
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        longest = max(map(len, tokenizer.get_vocab()), default=1)
        self._max_token_characters = longest * (1 if normalizer is None else _MAX_SHRINK)
        self._short, self._long = Turns(), Turns()

    def check_length(self, num_characters: int, asker: Asker) -> None:
        """Check that a text of so many characters can fit.

        Raises:
            InvalidArgumentError: even with the vocabulary's longest tokens there are too many.
        """
        if asker.max_tokens is None:
            return
        fewest = -(-num_characters // self._max_token_characters)
        if fewest > asker.max_tokens:
            told = f"{num_characters} characters, which are at least {fewest} tokens"
            raise InvalidArgumentError("prompt", told, f"at most {asker.max_tokens} tokens")

    def encode(self, text: str, special: bool, asker: Asker, backend: Any = None) -> list[int]:
        """Token ids. `special`: with the model's special tokens around a prompt. `backend`: used instead of the tokenizer.

        Raises:
            InvalidArgumentError: there are many more than the caller may have.
        """
        self.check_length(len(text), asker)
        encode = self._encode if backend is None else _of_backend(backend)
        if asker.max_tokens is not None:
            self._refuse_early(text, special, asker, encode, asker.max_tokens)
        return self._in_turn(text, special, asker, encode)

    def _refuse_early(self, text: str, special: bool, asker: Asker, encode: _Encode, max_tokens: int) -> None:
        most = MAX_EXCESS * max_tokens
        length = most + most // 8
        while length < len(text):
            found = len(self._in_turn(text[:length], special, asker, encode))
            if found > most:
                bound = f"at most {max_tokens} tokens"
                raise InvalidArgumentError(
                    "prompt", f"{len(text)} characters, of which {length} are {found} tokens", bound
                )
            length = max(2 * length, length * (most + most // 8) // max(1, found))

    def _in_turn(self, text: str, special: bool, asker: Asker, encode: _Encode) -> list[int]:
        turns = self._short if len(text) <= SHORT_CHARACTERS else self._long
        with turns.take(asker.namespace):
            return encode(text, special)


_Encode = Callable[[str, bool], list[int]]


def _plain_encode(tokenizer: Any) -> _Encode:
    """The tokenizer's encoding, bypassing transformers' wrapper where that adds only state."""
    from transformers import PreTrainedTokenizerFast as Plain

    kind = type(tokenizer)
    if isinstance(tokenizer, Plain) and kind._encode_plus is Plain._encode_plus and kind.__call__ is Plain.__call__:
        backend = tokenizer.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        return _of_backend(backend)

    def encode(text: str, special: bool) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        return ids

    return encode


def _of_backend(backend: Any) -> _Encode:
    def encode(text: str, special: bool) -> list[int]:
        # encode_batch_fast, as it alone releases the GIL.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return ids

    return encode

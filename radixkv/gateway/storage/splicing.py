"""A text that continues a reply, spliced from the reply's own token ids and the new rest.

the reply, as generated     | Hel | lo | , wor | ld |
the text to continue          H e l l o ,   w o r t h
input of the model          | Hel | lo | + ", worth" encoded after them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens, unpack_tokens

__all__ = ["Speller", "Spliced", "splice", "splice_whole"]


class Speller(Protocol):
    """A worker's tokenizer."""

    async def detokenize(self, token_ids: TokensLike) -> str: ...

    async def spell(self, token_ids: Collection[int]) -> Mapping[int, bytes]: ...


class Spliced(NamedTuple):
    """Packed token ids that a text shares with the beginning of a reply, and the rest of the text."""

    tokens: bytes
    rest: str


async def splice(speller: Speller, reply: bytes, text: str, *, trims: bool) -> Spliced:
    """Return the longest prefix of a reply's packed ids that spells a beginning of `text`. O(length).

    Tokens are compared by their bytes: a token without text ends the shared prefix; so does half a character.

    Args:
        speller: the worker's tokenizer.
        reply: packed ids as generated.
        text: the text to continue.
        trims: ignore blanks at the beginning, for a template that strips them.
    """
    ids = unpack_tokens(reply)
    spellings = await speller.spell(set(ids)) if ids else {}
    spelled = [spellings[token_id] for token_id in ids]
    own, wanted = b"".join(spelled), text.encode()
    begin = wanted_begin = 0
    if trims:
        begin, wanted_begin = _num_blanks(own), _num_blanks(wanted)
    elif own[:1] == b" " and wanted[:1] != b" " and not (await speller.detokenize(ids[:1])).startswith(" "):
        begin = 1  # the tokenizer strips the space before a first word
    shared = begin + _num_common(own[begin:], wanted[wanted_begin:])
    num_tokens = end = length = 0
    for number, piece in enumerate(spelled, 1):
        length += len(piece)
        if length > shared or not piece:
            break
        at = length - begin + wanted_begin
        if length > begin and (at == len(wanted) or wanted[at] & 0xC0 != 0x80):
            num_tokens, end = number, at
    return Spliced(reply[: num_tokens * TOKEN_BYTES], wanted[end:].decode())


async def splice_whole(speller: Speller, reply: bytes, text: str, end_ids: Collection[int]) -> Spliced | None:
    """Return all ids of a reply without its end tokens if they decode to exactly `text`, half a last character included."""
    ends = {pack_tokens((end_id,)) for end_id in end_ids}
    while reply[-TOKEN_BYTES:] in ends:
        reply = reply[:-TOKEN_BYTES]
    if not reply or await speller.detokenize(reply) != text:
        return None
    return Spliced(reply, "")


def _num_blanks(text: bytes) -> int:
    return len(text) - len(text.lstrip())


def _num_common(one: bytes, other: bytes) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

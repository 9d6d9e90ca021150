"""A text that continues a reply shares whole characters with it, whatever tokens they were generated as."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from radixkv.core.tokens import TokensLike, pack_tokens, unpack_tokens
from radixkv.gateway.storage.splicing import Spliced, splice

MARK = 256


class ByteTokens:
    """A tokenizer whose ids are bytes, and one mark without text.

    strips: like SentencePiece's, it leaves out the space before a first word.
    """

    def __init__(self, *, strips: bool = False) -> None:
        self._strips = strips

    async def spell(self, token_ids: Collection[int]) -> dict[int, bytes]:
        return {token_id: b"" if token_id == MARK else bytes([token_id]) for token_id in token_ids}

    async def detokenize(self, token_ids: TokensLike) -> str:
        text = bytes(unpack_tokens(pack_tokens(token_ids))).decode(errors="replace")
        return text.removeprefix(" ") if self._strips else text


@pytest.mark.parametrize(
    ("text", "num_shared", "rest"),
    [("né", 3, ""), ("né!", 3, "!"), ("nè", 1, "è"), ("n", 1, ""), ("x", 0, "x"), ("😀", 0, "😀"), ("né😁", 3, "😁")],
)
def test_no_shared_part_ends_within_a_character(text: str, num_shared: int, rest: str) -> None:
    reply = pack_tokens(list("né😀".encode()))
    spliced = asyncio.run(splice(ByteTokens(), reply, text, trims=False))
    assert spliced == Spliced(reply[: 4 * num_shared], rest)


@pytest.mark.parametrize(
    ("reply", "num_shared", "rest"),
    [([*b"hi", MARK], 2, ""), ([*b"h", MARK, *b"i"], 1, "i"), ([MARK, *b"hi"], 0, "hi"), ([*b"hi"], 2, "")],
)
def test_a_token_without_text_ends_the_shared_part(reply: list[int], num_shared: int, rest: str) -> None:
    spliced = asyncio.run(splice(ByteTokens(), pack_tokens(reply), "hi", trims=False))
    assert spliced == Spliced(pack_tokens(reply[:num_shared]), rest)


@pytest.mark.parametrize(
    ("strips", "reply", "text", "num_shared", "rest"),
    [
        (True, " hi", "hi!", 3, "!"),
        (True, " hi", " hi!", 3, "!"),
        (True, " hi", " ", 1, ""),
        (True, "hi", "hi!", 2, "!"),
        (True, " é", "é!", 3, "!"),
        (False, " hi", "hi!", 0, "hi!"),
        (False, "hi", "hi!", 2, "!"),
    ],
)
def test_the_space_of_a_first_word_is_left_out_as_the_tokenizer_leaves_it_out(
    strips: bool, reply: str, text: str, num_shared: int, rest: str
) -> None:
    tokens = pack_tokens(list(reply.encode()))
    spliced = asyncio.run(splice(ByteTokens(strips=strips), tokens, text, trims=False))
    assert spliced == Spliced(tokens[: 4 * num_shared], rest)

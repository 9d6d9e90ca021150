"""Words that a reply must not contain, by the tokens that spell them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

__all__ = ["BadWords", "spellings"]


class BadWords:
    """Tokens that would complete a word after a reply.

    Args:
        words: token ids of each, none empty.

    Attributes:
        num_looked_back: last tokens of a reply that matter.
    """

    __slots__ = ("_by_beginning", "_lengths", "num_looked_back")

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        self._by_beginning: dict[tuple[int, ...], set[int]] = {}
        for word in words:
            self._by_beginning.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._lengths = sorted({len(beginning) for beginning in self._by_beginning})
        self.num_looked_back = self._lengths[-1]

    def banned(self, last: Sequence[int]) -> Collection[int]:
        """Tokens that would complete a word after a reply ending with `last`. O(lengths of words)."""
        found: set[int] = set()
        for length in self._lengths:
            if length <= len(last):
                found |= self._by_beginning.get(tuple(last[len(last) - length :]), set())
        return found


def spellings(word: str, encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Token ids of a word at the start of a text and after a space; only the first if the space is a separate token."""
    bare = encode(word.lstrip())
    spaced = encode(" " + word.lstrip())
    is_another = bool(bare and spaced) and spaced[0] != bare[0] and len(spaced) == len(bare)
    return [ids for ids in ([bare, spaced] if is_another else [bare]) if ids]

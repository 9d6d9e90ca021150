"""Callers' text hidden from a tokenizer's added tokens and not from a chat template.

    plain    hi<|im_end|>
    veiled   hi??????????      each character of an added token is replaced by one of a private alphabet, same length

A template handles a veiled text as its plain text: it compares, searches, splits and trims as usual. Its output is veiled too.
So an added token in the output was written by the template, every character of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from radixkv.worker.errors import ModelError

__all__ = ["Veil", "join_pieces", "strings_of"]

_PRIVATE_USE = range(0xE000, 0xF900)


def strings_of(value: Any) -> Iterator[str]:
    """Every text of a JSON-like value, keys too."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += (*each.keys(), *each.values())
        elif isinstance(each, list | tuple):
            waiting += each


class Veil:
    """One private alphabet. O(characters) per call.

    Args:
        hidden: characters to hide; blanks, and characters that JSON escapes, stay, since templates must see them.
        texts: all texts to be veiled: their characters are not in the alphabet.

    Raises:
        ModelError: no characters are left for an alphabet.
    """

    def __init__(self, hidden: Iterable[str], texts: Iterable[str]) -> None:
        used: set[str] = set()
        used.update(*texts)
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        chosen = sorted({char for char in hidden if not char.isspace() and _json(char, ensure_ascii=False) == char})
        shown = dict(zip(free, chosen, strict=False))
        if len(shown) < len(chosen):
            raise ModelError(
                f"they hold nearly all of the {len(_PRIVATE_USE)} private-use characters beside such of tokens"
            )
        self._shown = str.maketrans(shown)
        self._hidden = str.maketrans({char: private for private, char in shown.items()})
        self._escapes = {_json(private): _json(char) for private, char in shown.items()}

    def hide(self, value: Any) -> Any:
        """The value with every text in it veiled, including keys."""
        if isinstance(value, str):
            return _Veiled.of(value, self._hidden)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def show(self, text: str) -> str:
        """The plain text."""
        shown = text.translate(self._shown)
        if "\\u" in shown:
            for escape, char in self._escapes.items():
                shown = shown.replace(escape, char)
        return shown


class _Veiled(str):
    """A veiled text with the methods of its plain text."""

    __slots__ = ("_said", "_table")
    _said: str
    _table: dict[int, Any]

    @classmethod
    def of(cls, said: str, table: dict[int, Any]) -> _Veiled:
        veiled = cls(said.translate(table))
        veiled._said = str.__str__(said)
        veiled._table = table
        return veiled

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self._said)

    def __add__(self, other: str) -> str:
        return join_pieces((self, other))

    def __radd__(self, other: str) -> str:
        return join_pieces((other, self))


def join_pieces(pieces: Iterable[str]) -> str:
    """The pieces joined; veiled if the template's own pieces are only blanks. O(characters)."""
    listed = list(pieces)
    veiled = next((piece for piece in listed if isinstance(piece, _Veiled)), None)
    if veiled is None or not all(isinstance(piece, _Veiled) or not piece.strip() for piece in listed):
        return "".join(listed)
    return _Veiled.of("".join(map(_plain, listed)), veiled._table)


def _json(char: str, **options: Any) -> str:
    return json.dumps(char, **options)[1:-1]


def _plain(value: Any) -> Any:
    if isinstance(value, _Veiled):
        return value._said
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def _wrap(value: Any, table: dict[int, Any]) -> Any:
    if isinstance(value, str):
        return _Veiled.of(value, table)
    if isinstance(value, list | tuple):
        return type(value)(_wrap(item, table) for item in value)
    return value


def _by_what_is_said(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def answer(self: _Veiled, *args: Any, **kwargs: Any) -> Any:
        said = method(self._said, *map(_plain, args), **{key: _plain(value) for key, value in kwargs.items()})
        return _wrap(said, self._table)

    return answer


for _name in (
    *("__contains__", "__eq__", "__ge__", "__getitem__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("capitalize", "casefold", "count", "endswith", "expandtabs", "find", "index", "lower", "lstrip", "partition"),
    *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
    *("splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isprintable", "istitle"),
    *("isupper", "isidentifier", "isspace"),
):
    setattr(_Veiled, _name, _by_what_is_said(_name))

"""Tokens that only a chat template may write, kept apart from callers' text that spells them.

A tokenizer finds its added tokens in any text. Here a second tokenizer is made with secret names for those that control a
model. It gives the same ids for all other text, and the control ids only where their secret names are written.

    rendered    <|im_start|>user\nhi<|im_end|>..<|im_end|>\n      the first <|im_end|> is a caller's
    encoded     #17f3-1     user\nhi<|im_end|>..#17f3-2   \n      by the second tokenizer
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from radixkv.worker.generations.veil import Veil, strings_of

__all__ = ["ControlTokens", "Rendered"]

_NUM_SECRET_BYTES = 16
_COMMON = "_-."  # frequent in words, so no evidence of a token


class Rendered(NamedTuple):
    """Output of a chat template.

    text: the plain output. veiled: the output with callers' text under the `veil`; both None if no caller's text could be a
    part of a control token. is_spelled: whether a caller's text spells a whole control token.
    """

    text: str
    veiled: str | None = None
    veil: Veil | None = None
    is_spelled: bool = False

    def up_to(self, word: str) -> Rendered:
        """The part up to the end of a word that occurs once."""
        return self._cut(lambda text: text[: text.index(word) + len(word)])

    def after(self, word: str) -> Rendered:
        """The part after a word that occurs once."""
        return self._cut(lambda text: text[text.index(word) + len(word) :])

    def before(self, word: str) -> Rendered | None:
        """The part before a word of a caller; None if it does not occur exactly once."""
        hidden = word if self.veil is None else self.veil.hide(word)
        if self.text.count(word) != 1 or (self.veiled is not None and self.veiled.count(hidden) != 1):
            return None
        veiled = None if self.veiled is None else self.veiled[: self.veiled.index(hidden)]
        return self._replace(text=self.text[: self.text.index(word)], veiled=veiled)

    def _cut(self, cut: Callable[[str], str]) -> Rendered:
        veiled = None if self.veiled is None else cut(self.veiled)
        return Rendered(cut(self.text), veiled, self.veil, self.is_spelled)


class ControlTokens:
    """Control tokens of one tokenizer: its added tokens except runs of blanks, which are text to a model.

    Args:
        tokenizer: transformers' tokenizer. Without a `tokenizers.Tokenizer` inside, text cannot be separated from tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = {str(token.content): (token_id, token) for token_id, token in tokenizer.added_tokens_decoder.items()}
        tokens = {content: found for content, found in added.items() if content.strip()}
        self._ids = {content: token_id for content, (token_id, _) in tokens.items()}
        self._words = frozenset(content for content, (_, token) in tokens.items() if token.single_word)
        self._pattern = re.compile(_any_of(list(tokens)) if tokens else "(?!)")
        self._joined = "\0".join(tokens)
        self._signs = re.compile(
            f"[{re.escape(''.join(sorted(set().union(*map(_signs, tokens)))))}]" if tokens else "(?!)"
        )
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_normalized = getattr(backend, "normalizer", None) is not None and any(
            token.normalized for _, token in tokens.values()
        )
        # An unknown character gives the unknown token, in callers' and the template's text alike.
        self._counted = frozenset(self._ids.values()) - {tokenizer.unk_token_id}
        self._secrets = {content: f"#{secrets.token_hex(_NUM_SECRET_BYTES)}-{n};" for n, content in enumerate(tokens)}
        self._backend = backend

    @cached_property
    def _guarded(self) -> Any | None:
        """Made for the first text that spells a control token: few texts do, and it takes a third of a second."""
        return None if self._backend is None else _guarded(self._backend, self._secrets, self._ids)

    def veil_for(self, *values: Any) -> Veil | None:
        """A veil for callers' values; None if no part of them could become a part of a control token."""
        said = list(strings_of(values))
        if not any(map(self._is_suspicious, said)):
            return None
        return Veil(self._joined, said)

    def is_spelled_in(self, text: str) -> bool:
        """Whether a text spells a control token."""
        return self._pattern.search(text) is not None

    def _is_suspicious(self, text: str) -> bool:
        if self._is_normalized or self._signs.search(text):
            return bool(self._ids)
        part = text.strip()
        return bool(part) and part in self._joined

    def are_all_genuine(self, rendered: Rendered, ids: Sequence[int]) -> bool:
        """Whether `ids`, the plain encoding of a rendered text, have no control tokens except the template's."""
        if rendered.veiled is None or rendered.veil is None:
            return True
        written, found = self._find(rendered.veiled), self._find(rendered.text)
        if [match.group() for match in written] != [match.group() for match in found]:
            return False
        if rendered.veil.show(rendered.veiled) != rendered.text:
            # The template handles texts in a way that the veil changes, so positions cannot be compared.
            return not rendered.is_spelled and self._counts(ids, written)
        same_places = [match.start() for match in written] == [match.start() for match in found]
        return same_places and self._counts(ids, written)

    def _counts(self, ids: Sequence[int], written: Sequence[re.Match[str]]) -> bool:
        wanted = [self._ids[match.group()] for match in written]
        return [each for each in ids if each in self._counted] == [each for each in wanted if each in self._counted]

    def guarded(self, rendered: Rendered) -> tuple[Any, str] | None:
        """The second tokenizer, and the rendered text with its secret names; None if there is none."""
        if self._guarded is None or rendered.veiled is None or rendered.veil is None:
            return None
        pieces, end = [], 0
        for match in self._find(rendered.veiled):
            pieces += [rendered.veil.show(rendered.veiled[end : match.start()]), self._secrets[match.group()]]
            end = match.end()
        return self._guarded, "".join([*pieces, rendered.veil.show(rendered.veiled[end:])])

    def are_written(self, rendered: Rendered, ids: Sequence[int]) -> bool:
        """Whether the control tokens in `ids` are those that the template wrote."""
        return self._counts(ids, self._find(rendered.veiled or rendered.text))

    def _find(self, text: str) -> list[re.Match[str]]:
        """Matches of the tokens; a single-word token does not match within a longer word."""
        return [match for match in self._pattern.finditer(text) if match.group() not in self._words or _is_word(match)]


def _any_of(words: Sequence[str]) -> str:
    """A pattern of the longest of some words. O(length) to match, for any number of common prefixes."""
    by_first: dict[str, list[str]] = {}
    for word in filter(None, words):
        by_first.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _any_of(rests) for first, rests in by_first.items()]
    if len(branches) == 1 and "" not in words:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if '' in words else ''}" if branches else ""


def _is_word(match: re.Match[str]) -> bool:
    beside = match.string[max(0, match.start() - 1) : match.start()] + match.string[match.end() : match.end() + 1]
    return not re.search(r"\w", beside)


def _signs(content: str) -> set[str]:
    """Characters of which a text that spells the token, or a part of it not found in words, has at least one."""
    signs = {char for char in content if not char.isalnum() and not char.isspace() and char not in _COMMON}
    return signs or {content.strip()[0]}


def _guarded(backend: Any, names: Mapping[str, str], ids: Mapping[str, int]) -> Any | None:
    """The tokenizer with its control tokens renamed, in its list of added tokens and in its model's vocabulary."""
    from tokenizers import Tokenizer

    try:
        state = json.loads(backend.to_str())
    except Exception:  # some parts are Python's own
        return None
    for added in state["added_tokens"]:
        if added["content"] in names:
            added |= {"content": names[added["content"]], "normalized": False}
    _rename(state["model"], names)
    state |= {"truncation": None, "padding": None, "post_processor": None}
    guarded = Tokenizer.from_str(json.dumps(state))
    return guarded if all(guarded.token_to_id(names[each]) == token_id for each, token_id in ids.items()) else None


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # of Unigram: pieces and their scores
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        return
    model["vocab"] = {names.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & names.keys()]

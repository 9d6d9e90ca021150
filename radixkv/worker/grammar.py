"""Grammars that a reply's text is held to, token by token, by llguidance.

A grammar is compiled on the thread of whoever asks, once, and kept; each branch then has a matcher of its own, which tells
what may come next and is advanced with every token. Where a grammar has been fulfilled and allows nothing more the reply
ends; where it could end, the model's end of reply is allowed beside what could go on.

A grammar holds one reply from its first token. To go on inside one, begin with the tokens so far as `forced_token_ids`.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from radixkv.core.errors import InvalidArgumentError
from radixkv.core.json_text import read_json
from radixkv.worker.sampling import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["CompiledMatcher", "GrammarCompiler", "GrammarMatcher"]

MAX_GRAMMAR_CHARACTERS = 256 * 1024
MAX_READINGS, MAX_STEP_ITEMS = 500, 20_000
"""Ways at once in which a text may be read so far, and parser items per token: beyond, the reply ends with an error.
Without them an ambiguous grammar would hold up everybody's next token; with them it takes some 5 ms at the worst."""

NUM_KEPT = 128
"""Compiled grammars kept; the least recently used is forgotten first."""

_ANY_OBJECT = {"type": "object"}
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,16}"
"""Between the parts of a JSON text. Without a bound a small model may write blanks until its reply is full."""


class GrammarMatcher(Protocol):
    """How far one reply has come in its grammar."""

    fault: str
    """Why it can go no further, where that is the grammar's fault; else empty."""

    @property
    def is_over(self) -> bool:
        """Whether the grammar is fulfilled and nothing more may come."""

    def allowed(self) -> bytes:
        """One bit per token id, least significant first: what may come next."""

    def take(self, token_id: int) -> bool:
        """Advance by a token. Returns whether the grammar allows it."""

    def copy(self) -> GrammarMatcher:
        """One that has come as far, and goes its own way from here."""


class CompiledMatcher:
    """A matcher by llguidance."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.fault = ""

    @property
    def is_over(self) -> bool:
        """Whether the grammar is fulfilled and nothing more may come."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def allowed(self) -> bytes:
        """One bit per token id, least significant first: what may come next."""
        bits = self._matcher.compute_bitmask()
        self._note_fault()
        return bytes(bits)

    def take(self, token_id: int) -> bool:
        """Advance by a token. Returns whether the grammar allows it."""
        if self._matcher.consume_token(token_id):
            return True
        self._note_fault()
        return False

    def _note_fault(self) -> None:
        if self._matcher.is_error():
            self.fault = _first_line(self._matcher.get_error())

    def copy(self) -> CompiledMatcher:
        """One that has come as far, and goes its own way from here."""
        return CompiledMatcher(self._matcher.deep_copy())


class GrammarCompiler:
    """Compiles grammars for one tokenizer and keeps the last `num_kept`. Any thread may call it.

    Args:
        tokenizer: the model's, a fast one of transformers.
        vocab_size: width of the logits.
        eos_token_ids: ids with which the model ends a reply.
    """

    def __init__(
        self, tokenizer: Any, vocab_size: int, eos_token_ids: Collection[int], num_kept: int = NUM_KEPT
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._num_kept = num_kept
        self._lock = threading.Lock()
        self._trie: LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, CompiledMatcher] = OrderedDict()
        self.num_compiled = 0

    def matcher(self, grammar: Grammar) -> CompiledMatcher:
        """A matcher at the beginning of `grammar`.

        Raises:
            InvalidArgumentError: the grammar is no such thing or too large; grammars cannot be used with this model.
        """
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            size = f"{len(grammar.text)} characters"
            raise InvalidArgumentError("grammar.text", size, f"at most {MAX_GRAMMAR_CHARACTERS} characters")
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return kept.copy()
            trie = self._trie = self._trie or self._read_tokenizer()
        compiled = CompiledMatcher(_compile(grammar, trie))
        with self._lock:
            self.num_compiled += 1
            self._kept[grammar] = compiled
            while len(self._kept) > self._num_kept:
                self._kept.popitem(last=False)
            return compiled.copy()

    def _read_tokenizer(self) -> LLTokenizer:
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise InvalidArgumentError(
                "grammar", "a grammar", "left out: it needs `pip install 'radixkv[worker]'`"
            ) from None
        try:
            eos: Any = self._eos_token_ids or None  # None: the tokenizer's own
            return from_tokenizer(self._tokenizer, n_vocab=self._vocab_size, eos_token=eos)
        except (ValueError, RuntimeError) as error:
            bound = f"left out: this model's tokenizer cannot be read for grammars: {_first_line(str(error))}"
            raise InvalidArgumentError("grammar", "a grammar", bound) from error


def _compile(grammar: Grammar, trie: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    source = _source(grammar)
    limits = LLParserLimits(max_items_in_row=MAX_READINGS, step_max_items=MAX_STEP_ITEMS)
    problem = LLMatcher.validate_grammar(source, trie, limits=limits)
    matcher = LLMatcher(trie, source, log_level=0, limits=limits)
    if matcher.is_error():
        problem = problem or matcher.get_error()
        raise InvalidArgumentError("grammar.text", grammar.text[:200], f"a {grammar.kind}: {_first_line(problem)}")
    return matcher


def _source(grammar: Grammar) -> str:
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    schema: Any = _ANY_OBJECT
    if grammar.kind == "json_schema":
        try:
            schema = read_json(grammar.text)
        except ValueError as error:
            raise InvalidArgumentError("grammar.text", grammar.text[:200], f"a schema in JSON: {error}") from None
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise InvalidArgumentError("grammar.text", grammar.text[:200], "a schema, which is a JSON object")
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), overrides={"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}
        )
    except ValueError as error:
        raise InvalidArgumentError("grammar.text", grammar.text[:200], f"a schema: {_first_line(str(error))}") from None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]

"""llguidance's source of a grammar, and the limits of following it, the same for a trial and the worker.

No token is forced where the grammar allows a single text: forcing would walk through all of a long constant, or through
`(a{1000}){1000}`, at every mask.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import JSON_WHITESPACE, Grammar
from radixkv.util.json_text import read_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["first_line", "grammar_source", "new_matcher"]

MAX_READINGS, MAX_STEP_ITEMS, MAX_STEP_FUEL = 500, 20_000, 50_000
"""Concurrent parses of a text so far; parser items and expression nodes per token: above them the reply ends with an error.
With them a mask of an ambiguous grammar takes at most about 5 ms."""
MAX_LEXER_STATES = 50_000
"""Lexer states that the replies to one grammar may reach, some 700 bytes each: about 1 per character."""

_ANY_OBJECT = {"type": "object"}
_UNFORCED = '\n%llguidance {"no_forcing": true}\n'
"""Appended: the last such line wins."""


def grammar_source(grammar: Grammar) -> str:
    """Source for llguidance. O(length); only compiling shows whether it is valid.

    Raises:
        InvalidArgumentError: a schema is not a JSON object.
    """
    if grammar.kind == "lark":
        return json.dumps({"grammars": [{"lark_grammar": grammar.text + _UNFORCED}]})
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        lark = json.loads(LLMatcher.grammar_from_regex(grammar.text))["grammars"][0]["lark_grammar"]
        return json.dumps({"grammars": [{"lark_grammar": lark + _UNFORCED}]})
    try:
        overrides: Any = {"whitespace_flexible": True, "whitespace_pattern": JSON_WHITESPACE}
        told = LLMatcher.grammar_from_json_schema(json.dumps(_schema(grammar)), overrides=overrides)
    except ValueError as error:
        raise InvalidArgumentError("grammar.text", grammar.text[:200], f"a schema: {first_line(str(error))}") from None
    schema = json.loads(told)["grammars"][0]["json_schema"]
    grammars = [{"lark_grammar": "start: @schema" + _UNFORCED}, {"name": "schema", "json_schema": schema}]
    return json.dumps({"grammars": grammars})


def _schema(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return _ANY_OBJECT
    try:
        schema = read_json(grammar.text)
    except ValueError as error:
        raise InvalidArgumentError("grammar.text", grammar.text[:200], f"a schema in JSON: {error}") from None
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise InvalidArgumentError("grammar.text", grammar.text[:200], "a schema, which is a JSON object")
    return schema


def new_matcher(source: str, trie: LLTokenizer) -> LLMatcher:
    """Compile a source; the matcher is in error if the source is invalid. Unbounded in time: see `grammar_trials`."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=MAX_READINGS,
        step_max_items=MAX_STEP_ITEMS,
        step_lexer_fuel=MAX_STEP_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )
    return LLMatcher(trie, source, log_level=0, limits=limits)


def first_line(text: str) -> str:
    """First line of an error's text."""
    return text.strip().partition("\n")[0][:300]

"""What a grammar lets come next, what it refuses, and that compiling is done once."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from byte_model import EOS, VOCAB_SIZE, save_byte_model

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import Grammar
from radixkv.worker.generations.text import ChatText
from radixkv.worker.sampling.grammar import MAX_GRAMMAR_CHARACTERS, CompiledMatcher, GrammarCompiler

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"age": {"type": "integer"}, "mood": {"enum": ["good", "bad"]}},
        "required": ["age", "mood"],
        "additionalProperties": False,
    }
)
GOOD = {
    "json_object": ('{"a": [1, null, {"b": "c"}]}', "[1]"),
    "json_schema": ('{"age": 12, "mood": "bad"}', '{"age": "12"'),
    "regex": ("aab", "ba"),
    "lark": ("hi you", "hey"),
}
TEXTS = {"json_object": "", "json_schema": SCHEMA, "regex": "a+b", "lark": 'start: "hi " ("you" | "me")'}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ChatText:
    return ChatText(save_byte_model(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def compiler(text: ChatText) -> Iterator[GrammarCompiler]:
    with closing(GrammarCompiler(text.tokenizer, VOCAB_SIZE, [EOS], num_kept=3)) as compiler:
        yield compiler


def _allowed(matcher: CompiledMatcher) -> set[int]:
    bits = np.unpackbits(np.frombuffer(matcher.allowed(), np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


@pytest.mark.parametrize("kind", list(GOOD))
def test_a_text_of_the_grammar_is_allowed_byte_by_byte_and_another_is_not(
    compiler: GrammarCompiler, text: ChatText, kind: str
) -> None:
    good, bad = GOOD[kind]
    matcher = compiler.matcher(Grammar(kind, TEXTS[kind]))
    for token_id in text.encode(good):
        assert not matcher.is_over
        assert token_id in _allowed(matcher)
        assert matcher.take(token_id)
    assert matcher.is_over
    matcher = compiler.matcher(Grammar(kind, TEXTS[kind]))
    refused = [
        token_id for token_id in text.encode(bad) if token_id not in _allowed(matcher) or not matcher.take(token_id)
    ]
    assert refused


def test_the_end_of_the_reply_is_allowed_only_where_the_grammar_is_fulfilled(
    compiler: GrammarCompiler, text: ChatText
) -> None:
    matcher = compiler.matcher(Grammar("regex", "ab*"))
    [a], [b] = text.encode("a"), text.encode("b")
    assert _allowed(matcher) == {a}
    assert matcher.take(a)
    assert _allowed(matcher) == {b, EOS}
    assert matcher.take(EOS)
    assert matcher.is_over


def test_copies_go_their_own_ways(compiler: GrammarCompiler, text: ChatText) -> None:
    matcher = compiler.matcher(Grammar("regex", "x(ab|ba)"))
    [x], [a], [b] = text.encode("x"), text.encode("a"), text.encode("b")
    assert matcher.take(x)
    twin = matcher.copy()
    assert matcher.take(a)
    assert twin.take(b)
    assert _allowed(matcher) == {b}
    assert _allowed(twin) == {a}


def test_a_token_that_the_grammar_does_not_allow_is_refused_with_the_reason(
    compiler: GrammarCompiler, text: ChatText
) -> None:
    matcher = compiler.matcher(Grammar("regex", "a+"))
    assert not matcher.take(text.encode("b")[0])
    assert "grammar" in matcher.fault
    assert "\n" not in matcher.fault


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", "{"), "a schema in JSON"),
        (Grammar("json_schema", "[1]"), "a JSON object"),
        (Grammar("json_schema", '{"type": "nonsense"}'), "nonsense"),
        (Grammar("json_schema", '{"$ref": "http://localhost/other"}'), "http://localhost/other"),
        (Grammar("json_schema", '{}}, {"lark_grammar": "start: /.*/"'), "a schema in JSON"),
        (Grammar("json_schema", "[" * 100_000), "a schema in JSON"),
        (Grammar("regex", "a(b"), "regex"),
        (Grammar("lark", "start: missing"), "missing"),
        (Grammar("regex", "a" * (MAX_GRAMMAR_CHARACTERS + 1)), "at most"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_reason(
    compiler: GrammarCompiler, grammar: Grammar, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="grammar") as refusal:
        compiler.matcher(grammar)
    assert reason in str(refusal.value)


def test_a_grammar_is_compiled_once_and_the_least_recently_used_is_forgotten(compiler: GrammarCompiler) -> None:
    first, *others = [Grammar("regex", f"a{{{count}}}") for count in range(1, 5)]
    before = compiler.num_compiled
    for grammar in (first, first, *others[:2], first):
        compiler.matcher(grammar)
    assert compiler.num_compiled - before == 3
    compiler.matcher(others[2])  # the fourth: `others[0]` goes
    compiler.matcher(first)
    assert compiler.num_compiled - before == 4
    compiler.matcher(others[0])
    assert compiler.num_compiled - before == 5


def test_blanks_between_the_parts_of_a_json_text_are_bounded(compiler: GrammarCompiler, text: ChatText) -> None:
    matcher = compiler.matcher(Grammar("json_object"))
    assert matcher.take(text.encode("{")[0])
    num_blanks = 0
    [blank] = text.encode(" ")
    while blank in _allowed(matcher) and num_blanks < 100:
        assert matcher.take(blank)
        num_blanks += 1
    assert 1 <= num_blanks < 100


def test_without_llguidance_a_grammar_is_refused_with_what_to_install(
    text: ChatText, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(text.tokenizer, VOCAB_SIZE, [EOS])
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidArgumentError, match=r"pip install .radixkv\[worker\]"):
        compiler.matcher(Grammar("json_object"))


def test_random_walks_along_what_is_allowed_end_as_json_that_fits_the_schema(
    compiler: GrammarCompiler, text: ChatText
) -> None:
    """Every token within the masks, chosen at random: no mask leads into a text that cannot be ended."""
    rng = random.Random(1)
    num_ended = 0
    for _ in range(30):
        matcher = compiler.matcher(Grammar("json_schema", SCHEMA))
        tokens: list[int] = []
        while not matcher.is_over and len(tokens) < 400:
            choices = sorted(_allowed(matcher) - {EOS})
            tokens.append(rng.choice(choices))
            assert matcher.take(tokens[-1])
        if matcher.is_over:
            num_ended += 1
            value = json.loads(text.decode(tokens))
            assert isinstance(value["age"], int)
            assert value["mood"] in {"good", "bad"}
    assert num_ended > 20

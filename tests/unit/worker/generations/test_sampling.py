"""What a request may ask of its sampling: each field up to its bound and not beyond it, by name."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.params import MAX_STOP_CHARACTERS, Grammar, SamplingParams, fresh_seed

SEARCH = {"num_beams": 2}
OF_NO_BOUND = {"ignore_eos", "include_stop", "keep_special_tokens", "early_stopping", "grammar"}

TAKEN: list[tuple[str, Any, dict[str, Any]]] = [
    ("max_tokens", 0, {}),
    ("max_tokens", 1, SEARCH),
    ("speculation", "none", {}),
    ("prediction", "x" * 1_048_576, {}),
    ("temperature", 0.0, {}),
    ("temperature", 100.0, {}),
    ("temperature", 0.0, SEARCH),
    ("top_k", 0, {}),
    ("top_p", 1e-9, {}),
    ("top_p", 1.0, {}),
    ("min_p", 0.0, {}),
    ("min_p", 1.0, {}),
    ("seed", 0, {}),
    ("seed", 2**64 - 1, {}),
    ("n", 1, {}),
    ("n", 128, {}),
    ("n", 2, SEARCH),
    ("stop", ("x",) * 64, {}),
    ("stop", ("x" * MAX_STOP_CHARACTERS,), {}),
    ("stop_token_ids", (0,) * 64, {}),
    ("logprobs", 0, {}),
    ("logprobs", 20, {}),
    ("prompt_logprobs", 0, {}),
    ("prompt_logprobs", 20, {}),
    ("prompt_logprobs_start", 0, {}),
    ("prompt_logprobs_start", 7, {"prompt_logprobs": 0}),
    ("best_of", 3, {"n": 3}),
    ("best_of", 128, {"n": 3}),
    ("num_beams", 1, {}),
    ("num_beams", 32, {}),
    ("length_penalty", 16.0, {}),
    ("length_penalty", -16.0, {}),
    ("logit_bias", {0: 100.0, 1: -100.0}, {}),
    ("logit_bias", dict.fromkeys(range(1024), 1.0), {}),
    ("forced_token_ids", (0, 1), {"max_tokens": 3}),
    ("forced_token_ids", (), {"max_tokens": 0}),
    ("min_tokens", 5, {"max_tokens": 5}),
    ("presence_penalty", 2.0, {}),
    ("presence_penalty", -2.0, {}),
    ("frequency_penalty", 2.0, {}),
    ("frequency_penalty", -2.0, {}),
    ("repetition_penalty", 0.01, {}),
    ("repetition_penalty", 100.0, {}),
    ("bad_words", ("x",) * 256, {}),
    ("bad_words", ("x" * 256,), {}),
    ("allowed_token_ids", (0,), {}),
    ("allowed_token_ids", (1,) * 262_144, {}),
]

REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("speculation", "some", {}),
    ("prediction", "x" * 1_048_577, {}),
    ("max_tokens", -1, {}),
    ("max_tokens", 0, SEARCH),
    ("temperature", -0.1, {}),
    ("temperature", 100.1, {}),
    ("temperature", math.nan, {}),
    ("temperature", 0.7, SEARCH),
    ("top_k", -1, {}),
    ("top_k", 5, SEARCH),
    ("top_p", 0.0, {}),
    ("top_p", 1.01, {}),
    ("top_p", 0.9, SEARCH),
    ("min_p", -0.1, {}),
    ("min_p", 1.5, {}),
    ("min_p", 0.1, SEARCH),
    ("seed", -1, {}),
    ("seed", 2**64, {}),
    ("n", 0, {}),
    ("n", 129, {}),
    ("n", 3, SEARCH),
    ("stop", ("",), {}),
    ("stop", ("x", ""), {}),
    ("stop", ("x",) * 65, {}),
    ("stop", ("y", "x" * (MAX_STOP_CHARACTERS + 1)), {}),
    ("stop_token_ids", (-1,), {}),
    ("stop_token_ids", (1, -1), {}),
    ("stop_token_ids", (1,) * 65, {}),
    ("logprobs", -1, {}),
    ("logprobs", 21, {}),
    ("prompt_logprobs", -1, {}),
    ("prompt_logprobs", 21, {}),
    ("prompt_logprobs_start", -1, {"prompt_logprobs": 0}),
    ("prompt_logprobs_start", 1, {}),
    ("best_of", 2, {"n": 3}),
    ("best_of", 129, {"n": 3}),
    ("best_of", 2, SEARCH),
    ("num_beams", 0, {}),
    ("num_beams", 33, {}),
    ("length_penalty", 16.5, {}),
    ("length_penalty", -16.5, {}),
    ("length_penalty", math.nan, {}),
    ("logit_bias", {1: 5.0, 2: 100.5, 3: 6.0}, {}),
    ("logit_bias", {1: -101.0}, {}),
    ("logit_bias", {1: math.nan}, {}),
    ("logit_bias", {5: 1.0, -1: 1.0}, {}),
    ("logit_bias", dict.fromkeys(range(1025), 1.0), {}),
    ("forced_token_ids", (0, 1), {"max_tokens": 2}),
    ("forced_token_ids", (0, -1), {}),
    ("min_tokens", -1, {}),
    ("min_tokens", 6, {"max_tokens": 5}),
    ("presence_penalty", 2.1, {}),
    ("presence_penalty", -2.1, {}),
    ("frequency_penalty", 2.1, {}),
    ("frequency_penalty", -2.1, {}),
    ("repetition_penalty", 0.009, {}),
    ("repetition_penalty", 100.1, {}),
    ("repetition_penalty", math.nan, {}),
    ("bad_words", ("x",) * 257, {}),
    ("bad_words", ("y", "x" * 257), {}),
    ("bad_words", ("x", " "), {}),
    ("allowed_token_ids", (), {}),
    ("allowed_token_ids", (1,) * 262_145, {}),
    ("allowed_token_ids", (1, -1), {}),
    ("allowed_token_ids", (1,), {"grammar": Grammar("json_object")}),
    ("allowed_token_ids", (1,), SEARCH),
    ("grammar", Grammar("json_object"), SEARCH),
]


@pytest.mark.parametrize(("field", "value", "beside"), TAKEN)
def test_a_field_at_its_bound_is_taken(field: str, value: Any, beside: dict[str, Any]) -> None:
    assert getattr(SamplingParams(**{**beside, field: value}), field) == value


@pytest.mark.parametrize(("field", "value", "beside"), REFUSED)
def test_a_field_outside_its_bound_is_named(field: str, value: Any, beside: dict[str, Any]) -> None:
    SamplingParams(**beside)
    with pytest.raises(InvalidArgumentError) as refusal:
        SamplingParams(**{**beside, field: value})
    assert refusal.value.argument == field


def test_every_field_that_has_bounds_is_tried_at_them() -> None:
    bounded = {field.name for field in fields(SamplingParams)} - OF_NO_BOUND
    assert {field for field, _, _ in TAKEN} == bounded
    assert {field for field, _, _ in REFUSED} >= bounded


@pytest.mark.parametrize("kind", ["", "json", "JSON_OBJECT"])
def test_a_grammar_of_no_known_kind_is_refused(kind: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        Grammar(kind)
    assert refusal.value.argument == "grammar.kind"


@pytest.mark.parametrize(
    ("asked", "is_greedy"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({}, False),
    ],
)
def test_nothing_is_drawn_where_only_one_token_may_be(asked: dict[str, Any], is_greedy: bool) -> None:
    assert SamplingParams(**asked).is_greedy is is_greedy


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(10)}) == 10

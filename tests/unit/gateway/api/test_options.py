"""Sampling options of the OpenAI APIs: which go together, how names of other servers are read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.api.openai.completions import CompletionRequest
from radixkv.gateway.protocol.errors import ApiError
from radixkv.generation.params import EarlyStopping, SamplingDefaults, SamplingParams
from radixkv.generation.request import ModelInfo

INFO = ModelInfo("m", 64, 100, 4, (0,), True, sampling=SamplingDefaults(temperature=0.4, top_p=0.5))


def sampling(**fields: Any) -> SamplingParams:
    body = CompletionRequest.model_validate({"model": "m", "prompt": "x", **fields})
    return body.sampling(INFO, max_tokens=5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 0.4, "top_p": 0.5}),
        ({"temperature": 0.9}, {"temperature": 0.9, "top_p": 0.5}),
        ({"top_p": 0}, {"top_k": 1, "top_p": 1.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"seed": 5}, {"seed": 5}),
        ({"n": 3, "best_of": 4}, {"n": 3, "best_of": 4}),
        ({"num_beams": 2}, {"num_beams": 2, "temperature": 0.0}),
        ({"num_beams": 1}, {"num_beams": 1, "temperature": 0.4}),
        ({"num_beams": 2, "early_stopping": True}, {"early_stopping": EarlyStopping.ALWAYS}),
        ({"num_beams": 2, "early_stopping": False}, {"early_stopping": EarlyStopping.HEURISTIC}),
        ({"num_beams": 2, "early_stopping": "never"}, {"early_stopping": EarlyStopping.NEVER}),
        ({"length_penalty": 0.0}, {"length_penalty": 0.0}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repetition_penalty": 1.5, "repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"logit_bias": {"7": 3, "99": -2}}, {"logit_bias": {7: 3.0, 99: -2.0}}),
        ({"stop_token_ids": [99]}, {"stop_token_ids": (99,)}),
        ({"allowed_token_ids": [3, 99]}, {"allowed_token_ids": (3, 99)}),
        ({"ignore_eos": True, "min_tokens": 2}, {"ignore_eos": True, "min_tokens": 2}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"bad_words": ["w"]}, {"bad_words": ("w",)}),
        ({"include_stop_str_in_output": True}, {"include_stop": True}),
        ({"skip_special_tokens": False}, {"keep_special_tokens": True}),
        ({"skip_special_tokens": True}, {"keep_special_tokens": False}),
        ({"presence_penalty": 0.5, "frequency_penalty": -0.5}, {"presence_penalty": 0.5, "frequency_penalty": -0.5}),
        ({"prompt_logprobs": 3}, {"prompt_logprobs": 3}),
    ],
    ids=str,
)
def test_a_field_is_read_as_the_parameter_that_it_names(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    found = sampling(**fields)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"repetition_penalty": 1.5, "repeat_penalty": 1.6}, "repeat_penalty"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"logit_bias": {"100": 1}}, "logit_bias"),
        ({"stop_token_ids": [1, 100]}, "stop_token_ids"),
        ({"allowed_token_ids": [100]}, "allowed_token_ids"),
        ({"num_beams": 2, "temperature": 0.5}, "temperature"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"min_tokens": 6}, "min_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((ApiError, InvalidArgumentError)) as refused:
        sampling(**fields)
    answer = ApiError.of(refused.value)
    assert (answer.status, answer.param) == (400, param)

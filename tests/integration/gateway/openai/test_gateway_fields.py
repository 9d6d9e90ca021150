"""The table of fields over HTTP: what is left out is named, what is refused is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from chat_stack import chat_stack
from field_matrix import ENDPOINTS, fate, known_names

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "completions": {"prompt": "Hi", "max_tokens": 1},
    "responses": {"input": "Hi", "max_output_tokens": 1},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
}


@pytest.fixture(scope="module")
def http(default_model: str) -> Iterator[httpx.Client]:
    with chat_stack(default_model) as stack, httpx.Client(base_url=f"{stack.server.url}/", timeout=300) as client:
        yield client


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_field_without_effect_is_named_and_one_that_would_have_one_refused(http: httpx.Client, path: str) -> None:
    fates = {name: fate(path, name) for name in known_names(path)}
    left_out = [name for name, each in fates.items() if each == "left out"]
    for names in (left_out[start : start + 16] for start in range(0, len(left_out), 16)):
        answer = http.post(path, json={**BODIES[path], **{name: {"x": 1} for name in names}})
        assert answer.status_code == 200, answer.text
        assert set(answer.headers["x-radixkv-left-out"].split(", ")) == set(names)
    for name in (name for name, each in fates.items() if each == "refused"):
        answer = http.post(path, json={**BODIES[path], name: "x"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(name)


TEXT = [{"type": "text", "text": "Hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
LEGAL: list[tuple[str, dict[str, Any]]] = [
    *((path, {name: None for name in known_names(path) if name not in BODIES[path]}) for path in ENDPOINTS),
    ("chat/completions", {"tools": [], "stop": [], "logit_bias": {}, "modalities": ["text"], "user": "u"}),
    ("chat/completions", {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"}),
    (
        "chat/completions",
        {"logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}, "prompt_cache_key": "k"},
    ),
    ("chat/completions", {"messages": [{"role": "system", "content": TEXT}, {"role": "user", "content": TEXT * 2}]}),
    (
        "chat/completions",
        {
            "messages": [
                {"role": "user", "content": ""},
                {
                    "role": "assistant",
                    "content": [{"type": "refusal", "refusal": "No."}],
                    "audio": None,
                    "annotations": [],
                },
                {"role": "user", "content": []},
            ]
        },
    ),
    ("chat/completions", {"store": False, "use_beam_search": False, "xtc_probability": 0, "tfs": 1, "n_predict": -1}),
    ("completions", {"suffix": "", "stop": [], "logit_bias": {}, "best_of": 1, "n": 1, "logprobs": False}),
    ("responses", {"tools": [], "stop": "", "include": [], "reasoning": {}, "text": {"format": {"type": "text"}}}),
    ("responses", {"max_output_tokens": 1.0, "top_k": 4.0, "seed": 5.0, "stop": "x"}),
    ("messages", {"tools": [], "stop_sequences": [], "system": [], "metadata": {}, "thinking": {"type": "disabled"}}),
]


@pytest.mark.parametrize(("path", "fields"), LEGAL)
def test_what_says_nothing_or_is_said_in_another_way_is_taken_without_a_word(
    http: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    answer = http.post(path, json={**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    assert "x-radixkv-left-out" not in answer.headers


def test_what_is_asked_to_be_included_and_never_is_is_named(http: httpx.Client) -> None:
    asked = ["message.output_text.logprobs", "reasoning.encrypted_content", "nonsense"]
    answer = http.post("responses", json={**BODIES["responses"], "include": asked})
    assert answer.headers["x-radixkv-left-out"] == "include.1, include.2"


def test_a_spoken_reply_in_a_history_is_refused_by_name(http: httpx.Client) -> None:
    spoken = [{"role": "user", "content": "Hi"}, {"role": "assistant", "audio": {"id": "a"}}]
    answer = http.post("chat/completions", json={"messages": spoken})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages.1.audio"

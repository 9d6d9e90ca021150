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
    with chat_stack(default_model) as stack, httpx.Client(base_url=f"{stack.server.url}/", timeout=60) as client:
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

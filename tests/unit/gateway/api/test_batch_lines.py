"""Requests of a batch: in which order they run, and what is no request."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from radixkv.gateway.api.jobs.lines import LineError, prefix_key, read_line, read_message_request

CHAT = "/v1/chat/completions"


def chat(system: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"temperature": 0, "messages": messages}


@pytest.mark.parametrize("length", [200, 2000])
def test_requests_that_begin_alike_stand_next_to_each_other(length: int) -> None:
    examples = [f"You are helper {number}. " + "Say no more. " * (length // 13) for number in range(8)]
    bodies = [chat(shown, f"Question {number}") for number in range(30) for shown in examples]
    random.Random(0).shuffle(bodies)
    ordered = [body["messages"][0]["content"] for body in sorted(bodies, key=prefix_key)]
    assert sum(a != b for a, b in pairwise(ordered)) == len(examples) - 1


def test_prefixes_within_prefixes_stand_together_too() -> None:
    shared = "Read this. " * 40
    bodies = [chat(shared + f"Part {part}. " * 40, f"Question {number}") for number in range(9) for part in range(3)]
    bodies += [chat(f"Other {number}. " * 80, "Question") for number in range(9)]
    random.Random(1).shuffle(bodies)
    ordered = [body["messages"][0]["content"] for body in sorted(bodies, key=prefix_key)]
    assert sum(a.startswith(shared) != b.startswith(shared) for a, b in pairwise(ordered)) <= 2
    assert sum(a != b for a, b in pairwise(ordered)) == 3 + 9 - 1


def test_a_body_is_kept_as_it_was_but_for_its_spelling() -> None:
    body = {"messages": [{"role": "user", "content": "\U0001f642 e\u0301 \\"}], "seed": 2**60, "top_p": 0.1}
    text = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).encode()
    assert json.loads(read_line(text, CHAT).body) == body


@pytest.mark.parametrize("item", [None, [], {}, {"custom_id": "a b", "params": {}}, {"custom_id": "a", "params": []}])
def test_what_is_no_request_of_a_message_batch_is_refused(item: Any) -> None:
    with pytest.raises(LineError):
        read_message_request(item)

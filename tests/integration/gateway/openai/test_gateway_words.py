"""Words that clients know: that a prompt is too long, paths and fields as others have them, what engines are asked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack, gateway

from radixkv.gateway.config import GatewayConfig

HI = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HI, "max_tokens": 2}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, max_model_len=512) as stack:
        yield stack


@pytest.fixture(scope="module")
def http(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{stack.server.address}", timeout=300) as client:
        yield client


@pytest.mark.parametrize("num_words", [600, 5_000, 60_000])
def test_a_prompt_that_is_too_long_is_refused_in_the_words_of_its_api(http: httpx.Client, num_words: int) -> None:
    turns = [{"role": "user", "content": "word " * num_words}]
    error = http.post("/v1/messages", json={"messages": turns, "max_tokens": 8}).json()["error"]
    assert error["type"] == "invalid_request_error"
    told, bound = error["message"].removeprefix("prompt is too long: ").removesuffix(" maximum").split(" tokens > ")
    assert int(told) > int(bound)
    assert int(bound) in (511, 512)  # the model's length, of which a reply needs one
    for path, body in (
        ("chat/completions", {"messages": turns}),
        ("responses", {"input": turns}),
        ("completions", {"prompt": turns[0]["content"]}),
    ):
        error = http.post(f"/v1/{path}", json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert re.match(r"This model's maximum context length is 51[12] tokens", error["message"])


def test_a_path_without_its_version_or_with_a_slash_is_served(http: httpx.Client) -> None:
    for path in ("/chat/completions", "/v1/chat/completions/", "/chat/completions/"):
        assert http.post(path, json=CHAT).json()["object"] == "chat.completion"
    assert http.post("/messages", json=CHAT).json()["type"] == "message"
    assert http.post("/responses", json={"input": "Hi", "max_output_tokens": 2}).json()["object"] == "response"
    for path in ("/models", "/v1/models/", "/v1/models/gibberish"):
        assert "gibberish" in http.get(path).text
        head = http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert http.get("/v1/").status_code == http.get("/v2/models").status_code == 404


@pytest.mark.parametrize("path", ["/models", "/models/", "/tokenize", "/version", "/chat/completions", "/v1/models/"])
def test_such_a_path_needs_the_key_that_its_own_does(stack: Stack, tmp_path: Path, path: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[tenant]]\nname = "a"\nkeys = ["sha256:{hashlib.sha256(b"key").hexdigest()}"]\n')
    with gateway(stack.engine, GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)) as server:
        for method in ("GET", "HEAD", "POST"):
            assert httpx.request(method, f"http://{server.address}{path}").status_code == 401


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": -1}, {"max_completion_tokens": -1, "max_tokens": None}, {"stop": ""}, {"model": "gibberish"}],
)
def test_fields_that_say_nothing_are_taken(stack: Stack, http: httpx.Client, fields: dict[str, Any]) -> None:
    stack.dictate("Short.")
    answer = http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 8, **fields})
    assert answer.json()["choices"][0]["message"]["content"] == "Short."
    assert answer.json()["model"] == "gibberish"


def test_what_is_tokenized_is_what_a_request_has(stack: Stack, http: httpx.Client) -> None:
    text = "Two words 🙂"
    tokens = http.post("/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 512
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}
    http.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
    assert stack.engine.prompts[-1] == tokens["tokens"]
    http.post("/v1/chat/completions", json=CHAT)
    assert http.post("/tokenize", json={"messages": HI}).json()["tokens"] == stack.engine.prompts[-1]
    for body in ({}, {"prompt": "x", "messages": HI}, {"prompt": 3}):
        assert http.post("/tokenize", json=body).status_code == 400
    for ids in ([], [2**31], [60_000], ["x"]):
        assert http.post("/detokenize", json={"tokens": ids}).status_code == 400


def test_what_routers_ask_an_engine_is_answered(http: httpx.Client) -> None:
    version = http.get("/version").json()["version"]
    for path in ("/get_model_info", "/server_info"):
        told = http.get(path).json()
        assert (told["model_path"], told["max_model_len"], told["is_generation"]) == ("gibberish", 512, True)
        assert (told["server"], told["version"]) == ("radixkv", version)


def test_the_tokens_of_a_responses_input_are_counted(stack: Stack, http: httpx.Client) -> None:
    first = http.post("/v1/responses", json={"input": "Hi", "max_output_tokens": 4}).json()
    tool = {"type": "function", "name": "f", "description": "Does f."}
    for fields in ({}, {"instructions": "Be brief."}, {"previous_response_id": first["id"]}, {"tools": [tool]}):
        body = {"input": "Go on", **fields}
        counted = http.post("/v1/responses/input_tokens", json=body).json()
        usage = http.post("/v1/responses", json={**body, "max_output_tokens": 1}).json()["usage"]
        assert counted == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
        assert usage["input_tokens"] == len(stack.engine.prompts[-1])
    assert http.post("/v1/responses/input_tokens", json={"input": []}).status_code == 400


def test_what_evaluators_ask_of_the_tokenizer_is_answered(stack: Stack, http: httpx.Client) -> None:
    told = http.get("/tokenizer_info").json()
    assert (told["eos_token"], told["model_max_length"]) == ("<|im_end|>", 512)
    assert told["eos_token_ids"] == sorted(stack.runner.eos_token_ids)
    assert http.get("/props").json()["default_generation_settings"] == {"n_ctx": 512}


def test_a_ping_is_answered_as_health_is(http: httpx.Client) -> None:
    assert http.get("/ping").json() == http.post("/ping").json() == http.get("/health").json()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/embeddings", "no embeddings are served here"),
        ("/v1/moderations", "no moderation is served here"),
        ("/v1/rerank", "no scores of texts are served here"),
        ("/v1/audio/speech", "no sound is served here"),
        ("/completion", "of llama.cpp's own API little is served here"),
        ("/api/chat", "Ollama's own API is not served here"),
        ("/v1/responses/compact", "no conversation is compacted here"),
        ("/v1/nothing", "there is no such URL here"),
    ],
)
def test_a_url_that_is_not_served_is_answered_by_those_that_are(http: httpx.Client, path: str, kind: str) -> None:
    assert http.get("/openapi.json").status_code == 200
    answer = http.post(path, json={})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("unknown_url", "invalid_request_error")
    assert error["message"].startswith(kind)
    assert {"/chat/completions", "/completions", "/messages"} <= set(re.findall(r"/[\w/]+", error["message"]))
    assert "/docs" in http.get("/nothing").json()["error"]["message"]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_usage_is_told_in_every_chunk_where_it_is_asked_for(http: httpx.Client, path: str) -> None:
    said = {"messages": HI} if path.startswith("chat") else {"prompt": "Hi"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**said, "max_tokens": 12, "n": 2, "ignore_eos": True, "stream": True, "stream_options": options}
    lines = http.post(f"/v1/{path}", json=body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    last = chunks.pop()["usage"]
    assert last["completion_tokens"] == 24
    for index in range(2):
        told = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in told]
        assert counts == sorted(counts)
        assert len(set(counts)) > 3
        assert counts[-1] == 12
        assert {usage["prompt_tokens"] for usage in told} == {last["prompt_tokens"]}
        assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in told)


def test_what_an_object_of_a_request_holds_besides_is_told_or_refused(http: httpx.Client) -> None:
    odd = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    answer = http.post("/v1/chat/completions", json={**CHAT, **odd, "response_format": {"type": "text", "x": 1}})
    assert answer.headers["x-radixkv-left-out"] == "stream_options.include_obfuscation, response_format.x"
    answer = http.post("/v1/chat/completions", json={**CHAT, "structured_outputs": {"structural_tag": "{}"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "structured_outputs.structural_tag"


def test_a_chat_that_is_to_be_stored_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={**CHAT, "store": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "store")
    assert http.post("/v1/chat/completions", json={**CHAT, "store": False}).status_code == 200


def test_probes_may_ask_by_head(http: httpx.Client) -> None:
    for path in ("/health", "/ping", "/metrics"):
        assert (http.head(path).status_code, http.head(path).content) == (200, b"")


def test_a_completion_takes_its_log_probabilities_as_a_flag_too(http: httpx.Client) -> None:
    asked = {"model": "gibberish", "prompt": "Hi", "max_tokens": 3, "seed": 1}
    as_flag, as_number, without = (
        http.post("/v1/completions", json={**asked, "logprobs": each}).json()["choices"][0] for each in (True, 1, False)
    )
    assert as_flag["logprobs"] == as_number["logprobs"] != without["logprobs"]
    assert without["logprobs"] is None


def test_a_chat_takes_its_log_probabilities_as_a_number_too(http: httpx.Client) -> None:
    asked = {**CHAT, "seed": 1, "ignore_eos": True}
    as_number, as_flag = (
        http.post("/v1/chat/completions", json={**asked, **fields}).json()["choices"][0]
        for fields in ({"logprobs": 2}, {"logprobs": True, "top_logprobs": 2})
    )
    assert as_number["logprobs"] == as_flag["logprobs"]
    assert [len(token["top_logprobs"]) for token in as_number["logprobs"]["content"]] == [2, 2]
    for fields in ({"logprobs": 0}, {"logprobs": 21}, {"logprobs": 2, "top_logprobs": 3}):
        refused = http.post("/v1/chat/completions", json={**asked, **fields})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, [*fields][-1])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "a\ud83d"}, "prompt"),
        ("completions", {"prompt": ["Hi", "a\ud83d"]}, "prompt.1"),
        ("completions", {"prompt": [1, 1 << 30]}, "prompt"),
        ("completions", {"prompt": [[1], [1, 1 << 30]]}, "prompt.1"),
        ("tokenize", {"prompt": "a\ud83d"}, "prompt"),
        ("detokenize", {"tokens": [1, 1 << 30]}, "tokens"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a\ud83d"}]}, "messages"),
    ],
)
def test_what_the_worker_refuses_is_named_as_the_request_has_it(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    told = json.dumps({"max_tokens": 4, **body})  # as ASCII: halves of characters as escapes
    answer = http.post(f"/v1/{path}", content=told, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"].split(".content")[0].removesuffix(".0")) == (400, param), error
    assert error["message"].startswith(error["param"]), error


@pytest.mark.parametrize("path", ["agents", "skills/x", "nothing", "embeddings"])
def test_a_client_of_the_messages_api_reads_the_refusal_of_an_unknown_url(http: httpx.Client, path: str) -> None:
    answer = http.post(f"/v1/{path}", json={}, headers={"anthropic-version": "2023-06-01"})
    told = answer.json()
    assert answer.status_code in (404, 405), told
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error"), told
    assert told["request_id"] == answer.headers["request-id"]

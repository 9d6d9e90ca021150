"""Log probabilities of prompts over HTTP: OpenAI's echo with logprobs, vLLM's prompt_logprobs, and prompts without a reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from anthropic import Anthropic
from chat_stack import gateway, gibberish_engine
from openai import OpenAI
from scored import Scored, read_scores

from radixkv.gateway.server import GatewayServer
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

IDS = [[1314, 1315, 1316, 400, 401], [1314, 1315, 1316, 30_000], [599]]


@pytest.fixture(scope="module")
def engine(default_model: str) -> Iterator[Engine]:
    with gibberish_engine(default_model) as (engine, _, _):
        yield engine


@pytest.fixture(scope="module", params=["in process", "over gRPC"])
def server(request: pytest.FixtureRequest, engine: Engine) -> Iterator[GatewayServer]:
    if request.param == "in process":
        with gateway(engine) as server:
            yield server
        return
    with (
        GenerationServer(engine, "127.0.0.1:0") as worker,
        GenerationClient(worker.address) as generator,
        gateway(generator) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def client(server: GatewayServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def expected(engine: Engine, ids: list[int], num_top: int) -> Scored:
    """What the engine itself tells; nothing of it is shared with what others ask."""
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=num_top)
    scored = read_scores(engine.generate(GenerateParams(token_ids=ids, sampling=sampling, sharing="off")))
    scored.logprobs = {
        position: max(-9999.0, logprob) for position, logprob in scored.logprobs.items()
    }  # as JSON has it
    return scored


def create(client: OpenAI, prompt: Any, **asked: Any) -> Any:
    return client.completions.create(model="gibberish", prompt=prompt, temperature=0, **asked)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_an_echo_tells_how_likely_its_tokens_are(client: OpenAI, engine: Engine, max_tokens: int, num_top: int) -> None:
    answer = create(client, IDS, max_tokens=max_tokens, logprobs=num_top, echo=True)
    for choice, ids in zip(answer.choices, IDS, strict=True):
        scores, told = expected(engine, ids, num_top), choice.logprobs
        assert told.tokens[: len(ids)] == [engine.detokenize([token_id]) for token_id in ids]
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        assert told.token_logprobs[1 : len(ids)] == pytest.approx(list(scores.logprobs.values()), abs=1e-4)
        for top, best in zip(told.top_logprobs[1 : len(ids)], scores.top.values(), strict=True):
            assert list(top.values())[::-1] == pytest.approx([value for _, value in best], abs=1e-4)
        assert "".join(told.tokens) == choice.text
        assert told.text_offset == [len("".join(told.tokens[:index])) for index in range(len(told.tokens))]
        assert len(told.tokens) <= len(ids) + max_tokens
        assert choice.finish_reason == "length" or max_tokens > 0
    assert answer.usage.completion_tokens <= max_tokens * len(IDS)


@pytest.mark.parametrize("prompt", ["one two three", ["one two three", "four"], IDS])
def test_a_streamed_echo_joins_to_the_whole_one(client: OpenAI, prompt: Any) -> None:
    asked = {"max_tokens": 3, "logprobs": 2, "echo": True, "n": 2, "seed": 1}
    whole = create(client, prompt, **asked)
    columns: list[dict[str, list[Any]]] = [{} for _ in whole.choices]
    texts = [""] * len(whole.choices)
    for chunk in create(client, prompt, **asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                columns[choice.index].setdefault(name, []).extend(values)
    assert texts == [choice.text for choice in whole.choices]
    for told, choice in zip(columns, whole.choices, strict=True):
        wanted = choice.logprobs.model_dump()
        assert (told["tokens"], told["text_offset"]) == (wanted["tokens"], wanted["text_offset"])
        assert told["token_logprobs"][0] is None
        assert told["token_logprobs"][1:] == pytest.approx(wanted["token_logprobs"][1:], abs=1e-4)
        assert [None if top is None else list(top) for top in told["top_logprobs"]] == [
            None if top is None else list(top) for top in wanted["top_logprobs"]
        ]


def test_a_second_question_under_one_prefix_computes_its_own_tokens(client: OpenAI, engine: Engine) -> None:
    shots = [(client.base_url.port or 0) % 40_000, *range(1000, 1199)]
    create(client, [*shots, 5, 6, 7], max_tokens=1, logprobs=1, echo=True)
    before = engine.stats().engine.num_computed_tokens
    answer = create(client, [*shots, 8, 9], max_tokens=1, logprobs=1, echo=True)
    assert engine.stats().engine.num_computed_tokens - before == 2 + 1
    assert len(answer.choices[0].logprobs.tokens) >= 202
    assert answer.usage.prompt_tokens_details.cached_tokens == 199


def test_prompt_logprobs_are_told_as_vllm_tells_them(client: OpenAI, engine: Engine) -> None:
    answer = create(client, IDS, max_tokens=1, extra_body={"prompt_logprobs": 2})
    for choice, ids in zip(answer.choices, IDS, strict=True):
        scores, (first, *others) = expected(engine, ids, 2), choice.prompt_logprobs
        assert first is None
        assert len(others) == len(ids) - 1
        for position, told in enumerate(others, 1):
            own = told[str(ids[position])]
            assert own["logprob"] == pytest.approx(scores.logprobs[position], abs=1e-4)
            assert own["rank"] == scores.ranks[position]
            assert own["decoded_token"] == engine.detokenize([ids[position]])
            for rank, (token_id, logprob) in enumerate(scores.top[position], 1):
                assert told[str(token_id)]["rank"] == rank
                assert told[str(token_id)]["logprob"] == pytest.approx(logprob, abs=1e-4)
            assert 2 <= len(told) <= 3


def test_a_chat_tells_them_of_the_whole_conversation(client: OpenAI) -> None:
    asked = {"model": "gibberish", "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 0}
    answer = client.chat.completions.create(**asked, extra_body={"prompt_logprobs": 0, "return_token_ids": True})
    choice, ids, told = answer.choices[0], answer.prompt_token_ids, answer.prompt_logprobs  # type: ignore[attr-defined]
    assert (choice.message.content, choice.finish_reason) == ("", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    assert told[0] is None
    assert [list(entry) for entry in told[1:]] == [[str(token_id)] for token_id in ids[1:]]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked, stream=True, extra_body={"prompt_logprobs": 0})
    assert caught.value.param == "prompt_logprobs"


def test_a_request_without_a_reply_warms_the_cache_for_the_next(server: GatewayServer, client: OpenAI) -> None:
    prompt = [(client.base_url.port or 0) % 40_000, *range(2000, 2059)]
    cold = create(client, prompt, max_tokens=0)
    assert (cold.choices[0].text, cold.choices[0].finish_reason) == ("", "length")
    assert create(client, prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens == 59
    chat = [{"role": "user", "content": f"{server.url}: " + "a story " * 40}]
    with Anthropic(base_url=f"http://{server.address}", api_key="none", max_retries=0) as anthropic:
        ask = {"model": "gibberish", "messages": chat}
        cold_message = anthropic.messages.create(**ask, max_tokens=0)  # type: ignore[call-overload]
        assert (cold_message.content, cold_message.stop_reason) == ([], "max_tokens")
        warm = anthropic.messages.create(**ask, max_tokens=1).usage  # type: ignore[call-overload]
    assert (
        warm.cache_read_input_tokens == cold_message.usage.input_tokens + cold_message.usage.cache_read_input_tokens - 1
    )

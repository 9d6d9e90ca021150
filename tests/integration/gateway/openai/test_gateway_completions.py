"""The official `openai` SDK on models and completions."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from chat_stack import gateway, gibberish_engine
from openai import OpenAI

from radixkv.gateway.server import GatewayServer
from radixkv.generation.params import NO_DEFAULTS, SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.generation.stream import Delta
from radixkv.worker.engine.engine import Engine

HELLO = [{"role": "user", "content": "hello world"}]


@pytest.fixture(scope="module")
def engine(default_model: str) -> Iterator[Engine]:
    with gibberish_engine(default_model) as (engine, _, _):
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[GatewayServer]:
    with gateway(engine) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: GatewayServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def expected(engine: Engine, text: str, **sampling: object) -> list[str]:
    """What the engine itself answers, drawn as where nothing is said."""
    sampling = NO_DEFAULTS.fill(None, None, None, None) | sampling
    stream = engine.generate(GenerateParams(text=text, sampling=SamplingParams(**sampling)))  # type: ignore[arg-type]
    texts: dict[int, str] = {}
    for event in stream:
        if isinstance(event, Delta):
            texts[event.branch] = texts.get(event.branch, "") + event.text
    return [texts[branch] for branch in sorted(texts)]


def test_a_request_says_what_its_history_is_worth(engine: Engine, client: OpenAI) -> None:
    size = engine.model().block_size
    worth = [{"end": 2 * size, "priority": 90, "duration_s": 600}, {"start": 2 * size, "priority": 3.0}]
    prompt = [11, 12, 13, 14] * size
    ask = {"model": "gibberish", "max_tokens": 2, "temperature": 0, "extra_body": {"retention": worth}}
    client.completions.create(prompt=prompt, **ask)  # type: ignore[call-overload]
    client.chat.completions.create(messages=HELLO, **ask)  # type: ignore[call-overload]
    client.responses.create(input="other", model="gibberish", extra_body={"retention": [{"priority": 70}]})
    nodes = engine.call(lambda holder: holder.dump())
    assert {node.priority for node in nodes if node.position >= 2 * size} <= {3, 70}
    assert {(node.priority, node.retained_until_s > 0) for node in nodes} == {(90, True), (3, False), (70, False)}


# -- models


def test_the_model_is_listed_and_retrieved(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("gibberish", "model", "radixkv")
    assert client.models.retrieve("gibberish").id == "gibberish"


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


# -- completions


def test_a_completion_is_what_the_engine_generates(client: OpenAI, engine: Engine) -> None:
    answer = client.completions.create(
        model="gibberish", prompt="hello", max_tokens=9, seed=5, extra_body={"ignore_eos": True}
    )
    assert [choice.text for choice in answer.choices] == expected(
        engine, "hello", max_tokens=9, seed=5, ignore_eos=True
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9


def test_every_prompt_has_n_choices_in_order(client: OpenAI, engine: Engine) -> None:
    answer = client.completions.create(model="gibberish", prompt=["one", "two"], n=2, max_tokens=6, seed=1)
    wanted = expected(engine, "one", n=2, max_tokens=6, seed=1) + expected(engine, "two", n=2, max_tokens=6, seed=1)
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


@pytest.mark.parametrize("many", [False, True])
def test_prompts_may_be_token_ids(client: OpenAI, engine: Engine, many: bool) -> None:
    ids = [14, 15, 16]
    prompt = [ids, ids] if many else ids
    extra = {"return_token_ids": True}
    answer = client.completions.create(model="gibberish", prompt=prompt, max_tokens=3, temperature=0, extra_body=extra)
    assert len(answer.choices) == 1 + many
    for choice in answer.choices:
        assert choice.prompt_token_ids == ids  # type: ignore[attr-defined]  # our extension
        assert engine.detokenize(choice.token_ids) == choice.text  # type: ignore[attr-defined]


def test_streamed_completions_join_to_the_whole_ones(client: OpenAI) -> None:
    asked = {"model": "gibberish", "prompt": ["one", "two"], "n": 2, "max_tokens": 12, "seed": 3, "echo": True}
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    texts, reasons, usage = ["", "", "", ""], {}, None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):  # type: ignore[call-overload]
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert all(text.startswith(prompt) for text, prompt in zip(texts, ["one", "one", "two", "two"], strict=True))
    assert [reasons[index] for index in range(4)] == [choice.finish_reason for choice in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_completion_logprobs_spell_the_text(client: OpenAI) -> None:
    answer = client.completions.create(model="gibberish", prompt="hello", max_tokens=8, logprobs=3, seed=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or []) == len(logprobs.top_logprobs or [])
    assert all(value <= 0 for value in logprobs.token_logprobs or [])
    if not any(token.startswith("bytes:") for token in logprobs.tokens):
        assert "".join(logprobs.tokens) == answer.choices[0].text
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:k])) for k in range(len(logprobs.tokens))]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"prompt": ["a " * 2000] * 50, "max_tokens": 0, "echo": True, "logprobs": 5}, "prompt"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 50}, "n"),
        ({"prompt": "a " * 5000}, "prompt"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(client: OpenAI, asked: dict[str, object], param: str) -> None:
    extra = {name: asked[name] for name in asked if name.startswith("prompt_")}
    given = {name: asked[name] for name in asked if name not in extra}
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "gibberish", "prompt": "hi", **given}, extra_body=extra)  # type: ignore[call-overload]
    assert caught.value.param is not None
    assert caught.value.param.split(".")[0] == param
    assert caught.value.type == "invalid_request_error"


def test_the_best_of_many_are_answered(client: OpenAI) -> None:
    answer = client.completions.create(
        model="gibberish", prompt="hello", n=2, best_of=5, max_tokens=4, seed=8, logprobs=0
    )
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in answer.choices]  # type: ignore[union-attr,arg-type]
    assert means == sorted(means, reverse=True)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 2 * 4 - 1


def test_beams_are_answered_best_first(client: OpenAI) -> None:
    extra = {"num_beams": 3}
    answer = client.completions.create(model="gibberish", prompt="hello", n=3, max_tokens=4, extra_body=extra)
    assert len({choice.text for choice in answer.choices}) == 3
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="gibberish", prompt="hello", temperature=1, extra_body=extra)

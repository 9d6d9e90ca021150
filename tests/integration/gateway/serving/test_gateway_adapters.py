"""Adapters over HTTP: models of their own to a client, with the tokens of the merged model and a cache apart."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
import torch
from byte_model import save_byte_model
from chat_stack import gateway
from talk import Talk
from tiny_adapters import linear_paths, merged, save_adapter
from tiny_models import reference_model

from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.core.errors import InvalidArgumentError
from radixkv.worker.run import Worker, WorkerConfig

PROMPT = "user: Hello\nassistant: "
HELLO = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
TOKEN_IDS = {"ignore_eos": True, "return_token_ids": True}


class Served(NamedTuple):
    """A server, a client of it, and what transformers makes of each name."""

    client: openai.OpenAI
    worker: Worker
    models: dict[str, Any]

    def expected(self, name: str) -> list[int]:
        """The greedy reply to `PROMPT`."""
        ids = torch.tensor([list(PROMPT.encode())])
        out = self.models[name].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        reply: list[int] = out[0, ids.shape[1] :].tolist()
        return reply


def _config(model: str, *flags: str) -> WorkerConfig:
    parser = argparse.ArgumentParser()
    add_model_flags(parser)
    exact = ("--dtype", "float32", "--device", "cpu", "--num-blocks", "64")
    return worker_config(parser.parse_args(["--model", model, *exact, *flags]), None, None)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    where = tmp_path_factory.mktemp("served")
    model = save_byte_model(where / "bytes")
    base = reference_model(model)
    models, flags = {"bytes": base}, []
    for seed, name in enumerate(["sql", "law"]):
        models[name] = merged(
            base, save_adapter(where / name, base, linear_paths(base, "q_proj", "down_proj"), seed=seed)
        )
        flags += ["--adapter", f"{name}={where / name}"]
    with (
        Worker(_config(model, *flags)) as worker,
        gateway(worker.engine) as server,
        openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        yield Served(client, worker, models)


def test_adapters_are_listed_behind_their_model(served: Served) -> None:
    listed = list(served.client.models.list().data)
    assert [(model.id, getattr(model, "parent", None)) for model in listed] == [
        ("bytes", None),
        ("sql", "bytes"),
        ("law", "bytes"),
    ]
    assert served.client.models.retrieve("sql").id == "sql"
    assert served.client.models.retrieve("bytes:law").id == "law"
    assert "adapters sql, law" in describe(served.worker)


def test_each_name_gives_the_tokens_of_its_merged_model_and_finds_its_own_cache(served: Served) -> None:
    fingerprints = set()
    for num_cached in (0, len(PROMPT) - 1):
        for name in served.models:
            answer = served.client.chat.completions.create(model=name, messages=HELLO, **GREEDY, extra_body=TOKEN_IDS)
            assert answer.model == name
            assert answer.choices[0].token_ids == served.expected(name)  # type: ignore[attr-defined]  # of ours
            assert answer.usage.prompt_tokens_details.cached_tokens == num_cached
            fingerprints.add(answer.system_fingerprint)
    assert len(fingerprints) == 3
    assert len({tuple(served.expected(name)) for name in served.models}) == 3


def test_prompts_and_responses_take_an_adapter_too(served: Served) -> None:
    completion = served.client.completions.create(model="bytes:sql", prompt=PROMPT, **GREEDY, extra_body=TOKEN_IDS)
    assert completion.model == "sql"
    assert completion.choices[0].token_ids == served.expected("sql")  # type: ignore[attr-defined]  # of ours
    first = served.client.responses.create(model="law", input="Hello", temperature=0, max_output_tokens=8)
    assert first.model == "law"
    behind = {"input": "More", "temperature": 0, "max_output_tokens": 8, "previous_response_id": first.id}
    same = served.client.responses.create(model="law", **behind)
    assert same.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    other = served.client.responses.create(model="sql", **behind)
    assert other.usage.input_tokens_details.cached_tokens <= len(PROMPT)


def test_a_kept_reply_is_written_by_the_adapter_that_it_or_its_conversation_names(served: Served) -> None:
    with Talk(str(served.client.base_url).rstrip("/")) as talk:
        conversation = talk.begin(settings={"model": "sql", "temperature": 0})
        asked, reply = talk.turn(conversation, "Hello", max_tokens=8)
        body = {"model": "bytes:law", "max_tokens": 8}
        (other,) = talk.call("POST", f"/{conversation}/messages/{asked}/replies", body)["messages"]
        other = talk.ended(conversation, other["id"])
        for each, name in ((reply, "sql"), (other, "law")):
            said = bytes(token_id for token_id in served.expected(name) if token_id < 256).decode(errors="replace")
            assert said.startswith(each["text"].rstrip("\ufffd"))
            assert each["details"]["model"] == each["details"]["settings"]["model"] == name


def test_a_name_that_is_not_served_is_refused_with_those_that_are(served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="'none' does not exist here; 'bytes', 'sql', 'law' do") as refusal:
        served.client.chat.completions.create(model="none", messages=HELLO)
    assert refusal.value.code == "model_not_found"


def test_the_flag_wants_a_name_and_a_folder_and_each_name_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert _config("m", "--adapter", "a=/x/y=z").adapters == {"a": Path("/x/y=z")}
    for text in ("a", "=folder", "a="):
        with pytest.raises(SystemExit):
            _config("m", "--adapter", text)
        assert "is not of the form NAME=FOLDER" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="--adapter"):
        _config("m", "--adapter", "a=x", "--adapter", "a=y")

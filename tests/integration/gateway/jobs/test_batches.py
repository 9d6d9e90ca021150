"""Files and batches of the OpenAI API, by its SDK: what runs, what is refused, what outlasts the process, who sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import Anthropic
from batch_calls import CHAT, OPEN, body_of, client_of, create, ended, jsonl, line, results
from chat_stack import Stack, chat_stack, keys_file
from openai import OpenAI
from waiting import wait_until

from radixkv.gateway.api.jobs import running
from radixkv.gateway.api.jobs.files import StoredFile
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.bodies.uploads import PIECE_BYTES


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = GatewayConfig(
        listen="127.0.0.1:0",
        keys_file=keys_file(tmp_path_factory.mktemp("keys") / "keys.toml"),
        drain_s=1.0,
        max_file_bytes=1_000_000,
        max_job_bytes=3_000_000,
    )
    with chat_stack(default_model, config, max_model_len=256) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with client_of(stack.server) as client:
        yield client


@pytest.fixture
def held(stack: Stack) -> Iterator[Stack]:
    """The model computes nothing until the gate is opened."""
    stack.runner.gate.close()
    yield stack
    stack.runner.gate.open()


# -- what is answered


def test_a_batch_answers_as_the_endpoint_does(client: OpenAI) -> None:
    texts = [f"What is {number}?" for number in range(40)]
    batch = create(client, *(line(f"q-{text}", body_of(text)) for text in texts), metadata={"of": "tests"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", CHAT, {"of": "tests"})
    batch = ended(client, batch)
    assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
    found = results(client, batch.output_file_id)
    assert set(found) == {f"q-{text}" for text in texts}
    for text in texts:
        response = found[f"q-{text}"]["response"]
        posted = client.chat.completions.create(model="gibberish", **body_of(text))
        assert response["status_code"] == 200
        assert response["body"]["choices"] == posted.model_dump(mode="json", exclude_unset=True)["choices"]


def test_a_batch_of_more_requests_than_are_fetched_at_once_makes_each_once(
    held: Stack, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FETCHED", 3)
    num_before, names = len(held.engine.prompts), [str(number) for number in range(20)]
    batch = create(client, *(line(name, body_of(f"{name}?")) for name in names))
    wait_until(lambda: len(held.engine.prompts) > num_before)
    held.runner.gate.open()
    assert set(results(client, ended(client, batch).output_file_id)) == set(names)
    assert len(held.engine.prompts) - num_before == len(names)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 3}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "store": False}),
    ],
)
def test_completions_and_responses_run_in_batches(client: OpenAI, endpoint: Any, body: Any) -> None:
    batch = ended(client, create(client, line("one", body, endpoint), endpoint=endpoint))
    answer = results(client, batch.output_file_id)["one"]["response"]["body"]
    assert answer["object"] in ("text_completion", "response")


def test_files_of_batches_are_not_shown_as_files_for_messages(stack: Stack, client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    with Anthropic(base_url=stack.server.url.removesuffix("/v1"), api_key="red", max_retries=0) as other:
        calls: list[Callable[[], object]] = [
            other.beta.files.list,
            lambda: other.beta.files.upload(file=("a.txt", b"a")),
            lambda: other.beta.files.retrieve_metadata(file.id),
            lambda: other.beta.files.delete(file.id),
        ]
        for call in calls:
            with pytest.raises(anthropic.NotFoundError, match="no files for messages"):
                call()
    assert client.files.delete(file.id).deleted


def test_an_error_of_a_request_is_its_result(client: OpenAI) -> None:
    bodies = {
        "good": body_of("Hello"),
        "hot": body_of("Hello", temperature=9),
        "streamed": body_of("Hello", stream=True),
        "long": body_of("Hello " * 2000),
        "empty": {},
        "foreign": body_of("Hello", model="another"),
    }
    batch = ended(client, create(client, *(line(name, body) for name, body in bodies.items())))
    assert batch.status == "completed"
    assert set(results(client, batch.output_file_id)) == {"good"}
    failed = results(client, batch.error_file_id)
    assert {name: each["response"]["status_code"] for name, each in failed.items()} == {
        "hot": 400,
        "streamed": 400,
        "long": 400,
        "empty": 400,
        "foreign": 404,
    }
    assert failed["streamed"]["response"]["body"]["error"]["param"] == "stream"
    with httpx.Client(headers={"authorization": "Bearer red"}) as http:
        posted = http.post(str(client.base_url) + "chat/completions", json=bodies["hot"])
    assert failed["hot"]["response"]["body"] == posted.json()


# -- what is refused


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (jsonl(line("a", body_of("Hi"))) + b"not json\n", "invalid_json_line", 2),
        (jsonl(line("a", body_of("Hi")), [1]), "invalid_json_line", 2),
        (jsonl(line("a", body_of("Hi"))) + b"\n" + jsonl(line("a", body_of("Ho"))), "duplicate_custom_id", 3),
        (jsonl(line("", body_of("Hi"))), "invalid_custom_id", 1),
        (jsonl(line("a", body_of("Hi"), "/v1/embeddings")), "invalid_url", 1),
        (jsonl({**line("a", body_of("Hi")), "method": "GET"}), "invalid_method", 1),
        (jsonl(line("a", "Hi")), "invalid_body", 1),
        (b"\xff\xfe\n", "invalid_json_line", 1),
        (b"[" * 5000, "invalid_json_line", 1),
    ],
)
def test_a_line_that_is_no_request_fails_the_batch_by_its_number(
    client: OpenAI, content: bytes, code: str, number: int | None
) -> None:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = ended(client, batch)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [(code, number)]
    assert (batch.output_file_id, batch.error_file_id) == (None, None)


def test_a_batch_whose_file_is_deleted_while_its_lines_are_read_fails(
    held: Stack, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, held_up, go_on = held.server.app.state.files, threading.Event(), threading.Event()
    read = files.content

    async def read_slowly(file: StoredFile) -> AsyncIterator[bytes]:
        async for piece in read(file):
            yield piece
            held_up.set()
            while not go_on.is_set():
                await asyncio.sleep(0.01)

    monkeypatch.setattr(files, "content", read_slowly)
    width = 1024 - len(jsonl(line("0000", body_of(""))))
    content = jsonl(*(line(f"{number:04}", body_of("x" * width)) for number in range(512)))
    assert content[PIECE_BYTES - 1 : PIECE_BYTES] == b"\n"
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert held_up.wait(60)
    client.files.delete(file.id)
    database = held.server.app.state.database
    left = "SELECT count(*) FROM file_pieces JOIN files ON file = files.number WHERE id = ?"
    wait_until(lambda: database.submit(lambda c: c.execute(left, (file.id,)).fetchone()[0]).result() == 0)
    go_on.set()
    batch = ended(client, batch, ("validating",))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(each.code, each.param) for each in batch.errors.data] == [("not_found", "file_id")]


def test_files_out_of_their_bounds_are_refused_and_leave_nothing(client: OpenAI) -> None:
    kept = {file.id for file in client.files.list()}
    with pytest.raises(openai.APIStatusError, match="at most 1,000,000 bytes") as refusal:
        client.files.create(file=("in.jsonl", b"x" * 1_000_001), purpose="batch")
    assert refusal.value.status_code == 413
    with pytest.raises(openai.APIStatusError, match=r"at most 1,0[0-9,]+ bytes"):
        client.files.create(file=("in.jsonl", b"x" * 3_000_000), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="purpose must be 'batch'"):
        client.files.create(file=("in.jsonl", b"{}"), purpose="assistants")
    with pytest.raises(openai.BadRequestError, match="seconds must be a whole number from 3,600"):
        client.files.create(
            file=("in.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )
    assert {file.id for file in client.files.list()} == kept


def test_what_one_tenant_keeps_is_bounded_and_deleting_makes_room(stack: Stack) -> None:
    with client_of(stack.server, "blue") as client:
        large = ("in.jsonl", b"x" * 900_000)
        ids = [client.files.create(file=large, purpose="batch").id for _ in range(3)]
        with pytest.raises(openai.BadRequestError, match="at most 3,000,000 bytes"):
            client.files.create(file=large, purpose="batch")
        for file_id in ids:
            assert client.files.delete(file_id).deleted
        while client.files.list().data:
            pass

        def has_room() -> bool:
            try:
                client.files.delete(client.files.create(file=large, purpose="batch").id)
            except openai.BadRequestError:
                return False
            return True

        wait_until(has_room)


@pytest.mark.parametrize(
    "content",
    [
        b"--b\r\n" + b"X: y\r\n" * 9 + b"\r\n",
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\nx: ' + b"y" * 5000 + b"\r\n\r\n",
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n' + b"x" * 5000 + b"\r\n--b--\r\n",
        b'--b\r\ncontent-disposition: form-data; name="p"\r\n\r\nx\r\n' * 20 + b"--b--\r\n",
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx',
        b"no form at all",
        b"",
    ],
)
def test_a_form_that_is_none_is_refused(stack: Stack, content: bytes) -> None:
    headers = {"authorization": "Bearer red", "content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{stack.server.url}/files", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")


def test_files_and_batches_of_another_tenant_are_unknown(stack: Stack, client: OpenAI) -> None:
    batch = ended(client, create(client, line("one", body_of("Hello"))))
    assert batch.output_file_id is not None
    with client_of(stack.server, "blue") as other:
        for ask in (
            lambda: other.files.retrieve(batch.input_file_id),
            lambda: other.files.content(batch.input_file_id),
            lambda: other.files.content(batch.output_file_id or ""),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.list(after=batch.id),
            lambda: other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError) as unknown:
                ask()
        assert unknown.value.param == "input_file_id"
        assert batch.id not in {each.id for each in other.batches.list()}
        assert batch.input_file_id not in {each.id for each in other.files.list()}
    assert client.files.content(batch.input_file_id).content == jsonl(line("one", body_of("Hello")))


def test_lists_come_in_pages(client: OpenAI) -> None:
    made = [client.files.create(file=("in.jsonl", b"{}"), purpose="batch").id for _ in range(5)]
    listed = [file.id for file in client.files.list(limit=2)]
    assert listed[:5] == made[::-1]
    assert [file.id for file in client.files.list(limit=2, order="asc", after=made[1])] == made[2:]
    batches = [ended(client, create(client, line("one", body_of("Hello")))).id for _ in range(3)]
    assert [batch.id for batch in client.batches.list(limit=1)][:3] == batches[::-1]
    for listing in (client.files.list, client.batches.list):
        with pytest.raises(openai.NotFoundError) as unknown:
            listing(after="nowhere")
        assert unknown.value.param == "after"


# -- how it ends


def test_what_is_done_is_kept_when_a_batch_is_cancelled(held: Stack, client: OpenAI) -> None:
    num_before = len(held.engine.prompts)
    batch = create(client, *(line(str(number), body_of(f"{number}?")) for number in range(200)))
    wait_until(lambda: len(held.engine.prompts) > num_before)
    held.runner.gate.open()
    while True:
        now = client.batches.retrieve(batch.id)
        assert now.status in OPEN
        assert now.request_counts is not None
        if now.request_counts.completed:
            break
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    done = results(client, batch.output_file_id)
    left = results(client, batch.error_file_id)
    assert 0 < len(done) == batch.request_counts.completed < 200
    assert len(done) + len(left) == 200
    assert {each["error"]["code"] for each in left.values()} == {"batch_cancelled"}
    with pytest.raises(openai.BadRequestError, match="cancelled already"):
        client.batches.cancel(batch.id)


def test_a_batch_takes_no_place_of_those_that_people_have(held: Stack, client: OpenAI) -> None:
    num_before = len(held.engine.prompts)
    batch = create(client, *(line(str(number), body_of(f"{number}?")) for number in range(100)))
    wait_until(lambda: len(held.engine.prompts) > num_before)
    assert held.server.app.state.gate.num_running == 0
    held.runner.gate.open()
    answer = client.chat.completions.create(model="gibberish", **body_of("And me?"))
    assert answer.choices
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended(client, batch)


def test_a_request_that_is_over_a_rate_waits_and_is_no_error(default_model: str, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml", requests_per_minute=60)
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0)
    with chat_stack(default_model, config, max_model_len=256) as stack, client_of(stack.server) as client:
        num_beyond_half = 31  # of which one waits a second for its turn
        names = [str(number) for number in range(num_beyond_half)]
        batch = ended(client, create(client, *(line(name, body_of(f"{name}?")) for name in names)))
        assert (batch.status, batch.error_file_id) == ("completed", None)
        assert set(results(client, batch.output_file_id)) == set(names)
        now = client.chat.completions.with_raw_response.create(model="gibberish", **body_of("Hi"))
        assert int(now.headers["x-ratelimit-remaining-requests"]) < 60 - num_beyond_half + 10, "each has counted"

"""Message batches of the Anthropic API, by its SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch
from chat_stack import Stack, chat_stack, keys_file
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys: Path = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(
        listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, max_batch_body_bytes=1_000_000, max_job_bytes=1_000_000
    )
    with chat_stack(default_model, config, max_model_len=256) as stack:
        yield stack


def client_of(stack: Stack, key: str = "red") -> Anthropic:
    return Anthropic(base_url=f"http://{stack.server.address}", api_key=key, max_retries=0)


@pytest.fixture
def client(stack: Stack) -> Iterator[Anthropic]:
    with client_of(stack) as client:
        yield client


def params(text: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return {"model": "gibberish", "max_tokens": 4, "temperature": 0, "messages": messages, **fields}


def asked_at_once(text: str) -> Any:
    """The same by the SDK's arguments, of which temperature is none."""
    fields = params(text)
    extra = {"temperature": fields.pop("temperature")}
    return {**fields, "extra_body": extra}


def requests(number: int) -> Any:
    return [{"custom_id": f"r-{place}", "params": params(f"{place}?")} for place in range(number)]


def ended(client: Anthropic, batch: MessageBatch) -> MessageBatch:
    while (now := client.messages.batches.retrieve(batch.id)).processing_status != "ended":
        assert now.results_url is None
    return now


def test_a_batch_answers_as_messages_do(client: Anthropic) -> None:
    asked = [*requests(20), {"custom_id": "hot", "params": params("Hi", temperature=9)}]
    asked += [{"custom_id": "streamed", "params": params("Hi", stream=True)}, {"custom_id": "none", "params": {}}]
    batch = client.messages.batches.create(requests=asked)
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert batch.request_counts.processing == len(asked)
    batch = ended(client, batch)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (20, 3, 0)
    assert batch.ended_at is not None
    found = {each.custom_id: each.result for each in client.messages.batches.results(batch.id)}
    assert set(found) == {each["custom_id"] for each in asked}
    for place in range(20):
        result = found[f"r-{place}"]
        assert result.type == "succeeded"
        posted = client.messages.create(**asked_at_once(f"{place}?"))
        assert (result.message.content, result.message.stop_reason) == (posted.content, posted.stop_reason)
    for name in ("hot", "streamed", "none"):
        failed = found[name]
        assert failed.type == "errored"
        assert failed.error.error.type == "invalid_request_error"
        assert failed.error.request_id


def test_what_is_done_is_kept_when_a_batch_is_canceled_and_it_is_deleted_with_it(
    stack: Stack, client: Anthropic
) -> None:
    stack.runner.gate.close()
    num_before = len(stack.engine.prompts)
    batch = client.messages.batches.create(requests=requests(100))
    wait_until(lambda: len(stack.engine.prompts) > num_before)
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        client.messages.batches.delete(batch.id)
    assert client.messages.batches.cancel(batch.id).processing_status in ("canceling", "ended")
    batch = ended(client, batch)
    stack.runner.gate.open()
    assert batch.cancel_initiated_at is not None
    assert batch.request_counts.canceled + batch.request_counts.succeeded == 100
    kinds = [each.result.type for each in client.messages.batches.results(batch.id)]
    assert kinds.count("canceled") == batch.request_counts.canceled > 0
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ([], "requests"),
        ([*requests(3), *requests(1)], "requests.3.custom_id"),
        ([{"custom_id": "a b", "params": {}}], "requests.0.custom_id"),
        ([*requests(1), {"custom_id": "b"}], "requests.1.params"),
        ([*requests(1), "b"], "requests.1"),
    ],
)
def test_what_is_no_request_is_refused_by_its_place_and_begins_nothing(
    client: Anthropic, asked: Any, place: str
) -> None:
    known = {batch.id for batch in client.messages.batches.list()}
    with pytest.raises(anthropic.BadRequestError, match=place):
        client.messages.batches.create(requests=asked)
    assert {batch.id for batch in client.messages.batches.list()} == known


def test_a_body_over_its_bound_is_refused(client: Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError, match="1,000,000") as refusal:
        client.messages.batches.create(requests=[{"custom_id": "a", "params": params("x" * 1_000_000)}])
    assert refusal.value.status_code == 413


def test_a_batch_that_is_refused_half_stored_gives_its_room_back_soon(client: Anthropic) -> None:
    asked = [{"custom_id": f"r-{place}", "params": params("x" * 1000)} for place in range(501)]
    with pytest.raises(anthropic.BadRequestError, match=r"requests\.500\.custom_id"):
        client.messages.batches.create(requests=[*asked[:500], asked[0]])

    def has_room() -> bool:
        try:
            batch = client.messages.batches.create(requests=asked)
        except anthropic.BadRequestError:
            return False
        client.messages.batches.cancel(batch.id)
        return True

    wait_until(has_room)


def test_batches_of_another_tenant_are_unknown_and_lists_come_in_pages(stack: Stack, client: Anthropic) -> None:
    made = [client.messages.batches.create(requests=requests(1)).id for _ in range(5)]
    assert [batch.id for batch in client.messages.batches.list(limit=2)][:5] == made[::-1]
    behind = client.messages.batches.list(limit=2, before_id=made[0])
    assert [batch.id for batch in behind.data] == [made[2], made[1]]
    with client_of(stack, "blue") as other:
        assert not list(other.messages.batches.list())
        for ask in (other.messages.batches.retrieve, other.messages.batches.cancel, other.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError):
                ask(made[0])
    for batch_id in made:
        ended(client, client.messages.batches.retrieve(batch_id))

"""The Responses API's conversations: kept lists of items that responses read and add to, by the official SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from chat_stack import Stack, chat_stack, gateway, keys_file
from openai import OpenAI

from radixkv.gateway.api.responses import item_lists
from radixkv.gateway.api.responses.item_lists import ItemLists
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.protocol.errors import ApiError
from radixkv.gateway.storage.database import Database

HI: Any = {"type": "message", "role": "user", "content": "My name is Ada."}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=stack.server.url, api_key="none", max_retries=0) as client:
        yield client


def reply(client: OpenAI, text: str, **fields: Any) -> Any:
    return client.responses.create(model="gibberish", input=text, max_output_tokens=12, **fields)


def texts(client: OpenAI, conversation_id: str) -> list[str]:
    items: Any = client.conversations.items.list(conversation_id, order="asc", limit=100)
    return [item.content[0].text for item in items]


def test_a_conversation_is_made_changed_and_removed(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "names"}, items=[HI])
    assert made.id.startswith("conv_")
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"topic": "rivers"}).metadata == {"topic": "rivers"}
    assert client.conversations.retrieve(made.id).metadata == {"topic": "rivers"}
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.list(made.id)


def test_items_are_added_listed_by_pages_and_taken_out(client: OpenAI) -> None:
    made = client.conversations.create()
    added = client.conversations.items.create(made.id, items=[{**HI, "content": f"{n}"} for n in range(5)]).data
    ids = [item.id for item in added]
    assert [item.id for item in client.conversations.items.list(made.id, limit=2)] == ids[::-1]  # the SDK turns pages
    behind = client.conversations.items.list(made.id, order="asc", after=str(ids[2])).data
    assert [item.id for item in behind] == ids[3:]
    assert client.conversations.items.retrieve(str(ids[1]), conversation_id=made.id) == added[1]
    client.conversations.items.delete(str(ids[1]), conversation_id=made.id)
    assert texts(client, made.id) == ["0", "2", "3", "4"]
    for missing in (ids[1], "msg_none"):
        with pytest.raises(openai.NotFoundError):
            client.conversations.items.retrieve(str(missing), conversation_id=made.id)
        with pytest.raises(openai.NotFoundError):
            client.conversations.items.delete(str(missing), conversation_id=made.id)


@pytest.mark.parametrize("store", [True, False])
def test_responses_go_on_from_it_and_add_to_it(stack: Stack, client: OpenAI, store: bool) -> None:
    made = client.conversations.create(items=[HI])
    first = reply(client, "What is it?", conversation=made.id, store=store)
    assert first.conversation.id == made.id
    assert "My name is Ada." in stack.engine.shown()
    with reply(client, "Again?", conversation={"id": made.id}, store=store, stream=True) as events:
        last = list(events)[-1].response
    assert texts(client, made.id) == ["My name is Ada.", "What is it?", first.output_text, "Again?", last.output_text]
    cached = last.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.total_tokens - 1  # the reply was read as it was generated
    (item,) = first.output
    assert client.conversations.items.retrieve(item.id, conversation_id=made.id).to_dict() == item.to_dict()


def test_what_was_made_in_it_can_be_gone_on_from_on_its_own(stack: Stack, client: OpenAI) -> None:
    made = client.conversations.create(items=[HI])
    first = reply(client, "What is it?", conversation=made.id)
    client.conversations.delete(made.id)
    reply(client, "Again?", previous_response_id=first.id)
    assert "My name is Ada." in stack.engine.shown()


def test_what_makes_no_sense_is_refused_and_adds_nothing(client: OpenAI) -> None:
    made = client.conversations.create()
    first = reply(client, "Hi")
    for fields, says in (
        ({"conversation": made.id, "previous_response_id": first.id}, "leave one of them out"),
        ({"conversation": ""}, "conversation"),
        ({"conversation": {"name": "x"}}, "conversation"),
        ({"conversation": "conv_none"}, "conversation with id 'conv_none' not found"),
        ({"conversation": made.id, "tool_choice": "required"}, "tool_choice"),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            reply(client, "Hi", **fields)
        assert caught.value.status_code in (400, 404)
        assert says in caught.value.message
    assert texts(client, made.id) == []
    with pytest.raises(openai.BadRequestError, match=r"items\.0"):
        client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": []} | {"role": None}]
        )  # type: ignore[list-item, dict-item]


def test_nobody_else_sees_it_and_it_outlives_the_gateway(stack: Stack, tmp_path: Path) -> None:
    config = GatewayConfig(
        listen="127.0.0.1:0",
        keys_file=keys_file(tmp_path / "keys.toml"),
        state_file=tmp_path / "state.sqlite",
        drain_s=1.0,
    )
    with gateway(stack.engine, config) as server, OpenAI(base_url=server.url, api_key="red", max_retries=0) as red:
        made = red.conversations.create(items=[HI])
        other = red.with_options(api_key="blue")
        (item,) = red.conversations.items.list(made.id).data
        for look in (
            lambda: other.conversations.retrieve(made.id),
            lambda: other.conversations.update(made.id, metadata={}),
            lambda: other.conversations.delete(made.id),
            lambda: other.conversations.items.list(made.id),
            lambda: other.conversations.items.create(made.id, items=[HI]),
            lambda: other.conversations.items.retrieve(str(item.id), conversation_id=made.id),
            lambda: other.conversations.items.delete(str(item.id), conversation_id=made.id),
            lambda: reply(other, "What is my name?", conversation=made.id),
        ):
            with pytest.raises(openai.NotFoundError, match=made.id):
                look()
    with gateway(stack.engine, config) as server, OpenAI(base_url=server.url, api_key="red", max_retries=0) as red:
        assert texts(red, made.id) == ["My name is Ada."]


def test_bounds_are_held_and_what_is_beyond_them_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_lists, "MAX_ITEMS", 3)

    def said(number: int) -> dict[str, Any]:
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}],
        }

    async def check() -> None:
        with Database(None) as database:
            lists = ItemLists(database, max_lists=2, max_bytes=4000)
            first = await lists.create("a", {}, [said(0)])
            await lists.add("a", first.id, [said(0), said(1)])  # one is there already
            with pytest.raises(ApiError, match="at most 3 items"):
                await lists.add("a", first.id, [said(2), said(3)])
            assert [item["id"] for item in await lists.items("a", first.id)] == ["msg_0", "msg_1"]
            second = await lists.create("a", {})
            with pytest.raises(ApiError, match="at most 2 conversations"):
                await lists.create("a", {})
            await lists.create("b", {})
            with pytest.raises(ApiError, match="4,000 bytes"):
                await lists.update("a", second.id, {"x": "y" * 4000})
            assert (await lists.get("a", second.id)).metadata == {}
            await lists.delete("a", first.id)
            await lists.create("a", {})

    asyncio.run(check())


def test_what_was_in_a_deleted_list_is_in_the_file_no_more(tmp_path: Path) -> None:
    item = {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "secret"}]}

    async def check() -> None:
        with Database(tmp_path / "state.sqlite") as database:
            lists = ItemLists(database)
            made, other = [await lists.create("a", {}, [item]) for _ in range(2)]
            await lists.delete("a", made.id)
            left = database.submit(lambda connection: connection.execute("SELECT list FROM items").fetchall()).result()
            assert [row["list"] for row in left] == [other.id]

    asyncio.run(check())

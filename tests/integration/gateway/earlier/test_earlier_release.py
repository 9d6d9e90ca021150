"""The files that an earlier release has left: its state file (state.sql) and its keys file (keys.toml) serve on.

They are kept as that release wrote them. A release that changes either adds its own beside them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from batch_calls import client_of, ended, results
from chat_stack import Stack, chat_stack
from openai import NotFoundError, OpenAI
from openai.types.responses import Response
from talk import Talk

from radixkv.gateway.config import GatewayConfig
from radixkv.net.tenants import KeyRing, Tenant, TenantLimits

HERE = Path(__file__).parent
FIRST, SECOND = "resp_cb56e523508a5e7d9b19d1c7c4691a2e", "resp_62891569df61799f5e2ee327edbaf241"
BACKGROUND, INTERRUPTED = "resp_a2c166ac132898db6c69b8eacd20edd6", "resp_a0911f9948bc7b8e923cbe13787679c9"
ITEMS, ITEMS_RESPONSE = "conv_4a874fd985c3ac8750903984ebdb0f1a", "resp_66faa648f1ac3e608d0bf662bff42eee"


def write_state(path: Path) -> None:
    """The state file, every time in it as much later as the dump is old, so that nothing has expired meanwhile."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((HERE / "state.sql").read_text())
        (made_s,) = connection.execute("PRAGMA application_id").fetchone()
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                if column.endswith("_s"):
                    connection.execute(f"UPDATE {table} SET {column} = {column} + ?", (time.time() - made_s,))
        connection.commit()


def tenant_of(ring: KeyRing, name: str) -> Tenant:
    tenant = ring.find(f"key-of-{name}")
    assert tenant is not None
    return tenant


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    state = tmp_path_factory.mktemp("earlier") / "state.sqlite"
    write_state(state)
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=HERE / "keys.toml", drain_s=1.0, state_file=state)
    with chat_stack(default_model, config, max_model_len=512) as stack:
        with client_of(stack.server, "key-of-red") as client:
            for batch in client.batches.list():  # one goes on now; it would take what a test dictates
                ended(client, batch)
        yield stack


@pytest.fixture
def red(stack: Stack) -> Iterator[OpenAI]:
    with client_of(stack.server, "key-of-red") as client:
        yield client


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "key-of-red") as talk:
        yield talk


def test_a_conversation_has_its_branches_and_goes_on(stack: Stack, talk: Talk) -> None:
    (rivers,) = talk.call("GET")["conversations"]
    assert (rivers["title"], rivers["tags"], rivers["pinned"]) == ("Rivers", ["geography"], True)
    assert rivers["settings"] == {"temperature": 0.5, "seed": 7, "max_tokens": 24}
    by_id = {message["id"]: message for message in talk.messages(rivers["id"])}

    def branch(text: str) -> list[str]:
        at = next(message for message in by_id.values() if message["text"] == text)
        above = by_id.get(at["parent"])
        return [*(branch(above["text"]) if above else []), text]

    begun = ["Be brief.", "Name a river in France."]
    assert branch("The Seine.") == [*begun, "The Seine."]
    assert branch("The Ebro.") == [*begun, "The Loire.", "And in Spain?", "The Ebro."]
    assert branch("The Tajo.") == [*begun, "The Loire.", "And in Portugal?", "The Tajo."]
    ebro = next(message for message in by_id.values() if message["text"] == "The Ebro.")
    assert (ebro["starred"], ebro["name"]) == (True, "Spain")
    cut = next(message for message in by_id.values() if message["parent"] and not message["text"])
    assert (cut["status"], by_id[cut["parent"]]["text"]) == ("failed", "And in Italy?")

    stack.dictate("The Drava.")
    _, drava = talk.turn(rivers["id"], "And in Austria?", ebro["id"])
    assert (drava["status"], drava["text"]) == ("complete", "The Drava.")
    (thrown,) = talk.call("GET", f"/{rivers['id']}/trash")["branches"]
    back = talk.call("POST", f"/{rivers['id']}/messages/{thrown['message']['id']}/restore", {})["messages"]
    assert [message["text"] for message in back] == ["Is it warm?", "No."]


def test_what_was_put_away_is_there(talk: Talk) -> None:
    for place, title in (("archived", "Old"), ("trash", "Gone")):
        (found,) = talk.call("GET", **{place: True})["conversations"]
        assert found["title"] == title
    assert len(talk.call("GET", search="Spain")["conversations"]) == 1


def test_a_response_is_read_and_continued(stack: Stack, red: OpenAI) -> None:
    second = red.responses.retrieve(SECOND)
    assert (second.status, second.output_text, second.previous_response_id) == ("completed", "The Ebro.", FIRST)
    assert red.responses.retrieve(FIRST).metadata == {"part": "first"}
    asked, *_ = red.responses.input_items.list(SECOND).data
    assert asked.model_dump()["content"][0]["text"] == "And in Spain?"
    stack.dictate("The Douro.")
    third: Response = red.responses.create(
        model="gibberish", input="And in Portugal?", previous_response_id=SECOND, max_output_tokens=24
    )
    assert third.output_text == "The Douro."
    prompt = stack.engine.shown()
    turns = ("Name a river in France.", "The Loire.", "And in Spain?", "The Ebro.", "And in Portugal?")
    assert [prompt.index(turn) for turn in turns] == sorted(prompt.index(turn) for turn in turns)


def test_responses_of_the_background_have_their_ends(red: OpenAI) -> None:
    done = red.responses.retrieve(BACKGROUND)
    assert (done.status, done.background, done.output_text) == ("completed", True, "Good day.")
    assert red.responses.retrieve(INTERRUPTED).status == "failed"


def test_a_list_of_items_is_extended(stack: Stack, red: OpenAI) -> None:
    texts = [item.model_dump()["content"][0]["text"] for item in red.conversations.items.list(ITEMS, order="asc")]
    assert texts == ["Keep this.", "What shall you keep?", "This."]
    assert red.responses.retrieve(ITEMS_RESPONSE).output_text == texts[-1]
    stack.dictate("That.")
    red.responses.create(model="gibberish", input="And now?", conversation=ITEMS, max_output_tokens=24)
    assert "What shall you keep?" in stack.engine.shown()


def test_a_batch_has_its_results_and_another_goes_on(red: OpenAI) -> None:
    waiting, done = red.batches.list().data
    assert (done.status, set(results(red, done.output_file_id))) == ("completed", {"one", "two"})
    assert red.files.content(done.input_file_id).text.count("\n") == 2
    finished = ended(red, waiting)
    assert (finished.status, set(results(red, finished.output_file_id))) == ("completed", {"three", "four"})


def test_keys_lead_to_their_tenants_alone(stack: Stack) -> None:
    with client_of(stack.server, "key-of-blue") as blue, pytest.raises(NotFoundError):
        blue.responses.retrieve(FIRST)
    ring = KeyRing(HERE / "keys.toml")
    red, blue_tenant, board, engine, warden = (
        tenant_of(ring, name) for name in ("red", "blue", "board", "engine", "warden")
    )
    assert (red.namespace, red.roles, red.is_operator) == ("team-a", {"client"}, False)
    assert red.limits == TenantLimits(requests_per_minute=600, tokens_per_minute=200_000, max_concurrent=32)
    assert ring.find_certificate(["blue-job"]) == blue_tenant
    assert (blue_tenant.namespace, blue_tenant.limits) == ("blue", TenantLimits())
    assert [board.may_name(name) for name in ("team-a", "blue", "board")] == [True, True, False]
    assert engine.sees_all
    assert [engine.may_hold(pool) for pool in ("default", "other")] == [True, False]
    assert warden.is_operator
    assert warden.has_role(["holder"])
    assert ring.find("key-of-nobody") is None

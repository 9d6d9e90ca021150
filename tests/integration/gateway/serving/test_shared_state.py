"""Two gateways over one PostgreSQL database: what one has stored the other serves, continues, stops and deletes."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from chat_stack import GibberishRunner, Watched, gateway, gibberish_engine
from postgres_server import PostgresServer
from resp_servers import RedisServer, needs_redis
from talk import Body, Talk, message_id
from waiting import wait_until

from radixkv.gateway import state as state_module
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.gateway.storage.owners import beat


class Pair(NamedTuple):
    """Two gateways before one engine, a client of each, and the URL of their database."""

    engine: Watched
    runner: GibberishRunner
    gateways: tuple[GatewayServer, GatewayServer]
    http: tuple[httpx.Client, httpx.Client]
    talks: tuple[Talk, Talk]
    state: str

    def told(self, side: int, method: str, path: str, status: int = 200, body: object = None) -> dict:  # type: ignore[type-arg]
        answer = self.http[side].request(method, path, json=body)
        assert answer.status_code == status, answer.text
        told: dict = answer.json()  # type: ignore[type-arg]
        return told

    def events(self, side: int, method: str, path: str, body: object = None) -> Iterator[dict]:  # type: ignore[type-arg]
        with self.http[side].stream(method, path, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def wait_stored(self, side: int) -> None:
        """Until the ids of every reply that has ended are in the database: their text is decoded before."""
        state = self.gateways[side].app.state
        wait_until(lambda: not state.transcripts._saving)
        state.database.submit(lambda _: None).result()


def pair_of(stack: ExitStack, engine: Watched, runner: GibberishRunner, config: GatewayConfig) -> Pair:
    servers = stack.enter_context(gateway(engine, config)), stack.enter_context(gateway(engine, config))
    clients = tuple(stack.enter_context(httpx.Client(base_url=server.url, timeout=300)) for server in servers)
    talks = tuple(stack.enter_context(Talk(server.url)) for server in servers)
    return Pair(engine, runner, servers, clients, talks, str(config.state_file))  # type: ignore[arg-type]  # two of each


@pytest.fixture(scope="module")
def pair(default_model: str, postgres: PostgresServer) -> Iterator[Pair]:
    state = postgres.new_database()
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, state_file=state)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr("radixkv.gateway.state.BEAT_S", 0.7)  # how often they look for what another one has left
        engine, runner, _ = stack.enter_context(gibberish_engine(default_model))
        runner.ends = False  # whole and interrupted replies are compared
        yield pair_of(stack, engine, runner, config)
        runner.gate.open()


LONG = {"max_tokens": 40, "seed": 7}


def lose(lost: GatewayServer, taker: GatewayServer, table: str, key: str) -> None:
    """Have the lease of a gateway end, and not be renewed, until another one has taken over."""
    database, other = lost.app.state.database, taker.app.state.database
    gone = "UPDATE gateways SET seen_s = seen_s - 60 WHERE id = ?"
    owner = f"SELECT owner FROM {table} WHERE id = ?"

    def is_taken() -> bool:
        time.sleep(0.3)  # each look conflicts with those of the gateways
        return other.submit(lambda c: c.execute(owner, (key,)).fetchone()[0]).result() == other.owner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "beat", lambda c, name: None if name == database.owner else beat(c, name))
        database.submit(lambda c: c.execute(gone, (database.owner,)).rowcount).result()
        wait_until(is_taken)


def test_a_response_is_continued_from_its_exact_ids_at_the_other_gateway(pair: Pair) -> None:
    ask = {"input": "hello", "max_output_tokens": 8, "seed": 1}
    first = pair.told(0, "POST", "/responses", body=ask)
    assert pair.told(1, "GET", f"/responses/{first['id']}") == first
    told = {"input": "go on", "max_output_tokens": 4, "previous_response_id": first["id"]}
    before = pair.engine.prompts[-1]
    second = pair.told(1, "POST", "/responses", body=told)
    assert pair.engine.prompts[-1][: len(before)] == before
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= len(before)
    pair.told(1, "DELETE", f"/responses/{first['id']}")
    pair.told(0, "GET", f"/responses/{first['id']}", status=404)
    assert pair.told(0, "GET", f"/responses/{second['id']}") == second


def test_a_chat_that_went_on_elsewhere_is_read_as_the_ids_it_was_generated_as(pair: Pair) -> None:
    turns = [{"role": "user", "content": "tell me"}]
    replies = []
    for turn in range(4):
        ask = {"messages": turns, "max_tokens": 12, "seed": turn}
        reply = pair.told(turn % 2, "POST", "/chat/completions", body=ask)["choices"][0]["message"]["content"]
        replies.append((list(pair.engine.prompts[-1]), reply))
        turns = [*turns, {"role": "assistant", "content": reply}, {"role": "user", "content": "more"}]
        pair.wait_stored(turn % 2)
    lengths = [len(prompt) for prompt, _ in replies]
    for (before, _), (after, _) in itertools.pairwise(replies):
        assert after[: len(before)] == before
    assert lengths == sorted(lengths)
    assert pair.engine.requests[-1].history, "the last prompt was made anew"


def test_a_conversation_is_one_at_both_gateways(pair: Pair) -> None:
    here, there = pair.talks
    conversation = here.begin(title="Rivers")
    asked, reply = there.turn(conversation, "Name one")
    assert here.messages(conversation) == there.messages(conversation)
    _, again = here.turn(conversation, "Another", reply["id"])
    assert [each["id"] for each in there.messages(conversation)][1:] == [reply["id"], again["parent"], again["id"]]
    assert here.messages(conversation)[0]["id"] == asked
    there.call("DELETE", f"/{conversation}")
    here.refused(404, "GET", f"/{conversation}")


def test_a_file_that_is_imported_at_both_gateways_at_once_is_one_conversation(pair: Pair) -> None:
    here = pair.talks[0]
    exports = []
    for number in range(8):
        conversation = here.begin(title=f"Import {number}")
        here.turn(conversation, "Name one")
        exports.append(here.http.get(f"/{conversation}/export").json())
    with ThreadPoolExecutor(4) as pool:
        for export in exports:
            answers = [pool.submit(talk.call, "POST", "/import", export) for talk in (*pair.talks, *pair.talks)]
            told = [answer.result() for answer in answers]
            made = [each["id"] for answer in told for each in answer["conversations"]]
            known = [each["conversation"]["id"] for answer in told for each in answer["known"]]
            assert (len(made), known) == (1, made * 3)


def test_what_is_set_at_both_gateways_at_once_all_stays(pair: Pair) -> None:
    here, there = pair.talks
    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            conversation, asked = begin_with_a_question(here)
            path = f"/{conversation}/messages/{asked['id']}"
            tags = [{"ids": [conversation], "action": "tag", "tag": tag} for tag in "ab"]
            for way, place, bodies in (("PATCH", path, ({"starred": True}, {"name": "N"})), ("POST", "/bulk", tags)):
                calls = [
                    pool.submit(talk.call, way, place, body) for talk, body in zip((here, there), bodies, strict=True)
                ]
                assert all(call.result() for call in calls)
            message = there.message(conversation, asked["id"])
            assert (message["starred"], message["name"]) == (True, "N")
            assert set(there.call("GET", f"/{conversation}")["conversation"]["tags"]) == {"a", "b"}


def test_a_mark_that_one_gateway_sets_is_on_the_reply_that_the_other_writes(pair: Pair) -> None:
    here, there = pair.talks
    conversation, begun = running_reply(pair)
    with here.following(conversation) as near:
        there.call("PATCH", f"/{conversation}/messages/{begun['id']}", {"starred": True})
        assert here.message(conversation, begun["id"])["starred"]
        here.call("PATCH", f"/{conversation}/messages/{begun['id']}", {"name": "N"})
        pair.runner.gate.open()
        ended = near.wait_end(begun["id"])
    assert (ended["starred"], ended["name"]) == (True, "N")
    assert ended == here.message(conversation, begun["id"]) == there.message(conversation, begun["id"])


def test_followers_at_both_gateways_are_told_the_same(pair: Pair) -> None:
    here, there = pair.talks
    conversation = here.begin()
    with here.following(conversation) as near, there.following(conversation) as far:
        pair.runner.gate.close_after(4)
        asked, begun = here.say(conversation, "Count", max_tokens=40)
        far.wait(lambda: len(far.messages.get(begun["id"], {}).get("text", "")) > 0)
        with there.following(conversation) as late:
            pair.runner.gate.open()
            whole = near.wait_end(begun["id"])
            for follower in (far, late):
                assert follower.wait_end(begun["id"]) == whole
        there.turn(conversation, "Go on", begun["id"])
        there.call("PATCH", f"/{conversation}/messages/{asked['id']}", {"starred": True})
        near.wait(lambda: near.messages[asked["id"]]["starred"] and len(near.messages) == 4)
        near.wait(lambda: list(near.messages.values())[-1]["status"] == "complete")
        far.wait(lambda: list(far.messages.values())[-1]["status"] == "complete")
        stored = here.messages(conversation)
        near.wait(lambda: list(near.messages.values()) == stored)
        far.wait(lambda: list(far.messages.values()) == stored)
        removed = stored[2]["id"]
        here.call("DELETE", f"/{conversation}/messages/{removed}")
        for follower in (near, far):
            follower.wait(lambda follower=follower: len(follower.messages) == 2)  # type: ignore[misc]
        there.call("DELETE", f"/{conversation}")
        for follower in (near, far):
            follower.wait(lambda follower=follower: follower.has_ended)  # type: ignore[misc]


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="radixkv-redis-") as folder:
        server = RedisServer(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def relayed(pair: Pair, postgres: PostgresServer, redis_server: RedisServer) -> Iterator[Pair]:
    """Two gateways over another database, before the same engine, that send each other what replies grow by."""
    config = GatewayConfig(
        listen="127.0.0.1:0", drain_s=1.0, state_file=postgres.new_database(), shared_url=redis_server.url
    )
    with ExitStack() as stack:
        stack.callback(pair.runner.gate.open)
        yield pair_of(stack, pair.engine, pair.runner, config)


@needs_redis
def test_live_text_comes_at_once_and_is_whole_though_its_server_forgets(
    relayed: Pair, redis_server: RedisServer
) -> None:
    here, there = relayed.talks
    conversation = here.begin()
    with there.following(conversation) as far:
        relayed.runner.gate.close_after(6)
        _, begun = here.say(conversation, "Count", max_tokens=60)
        far.wait(lambda: bool(far.messages.get(begun["id"], {}).get("text", "")))
        assert redis_server.command("XLEN", f"radixkv:live:{conversation}")[:2] != b":0"
        redis_server.command("FLUSHALL")
        relayed.runner.gate.open()
        whole = here.ended(conversation, begun["id"])
        assert far.wait_end(begun["id"])["text"] == whole["text"]
        _, begun = here.say(conversation, "Again", begun["id"], max_tokens=60)
        assert far.wait_end(begun["id"])["text"] == here.ended(conversation, begun["id"])["text"]


@needs_redis
def test_live_text_comes_after_an_entry_of_another_version(
    relayed: Pair, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.gateway.api.conversations.replies.message_task.SAVE_S", 600.0)
    here, there = relayed.talks
    conversation = here.begin()
    with there.following(conversation) as far:
        for fields in (("text", "hello"), ("m", "x", "p", "first", "t", "hello", "s", "1")):
            redis_server.command("XADD", f"radixkv:live:{conversation}", "*", *fields)
        relayed.runner.gate.close_after(6)
        _, begun = here.say(conversation, "Count", **LONG)
        far.wait(lambda: bool(far.messages.get(begun["id"], {}).get("text", "")))
        relayed.runner.gate.open()
        assert far.wait_end(begun["id"])["text"] == here.ended(conversation, begun["id"])["text"]


@needs_redis
@pytest.mark.parametrize("then", ["its gateway is lost", "it is stopped"])
def test_what_was_told_of_a_reply_before_it_was_stored_stays(
    then: str, relayed: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixkv.gateway.api.conversations.replies.message_task.SAVE_S", 600.0)
    here, there = relayed.talks
    conversation = here.begin()
    relayed.runner.gate.close_after(6)
    _, begun = here.say(conversation, "Count", **LONG)
    with there.following(conversation) as far:
        far.wait(lambda: bool(far.messages.get(begun["id"], {}).get("text", "")))
        seen = far.messages[begun["id"]]["text"]
        there.call("PATCH", f"/{conversation}/messages/{begun['id']}", {"starred": True})
        with there.following(conversation) as late:
            late.wait(lambda: begun["id"] in late.messages)
            assert late.messages[begun["id"]]["text"].startswith(seen)
            if then == "it is stopped":
                stopped = there.call("POST", f"/{conversation}/messages/{begun['id']}/stop")
                assert stopped["text"].startswith(seen)
            else:
                lose(*relayed.gateways, "messages", begun["id"])
                relayed.runner.gate.open()
            whole = far.wait_end(begun["id"])
            assert late.wait_end(begun["id"]) == whole == there.message(conversation, begun["id"])
        if then == "its gateway is lost":
            again = there.call("POST", f"/{conversation}/messages/{begun['parent']}/replies", LONG)["messages"][0]
            assert there.ended(conversation, again["id"])["text"] == whole["text"]


STREAMED = {"input": "a long story", "max_output_tokens": 40, "seed": 7, "background": True, "stream": True}


@needs_redis
@pytest.mark.parametrize("then", ["it goes on", "its gateway is lost"])
def test_the_events_of_a_response_are_followed_at_any_gateway(then: str, relayed: Pair) -> None:
    relayed.runner.gate.close_after(6)
    here = relayed.events(0, "POST", "/responses", STREAMED)
    begun = [next(here) for _ in range(6)]
    path = f"/responses/{begun[0]['response']['id']}"
    there = relayed.events(1, "GET", f"{path}?stream=true")
    followed = [next(there) for _ in range(6)]
    if then == "its gateway is lost":
        lose(*relayed.gateways, "responses", path.removeprefix("/responses/"))
    relayed.runner.gate.open()
    followed += there
    assert followed[:6] == begun
    assert [event["sequence_number"] for event in followed] == list(range(len(followed)))
    stored = relayed.told(1, "GET", path)
    assert followed[-1]["response"] == stored
    spoken = "".join(event["delta"] for event in followed if event["type"] == "response.output_text.delta")
    assert spoken == stored["output"][0]["content"][0]["text"]
    if then == "it goes on":
        assert begun + list(here) == followed
        for after in (4, len(followed) - 1):
            assert [*relayed.events(1, "GET", f"{path}?stream=true&starting_after={after}")] == followed[after + 1 :]
    relayed.told(0, "DELETE", path)
    relayed.told(1, "GET", f"{path}?stream=true", status=404)


@needs_redis
@pytest.mark.parametrize("loss", ["forgotten", "overwritten"])
def test_events_that_their_server_has_lost_are_an_error_and_not_left_out(
    relayed: Pair, redis_server: RedisServer, loss: str
) -> None:
    relayed.runner.gate.close_after(6)
    here = relayed.events(0, "POST", "/responses", STREAMED)
    path = f"/responses/{next(here)['response']['id']}"
    there = relayed.events(1, "GET", f"{path}?stream=true")
    next(there)
    key = path.replace("/responses/", "radixkv:events:")
    if loss == "forgotten":
        redis_server.command("FLUSHALL")
    else:
        num_sent = int(redis_server.command("XLEN", key)[1:])
        redis_server.command("XADD", key, f"0-{num_sent + 1}", "neither", "field")
    relayed.runner.gate.open()
    ended = [*here][-1]
    followed = list(there)
    assert followed[-1] == ended or followed[-1]["error"]["code"] == "events_lost"
    assert [*relayed.events(1, "GET", f"{path}?stream=true")][-1]["error"]["code"] == "events_lost"
    assert relayed.told(1, "GET", path) == ended["response"]


def begin_with_a_question(talk: Talk) -> tuple[str, Body]:
    """A conversation, and its only message, which no reply follows yet."""
    conversation = talk.begin()
    (asked,) = talk.call("POST", f"/{conversation}/messages", {"role": "user", "text": "Name one"})["messages"]
    return conversation, asked


def running_reply(pair: Pair) -> tuple[str, Body]:
    """A conversation, and a reply in it that the first gateway writes: the other tells its beginning, and the gate holds it."""
    here, there = pair.talks
    conversation = here.begin()
    wait_until(
        lambda: not pair.engine.stats().engine.num_generations
    )  # what an earlier test gave up takes no step of it
    pair.runner.gate.close_after(4)
    _, begun = here.say(conversation, "Count", max_tokens=200)
    wait_until(lambda: there.message(conversation, begun["id"])["text"] != "")
    return conversation, begun


def test_a_reply_that_one_gateway_writes_is_stopped_at_the_other(pair: Pair) -> None:
    here, there = pair.talks
    conversation, begun = running_reply(pair)
    assert there.message(conversation, begun["id"])["status"] == "running"
    there.refused(409, "POST", f"/{conversation}/messages", {"parent": begun["id"], "role": "user", "text": "x"})
    stopped = there.call("POST", f"/{conversation}/messages/{begun['id']}/stop")
    assert stopped["status"] == "stopped"
    pair.runner.gate.open()
    wait_until(lambda: here.message(conversation, begun["id"])["status"] == "stopped")
    assert here.message(conversation, begun["id"]) == there.message(conversation, begun["id"])


def test_a_reply_that_one_gateway_writes_is_stopped_as_the_other_throws_its_conversation_away(pair: Pair) -> None:
    there = pair.talks[1]
    conversation, begun = running_reply(pair)
    there.call("POST", f"/{conversation}/trash")
    pair.runner.gate.open()
    wait_until(lambda: not pair.gateways[0].app.state.conversations.message_tasks.written)
    there.call("POST", f"/{conversation}/restore")
    for talk in pair.talks:
        assert talk.message(conversation, begun["id"])["status"] == "stopped"


def test_replies_that_are_asked_for_at_both_gateways_at_once_are_begun_once(pair: Pair) -> None:
    here, there = pair.talks
    with ThreadPoolExecutor(2) as pool:
        for _ in range(6):
            conversation, asked = begin_with_a_question(here)
            path, body = f"/{conversation}/messages/{asked['id']}/replies", {"ids": [message_id()], "max_tokens": 4}
            calls = [pool.submit(talk.call, "POST", path, body) for talk in (here, there)]
            assert [[each["id"] for each in call.result()["messages"]] for call in calls] == [body["ids"]] * 2
            here.ended(conversation, body["ids"][0])
            assert len(there.messages(conversation)) == 2


def test_a_background_response_is_cancelled_at_the_other_gateway(pair: Pair) -> None:
    pair.runner.gate.close_after(3)
    ask = {"input": "long", "background": True, "max_output_tokens": 400}
    begun = pair.told(0, "POST", "/responses", body=ask)
    assert pair.told(1, "GET", f"/responses/{begun['id']}")["status"] in ("queued", "in_progress")
    assert pair.told(1, "POST", f"/responses/{begun['id']}/cancel")["status"] == "cancelled"
    assert pair.told(0, "GET", f"/responses/{begun['id']}")["status"] == "cancelled"
    pair.runner.gate.open()
    wait_until(lambda: not pair.gateways[0].app.state.response_tasks.stored_ids)


async def none_taken(_: object) -> set[str]:
    """What a gateway finds that does not look whether a response is still its own."""
    return set()


@pytest.mark.parametrize(("method", "rest"), [("POST", "/cancel"), ("DELETE", "")])
def test_what_one_gateway_has_ended_is_under_way_at_no_other(
    pair: Pair, method: str, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.gateways[0].app.state.store, "taken", none_taken)
    running = pair.gateways[0].app.state.response_tasks
    pair.runner.gate.close_after(3)
    ask = {"input": "long", "background": True, "stream": True, "max_output_tokens": 400}
    response_id = next(pair.events(0, "POST", "/responses", ask))["response"]["id"]
    path = f"/responses/{response_id}"
    ended = pair.told(1, method, path + rest)
    assert running.stored_ids == [response_id], "the gateway that writes it does not know of its end"
    if method == "DELETE":
        for query in ("", "?stream=true"):
            pair.told(0, "GET", path + query, status=404)
    else:
        assert pair.told(0, "GET", path) == ended
    pair.runner.gate.open()
    wait_until(lambda: not running.stored_ids)


def remembered(pair: Pair) -> int:
    for side in (0, 1):
        pair.wait_stored(side)
    query = "SELECT count(*) FROM transcripts"
    count: int = pair.gateways[0].app.state.database.submit(lambda c: c.execute(query).fetchone()[0]).result()
    return count


def test_what_one_gateway_has_deleted_is_not_remembered_by_the_one_that_writes_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here, there), state = pair.talks, pair.gateways[0].app.state
    monkeypatch.setattr(state.store, "taken", none_taken)
    monkeypatch.setattr(state.conversations.store, "save", none_taken)
    before, conversation = remembered(pair), here.begin()
    pair.runner.gate.close_after(4)
    here.say(conversation, "A secret", max_tokens=12)
    there.call("DELETE", f"/{conversation}")
    ask = {"input": "A secret", "background": True, "max_output_tokens": 12}
    pair.told(1, "DELETE", f"/responses/{pair.told(0, 'POST', '/responses', body=ask)['id']}")
    pair.runner.gate.open()
    wait_until(lambda: not state.conversations.message_tasks.written and not state.response_tasks.stored_ids)
    assert remembered(pair) == before


def test_a_background_response_ends_with_the_same_text_though_its_gateway_is_gone(pair: Pair) -> None:
    ask = {"input": "a long story", "max_output_tokens": 40, "seed": 7}
    undisturbed = pair.told(0, "POST", "/responses", body=ask)
    pair.runner.gate.close_after(6)
    begun = pair.told(0, "POST", "/responses", body=ask | {"background": True})
    lose(*pair.gateways, "responses", begun["id"])
    pair.runner.gate.open()
    wait_until(lambda: pair.told(1, "GET", f"/responses/{begun['id']}")["status"] in ("completed", "incomplete"))
    ended = pair.told(1, "GET", f"/responses/{begun['id']}")
    wait_until(lambda: not pair.gateways[0].app.state.response_tasks.stored_ids)
    assert ended["created_at"] == begun["created_at"]
    assert [each["content"] for each in ended["output"]] == [each["content"] for each in undisturbed["output"]]


def is_living(pair: Pair, side: int) -> bool:
    """Whether a gateway renews its lease twice."""
    database = pair.gateways[side].app.state.database
    query = "SELECT seen_s FROM gateways WHERE id = ?"
    for _ in range(2):
        before = database.submit(lambda c: c.execute(query, (database.owner,)).fetchone()[0]).result()
        wait_until(
            lambda before=before: (  # type: ignore[misc]
                database.submit(lambda c: c.execute(query, (database.owner,)).fetchone()[0]).result() > before
            ),
            20,
        )
    return True


def test_a_gateway_keeps_its_lease_while_it_writes_the_stream_of_one_that_is_gone(pair: Pair) -> None:
    ask = {"input": "a long story", "max_output_tokens": 400, "background": True, "stream": True}
    pair.runner.gate.close_after(6)
    begun = next(pair.events(0, "POST", "/responses", ask))["response"]
    lose(*pair.gateways, "responses", begun["id"])
    assert is_living(pair, 1)
    assert is_living(pair, 0)
    pair.told(1, "POST", f"/responses/{begun['id']}/cancel")
    pair.runner.gate.open()
    wait_until(lambda: not any(server.app.state.response_tasks.stored_ids for server in pair.gateways))


def test_a_gateway_keeps_its_lease_while_what_it_takes_over_waits_for_a_worker(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    async def taken(_: object) -> None:
        waits.set()
        while waits.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(state_module, "take_over", taken)
    wait_until(waits.is_set)
    assert is_living(pair, 0)
    assert is_living(pair, 1)
    waits.clear()


ENDS = ("response.completed", "response.incomplete", "response.failed")


def item_ids(events: Iterable[dict]) -> set[str]:  # type: ignore[type-arg]
    return {event["item_id"] for event in events if "item_id" in event}


@pytest.mark.parametrize("finds_out", ["as it looks", "as it stores the end"])
def test_a_response_is_the_same_at_the_gateway_that_lost_it(
    pair: Pair, finds_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = pair.gateways[0].app.state
    tasks, finish, find = state.response_tasks, state.store.finish, state.response_tasks.find
    may_store, is_ending, is_asked = threading.Event(), threading.Event(), threading.Event()

    async def slow_finish(*ended: object) -> object:
        is_ending.set()
        while not may_store.is_set():
            await asyncio.sleep(0.01)
        return await finish(*ended)

    def watched_find(*wanted: object, **how: object) -> object:
        is_asked.set()
        return find(*wanted, **how)

    ask = {"input": "a long story", "max_output_tokens": 40, "seed": 7, "background": True, "stream": True}
    told: list[dict] = []  # type: ignore[type-arg]
    pair.runner.gate.close_after(6)
    with ThreadPoolExecutor(2) as threads:
        following = threads.submit(lambda: told.extend(pair.events(0, "POST", "/responses", ask)))
        wait_until(lambda: tasks.stored_ids)
        (response_id,) = tasks.stored_ids
        path = f"/responses/{response_id}"
        if finds_out == "as it stores the end":
            monkeypatch.setattr(state.store, "taken", none_taken)
            monkeypatch.setattr(state.store, "finish", slow_finish)
        lose(*pair.gateways, "responses", response_id)
        if finds_out == "as it looks":
            wait_until(lambda: not tasks.stored_ids)
            assert pair.told(0, "GET", path)["status"] in ("queued", "in_progress")
        pair.runner.gate.open()
        wait_until(lambda: pair.told(1, "GET", path)["status"] == "incomplete")
        stored = pair.told(1, "GET", path)
        if finds_out == "as it stores the end":
            wait_until(is_ending.is_set)
            monkeypatch.setattr(tasks, "find", watched_find)
            asked = threads.submit(pair.told, 0, "GET", path)
            wait_until(is_asked.is_set)
            may_store.set()
            assert asked.result() == stored
        following.result()
    assert pair.told(0, "GET", path) == stored
    ends = [event["response"] for event in told if event["type"] in ENDS]
    assert ends == ([stored] if finds_out == "as it stores the end" else [])
    replayed = [*pair.events(1, "GET", f"{path}?stream=true")]
    assert replayed[-1]["response"] == stored
    assert [*pair.events(1, "GET", f"{path}?stream=true&starting_after=4")] == replayed[5:]
    assert item_ids(told) == item_ids(replayed) == {item["id"] for item in stored["output"]}
    for query in ("?stream=true", "?stream=true&starting_after=4"):
        pair.told(0, "GET", path + query, status=400)


@pytest.mark.parametrize(("method", "rest"), [("POST", "/cancel"), ("DELETE", "")])
def test_a_response_is_ended_at_the_gateway_that_lost_it(
    pair: Pair, method: str, rest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.runner.gate.close_after(6)
    ask = {"input": "a long story", "max_output_tokens": 400, "background": True}
    path = f"/responses/{pair.told(0, 'POST', '/responses', body=ask)['id']}"
    monkeypatch.setattr(pair.gateways[0].app.state.store, "taken", none_taken)
    lose(*pair.gateways, "responses", path.removeprefix("/responses/"))
    told = pair.told(0, method, path + rest)
    for server in pair.gateways:
        wait_until(lambda server=server: not server.app.state.response_tasks.stored_ids)  # type: ignore[misc]
    pair.runner.gate.open()
    for side in (0, 1):
        if method == "DELETE":
            pair.told(side, "GET", path, status=404)
        else:
            assert pair.told(side, "GET", path) == told
            assert told["status"] == "cancelled"


def test_a_reply_is_stopped_at_the_gateway_that_lost_it(pair: Pair) -> None:
    here, there = pair.talks
    conversation, begun = running_reply(pair)
    lose(*pair.gateways, "messages", begun["id"])
    stopped = here.call("POST", f"/{conversation}/messages/{begun['id']}/stop")
    assert stopped["status"] == "stopped"
    assert there.call("POST", f"/{conversation}/messages/{begun['id']}/stop")["status"] == "stopped"
    pair.runner.gate.open()
    for side in (0, 1):
        wait_until(lambda side=side: not pair.gateways[side].app.state.conversations.message_tasks.written)  # type: ignore[misc]
    assert here.message(conversation, begun["id"]) == there.message(conversation, begun["id"]) == stopped


def test_replies_end_with_the_same_text_though_their_gateway_is_gone(pair: Pair) -> None:
    here, there = pair.talks
    conversation = here.begin()
    asked, *whole = here.say(conversation, "A long story", n=2, **LONG)
    whole = [here.ended(conversation, each["id"]) for each in whole]
    pair.runner.gate.close_after(8)
    ask = {"n": 2, "sharing": "off", **LONG}
    again = here.call("POST", f"/{conversation}/messages/{asked['id']}/replies", ask)["messages"]
    with there.following(conversation) as follower:
        lose(*pair.gateways, "messages", again[0]["id"])
        pair.runner.gate.open()
        for before, reply in zip(whole, again, strict=True):
            assert follower.wait_end(reply["id"])["text"] == before["text"]
            ended = there.ended(conversation, reply["id"])
            assert (ended["text"], ended["status"]) == (before["text"], "complete")
    assert [each.sharing for each in pair.engine.requests[-2:]] == ["off", "off"], (
        "the second is that of the other gateway"
    )


@pytest.mark.parametrize("request_", ["{}", "[", '{"tenant": "default", "path": 7, "body": {}}'])
def test_a_lost_response_that_no_gateway_can_read_fails(request_: str, pair: Pair) -> None:
    """As one that another version has stored; the others that are lost are taken over all the same."""
    here = pair.told(0, "POST", "/responses", body={"input": "tell", "max_output_tokens": 1, "seed": 7})
    database = pair.gateways[0].app.state.database
    left = "UPDATE responses SET status = 'queued', owner = NULL, request = ? WHERE id = ?"
    database.submit(lambda c: c.execute(left, (request_, here["id"])).rowcount).result()
    wait_until(lambda: pair.told(1, "GET", f"/responses/{here['id']}")["status"] == "failed")


def test_a_gateway_that_stops_hands_on_what_it_writes(pair: Pair) -> None:
    here, there = pair.talks
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.1, state_file=pair.state)
    conversation = there.begin()
    asked, first = there.turn(conversation, "A long story", **LONG)
    undisturbed = pair.told(0, "POST", "/responses", body={"input": "tell", "max_output_tokens": 40, "seed": 7})
    with gateway(pair.engine, config) as server, httpx.Client(base_url=server.url, timeout=300) as http:
        pair.runner.gate.close_after(8)
        path = f"/radixkv/conversations/{conversation}/messages/{asked}/replies"
        reply = http.post(path, json=LONG).json()["messages"][0]
        ask = {"input": "tell", "max_output_tokens": 40, "seed": 7, "background": True}
        begun = http.post("/responses", json=ask).json()
    pair.runner.gate.open()
    assert here.ended(conversation, reply["id"])["text"] == first["text"]
    wait_until(lambda: pair.told(1, "GET", f"/responses/{begun['id']}")["status"] in ("completed", "incomplete"))
    ended = pair.told(0, "GET", f"/responses/{begun['id']}")
    assert [each["content"] for each in ended["output"]] == [each["content"] for each in undisturbed["output"]]


def test_what_ends_while_the_database_is_away_is_told_once_it_is_stored(pair: Pair, postgres: PostgresServer) -> None:
    here, _ = pair.talks
    conversation = here.begin()
    pair.runner.gate.close_after(6)
    _, begun = here.say(conversation, "Count", max_tokens=12)
    ask = {"input": "a story", "max_output_tokens": 12}
    background = pair.told(0, "POST", "/responses", body=ask | {"background": True})
    state = pair.gateways[0].app.state
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pair.told, 0, "POST", "/responses", body=ask)
        wait_until(lambda: len(state.response_tasks.stored_ids) == 2)
        tasks = [*state.response_tasks._running.values(), *state.conversations.message_tasks._running.values()]
        postgres.stop(signal.SIGQUIT)
        try:
            pair.runner.gate.open()
            wait_until(lambda: all(reply.reason is not None for task in tasks for reply in task.turn.replies))
        finally:
            postgres.start()
        told = waiting.result()
    assert told["status"] == "incomplete"
    assert pair.told(1, "GET", f"/responses/{told['id']}") == told
    assert here.ended(conversation, begun["id"])["status"] == "complete"
    assert pair.talks[1].message(conversation, begun["id"]) == here.message(conversation, begun["id"])
    ended = pair.told(0, "GET", f"/responses/{background['id']}")
    assert ended["status"] == "incomplete"
    assert pair.told(1, "GET", f"/responses/{background['id']}") == ended


def test_without_the_database_what_needs_no_state_is_served(pair: Pair, postgres: PostgresServer) -> None:
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    stored = pair.told(0, "POST", "/responses", body={"input": "kept", "max_output_tokens": 4})
    postgres.stop(signal.SIGQUIT)
    try:
        assert pair.told(0, "POST", "/chat/completions", body=ask)["choices"]
        unstored = {"input": "hi", "store": False, "max_output_tokens": 4}
        assert pair.told(1, "POST", "/responses", body=unstored)["status"] in ("completed", "incomplete")
        for side, path in ((0, f"/responses/{stored['id']}"), (1, "/radixkv/conversations")):
            answer = pair.http[side].get(path)
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            assert "127.0.0.1" not in answer.text
    finally:
        postgres.start()
    deadline_s = time.monotonic() + 300
    while pair.http[0].get(f"/responses/{stored['id']}").status_code == 503:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert pair.told(1, "GET", f"/responses/{stored['id']}") == stored

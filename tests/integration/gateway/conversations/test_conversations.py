"""Conversations that are kept on the server: turns, branches, drafts, and what another tenant sees of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk, message_id
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig

UNKNOWN = "conv_" + "0" * 32


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, max_conversations=40)
    with chat_stack(default_model, config, num_blocks=2048, max_model_len=512) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "red") as talk:
        yield talk
        for conversation in talk.call("GET", "", limit=200)["conversations"]:
            talk.call("DELETE", f"/{conversation['id']}")


@pytest.fixture
def other(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "blue") as talk:
        yield talk


@pytest.fixture
def held(stack: Stack) -> Iterator[Stack]:
    """The model computes nothing until the gate is opened."""
    stack.runner.gate.close()
    yield stack
    stack.runner.gate.open()


def num_known(stack: Stack, number: int) -> int:
    """Tokens with which a prompt begins as an earlier one did."""
    prompts = stack.engine.prompts
    wanted = prompts[number]
    both = (zip(wanted, earlier, strict=False) for earlier in prompts[:number])
    return max((sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) for pairs in both), default=0)


# -- whole conversations


def test_a_conversation_is_kept_listed_renamed_and_deleted(talk: Talk) -> None:
    made = talk.call("POST", "", {})
    assert (made["title"], made["head"], made["num_messages"]) == ("New conversation", None, 0)
    assert talk.call("GET", f"/{made['id']}") == {"conversation": made, "messages": []}
    renamed = talk.call("PATCH", f"/{made['id']}", {"title": " Rivers "})
    assert renamed["title"] == "Rivers"
    assert renamed["version"] > made["version"]
    assert talk.call("GET", "")["conversations"] == [renamed]
    assert talk.call("DELETE", f"/{made['id']}") is None
    assert talk.call("GET", "") == {"conversations": [], "has_more": False}
    talk.refused(404, "GET", f"/{made['id']}")


def test_a_conversation_may_begin_with_a_path_of_messages(talk: Talk) -> None:
    path = [
        {"role": "system", "text": "Be brief."},
        {"role": "user", "text": "Hi\nthere"},
        {"role": "assistant", "text": "Ho"},
    ]
    made = talk.call("POST", "", {"messages": path})
    assert made["title"] == "Hi"
    messages = talk.messages(made["id"])
    assert [{"role": message["role"], "text": message["text"]} for message in messages] == path
    assert [message["parent"] for message in messages] == [None, messages[0]["id"], messages[1]["id"]]
    assert made["head"] == messages[-1]["id"]
    assert talk.refused(400, "POST", "", {"messages": path[::-1]})["param"] == "messages.2.role"


def test_the_latest_updated_come_first_page_by_page(talk: Talk) -> None:
    ids = [talk.begin(title=f"number {number}") for number in range(5)]
    talk.call("PATCH", f"/{ids[1]}", {"title": "again"})
    first = talk.call("GET", "", limit=3)
    assert [each["id"] for each in first["conversations"]] == [ids[1], ids[4], ids[3]]
    assert first["has_more"]
    rest = talk.call("GET", "", limit=3, before=repr(first["conversations"][-1]["updated"]))
    assert [each["id"] for each in rest["conversations"]] == [ids[2], ids[0]]
    assert not rest["has_more"]


def test_a_search_finds_titles_and_texts_whatever_their_case(talk: Talk) -> None:
    loire = talk.begin(title="The Loire")
    rhine = talk.begin(messages=[{"role": "user", "text": "Where does the RHÔNE end?"}])
    talk.begin(title="Mountains")
    for text, found in (("loire", [loire]), ("rhône", [rhine]), ("the", [rhine, loire]), ("sea", [])):
        assert [each["id"] for each in talk.call("GET", "", search=text)["conversations"]] == found
    page = talk.call("GET", "", search="the", limit=1)
    assert [each["id"] for each in page["conversations"]] == [rhine]
    assert page["has_more"]


def test_what_is_full_says_what_to_delete(talk: Talk) -> None:
    ids = [talk.begin() for _ in range(40)]
    assert "delete some" in talk.refused(409, "POST", "", {})["message"]
    talk.call("DELETE", f"/{ids[0]}")
    talk.begin()


def test_a_search_tells_the_messages_on_whatever_branch(talk: Talk, other: Talk) -> None:
    conversation_id = talk.begin(messages=[{"role": "user", "text": "Where does it spring?"}])
    (asked,) = talk.messages(conversation_id)
    path = f"/{conversation_id}/messages"
    hidden, shown = (
        talk.call("POST", path, {"parent": asked["id"], "role": "assistant", "text": text})["messages"][0]
        for text in ("In the Alps:\nthe GOTTHARD, and the Gotthard again.", "I do not know.")
    )
    (found,) = talk.call("GET", "", search="gotthard")["conversations"]
    assert (found["id"], found["head"], found["has_more_hits"]) == (conversation_id, shown["id"], False)
    excerpt = "In the Alps: the GOTTHARD, and the Gotthard again."
    assert found["hits"] == [
        {
            "message": hidden["id"],
            "role": "assistant",
            "created": hidden["created"],
            "position": 17,
            "excerpt": excerpt,
            "marks": [[17, 25], [35, 43]],
        }
    ]
    assert [excerpt[begin:end] for begin, end in found["hits"][0]["marks"]] == ["GOTTHARD", "Gotthard"]
    assert "hits" not in talk.call("GET", "")["conversations"][0]
    assert other.call("GET", "", search="gotthard")["conversations"] == []


# -- turns


def test_a_turn_is_written_and_says_what_it_cost(stack: Stack, talk: Talk) -> None:
    stack.dictate("Good day.")
    conversation_id = talk.begin()
    asked, begun = talk.say(conversation_id, "Hello there")
    assert (asked["role"], asked["status"], asked["parent"], asked["details"]) == ("user", "complete", None, None)
    assert (begun["role"], begun["status"], begun["text"], begun["parent"]) == ("assistant", "running", "", asked["id"])
    reply = talk.ended(conversation_id, begun["id"])
    assert (reply["status"], reply["text"], reply["error"]) == ("complete", "Good day.", None)
    assert stack.engine.shown().endswith("<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n")
    details = reply["details"]
    assert details["model"] == "gibberish"
    assert details["prompt_tokens"] == len(stack.engine.prompts[-1])
    assert details["cached_tokens"] == min(
        num_known(stack, len(stack.engine.prompts) - 1), details["prompt_tokens"] - 1
    )
    assert details["generated_tokens"] == len(stack.text.encode("Good day.", special=False)) + 1
    assert details["finish_reason"] == "stop"
    assert details["drafts"] == 1
    assert 0 < details["first_token_ms"] <= details["duration_ms"]
    conversation = talk.call("GET", f"/{conversation_id}")["conversation"]
    assert (conversation["title"], conversation["head"], conversation["num_messages"]) == (
        "Hello there",
        reply["id"],
        2,
    )


def test_all_before_an_edit_is_found_in_the_cache(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin(
        messages=[{"role": "system", "text": "Be brief and kind, whatever you are asked about."}]
    )
    (system,) = talk.messages(conversation_id)
    parent, asked = system["id"], []
    for text in ("Name a river.", "And a longer one?", "And its source?"):
        message, reply = talk.turn(conversation_id, text, parent)
        asked.append((message, parent))
        parent = reply["id"]
    for (_, above), text in zip(asked, ("Name a lake.", "And a shorter one?", "And its mouth?"), strict=True):
        number = len(stack.engine.prompts)
        message, reply = talk.turn(conversation_id, text, above)
        prompt = stack.engine.prompts[number]
        edited_at = (
            len(prompt) - len(stack.text.encode(f"{text}<|im_end|>\n<|im_start|>assistant\n", special=False)) - 8
        )
        assert reply["details"]["cached_tokens"] == min(num_known(stack, number), len(prompt) - 1)
        assert reply["details"]["cached_tokens"] >= edited_at
        again = talk.call("POST", f"/{conversation_id}/messages/{message}/replies", {"max_tokens": 24})["messages"][0]
        assert talk.ended(conversation_id, again["id"])["details"]["cached_tokens"] == len(prompt) - 1
    messages = {message["id"]: message for message in talk.messages(conversation_id)}
    assert len(messages) == 1 + 3 * 2 + 3 * 3
    assert sum(message["parent"] == system["id"] for message in messages.values()) == 2


def test_drafts_are_siblings_of_one_prompt(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    number = len(stack.engine.prompts)
    asked, *drafts = talk.say(conversation_id, "Write a haiku.", n=4, seed=7)
    ended = [talk.ended(conversation_id, draft["id"]) for draft in drafts]
    assert len(stack.engine.prompts) == number + 1
    assert len({draft["text"] for draft in ended}) > 1
    for draft in ended:
        assert (draft["status"], draft["parent"]) == ("complete", asked["id"])
        assert draft["details"]["drafts"] == 4
        assert 0 < draft["details"]["generated_tokens"] <= 24
    for draft in ended:
        number = len(stack.engine.prompts)
        _, reply = talk.turn(conversation_id, "And another one.", draft["id"])
        behind = draft["details"]["prompt_tokens"] + draft["details"]["generated_tokens"] - 1
        assert reply["details"]["cached_tokens"] >= behind, "each draft's own tokens were found"


def test_a_reply_written_by_hand_is_one_to_go_on_from(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    asked, reply = talk.turn(conversation_id, "Hello")
    body = {"parent": asked, "role": "assistant", "text": "My own words."}
    (edited,) = talk.call("POST", f"/{conversation_id}/messages", body)["messages"]
    assert (edited["status"], edited["details"]) == ("complete", {"edited": True})
    talk.turn(conversation_id, "Go on.", edited["id"])
    assert "<|im_start|>assistant\nMy own words.<|im_end|>" in stack.engine.shown()
    assert talk.message(conversation_id, reply["id"]) == reply, "the first one stays as it was"


def test_the_same_request_again_changes_nothing(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    reply_ids = [message_id(), message_id()]
    body: dict[str, Any] = {"id": message_id(), "parent": None, "role": "user", "text": "Hello"}
    with_ids = {**body, "replies": {"n": 2, "ids": reply_ids, "max_tokens": 8}}
    number = len(stack.engine.prompts)
    path = f"/{conversation_id}/messages"
    first = talk.call("POST", path, with_ids)["messages"]
    again = talk.call("POST", path, with_ids)["messages"]
    assert [message["id"] for message in first] == [message["id"] for message in again] == [body["id"], *reply_ids]
    for reply_id in reply_ids:
        talk.ended(conversation_id, reply_id)
    ended = [
        talk.ended(conversation_id, reply_id) for reply_id in reply_ids
    ]  # the first is told of the cache by the last
    without = talk.call("POST", path, {**body, "replies": {"max_tokens": 8}})["messages"]
    assert without[1:] == ended, "the replies that are there"
    assert talk.call("POST", f"{path}/{body['id']}/replies", with_ids["replies"])["messages"] == ended
    assert talk.call("POST", path, body)["messages"] == [first[0]]
    assert len(stack.engine.prompts) == number + 1
    assert len(talk.messages(conversation_id)) == 3
    assert talk.refused(409, "POST", path, {**body, "text": "Goodbye"})["param"] == "id"
    assert talk.refused(409, "POST", f"{path}/{body['id']}/replies", {"ids": [body["id"]]})["param"] == "ids"


def test_a_branch_is_deleted_with_all_below_it(talk: Talk) -> None:
    conversation_id = talk.begin()
    first, reply = talk.turn(conversation_id, "One")
    second, below = talk.turn(conversation_id, "Two", reply["id"])
    kept, beside = talk.turn(conversation_id, "Three", reply["id"])
    gone = talk.call("DELETE", f"/{conversation_id}/messages/{second}")["ids"]
    assert gone == [second, below["id"]]
    assert [message["id"] for message in talk.messages(conversation_id)] == [first, reply["id"], kept, beside["id"]]
    assert talk.call("GET", f"/{conversation_id}")["conversation"]["head"] == beside["id"]
    talk.call("DELETE", f"/{conversation_id}/messages/{kept}")
    assert talk.call("GET", f"/{conversation_id}")["conversation"]["head"] == reply["id"]
    talk.refused(404, "DELETE", f"/{conversation_id}/messages/{second}")


def test_what_was_deleted_is_read_as_text_from_then_on(stack: Stack, talk: Talk) -> None:
    """The ids of its replies are forgotten with it."""
    transcripts = stack.server.app.state.transcripts
    before = len(transcripts._cache)
    conversation_id = talk.begin()
    first, reply = talk.turn(conversation_id, "A story to forget")
    talk.turn(conversation_id, "And on", reply["id"])
    talk.turn(conversation_id, "And elsewhere", reply["id"])
    assert len(transcripts._cache) > before
    talk.call("DELETE", f"/{conversation_id}/messages/{first}")
    assert len(transcripts._cache) == before


# -- stopping


def test_a_stopped_reply_keeps_what_was_written(stack: Stack, talk: Talk) -> None:
    stack.dictate("one two three four five six seven eight nine ten eleven twelve")
    stack.runner.gate.close_after(6)
    conversation_id = talk.begin()
    _, begun = talk.say(conversation_id, "Count")
    with talk.following(conversation_id) as follower:
        follower.wait(lambda: len(follower.messages[begun["id"]]["text"]) > 8)
        stopped = talk.call("POST", f"/{conversation_id}/messages/{begun['id']}/stop")
        assert follower.wait_end(begun["id"]) == stopped
    stack.runner.gate.open()
    assert stopped["status"] == "stopped"
    assert "one two three four five six seven".startswith(stopped["text"])
    assert stopped["details"]["generated_tokens"] > 0
    wait_until(lambda: stack.engine.stats().engine.num_generations == 0)
    assert talk.message(conversation_id, begun["id"]) == stopped
    assert talk.call("POST", f"/{conversation_id}/messages/{begun['id']}/stop") == stopped
    number = len(stack.engine.prompts)
    _, reply = talk.turn(conversation_id, "Go on", begun["id"])
    assert stopped["text"] in stack.engine.shown(number)
    assert reply["status"] == "complete"


def test_of_several_drafts_one_alone_is_stopped(held: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    _, *drafts = talk.say(conversation_id, "Hello", n=3)
    path = f"/{conversation_id}/messages"
    assert talk.call("POST", f"{path}/{drafts[1]['id']}/stop")["status"] == "stopped"
    held.runner.gate.open()
    ended = [talk.ended(conversation_id, draft["id"]) for draft in drafts]
    assert [draft["status"] for draft in ended] == ["complete", "stopped", "complete"]
    assert ended[1]["text"] == ""


def test_drafts_that_nobody_waits_for_any_more_are_ended(held: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    asked, *drafts = talk.say(conversation_id, "Hello", n=2)
    talk.call("POST", f"/{conversation_id}/messages/{drafts[0]['id']}/stop")
    talk.call("DELETE", f"/{conversation_id}/messages/{drafts[1]['id']}")
    held.runner.gate.open()
    wait_until(lambda: held.engine.stats().engine.num_generations == 0)
    assert [message["id"] for message in talk.messages(conversation_id)] == [asked["id"], drafts[0]["id"]]


def test_a_reply_is_stopped_when_its_conversation_goes(held: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    talk.say(conversation_id, "Hello")
    talk.call("DELETE", f"/{conversation_id}")
    held.runner.gate.open()
    wait_until(lambda: held.engine.stats().engine.num_generations == 0)
    talk.refused(404, "GET", f"/{conversation_id}")


def test_nothing_goes_on_from_a_reply_that_is_still_written(held: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    _, begun = talk.say(conversation_id, "Hello")
    body = {"parent": begun["id"], "role": "user", "text": "And?"}
    assert "still being written" in talk.refused(409, "POST", f"/{conversation_id}/messages", body)["message"]
    held.runner.gate.open()
    talk.ended(conversation_id, begun["id"])
    talk.call("POST", f"/{conversation_id}/messages", body)


# -- refusals


def test_what_makes_no_sense_is_refused_by_name(talk: Talk) -> None:
    conversation_id = talk.begin()
    _, reply = talk.turn(conversation_id, "Hello")
    path = f"/{conversation_id}/messages"
    for body, part in (
        ({"role": "user", "text": ""}, "text"),
        ({"role": "tool", "text": "x"}, "role"),
        ({"role": "user", "text": "x", "id": "mine"}, "id"),
        ({"role": "system", "text": "x", "parent": reply["id"]}, "system message"),
        ({"role": "assistant", "text": "x", "replies": {}}, "user's message"),
        ({"role": "user", "text": "x", "model": "mine"}, "assistant's message"),
        ({"role": "user", "text": "x", "replies": {"n": 9}}, "replies.n"),
        ({"role": "user", "text": "x", "replies": {"n": 2, "ids": [message_id()]}}, "ids"),
    ):
        assert part in talk.refused(400, "POST", path, body)["message"]
    assert talk.refused(404, "POST", path, {"role": "user", "text": "x", "parent": message_id()})["param"] == "parent"
    assert "user's message" in talk.refused(400, "POST", f"{path}/{reply['id']}/replies", {})["message"]
    assert len(talk.messages(conversation_id)) == 2


def test_a_message_stays_where_no_reply_can_be_begun(talk: Talk) -> None:
    conversation_id = talk.begin()
    body = {"id": message_id(), "role": "user", "text": "word " * 600, "replies": {}}
    refusal = talk.refused(400, "POST", f"/{conversation_id}/messages", body)
    assert refusal["code"] == "context_length_exceeded"
    assert [message["id"] for message in talk.messages(conversation_id)] == [body["id"]]


def test_a_tenant_at_its_limit_is_told_so_and_its_message_stays(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(
        listen="127.0.0.1:0", keys_file=keys_file(tmp_path / "keys.toml", max_concurrent=1), drain_s=1.0
    )
    with chat_stack(default_model, config) as stack, Talk(stack.server.url, "red") as talk:
        stack.runner.gate.close()
        conversation_id = talk.begin()
        _, begun = talk.say(conversation_id, "Hello")
        body = {"role": "user", "text": "And here?", "replies": {"max_tokens": 8}}
        assert "being written" in talk.refused(429, "POST", f"/{conversation_id}/messages", body)["message"]
        stack.runner.gate.open()
        talk.ended(conversation_id, begun["id"])
        refused = talk.messages(conversation_id)[-1]
        assert refused["text"] == "And here?"
        again = talk.call("POST", f"/{conversation_id}/messages/{refused['id']}/replies", {"max_tokens": 8})["messages"]
        assert talk.ended(conversation_id, again[0]["id"])["status"] == "complete"
        written = [talk.ended(conversation_id, reply_id)["details"] for reply_id in (begun["id"], again[0]["id"])]
        expected = [sum(each[name] for each in written) for name in ("generated_tokens", "prompt_tokens")]

        def told() -> list[float]:
            metrics = httpx.get(f"http://{stack.server.address}/metrics").text
            values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
            return [float(values[f"radixkv:{name}_tokens_total"]) for name in ("generation", "prompt")]

        wait_until(lambda: told() == expected)


def test_a_tenant_sees_nothing_of_another(talk: Talk, other: Talk) -> None:
    conversation_id = talk.begin(title="Secret plans")
    asked, reply = talk.turn(conversation_id, "A secret")
    before = talk.call("GET", f"/{conversation_id}")
    below = f"/messages/{asked}"
    calls = [
        ("GET", "", None),
        ("PATCH", "", {"title": "Mine"}),
        ("PATCH", "", {"settings": {"seed": 1}}),
        ("DELETE", "", None),
        ("GET", "/events", None),
        ("GET", "/export", None),
        ("POST", "/messages", {"role": "user", "text": "x", "parent": asked}),
        ("POST", "/messages", {"role": "user", "text": "x", "parent": None, "id": asked, "replies": {}}),
        ("POST", f"{below}/replies", {}),
        ("POST", f"{below}/replies", {"ids": [reply["id"]]}),
        ("POST", f"{below}/stop", None),
        ("POST", f"/messages/{reply['id']}/alternatives", {"position": 0}),
        ("DELETE", below, None),
        ("POST", "/branches", {"leaf": asked, "system": "x"}),
        ("POST", "/branches", {"leaf": asked, "system": "x", "dry_run": True}),
        ("POST", "/costs", {"messages": [asked]}),
    ]
    for method, path, body in calls:
        theirs = other.refused(404, method, f"/{conversation_id}{path}", body)
        absent = other.refused(404, method, f"/{UNKNOWN}{path}", body)
        assert theirs["message"].replace(conversation_id, UNKNOWN) == absent["message"]
    assert other.call("GET", "", search="secret") == {"conversations": [], "has_more": False}
    assert talk.call("GET", f"/{conversation_id}") == before
    mine = other.begin()
    other.call("POST", f"/{mine}/messages", {"id": asked, "role": "user", "text": "an id of theirs"})
    assert talk.call("GET", f"/{conversation_id}") == before
    other.call("DELETE", f"/{mine}")


@pytest.mark.parametrize("key", ["red", "blue"])
def test_every_route_generates_in_the_namespace_of_its_caller_and_under_the_id_of_the_request(
    stack: Stack, key: str
) -> None:
    turns, words = {"messages": [{"role": "user", "content": "Hi"}]}, {"model": "gibberish", "max_tokens": 2}
    with Talk(stack.server.url, key) as talk:
        conversation = f"{talk.url}/{talk.begin()}"
        for path, body in (
            ("/completions", {"prompt": "Hi", **words}),
            ("/chat/completions", {**turns, **words}),
            ("/messages", {**turns, **words}),
            ("/responses", {"input": "Hi", "model": "gibberish", "max_output_tokens": 16}),
            (f"{conversation}/messages", {"parent": None, "role": "user", "text": "Hi", "replies": {"max_tokens": 2}}),
        ):
            answer = talk.http.post(path if path.startswith("http") else f"{stack.server.url}{path}", json=body)
            assert answer.is_success, answer.text
            wait_until(lambda: stack.engine.stats().engine.num_running_branches == 0)
            asked = stack.engine.requests[-1]
            assert (path, asked.namespace) == (path, key)
            assert asked.request_id in (answer.headers["x-request-id"], answer.headers.get("request-id"))
        talk.http.delete(conversation)


def test_a_caller_without_a_key_is_refused(stack: Stack) -> None:
    assert httpx.get(f"{stack.server.url}/radixkv/conversations").status_code == 401

"""Keeping order among kept conversations: tags, pins, archive, stars, names, the trash, one change to several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import Stack, chat_stack, keys_file
from talk import Talk
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig


@pytest.fixture(scope="module")
def stack(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    keys = keys_file(tmp_path_factory.mktemp("keys") / "keys.toml")
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, max_conversations=12)
    with chat_stack(default_model, config, num_blocks=1024, max_model_len=512) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "red") as talk:
        yield talk
        for trash in (True, False):
            for archived in (True, False):
                listed = talk.call("GET", "", limit=200, trash=trash, archived=archived)["conversations"]
                for conversation in listed:
                    talk.call("DELETE", f"/{conversation['id']}")


@pytest.fixture
def other(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url, "blue") as talk:
        yield talk


def listed(talk: Talk, **params: Any) -> list[str]:
    return [each["title"] for each in talk.call("GET", "", **params)["conversations"]]


def ids(messages: list[Any]) -> list[str]:
    return [message["id"] for message in messages]


# -- conversations


def test_tags_pins_and_the_archive_say_what_is_listed(talk: Talk, other: Talk) -> None:
    one, two, three = (talk.begin(title=title) for title in ("one", "two", "three"))
    changed = talk.call("PATCH", f"/{one}", {"tags": ["work", "rivers", "work"], "pinned": True})
    assert (changed["tags"], changed["pinned"], changed["archived"]) == (["work", "rivers"], True, False)
    talk.call("PATCH", f"/{two}", {"tags": ["work"]})
    talk.call("PATCH", f"/{three}", {"archived": True})
    assert listed(talk) == ["two", "one"], "in the order of their updates, which marks are none of"
    assert listed(talk, archived=True) == ["three"]
    assert listed(talk, pinned=True) == ["one"]
    assert listed(talk, tag="work") == ["two", "one"]
    assert listed(talk, tag="rivers", pinned=False) == []
    assert listed(talk, search="t") == ["three", "two"]
    assert listed(talk, search="o", tag="rivers") == ["one"]
    assert talk.call("GET", "/tags")["tags"] == [
        {"tag": "rivers", "num_conversations": 1},
        {"tag": "work", "num_conversations": 2},
    ]
    assert other.call("GET", "/tags") == {"tags": []}
    cleared = talk.call("PATCH", f"/{one}", {"tags": [], "pinned": False})
    assert (cleared["tags"], cleared["pinned"], cleared["title"]) == ([], False, "one")
    for tags in (["x" * 65], [str(number) for number in range(17)], [""]):
        assert "tags" in talk.refused(400, "PATCH", f"/{one}", {"tags": tags})["message"]


def test_a_conversation_comes_back_from_the_trash_as_it_was(talk: Talk, other: Talk) -> None:
    conversation = talk.begin(title="Secret")
    asked, reply = talk.turn(conversation, "Keep this")
    before = talk.call("GET", f"/{conversation}")
    with talk.following(conversation) as follower:
        thrown = talk.call("POST", f"/{conversation}/trash")
        follower.wait(lambda: follower.has_ended)
        assert follower.events[-1] == ("deleted", {"id": conversation})
    assert thrown["trashed"] is not None
    assert listed(talk) == listed(talk, search="keep") == []
    assert listed(talk, trash=True) == ["Secret"]
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/events", None),
        ("PATCH", "", {"title": "x"}),
        ("POST", "/messages", {"role": "user", "text": "x"}),
        ("POST", f"/messages/{asked}/replies", {}),
    ):
        talk.refused(404, method, f"/{conversation}{path}", body)
    for path in ("/trash", "/restore"):
        other.refused(404, "POST", f"/{conversation}{path}")
    assert talk.call("POST", f"/{conversation}/trash")["trashed"] == thrown["trashed"]
    back = talk.call("POST", f"/{conversation}/restore")
    assert back["trashed"] is None
    after = talk.call("GET", f"/{conversation}")
    assert after["messages"] == before["messages"]
    assert after["conversation"] == {**before["conversation"], "version": after["conversation"]["version"]}
    _, following = talk.turn(conversation, "Go on", reply["id"])
    assert following["details"]["cached_tokens"] >= reply["details"]["prompt_tokens"] - 1
    assert talk.call("POST", f"/{conversation}/restore")["trashed"] is None, "nothing to bring back"


def test_what_is_written_in_a_conversation_stops_when_it_is_thrown_away(stack: Stack, talk: Talk) -> None:
    conversation = talk.begin()
    stack.dictate("one two three four five six seven eight nine ten")
    stack.runner.gate.close_after(5)
    _, begun = talk.say(conversation, "Count")
    wait_until(lambda: len(talk.message(conversation, begun["id"])["text"]) > 4)
    talk.call("POST", f"/{conversation}/trash")
    stack.runner.gate.open()
    wait_until(lambda: stack.engine.stats().engine.num_generations == 0)
    talk.call("POST", f"/{conversation}/restore")
    stopped = talk.message(conversation, begun["id"])
    assert stopped["status"] == "stopped"
    assert len(stopped["text"]) > 4


def test_the_trash_counts_until_it_is_gone_for_good(talk: Talk) -> None:
    made = [talk.begin(title=str(number)) for number in range(12)]
    talk.call("POST", f"/{made[0]}/trash")
    assert "delete some" in talk.refused(409, "POST", "", {})["message"]
    talk.call("DELETE", f"/{made[0]}")
    talk.refused(404, "POST", f"/{made[0]}/restore")
    talk.begin()


def test_one_change_is_made_to_several(talk: Talk, other: Talk) -> None:
    one, two, three = (talk.begin(title=title) for title in ("one", "two", "three"))
    theirs, unknown = other.begin(title="theirs"), "conv_" + "0" * 32

    def bulk(action: str, *wanted: str, **extra: Any) -> Any:
        return talk.call("POST", "/bulk", {"ids": list(wanted), "action": action, **extra})

    assert bulk("tag", one, unknown, theirs, one, two, tag="work") == {
        "ids": [one, two],
        "missing": [unknown, theirs],
        "refused": [],
    }
    assert listed(talk, tag="work") == ["two", "one"]
    talk.call("PATCH", f"/{three}", {"tags": [str(number) for number in range(16)]})
    assert bulk("tag", three, tag="work")["refused"] == [{"id": three, "reason": "it has 16 tags already"}]
    assert bulk("tag", three, tag="3")["ids"] == [three], "which it has already"
    bulk("untag", one, tag="work")
    assert listed(talk, tag="work") == ["two"]
    bulk("pin", one, two)
    bulk("unpin", two)
    assert listed(talk, pinned=True) == ["one"]
    bulk("archive", one, two)
    bulk("unarchive", two)
    assert listed(talk, archived=True) == ["one"]
    bulk("trash", one, two, three)
    assert listed(talk) == []
    bulk("restore", one, two)
    assert listed(talk) == ["two"]
    assert bulk("delete", one, three)["ids"] == [one, three]
    assert listed(talk, trash=True) == listed(talk, archived=True) == []
    assert [each["title"] for each in other.call("GET", "")["conversations"]] == ["theirs"]
    other.call("DELETE", f"/{theirs}")
    for body, part in (
        ({"ids": [one], "action": "tag"}, "tag goes with"),
        ({"ids": [one], "action": "pin", "tag": "x"}, "tag goes with"),
        ({"ids": [one], "action": "rename"}, "action"),
        ({"ids": [one] * 201, "action": "pin"}, "ids"),
    ):
        assert part in talk.refused(400, "POST", "/bulk", body)["message"]


# -- messages


def test_a_star_and_a_name_are_told_and_move_nothing(talk: Talk, other: Talk) -> None:
    conversation = talk.begin()
    _asked, reply = talk.turn(conversation, "Name this")
    before = talk.call("GET", f"/{conversation}")["conversation"]
    path = f"/{conversation}/messages/{reply['id']}"
    with talk.following(conversation) as follower:
        marked = talk.call("PATCH", path, {"starred": True, "name": " the good one "})
        follower.wait(lambda: follower.messages[reply["id"]]["starred"])
        assert follower.messages[reply["id"]] == marked
    assert (marked["starred"], marked["name"], marked["text"]) == (True, "the good one", reply["text"])
    after = talk.call("GET", f"/{conversation}")["conversation"]
    assert (after["updated"], after["head"]) == (before["updated"], before["head"])
    assert after["version"] > before["version"]
    assert talk.call("PATCH", path, {"name": ""})["name"] is None
    assert talk.message(conversation, reply["id"])["starred"], "what is left out stays"
    assert talk.call("PATCH", path, {"starred": False})["starred"] is False
    assert "starred and name" in talk.refused(400, "PATCH", path, {})["message"]
    assert "name" in talk.refused(400, "PATCH", path, {"name": "x" * 201})["message"]
    other.refused(404, "PATCH", path, {"starred": True})
    talk.refused(404, "PATCH", f"/{conversation}/messages/msg_none", {"starred": True})


def test_a_reply_that_is_being_written_keeps_its_star(stack: Stack, talk: Talk) -> None:
    conversation = talk.begin()
    stack.runner.gate.close()
    _, begun = talk.say(conversation, "Star this")
    marked = talk.call("PATCH", f"/{conversation}/messages/{begun['id']}", {"starred": True, "name": "early"})
    assert (marked["status"], marked["starred"]) == ("running", True)
    stack.runner.gate.open()
    ended = talk.ended(conversation, begun["id"])
    assert (ended["status"], ended["starred"], ended["name"]) == ("complete", True, "early")


def test_a_branch_comes_back_where_it_stood(talk: Talk, other: Talk) -> None:
    conversation = talk.begin()
    _first, reply = talk.turn(conversation, "One")
    _kept, _ = talk.turn(conversation, "Two", reply["id"])
    thrown, below = talk.turn(conversation, "Three", reply["id"])
    talk.turn(conversation, "Four", reply["id"])
    talk.call("PATCH", f"/{conversation}/messages/{below['id']}", {"name": "mine"})
    before = talk.call("GET", f"/{conversation}")
    path = f"/{conversation}/messages/{thrown}"
    with talk.following(conversation) as follower:
        assert talk.call("POST", f"{path}/trash")["ids"] == [thrown, below["id"]]
        follower.wait(lambda: thrown not in follower.messages)
        assert ids(talk.messages(conversation)) == [
            each for each in ids(before["messages"]) if each not in (thrown, below["id"])
        ]
        (branch,) = talk.call("GET", f"/{conversation}/trash")["branches"]
        assert (branch["message"]["id"], branch["message"]["text"], branch["num_messages"]) == (thrown, "Three", 2)
        other.refused(404, "POST", f"{path}/restore")
        other.refused(404, "GET", f"/{conversation}/trash")
        other.refused(404, "DELETE", f"/{conversation}/trash/{thrown}")
        back = talk.call("POST", f"{path}/restore")["messages"]
        assert ids(back) == [thrown, below["id"]]
        follower.wait(lambda: below["id"] in follower.messages)
    after = talk.messages(conversation)
    assert ids(after) == ids(before["messages"]), "among its siblings as before"
    strip = [{name: value for name, value in each.items() if name != "seq"} for each in after]
    assert strip == [{name: value for name, value in each.items() if name != "seq"} for each in before["messages"]]
    assert talk.call("GET", f"/{conversation}/trash") == {"branches": []}
    talk.refused(404, "POST", f"{path}/restore")
    _, following = talk.turn(conversation, "And?", below["id"])
    told = below["details"]
    assert following["details"]["cached_tokens"] >= told["prompt_tokens"] + told["generated_tokens"] - 2, "as generated"


def test_a_branch_whose_place_is_gone_says_what_to_bring_back_first(talk: Talk) -> None:
    conversation = talk.begin()
    first, reply = talk.turn(conversation, "One")
    second, _ = talk.turn(conversation, "Two", reply["id"])
    path = f"/{conversation}/messages"
    talk.call("POST", f"{path}/{second}/trash")
    talk.call("POST", f"{path}/{first}/trash")
    assert talk.messages(conversation) == []
    refused = talk.refused(409, "POST", f"{path}/{second}/restore")
    assert reply["id"] in refused["message"]
    talk.call("POST", f"{path}/{first}/restore")
    talk.call("POST", f"{path}/{second}/restore")
    assert [message["text"] for message in talk.messages(conversation)][::2] == ["One", "Two"]


def test_what_is_gone_for_good_is_remembered_no_more(stack: Stack, talk: Talk) -> None:
    transcripts = stack.server.app.state.transcripts
    before = len(transcripts._cache)
    conversation = talk.begin()
    _first, reply = talk.turn(conversation, "To forget")
    known = len(transcripts._cache)
    second, _ = talk.turn(conversation, "And this", reply["id"])
    path = f"/{conversation}/messages"
    talk.call("POST", f"{path}/{second}/trash")
    assert len(transcripts._cache) > known
    assert len(talk.call("DELETE", f"/{conversation}/trash/{second}")["ids"]) == 2
    assert len(transcripts._cache) == known
    third, below = talk.turn(conversation, "And that", reply["id"])
    fourth, _ = talk.turn(conversation, "And more", below["id"])
    talk.call("POST", f"{path}/{fourth}/trash")
    talk.call("POST", f"{path}/{third}/trash")
    talk.call("POST", f"/{conversation}/trash")
    talk.call("DELETE", f"/{conversation}")
    assert len(transcripts._cache) == before


# -- instructions under names


def test_instructions_are_kept_under_names_changed_and_deleted(stack: Stack) -> None:
    url = f"{stack.server.url}/radixkv/instructions"

    def call(method: str, body: Any = None, key: str = "red") -> httpx.Response:
        return httpx.request(method, url, json=body, headers={"x-api-key": key}, timeout=300)

    def names(key: str = "red") -> list[tuple[str, str]]:
        return [(each["name"], each["text"]) for each in call("GET", key=key).json()["instructions"]]

    assert names() == []
    call("POST", {"name": " Poet ", "text": "Answer in verse."}).raise_for_status()
    call("POST", {"name": "Clerk", "text": "Answer in lists."}).raise_for_status()
    assert names() == [("Clerk", "Answer in lists."), ("Poet", "Answer in verse.")]
    call("POST", {"name": "Poet", "text": "Answer in rhyme."}).raise_for_status()
    assert names()[1] == ("Poet", "Answer in rhyme.")
    assert names("blue") == []
    assert call("DELETE", {"name": "Poet"}, "blue").status_code == 404
    for bad in ({"name": " ", "text": "x"}, {"name": "x", "text": " "}, {"name": "x" * 65, "text": "x"}, {"name": "x"}):
        assert call("POST", bad).status_code == 400
    assert call("POST", {"name": "x", "text": "x" * 32_769}).json()["error"]["param"] == "text"
    for number in range(98):
        call("POST", {"name": f"{number}", "text": "x"}).raise_for_status()
    full = call("POST", {"name": "One more", "text": "x"})
    assert (full.status_code, full.json()["error"]["code"]) == (409, "instructions_full")
    call("POST", {"name": "Poet", "text": "Answer in prose."}).raise_for_status()
    for name, _ in names():
        assert call("DELETE", {"name": name}).status_code == 204
    assert names() == []


# -- who calls


def test_a_tenant_is_told_who_it_is_and_what_it_has_used(default_model: str, tmp_path: Path) -> None:
    keys = keys_file(tmp_path / "keys.toml", requests_per_minute=50, tokens_per_minute=9000, max_concurrent=3)
    config = GatewayConfig(listen="127.0.0.1:0", keys_file=keys, drain_s=1.0, max_conversations=7)
    with chat_stack(default_model, config) as stack:

        def me(key: str) -> Any:
            return httpx.get(f"{stack.server.url}/radixkv/me", headers={"x-api-key": key}).raise_for_status().json()

        before = me("red")
        assert (before["name"], before["needs_key"], before["is_operator"]) == ("red", True, False)
        assert before["limits"] == {"requests_per_minute": 50, "tokens_per_minute": 9000, "max_concurrent": 3}
        assert [(rate["kind"], rate["limit"], rate["remaining"]) for rate in before["rates"]] == [
            ("requests", 50, 50),
            ("tokens", 9000, 9000),
        ]
        assert before["num_running"] == 0
        empty = {"number": 0, "size_bytes": 0, "max_number": 7, "max_bytes": config.max_conversation_bytes}
        assert before["conversations"] == empty
        with Talk(stack.server.url, "red") as talk:
            conversation = talk.begin()
            _, reply = talk.turn(conversation, "Hello")
            talk.begin()
            talk.call("POST", f"/{conversation}/trash")
        after = me("red")
        assert after["conversations"]["number"] == 2
        assert after["conversations"]["size_bytes"] == 2 * 256 + len(f"Hello{reply['text']}".encode())
        other = me("blue")
        assert (other["name"], other["conversations"], other["rates"]) == ("blue", empty, [])
        assert other["limits"]["max_concurrent"] is None
        assert httpx.get(f"{stack.server.url}/radixkv/me").status_code == 401

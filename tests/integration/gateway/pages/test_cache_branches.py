"""From a conversation's branch to its place in the tree and back; nobody is told of another's conversation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from chat_stack import GibberishRunner
from talk import Talk, message_id
from tree_follower import Follower, follower
from tree_stack import busy_stack, operators_file

QUESTION = "Where does the river begin, and through which towns does it flow?"


class Looker(Talk):
    """A caller who has conversations and looks at the tree."""

    def __init__(self, url: str, eye: Follower, key: str, runner: GibberishRunner) -> None:
        super().__init__(url, key)
        self.eye = eye
        self.dictate = runner.dictate

    def place(self, conversation: str, message: str) -> dict[str, Any]:
        """Where a branch ends, once all of it is listed but for its last token, which may not be computed."""
        told: dict[str, Any] = {}

        def is_listed() -> bool:
            told.update(self.eye.post("/place", {"conversation": conversation, "message": message}).json())
            return bool(told["id"]) and told["num_cached_tokens"] >= told["num_tokens"] - 1

        self.eye.wait_until(is_listed)
        return told

    def held_by(self, node: int) -> list[dict[str, str]]:
        told: list[dict[str, str]] = self.eye.client.get(f"/nodes/{node}/conversations").json()["conversations"]
        return told


@pytest.fixture(scope="module")
def lookers(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Looker]]:
    keys = operators_file(tmp_path_factory.mktemp("keys") / "keys.toml", ("red", "blue"), ("chief",))
    with busy_stack(default_model, keys_file=keys) as (server, _, runner), ExitStack() as open_ones:
        yield {
            key: open_ones.enter_context(
                Looker(server.url, open_ones.enter_context(follower(server.address, key)), key, runner)
            )
            for key in ("red", "blue", "chief")
        }


@pytest.fixture
def red(lookers: dict[str, Looker]) -> Looker:
    return lookers["red"]


def test_a_branch_leads_to_its_node_and_the_node_to_the_branch(red: Looker) -> None:
    conversation = red.begin()
    red.dictate("Far up north, at a lake of ice.", "Nobody knows: out of a dark rock.")
    asked, reply = red.turn(conversation, QUESTION, max_tokens=60)
    other = red.call("POST", f"/{conversation}/messages/{asked}/replies", {"max_tokens": 60})["messages"][0]
    red.ended(conversation, other["id"])
    places = [red.place(conversation, each["id"])["id"] for each in (reply, other)]
    assert places[0] != places[1]
    for message, node in zip((reply, other), places, strict=True):
        assert red.held_by(node) == [
            {"id": conversation, "title": QUESTION[:60].rpartition(" ")[0], "message": message["id"]}
        ]
    above = red.eye.nodes[places[0]][1]
    assert [each["id"] for each in red.held_by(above)] in ([conversation], [])


def test_of_replies_one_of_which_holds_the_text_of_the_other_each_leads_to_itself(red: Looker) -> None:
    conversation = red.begin()
    red.dictate("It begins in the Alps and ends in the sea.", "the Alps")
    asked, long = red.turn(conversation, QUESTION, max_tokens=60)
    short = red.call("POST", f"/{conversation}/messages/{asked}/replies", {"max_tokens": 60})["messages"][0]
    red.ended(conversation, short["id"])
    for message in (long, short):
        (named,) = red.held_by(red.place(conversation, message["id"])["id"])
        assert named["message"] == message["id"]


def test_a_reply_s_own_ids_lead_to_it_also_where_its_text_would_be_read_as_others(red: Looker) -> None:
    """Gibberish is tokenised differently than it was generated."""
    conversation = red.begin()
    _, reply = red.turn(conversation, "Say something long.", max_tokens=100)
    asked, last = red.turn(conversation, "Go on from there.", reply["id"], max_tokens=20)
    told = red.place(conversation, last["id"])
    assert told["num_tokens"] >= last["details"]["prompt_tokens"] + last["details"]["generated_tokens"] - 1
    assert red.place(conversation, asked)["num_tokens"] == last["details"]["prompt_tokens"]


def test_two_conversations_that_begin_alike_are_both_named(red: Looker) -> None:
    first, second = red.begin(), red.begin()
    asked, _ = red.turn(first, "The same question of two, word by word, at some length.", max_tokens=8, temperature=0)
    red.turn(second, "The same question of two, word by word, at some length.", max_tokens=8, temperature=0)
    node = red.place(first, asked)["id"]
    assert [each["id"] for each in red.held_by(node)] == [second, first]


def test_of_another_s_conversation_nobody_is_told_not_even_an_operator(lookers: dict[str, Looker]) -> None:
    red, blue, chief = (lookers[key] for key in ("red", "blue", "chief"))
    secret = "A question that is asked by the red ones alone, and by nobody else."
    conversation = red.begin()
    red.dictate("That is told to none but the red ones.")
    asked, reply = red.turn(conversation, secret)
    node = red.place(conversation, reply["id"])["id"]
    assert [each["id"] for each in red.held_by(node)] == [conversation]
    chief.eye.wait_until(lambda: node in chief.eye.nodes)
    assert chief.held_by(node) == []
    assert blue.eye.client.get(f"/nodes/{node}/conversations").status_code == 404
    for other in (blue, chief):
        for message in (asked, reply["id"]):
            answer = other.eye.post("/place", {"conversation": conversation, "message": message})
            assert answer.status_code == 404
            assert secret not in answer.text
    copy = blue.begin()
    asked_again, _ = blue.turn(copy, secret)
    own = blue.place(copy, asked_again)["id"]
    assert [each["id"] for each in blue.held_by(own)] == [copy]


def test_what_is_not_cached_has_no_node(red: Looker) -> None:
    conversation = red.begin()
    body = {"role": "user", "text": "Nobody has replied to this yet, and nobody will."}
    (message,) = red.call("POST", f"/{conversation}/messages", body)["messages"]
    told = red.eye.post("/place", {"conversation": conversation, "message": message["id"]}).json()
    assert told["num_cached_tokens"] < told["num_tokens"]
    answer = red.eye.post("/place", {"conversation": conversation, "message": message_id()})
    assert answer.status_code == 404


@pytest.mark.parametrize("body", [{}, {"conversation": "x"}, {"conversation": 3, "message": "x"}])
def test_what_names_no_branch_is_refused(red: Looker, body: dict[str, Any]) -> None:
    assert red.eye.post("/place", body).status_code == 400


def test_a_node_that_is_gone_is_said_to_be(red: Looker) -> None:
    assert red.eye.client.get("/nodes/1000000/conversations").json()["error"]["code"] == "node_gone"


@pytest.mark.parametrize("said", ["", "\n", " \n\n "])
def test_a_reply_without_a_word_leads_to_where_it_ends(red: Looker, said: str) -> None:
    conversation = red.begin()
    red.dictate(said)
    _, reply = red.turn(conversation, f"Say nothing, {len(said)} times.", max_tokens=20)
    assert reply["text"].strip() == ""
    told = red.place(conversation, reply["id"])
    assert told["num_tokens"] >= reply["details"]["prompt_tokens"] + reply["details"]["generated_tokens"] - 1

"""Branches of kept conversations that are told anew, and what they cost before anybody goes on from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from talk import Talk, message_id
from tree_stack import busy_stack

from radixkv.worker.engine.engine import Engine


@pytest.fixture(scope="module")
def served(default_model: str) -> Iterator[tuple[str, Engine]]:
    with busy_stack(default_model) as (server, engine, _):
        yield server.url, engine


@pytest.fixture
def talk(served: tuple[str, Engine]) -> Iterator[Talk]:
    with Talk(served[0]) as talk:
        yield talk


def exchange(talk: Talk, *texts: str, system: str | None = None) -> tuple[str, list[Any]]:
    """A conversation of some turns, each replied to but the last; its messages in their order."""
    first = [{"role": "system", "text": system}] if system else []
    conversation = talk.begin(messages=first) if first else talk.begin()
    parent = talk.messages(conversation)[-1]["id"] if first else None
    for text in texts[:-1]:
        _, reply = talk.turn(conversation, text, parent, max_tokens=8)
        parent = reply["id"]
    body = {"role": "user", "text": texts[-1], "parent": parent}
    talk.call("POST", f"/{conversation}/messages", body)
    return conversation, talk.messages(conversation)


def path_to(talk: Talk, conversation: str, leaf: str) -> list[Any]:
    by_id = {message["id"]: message for message in talk.messages(conversation)}
    path = [by_id[leaf]]
    while path[0]["parent"] is not None:
        path.insert(0, by_id[path[0]["parent"]])
    return path


def said(messages: list[Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["text"]) for message in messages]


@pytest.mark.parametrize("before", [None, "Be long."])
def test_other_instructions_take_the_turns_along_for_a_price_that_is_told(talk: Talk, before: str | None) -> None:
    conversation, messages = exchange(talk, f"First {before}", "Second", "Third", system=before)
    body = {"leaf": messages[-1]["id"], "system": f"Be brief, not {before}."}
    asked = talk.call("POST", f"/{conversation}/branches", {**body, "dry_run": True})
    assert (asked["messages"], asked["leaf"]) == ([], None)
    assert talk.messages(conversation) == messages, "nothing was added"
    number = talk.call("GET", f"/{conversation}")["conversation"]["version"]
    with talk.following(conversation) as follower:
        answer = talk.call("POST", f"/{conversation}/branches", body)
        follower.wait(lambda: answer["leaf"] in follower.messages)
    assert answer["cost"] is None
    path = path_to(talk, conversation, answer["leaf"])
    own = said(messages)[1 if before else 0 :]
    assert path == answer["messages"]
    assert said(path) == [("system", body["system"]), *own]
    for copy, original in zip(path[1:], messages[1 if before else 0 :], strict=True):
        assert copy["details"]["copies"] == original["id"]
        assert copy["details"].get("model") == (original["details"] or {}).get("model")
    assert talk.messages(conversation)[: len(messages)] == messages, "the first branch stays as it was"
    assert talk.call("GET", f"/{conversation}")["conversation"]["version"] > number
    (begun,) = talk.call("POST", f"/{conversation}/messages/{answer['leaf']}/replies", {"max_tokens": 4})["messages"]
    details, cost = talk.ended(conversation, begun["id"])["details"], asked["cost"]
    assert cost["prompt_tokens"] == details["prompt_tokens"]
    assert cost["computed_tokens"] == details["prompt_tokens"] - details["cached_tokens"]
    assert cost["max_prompt_tokens"] == 4095
    if before:
        assert 0 < cost["cached_tokens"] < cost["prompt_tokens"], "the template's own beginning is there"


def test_instructions_are_taken_away(talk: Talk) -> None:
    conversation, messages = exchange(talk, "One", "Two", system="Be brief.")
    answer = talk.call("POST", f"/{conversation}/branches", {"leaf": messages[-1]["id"], "system": ""})
    assert said(path_to(talk, conversation, answer["leaf"])) == said(messages)[1:]


def test_a_corrected_message_keeps_what_follows_it(talk: Talk) -> None:
    conversation, messages = exchange(talk, "One", "Tow", "Three", system="Be brief.")
    edit = {"message": messages[3]["id"], "text": "Two"}
    body = {"leaf": messages[-1]["id"], "edit": edit}
    price = talk.call("POST", f"/{conversation}/branches", {**body, "dry_run": True})["cost"]
    answer = talk.call("POST", f"/{conversation}/branches", body)
    path = path_to(talk, conversation, answer["leaf"])
    assert path[:3] == messages[:3], "what is above it is shared"
    assert path[3:] == answer["messages"]
    assert said(path) == [*said(messages)[:3], ("user", "Two"), *said(messages)[4:]]
    assert path[3]["details"] is None
    (told,) = talk.call("POST", f"/{conversation}/costs", {"messages": [answer["leaf"]]})["messages"]
    assert told == {"id": answer["leaf"], **price}
    reply = {"leaf": messages[-1]["id"], "edit": {"message": messages[4]["id"], "text": "By hand"}}
    copied = talk.call("POST", f"/{conversation}/branches", reply)["messages"]
    assert (copied[0]["parent"], copied[0]["details"]) == (messages[3]["id"], {"edited": True})
    assert price["cached_tokens"] < price["prompt_tokens"]


def test_a_branch_is_cut_from_the_top(talk: Talk) -> None:
    conversation, messages = exchange(talk, "One", "Two", "Three", system="Be brief.")
    path = f"/{conversation}/branches"
    body = {"leaf": messages[-1]["id"], "start": messages[3]["id"]}
    whole = talk.call("POST", f"/{conversation}/costs", {"messages": [messages[-1]["id"]]})["messages"][0]
    price = talk.call("POST", path, {**body, "dry_run": True})["cost"]
    assert price["prompt_tokens"] < whole["prompt_tokens"]
    answer = talk.call("POST", path, body)
    shown = path_to(talk, conversation, answer["leaf"])
    assert shown[0] == messages[0], "the instructions are shared"
    assert said(shown) == [said(messages)[0], *said(messages)[3:]]
    both = talk.call("POST", path, {**body, "system": "Other."})
    assert said(both["messages"]) == [("system", "Other."), *said(messages)[3:]]


def test_the_same_branch_again_adds_nothing(talk: Talk) -> None:
    conversation, messages = exchange(talk, "One", "Two")
    body = {"leaf": messages[-1]["id"], "system": "Be brief.", "id": message_id()}
    first = talk.call("POST", f"/{conversation}/branches", body)
    assert first["leaf"] == body["id"]
    stored = talk.messages(conversation)
    assert talk.call("POST", f"/{conversation}/branches", body) == first
    assert talk.messages(conversation) == stored
    assert talk.refused(409, "POST", f"/{conversation}/branches", {**body, "system": "Other."})["param"] == "id"
    taken = {**body, "id": messages[0]["id"]}
    assert talk.refused(409, "POST", f"/{conversation}/branches", taken)["param"] == "id"
    assert talk.messages(conversation) == stored


def test_a_branch_that_makes_no_sense_is_refused_by_name(talk: Talk) -> None:
    conversation, messages = exchange(talk, "One", "Two", system="Be brief.")
    body = {"role": "user", "text": "Elsewhere"}
    beside = talk.call("POST", f"/{conversation}/messages", body)["messages"][0]["id"]
    leaf = {"leaf": messages[-1]["id"]}
    for status, extra, param in (
        (400, {}, "body"),
        (400, {"system": "Be brief."}, "body"),
        (400, {"start": messages[1]["id"]}, "body"),
        (400, {"start": messages[2]["id"]}, "start"),
        (404, {"start": beside}, "start"),
        (404, {"edit": {"message": beside, "text": "x"}}, "edit.message"),
        (400, {"edit": {"message": messages[1]["id"], "text": ""}}, "edit.text"),
        (400, {"edit": {"message": messages[0]["id"], "text": "x"}, "system": "y"}, "edit.message"),
    ):
        for dry in ({}, {"dry_run": True}):
            refused = talk.refused(status, "POST", f"/{conversation}/branches", {**leaf, **extra, **dry})
            assert refused["param"] == param, extra
    only = {"leaf": messages[0]["id"], "system": "x"}
    assert talk.refused(400, "POST", f"/{conversation}/branches", only)["param"] == "leaf"
    talk.refused(404, "POST", f"/{conversation}/branches", {"leaf": message_id(), "system": "x"})


def test_what_is_cached_of_branches_is_told_at_once_and_is_no_use_of_it(talk: Talk, served: tuple[str, Engine]) -> None:
    conversation, messages = exchange(talk, "Where does the Loire end?", "And the Rhine?")
    _, reply = talk.turn(conversation, "And the Po?", messages[1]["id"], max_tokens=8)
    ids = [message["id"] for message in talk.messages(conversation)]
    before = served[1].stats().engine
    costs = talk.call("POST", f"/{conversation}/costs", {"messages": ids})["messages"]
    assert talk.call("POST", f"/{conversation}/costs", {"messages": ids})["messages"] == costs
    assert served[1].stats().engine.num_generations == before.num_generations == 0
    by_id = {cost["id"]: cost for cost in costs}
    assert list(by_id) == ids
    details = reply["details"]
    length = details["prompt_tokens"] + details["generated_tokens"]
    known = by_id[reply["id"]]
    assert length - 1 <= known["prompt_tokens"] <= length
    assert known["cached_tokens"] >= known["prompt_tokens"] - 1, "it answers at once"
    fresh = by_id[messages[2]["id"]]
    assert fresh["cached_tokens"] < fresh["prompt_tokens"], "nobody has replied to it yet"
    assert fresh["computed_tokens"] == fresh["prompt_tokens"] - fresh["cached_tokens"]
    assert talk.refused(404, "POST", f"/{conversation}/costs", {"messages": [message_id()]})["param"] == "message_id"
    assert "messages" in talk.refused(400, "POST", f"/{conversation}/costs", {"messages": ids * 30})["message"]

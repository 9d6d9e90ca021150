"""Conversations that come from files and go into them, over HTTP."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from chat_stack import Stack, chat_stack
from talk import Talk

from bench.common.conversations import ARCHIVE, TREES_FILE, WorkloadMissingError, default_workloads, read_trees

JSON = {"Content-Type": "application/json"}
CHATGPT = {
    "title": "A lake",
    "create_time": 1700000000.5,
    "current_node": "n5",
    "mapping": {
        "root": {"id": "root", "message": None, "parent": None, "children": ["sys"]},
        "sys": {
            "id": "sys",
            "parent": "root",
            "children": ["n1"],
            "message": {"author": {"role": "system"}, "content": {"content_type": "text", "parts": [""]}},
        },
        "n1": {
            "id": "n1",
            "parent": "sys",
            "children": ["n2", "n3"],
            "message": {
                "author": {"role": "user"},
                "create_time": 1700000001.0,
                "content": {
                    "content_type": "multimodal_text",
                    "parts": [{"content_type": "image_asset_pointer"}, "What lake is this?"],
                },
            },
        },
        "n3": {
            "id": "n3",
            "parent": "n1",
            "children": ["tool"],
            "message": {
                "author": {"role": "assistant"},
                "recipient": "browser",
                "content": {"content_type": "text", "parts": ["search('lake')"]},
            },
        },
        "tool": {
            "id": "tool",
            "parent": "n3",
            "children": ["n5"],
            "message": {"author": {"role": "tool"}, "content": {"content_type": "text", "parts": ["a page"]}},
        },
        "n2": {
            "id": "n2",
            "parent": "n1",
            "children": [],
            "message": {
                "author": {"role": "assistant"},
                "create_time": 1700000009.0,
                "content": {"content_type": "text", "parts": ["I cannot say."]},
            },
        },
        "n5": {
            "id": "n5",
            "parent": "tool",
            "children": [],
            "message": {
                "author": {"role": "assistant"},
                "recipient": "all",
                "create_time": 1700000003.0,
                "content": {"content_type": "text", "parts": ["Lake Como."]},
            },
        },
    },
}


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url) as talk:
        yield talk


def shape(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """A tree without its ids: of each message its parent's place, and what it says."""
    places = {message["id"]: place for place, message in enumerate(messages)}
    return [(places.get(each["parent"]), each["role"], each["text"], each["created"]) for each in messages]


def test_a_chatgpt_export_keeps_its_branches(talk: Talk) -> None:
    answer = talk.call("POST", "/import", [CHATGPT, {"title": "nothing", "mapping": {}}])
    (conversation,) = answer["conversations"]
    assert answer["skipped"] == [{"index": 1, "reason": "it holds no text of anybody's", "indices": [1]}]
    assert (answer["known"], answer["left_out"]) == ([], {"picture": 1, "tool": 2})
    assert (conversation["title"], conversation["created"]) == ("A lake", 1700000000.5)
    messages = talk.messages(conversation["id"])
    assert shape(messages) == [
        (None, "user", "What lake is this?\n[picture left out]", 1700000001.0),
        (0, "assistant", "I cannot say.", 1700000009.0),
        (0, "assistant", "Lake Como.", 1700000003.0),
    ]
    assert conversation["head"] == messages[2]["id"], "where it was left"
    assert [message["details"].get("left_out") for message in messages] == [{"picture": 1}, None, {"tool": 2}]
    assert conversation["updated"] == 1700000009.0, "when it was last written to"
    _, reply = talk.turn(conversation["id"], "How deep is it?", messages[2]["id"])
    assert reply["status"] == "complete"


def test_a_file_that_was_imported_before_is_known_and_brings_what_is_new(talk: Talk) -> None:
    first = {**CHATGPT, "id": "x1", "mapping": {key: CHATGPT["mapping"][key] for key in ("root", "sys", "n1", "n2")}}  # type: ignore[index]
    (made,) = talk.call("POST", "/import", first)["conversations"]
    before = talk.messages(made["id"])
    again = talk.call("POST", "/import", [first, {**first, "id": "x2"}])
    assert again["known"] == [{"conversation": made, "num_added": 0}]
    assert len(again["conversations"]) == 1, "of another id"
    with talk.following(made["id"]) as follower:
        newer = talk.call("POST", "/import", {**CHATGPT, "id": "x1"})
        assert newer["conversations"] == []
        (known,) = newer["known"]
        assert (known["conversation"]["id"], known["num_added"]) == (made["id"], 1)
        follower.wait(lambda: len(follower.messages) == 3)
    after = talk.messages(made["id"])
    assert after[:2] == before
    assert (after[2]["text"], after[2]["parent"]) == ("Lake Como.", before[0]["id"])
    assert known["conversation"]["head"] == after[2]["id"]
    talk.call("POST", f"/{made['id']}/messages/{after[2]['id']}/trash")
    assert talk.call("POST", "/import", {**CHATGPT, "id": "x1"})["known"][0]["num_added"] == 0, "it is in the trash"
    export = talk.http.get(f"/{made['id']}/export").json()
    assert len(talk.call("POST", "/import", export)["conversations"]) == 1
    assert talk.call("POST", "/import", export)["known"][0]["num_added"] == 0


def test_one_reason_is_told_once(talk: Talk) -> None:
    answer = talk.call("POST", "/import", [{}, CHATGPT, {"x": 1}, {"mapping": {}}])
    assert [(each["index"], each["indices"]) for each in answer["skipped"]] == [(0, [0, 2]), (3, [3])]
    assert "Claude" in answer["skipped"][0]["reason"]


def test_an_export_comes_back_as_it_was(talk: Talk) -> None:
    conversation_id = talk.begin(messages=[{"role": "system", "text": "Be brief."}])
    (system,) = talk.messages(conversation_id)
    asked, reply = talk.turn(conversation_id, "Name a river: é 日 🙂\n\n# no heading", system["id"])
    talk.turn(conversation_id, "Another", reply["id"])
    talk.call("POST", f"/{conversation_id}/messages", {"parent": asked, "role": "assistant", "text": "By hand"})
    talk.call("PATCH", f"/{conversation_id}", {"title": 'Rivers: "big" / small?'})
    answer = talk.http.get(f"/{conversation_id}/export")
    assert answer.headers["content-type"] == "application/json"
    assert 'attachment; filename="Rivers big small.json"' in answer.headers["content-disposition"]
    brought = talk.call("POST", "/import", answer.json())["conversations"]
    messages, before = talk.messages(brought[0]["id"]), talk.messages(conversation_id)
    assert brought[0]["title"] == 'Rivers: "big" / small?'
    assert paths_of(messages) == paths_of(before)
    originals = {message["text"]: message for message in before}
    for message in messages:
        original = originals[message["text"]]
        assert message["details"] == {**(original["details"] or {}), "imported": True}
        assert [message[name] for name in ("status", "created")] == [original[name] for name in ("status", "created")]
    again = talk.call("POST", "/import", talk.http.get(f"/{brought[0]['id']}/export").json())["conversations"]
    assert shape(talk.messages(again[0]["id"])) == shape(messages)


def test_an_export_brings_back_settings_tags_and_marks(talk: Talk) -> None:
    settings = {"temperature": 0.25, "stop": ["END"], "model": "gibberish"}
    conversation = talk.begin(title="Kept")
    asked, reply = talk.turn(conversation, "Name a river", max_tokens=4)
    talk.turn(conversation, "Another", reply["id"], max_tokens=4)
    talk.call(
        "PATCH", f"/{conversation}", {"settings": settings, "tags": ["rivers", "日"], "pinned": True, "archived": True}
    )
    talk.call("PATCH", f"/{conversation}/messages/{reply['id']}", {"starred": True, "name": "the good one"})
    talk.call("POST", f"/{conversation}/messages", {"parent": asked, "role": "assistant", "text": "By hand"})
    before = talk.call("GET", f"/{conversation}")
    export = talk.http.get(f"/{conversation}/export").json()
    (brought,) = talk.call("POST", "/import", export)["conversations"]
    for name in ("title", "settings", "tags", "pinned", "archived", "created", "num_messages"):
        assert brought[name] == before["conversation"][name], name
    after = talk.messages(brought["id"])
    head = next(message for message in after if message["id"] == brought["head"])
    assert head["text"] == "By hand", "where it was left"
    marks = [(message["text"], message["starred"], message["name"]) for message in after]
    assert sorted(marks, key=str) == sorted(
        ((message["text"], message["starred"], message["name"]) for message in before["messages"]), key=str
    )
    assert (reply["text"], True, "the good one") in marks


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settings", {"temperature": 9}),
        ("settings", "cold"),
        ("tags", ["x"] * 17),
        ("tags", ["\ud800"]),
        ("tags", [1]),
        ("pinned", "yes"),
        ("archived", 1),
    ],
)
def test_marks_that_we_would_not_have_written_are_left_out(talk: Talk, field: str, value: Any) -> None:
    file = {"format": "radixkv-conversation", "version": 1, "messages": [], field: value}
    answer = talk.http.post("/import", content=json.dumps(file), headers=JSON).raise_for_status().json()
    (brought,) = answer["conversations"]
    assert [brought[name] for name in ("settings", "tags", "pinned", "archived")] == [None, [], False, False]


def timeless(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "TIME", text)


def test_a_branch_is_written_as_markdown_and_html(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin(messages=[{"role": "system", "text": "Be brief."}], title="日本 rivers")
    (system,) = talk.messages(conversation_id)
    stack.dictate("The Loire.")
    asked, reply = talk.turn(conversation_id, "A river?", system["id"])
    body = {"parent": asked, "role": "assistant", "text": "The Po."}
    talk.call("POST", f"/{conversation_id}/messages", body)
    head = talk.http.get(f"/{conversation_id}/export", params={"format": "markdown"})
    assert head.headers["content-type"] == "text/markdown; charset=utf-8"
    assert 'filename="rivers.md"' in head.headers["content-disposition"]
    start = "# 日本 rivers\n\n## System\n\n*TIME*\n\nBe brief.\n\n## User\n\n*TIME*\n\nA river?\n\n## Assistant\n\n"
    assert timeless(head.text) == f"{start}*TIME · edited*\n\nThe Po.\n"
    other = talk.http.get(f"/{conversation_id}/export", params={"format": "markdown", "leaf": reply["id"]})
    assert timeless(other.text).startswith(f"{start}*TIME · gibberish")
    assert other.text.endswith("*\n\nThe Loire.\n")
    page = talk.http.get(f"/{conversation_id}/export", params={"format": "html", "leaf": reply["id"]})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == "sandbox"
    assert 'filename="rivers.html"' in page.headers["content-disposition"]
    assert "The Loire." in page.text
    talk.refused(404, "GET", f"/{conversation_id}/export", leaf="msg_none")


def test_a_file_that_is_no_json_is_refused(talk: Talk) -> None:
    for content in (b"no json", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": 1'):
        answer = talk.http.post("/import", content=content, headers=JSON)
        assert answer.status_code == 400, content[:20]
        assert answer.json()["error"]["code"] == "invalid_json"
    assert talk.call("POST", "/import", []) == {"conversations": [], "known": [], "skipped": [], "left_out": {}}


@pytest.mark.parametrize("kind", [None, "text/plain;json", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_foreign_page_may_send_unasked_is_not_imported(talk: Talk, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = talk.http.post("/import", content=b"[]", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_real_trees_keep_every_path(talk: Talk) -> None:
    try:
        trees = read_trees(default_workloads())
    except WorkloadMissingError as missing:
        pytest.skip(str(missing))
    with tarfile.open(default_workloads() / ARCHIVE, "r:xz") as archive:
        file = archive.extractfile(next(member for member in archive if member.name.endswith(TREES_FILE)))
        assert file is not None
        content = file.read()
    answer = talk.http.post("/import", content=content, headers=JSON).json()
    assert answer["skipped"] == []
    assert len(answer["conversations"]) == content.count(b"\n") + (not content.endswith(b"\n"))
    stored = [paths_of(talk.messages(conversation["id"])) for conversation in answer["conversations"]]
    for tree in trees:  # those with several paths
        wanted = sorted([(turn["role"], turn["content"]) for turn in path] for path in tree.paths)
        assert wanted in stored
    for conversation in answer["conversations"]:
        talk.call("DELETE", f"/{conversation['id']}")


def paths_of(messages: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """From the beginning to each leaf, sorted."""
    paths: dict[str | None, list[tuple[str, str]]] = {None: []}
    for message in messages:
        paths[message["id"]] = [*paths[message["parent"]], (message["role"], message["text"])]
    inner = {message["parent"] for message in messages}
    return sorted(path for message_id, path in paths.items() if message_id is not None and message_id not in inner)

"""Files of conversations: every tree comes back as it was, and nothing in a file is trusted."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.gateway.api.conversations.files.exports import export_html, export_json, export_markdown, file_headers
from radixkv.gateway.api.conversations.files.file_values import read_source
from radixkv.gateway.api.conversations.files.import_tree import Imported
from radixkv.gateway.api.conversations.files.imports import RefusedError, read_conversations
from radixkv.gateway.api.conversations.messages import Conversation, Message
from radixkv.gateway.api.conversations.writing import MAX_MESSAGES
from radixkv.gateway.protocol.errors import ApiError

NOW_S = 1234.5
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda text: text.strip())

Tree = list[tuple[int | None, str, str]]
"""Messages: the place of the parent, which comes first; role; text."""


@st.composite
def trees(draw: st.DrawFn, *, empty: bool = False, roots: int = 4) -> Tree:
    """Any tree of at least one message; with `empty`, some say nothing."""
    texts = st.one_of(TEXTS, st.sampled_from(["", " \n"])) if empty else TEXTS
    tree: Tree = []
    num_roots = draw(st.integers(1, roots))
    for place in range(draw(st.integers(num_roots, 12))):
        parent = None if place < num_roots else draw(st.integers(0, place - 1))
        role = draw(st.sampled_from(["user", "assistant"] if parent is not None else ["user", "assistant", "system"]))
        tree.append((parent, role, draw(texts)))
    return tree


def read_one(document: Any) -> Imported:
    (read,) = read_conversations(json.dumps(document).encode(), NOW_S)
    assert isinstance(read, Imported), read
    return read


def reason(document: Any) -> str:
    (read,) = read_conversations(json.dumps(document).encode(), NOW_S)
    assert isinstance(read, RefusedError)
    return read.reason


def branches(messages: Sequence[Message]) -> list[list[tuple[str, str]]]:
    """What is said from the beginning to each message, in any order."""
    paths: dict[str | None, list[tuple[str, str]]] = {None: []}
    for message in messages:
        paths[message.id] = [*paths[message.parent], (message.role, message.text)]  # parents come first
    return sorted(path for message_id, path in paths.items() if message_id is not None)


def branches_of(tree: Tree) -> list[list[tuple[str, str]]]:
    """The same of a tree, without what says nothing."""
    paths: list[list[tuple[str, str]]] = []
    for parent, role, text in tree:
        above = paths[parent] if parent is not None else []
        paths.append([*above, (role, text)] if text.strip() else above)
    return sorted(path for path, (_, _, text) in zip(paths, tree, strict=True) if text.strip())


def siblings(messages: Sequence[Message], parent: str | None = None) -> list[str]:
    return [message.text for message in messages if message.parent == parent]


# -- our own


def conversation_of(title: str = "Rivers") -> Conversation:
    return Conversation("conv_x", title, 77.25, 88.0, 9, None, 0)


def messages_of(tree: Tree) -> list[Message]:
    return [
        Message(f"msg_{place}", None if parent is None else f"msg_{parent}", role, text, 10.0 + place, seq=place)
        for place, (parent, role, text) in enumerate(tree)
    ]


@given(trees(), st.randoms(use_true_random=False))
def test_our_own_export_comes_back_whatever_its_order(tree: Tree, source: Any) -> None:
    messages = messages_of(tree)
    document = json.loads(export_json(conversation_of(), messages))
    read = read_one(document)
    assert (read.title, read.created_s) == ("Rivers", 77.25)
    assert branches(read.messages) == branches(messages)
    assert sorted(message.created_s for message in read.messages) == [message.created_s for message in messages]
    source.shuffle(document["messages"])
    assert branches(read_one(document).messages) == branches(messages)


def test_what_is_known_of_a_reply_comes_back() -> None:
    details = {"model": "m", "prompt_tokens": 8, "cached_tokens": None, "first_token_ms": 1.5, "finish_reason": "stop"}
    messages = [
        Message("a", None, "user", "?", 1.0),
        Message("b", "a", "assistant", "", 2.0, status="failed", error="why", details=details),
        Message("c", "a", "assistant", "half", 3.0, status="running"),
        Message("d", "a", "assistant", "", 4.0),
    ]
    read = read_one(json.loads(export_json(conversation_of(), messages))).messages
    assert [(each.status, each.error, each.text) for each in read] == [
        ("complete", None, "?"),
        ("failed", "why", ""),
        ("stopped", None, "half"),
        ("complete", None, ""),
    ]
    assert [each.details for each in read] == [
        {"imported": True},
        {**details, "imported": True},
        *[{"imported": True}] * 2,
    ]


@pytest.mark.parametrize(
    "details", [{"model": 5}, {"first_token_ms": float("nan")}, {"model": "\ud800"}, [], "x", {"n": {"n": 1}}]
)
def test_details_that_we_would_not_have_written_are_left_out(details: Any) -> None:
    message = {"id": "a", "parent": None, "role": "user", "text": "?", "details": details}
    read = read_one({"format": "radixkv-conversation", "version": 1, "messages": [message]})
    assert read.messages[0].details == {"imported": True}


# -- other programs'


@given(trees(empty=True, roots=1), st.booleans())
def test_every_branch_of_a_chatgpt_export_is_there(tree: Tree, is_hidden: bool) -> None:
    mapping: dict[str, Any] = {"top": {"id": "top", "message": None, "parent": None, "children": []}}
    for place, (parent, role, text) in reversed(list(enumerate(tree))):  # in no order of use
        key, above = f"n{place}", "top" if parent is None else f"n{parent}"
        parts: list[Any] = [text] if text else [{"content_type": "image_asset_pointer"}]
        content = {"content_type": "text" if text else "multimodal_text", "parts": parts}
        message = {"author": {"role": role}, "content": content, "create_time": None if is_hidden else 9.0}
        children = [f"n{below}" for below, (other, _, _) in enumerate(tree) if other == place]
        mapping[key] = {"id": key, "message": message, "parent": above, "children": children}
    document = {"title": "T", "mapping": mapping, "current_node": f"n{len(tree) - 1}"}
    shown = [(parent, role, text or "[picture left out]") for parent, role, text in tree]
    if not branches_of(shown):
        assert "no text" in reason(document)
        return
    read = read_one(document)
    assert branches(read.messages) == branches_of(shown)
    assert read.left_out.get("picture", 0) == sum(not text for _, _, text in tree)
    path = [(message.role, message.text) for message in read.messages if message.id == read.head]
    above = len(tree) - 1
    while not shown[above][2].strip() and shown[above][0] is not None:
        above = shown[above][0] or 0
    if shown[above][2].strip():
        assert path == [shown[above][1:]]


def test_siblings_stand_in_the_order_that_their_parent_says() -> None:
    def node(key: str, parent: str | None, children: list[str]) -> dict[str, Any]:
        message = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": [key]}}
        return {"message": message, "parent": parent, "children": children}

    nodes = {key: node(key, "top", []) for key in "cba"} | {"top": node("top", None, ["a", "b", "c"])}
    read = read_one({"mapping": nodes})
    assert siblings(read.messages, read.messages[0].id) == ["a", "b", "c"]


@pytest.mark.parametrize("content_type", ["text", "multimodal_text"])
def test_what_an_assistant_says_to_a_tool_is_nobodys_turn(content_type: str) -> None:
    def node(parent: str | None, role: str, text: str, **fields: Any) -> dict[str, Any]:
        content = {"content_type": content_type, "parts": [text]}
        return {"parent": parent, "message": {"author": {"role": role}, "content": content, **fields}}

    nodes = {
        "a": node(None, "user", "Which lake?"),
        "b": node("a", "assistant", "search lakes", recipient="browser"),
        "c": node("b", "tool", "a page"),
        "d": node("c", "assistant", "Como.", recipient="all"),
        "e": node("d", "assistant", "Anything else?", recipient=None),
    }
    read = read_one({"mapping": nodes})
    assert [message.text for message in read.messages] == ["Which lake?", "Como.", "Anything else?"]
    assert [message.parent for message in read.messages] == [None, *[message.id for message in read.messages[:2]]]
    assert read.left_out == {"tool": 2}
    assert [message.details for message in read.messages] == [
        {"imported": True},
        {"left_out": {"tool": 2}, "imported": True},
        {"imported": True},
    ]


@given(trees(empty=True, roots=1), st.booleans())
def test_every_branch_of_an_open_assistant_tree_is_there(tree: Tree, by_lines: bool) -> None:
    nodes: list[dict[str, Any]] = []
    for parent, role, text in tree:
        node = {"text": text, "role": {"user": "prompter"}.get(role, role), "replies": []}
        nodes.append(node)
        if parent is not None:
            nodes[parent]["replies"].append(node)
    document = {"message_tree_id": "x", "prompt": nodes[0]}
    if not branches_of(tree):
        assert "no text" in reason(document)
        return
    if by_lines:
        lines = f"{json.dumps(document)}\n\n{json.dumps(document)}\n{{broken\n"
        first, second, third = read_conversations(lines.encode(), NOW_S)
        assert isinstance(second, Imported)
        assert branches(second.messages) == branches_of(tree)
        assert isinstance(third, RefusedError)
    else:
        (first,) = read_conversations(json.dumps([document]).encode(), NOW_S)
    assert isinstance(first, Imported)
    assert branches(first.messages) == branches_of(tree)
    assert all(message.created_s == NOW_S for message in first.messages)


CLAUDE = {
    "uuid": "c1",
    "name": "Lakes",
    "created_at": "2024-05-01T10:00:00.500000Z",
    "updated_at": "2024-05-02T10:00:00Z",
    "chat_messages": [
        {
            "uuid": "m1",
            "sender": "human",
            "text": "Which lake?",
            "created_at": "2024-05-01T10:00:00+00:00",
            "attachments": [{"file_name": "notes.txt", "extracted_content": "my notes"}, {"file_name": "x.bin"}],
            "files": [{"file_name": "lake.png"}],
        },
        {
            "uuid": "m2",
            "sender": "assistant",
            "text": "ignored",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "name": "web"},
                {"type": "tool_result", "content": []},
                {"type": "text", "text": "Como."},
            ],
        },
        {"uuid": "m3", "sender": "assistant", "text": "Garda.", "parent_message_uuid": "m1"},
    ],
}
OPEN_WEBUI = {
    "id": "w1",
    "title": "Rivers",
    "created_at": 1700000000,
    "updated_at": 1700000900,
    "chat": {
        "params": {"system": "Be brief."},
        "history": {
            "currentId": "b",
            "messages": {
                "b": {
                    "id": "b",
                    "parentId": "a",
                    "role": "assistant",
                    "content": "Po.",
                    "model": "m",
                    "timestamp": 1700000002,
                },
                "c": {"id": "c", "parentId": "a", "role": "assistant", "content": "Ebro.", "timestamp": 1700000003},
                "a": {
                    "id": "a",
                    "parentId": None,
                    "role": "user",
                    "content": "A river?",
                    "files": [{"type": "image", "url": "x"}, {"type": "file"}],
                    "timestamp": 1700000001,
                },
            },
        },
    },
}
LIBRECHAT = {
    "conversationId": "l1",
    "title": "Hills",
    "messages": [
        {
            "messageId": "a",
            "parentMessageId": "00000000-0000-0000-0000-000000000000",
            "isCreatedByUser": True,
            "text": "A hill?",
            "createdAt": "2024-01-01T00:00:00.000Z",
            "children": [
                {
                    "messageId": "b",
                    "parentMessageId": "a",
                    "isCreatedByUser": False,
                    "text": "",
                    "model": "m",
                    "content": [{"type": "think", "think": "hm"}, {"type": "text", "text": {"value": "Monte Rosa"}}],
                },
                {"messageId": "c", "isCreatedByUser": False, "text": "Etna", "children": []},
            ],
        },
    ],
}
SILLY_TAVERN = [
    {"user_name": "Me", "character_name": "Sage", "create_date": "x", "chat_metadata": {"integrity": "s1"}},
    {"is_user": False, "mes": "Welcome.", "send_date": "July 4, 2023 5:06pm"},
    {"is_user": True, "mes": "Hello", "send_date": "2023-07-04T17:07:00.000Z"},
    {"is_system": True, "mes": "a note of the program"},
    {"is_user": False, "mes": "Two, edited", "swipes": ["One", "Two"], "swipe_id": 1, "send_date": 1688490500000},
    {"is_user": True, "mes": "Go on", "send_date": "2023-7-4 @17h 9m 4s 123ms"},
]


def roles(read: Imported) -> list[list[tuple[str, str]]]:
    """From the beginning to each leaf."""
    inner = {message.parent for message in read.messages}
    paths: dict[str | None, list[tuple[str, str]]] = {None: []}
    for message in read.messages:
        paths[message.id] = [*paths[message.parent], (message.role, message.text)]
    return [path for key, path in paths.items() if key is not None and key not in inner]


def test_a_claude_export_is_read() -> None:
    read = read_one([CLAUDE])
    asked = ("user", "Which lake?\n\nmy notes\n[file left out]\n[file left out]")
    assert roles(read) == [[asked, ("assistant", "Let me see.\nComo.")], [asked, ("assistant", "Garda.")]]
    assert (read.title, read.created_s, read.updated_s) == ("Lakes", 1714557600.5, NOW_S)
    assert read.left_out == {"file": 2, "thoughts": 1, "tool": 2}
    assert (read.messages[1].details or {})["left_out"] == {"thoughts": 1, "tool": 2}


def test_an_open_webui_export_is_read() -> None:
    read = read_one([OPEN_WEBUI])
    above = [("system", "Be brief."), ("user", "A river?\n[picture left out]\n[file left out]")]
    assert roles(read) == [[*above, ("assistant", "Po.")], [*above, ("assistant", "Ebro.")]]
    assert next(each for each in read.messages if each.id == read.head).text == "Po."
    assert read.messages[2].details == {"model": "m", "imported": True}
    assert (read.title, read.created_s) == ("Rivers", 1700000000.0)
    assert [each.created_s for each in read.messages[1:]] == [1700000001.0, 1700000002.0, 1700000003.0]


def test_a_librechat_export_is_read_whether_its_messages_stand_within_each_other_or_not() -> None:
    wanted = [[("user", "A hill?"), ("assistant", "Monte Rosa")], [("user", "A hill?"), ("assistant", "Etna")]]
    assert roles(read_one(LIBRECHAT)) == wanted
    top: Any = LIBRECHAT["messages"][0]
    flat = [{**top, "children": []}, *({**each, "parentMessageId": "a"} for each in top["children"])]
    assert roles(read_one({**LIBRECHAT, "messages": flat})) == wanted
    older = {name: value for name, value in LIBRECHAT.items() if name != "messages"} | {"messagesTree": [top]}
    assert roles(read_one(older)) == wanted
    assert read_one(LIBRECHAT).created_s == 1704067200.0


def test_a_silly_tavern_chat_is_one_file_of_lines_whose_swipes_are_siblings() -> None:
    body = "\n".join(map(json.dumps, SILLY_TAVERN)).encode()
    (read,) = read_conversations(body, 2e9)
    assert isinstance(read, Imported)
    above = [("assistant", "Welcome."), ("user", "Hello")]
    assert roles(read) == [
        [*above, ("assistant", "One")],
        [*above, ("assistant", "Two, edited"), ("user", "Go on")],
    ]
    assert (read.title, read.left_out) == ("Sage", {"note": 1})
    assert [each.created_s for each in read.messages][:3] == [1688490360.0, 1688490420.0, 1688490500.0]
    assert read.messages[-1].created_s == 1688490544.123
    assert read.updated_s == 1688490544.123


@pytest.mark.parametrize(("length", "is_known"), [(512, True), (513, False)])
def test_a_source_is_as_long_as_a_name_at_most(length: int, is_known: bool) -> None:
    assert (read_source("chatgpt", "x" * length) is not None) is is_known


@pytest.mark.parametrize("document", [CLAUDE, OPEN_WEBUI, LIBRECHAT])
def test_the_same_source_has_the_same_ids_and_what_changed_is_another_branch(document: Any) -> None:
    first, again = read_one(document), read_one(document)
    assert (first.source, [each.id for each in first.messages]) == (again.source, [each.id for each in again.messages])
    assert first.source is not None
    text = json.dumps(document)
    for before, after in (("Which lake?", "Which one?"), ("A river?", "A stream?"), ("A hill?", "A mount?")):
        text = text.replace(before, after)
    changed = read_one(json.loads(text))
    assert changed.source == first.source
    same = {each.id for each in changed.messages} & {each.id for each in first.messages}
    assert same == {each.id for each in first.messages if each.role == "system"}


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@given(st.data())
def test_a_file_of_another_program_that_is_not_as_it_should_be_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever stands in whatever place of it."""
    document: Any = json.loads(json.dumps(data.draw(st.sampled_from([CLAUDE, OPEN_WEBUI, LIBRECHAT, SILLY_TAVERN]))))
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        each = waiting.pop()
        for key in list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ():
            places.append((each, key))
            waiting.append(each[key])
    for holder, key in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=3)):
        holder[key] = data.draw(JUNK)
    body = "\n".join(map(json.dumps, document)) if isinstance(document, list) else json.dumps(document)
    read: Sequence[Any] = ()
    with suppress(ApiError):  # it is no JSON any more
        read = read_conversations(body.encode(), NOW_S)
    for one in read:
        assert isinstance(one, (Imported, RefusedError))
        if isinstance(one, Imported):
            json.dumps([message.body() for message in one.messages], ensure_ascii=False).encode()


# -- what cannot be trusted


def own(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"format": "radixkv-conversation", "version": 1, "title": "t", "messages": list(messages)}


def said(key: str, parent: Any = None, role: str = "user", text: Any = "x") -> dict[str, Any]:
    return {"id": key, "parent": parent, "role": role, "text": text}


@pytest.mark.parametrize(
    ("document", "part"),
    [
        (own(said("a", "b"), said("b", "a")), "'a' stands below itself"),
        (own(said("r"), said("a", "a")), "'a' stands below itself"),
        (own(said("a", "gone")), "'gone', which 'a' follows, is missing"),
        (own(said("a"), said("a")), "'a' is there twice"),
        (own({"parent": None, "role": "user", "text": "x"}), "message 0 has no id"),
        (own(said("a", role="tool")), "no role of"),
        (own(said("a", parent=5)), "parent of message 0"),
        (own(said("a") | {"status": "running"}), "status of message 0"),
        (own(said("a", text="\ud800")), "text of message 0 is not valid Unicode"),
        (own() | {"title": "\udfff"}, "title is not valid Unicode"),
        ({"format": "radixkv-conversation", "version": 2, "messages": []}, "version is '2'"),
        ({"format": "radixkv-conversation", "version": 1}, "no list of messages"),
        ({"mapping": {"a": 5}}, "'a' is no object"),
        ({"mapping": {"a": {"parent": "b"}, "b": {"parent": "a"}}}, "stands below itself"),
        ({"mapping": {"a": {"parent": []}}}, "parent of node 'a'"),
        ({"prompt": {"text": "x", "role": "prompter", "replies": 5}}, "list of replies"),
        ({"prompt": {"text": "x", "role": "prompter", "replies": ["y"]}}, "message 1 is no object"),
        ({"what": "else"}, "none of the formats"),
        (5, "none of the formats"),
    ],
)
def test_what_is_wrong_with_a_conversation_is_named(document: Any, part: str) -> None:
    read = read_conversations(json.dumps([document, own(said("a"))]).encode(), NOW_S)
    assert isinstance(read[0], RefusedError)
    assert part in read[0].reason
    assert isinstance(read[1], Imported), "the one beside it is taken"


def test_no_depth_is_too_deep_to_be_answered() -> None:
    deep = [said(f"m{number}", f"m{number - 1}" if number else None) for number in range(20_000)]
    assert "20,000 messages; a conversation has at most" in reason(own(*deep))
    assert len(read_one(own(*deep[:MAX_MESSAGES])).messages) == MAX_MESSAGES
    mapping = {f"n{n}": {"parent": f"n{n - 1}" if n else None, "message": None} for n in range(20_000)}
    assert "no text" in reason({"mapping": mapping})
    circle = {**mapping, "n0": {"parent": "n19999", "message": None}}
    assert "stands below itself" in reason({"mapping": circle})
    nested = b'{"prompt": ' + b'{"text": "x", "role": "prompter", "replies": [' * 20_000 + b"]}" * 20_000 + b"}"
    with pytest.raises(ApiError, match="nested deeper than 200 levels"):
        read_conversations(nested, NOW_S)
    first, second = read_conversations(nested + b"\n" + json.dumps(own(said("a"))).encode(), NOW_S)
    assert isinstance(first, RefusedError)
    assert "nested deeper than 200 levels" in first.reason
    assert isinstance(second, Imported)


FIELDS = [
    *("format", "version", "messages", "id", "parent", "role", "text", "title"),
    *("mapping", "message", "author", "content", "content_type", "parts"),
    *("prompt", "replies"),
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)


@given(ANYTHING)
def test_nothing_in_a_file_is_a_fault_of_ours(document: Any) -> None:
    known = (
        {"format": "radixkv-conversation", "version": 1, "messages": document},
        {"mapping": {"a": document}},
        {"prompt": {"text": document, "replies": [document]}},
    )
    for each in (document, *known):
        for read in read_conversations(json.dumps(each).encode(), NOW_S):
            assert isinstance(read, (Imported, RefusedError))


def test_times_that_are_none_count_as_now() -> None:
    for value in (None, -1, 1e300, "yesterday", True, float("inf"), 10**400):
        message = said("a") | {"created": value}
        assert read_one(own(message)).messages[0].created_s == NOW_S


# -- as files


SETTINGS = {"model": "m_1", "temperature": 0.7, "top_p": None, "stop": ["<a>"], "seed": 0}


def branch_of_three() -> list[Message]:
    messages = messages_of(
        [(None, "system", "S"), (0, "user", "U & <b>"), (1, "assistant", "A"), (1, "assistant", "B")]
    )
    messages[3].details = {"model": "m_1", "settings": SETTINGS, "edited": True}
    messages[3].status = "stopped"
    return messages


def test_a_branch_is_told_as_markdown() -> None:
    text = export_markdown(conversation_of("T"), branch_of_three(), "msg_3")
    time = "*1970-01-01 00:00 UTC*"
    about = r'*1970-01-01 00:00 UTC · m\_1 · temperature 0.7, stop \["\<a\>"\], seed 0 · edited · stopped*'
    assert text == f"# T\n\n## System\n\n{time}\n\nS\n\n## User\n\n{time}\n\nU & <b>\n\n## Assistant\n\n{about}\n\nB\n"
    assert export_markdown(conversation_of("T"), [], None) == "# T\n"


def test_a_branch_is_told_as_a_page_that_holds_nothing_of_the_author() -> None:
    text = export_html(conversation_of("<script>{title}"), branch_of_three(), "msg_3")
    assert '<h1 dir="auto">&lt;script&gt;{title}</h1>' in text
    assert (
        "1970-01-01 00:00 UTC · m_1 · temperature 0.7, stop [&quot;&lt;a&gt;&quot;], seed 0 · edited · stopped" in text
    )
    assert "U &amp; &lt;b&gt;" in text
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert text.count("<article") == 3


@pytest.mark.parametrize(
    ("title", "plain", "full"),
    [
        ("Rivers", "Rivers", "Rivers"),
        ('../a\\b"\r\nSet-Cookie: x', "a b Set-Cookie x", "a%20b%20Set-Cookie%20x"),
        ("日本", "conversation", "%E6%97%A5%E6%9C%AC"),
        ("...", "conversation", "conversation"),
        ("x" * 300, "x" * 80, "x" * 80),
    ],
)
def test_a_file_is_named_safely(title: str, plain: str, full: str) -> None:
    value = file_headers(title, "markdown")["Content-Disposition"]
    assert value == f"attachment; filename=\"{plain}.md\"; filename*=UTF-8''{full}.md"


@pytest.mark.parametrize(("line", "number"), [(b"{}\n", 350_000), (b"\n", 2_000_000), (b"{}\n", 10_001)])
def test_lines_beyond_the_bound_are_counted_without_being_kept(line: bytes, number: int) -> None:
    body, peak_bytes = line * number, math.inf
    for _ in range(3):  # other threads of the process may take memory meanwhile
        tracemalloc.start()
        try:
            with pytest.raises(ApiError, match=f"{number:,}"):
                read_conversations(body, NOW_S)
            peak_bytes = min(peak_bytes, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        if peak_bytes < 10 * len(body):
            return
    pytest.fail(f"it takes {peak_bytes} bytes")

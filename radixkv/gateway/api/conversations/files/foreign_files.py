"""Parsers of other chat programs' exports: Claude, Open WebUI, LibreChat, SillyTavern. All input is untrusted.

Claude         {"uuid", "name", "created_at", "chat_messages": [{"uuid", "sender": "human", "text", "content", "attachments"}]}
Open WebUI     {"id", "title", "chat": {"history": {"messages": {id: {"parentId", "role", "content"}}, "currentId"}}}
LibreChat      {"conversationId", "title", "messages": [{"messageId", "parentMessageId", "isCreatedByUser", "text"}]}
SillyTavern    lines: {"user_name", "character_name", "chat_metadata"}, then {"is_user", "mes", "swipes", "swipe_id"} each
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from radixkv.gateway.api.conversations.files.file_values import (
    RefusedError,
    read_key,
    read_list,
    read_object,
    read_objects,
    read_parent,
    read_source,
    read_text,
    read_time,
)
from radixkv.gateway.api.conversations.files.import_tree import (
    Imported,
    Node,
    import_tree,
    with_placeholders,
)

__all__ = ["is_silly_tavern", "read_claude", "read_librechat", "read_open_webui", "read_silly_tavern"]

_TOOL_KINDS = ("tool_use", "tool_result", "tool_call")


class _Said(NamedTuple):
    """Text of a message, and the kinds of its omitted parts."""

    text: str
    left_out: tuple[str, ...]


def _id(value: Any, what: str) -> str:
    key = read_key(value)
    if key is None:
        raise RefusedError(f"{what} has no id")
    return key


def _blocks(value: Any, what: str) -> _Said:
    """Return the texts among the blocks of a message, in Claude's or LibreChat's form."""
    texts: list[str] = []
    left_out: list[str] = []
    for block in read_list(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            inner = block.get("text")
            texts.append(read_text(inner.get("value") if isinstance(inner, dict) else inner, what))
        elif kind in _TOOL_KINDS:
            left_out.append("tool")
        elif isinstance(kind, str) and kind.startswith("image"):
            left_out.append("picture")
        elif kind in ("thinking", "think"):
            left_out.append("thoughts")
    return _Said("\n".join(text for text in texts if text), tuple(left_out))


def _num_files(*values: Any) -> int:
    return sum(len(read_list(value)) for value in values)


# -- Claude


def read_claude(document: Mapping[str, Any], now_s: float) -> Imported:
    """Parse one conversation of a list: a chain of messages, or a tree where they name their parents."""
    entries = read_objects(document["chat_messages"], "chat_messages")
    known = {entry.get("uuid") for entry in entries if isinstance(entry.get("uuid"), str)}
    nodes: list[Node] = []
    for place, entry in enumerate(entries):
        what = f"message {place}"
        before, named = nodes[-1].key if nodes else None, entry.get("parent_message_uuid")
        parent = before if not isinstance(named, str) else named if named in known else None
        nodes.append(_claude_node(entry, parent, what))
    return import_tree(
        nodes,
        now_s,
        title=document.get("name"),
        created_s=read_time(document.get("created_at")),
        updated_s=read_time(document.get("updated_at")),
        source=read_source("claude", document.get("uuid")),
    )


def _claude_node(entry: Mapping[str, Any], parent: str | None, what: str) -> Node:
    said = _blocks(entry.get("content"), f"the text of {what}")
    text = said.text or read_text(entry.get("text"), f"the text of {what}")
    pasted = [each.get("extracted_content") for each in read_list(entry.get("attachments")) if isinstance(each, dict)]
    texts = [read_text(each, f"an attachment of {what}") for each in pasted]
    num_lost = len(texts) - sum(map(bool, texts)) + _num_files(entry.get("files"))
    left_out = (*said.left_out, *["file"] * num_lost)
    text = with_placeholders("\n\n".join(each for each in (text, *texts) if each), left_out)
    role = {"human": "user", "assistant": "assistant"}.get(str(entry.get("sender")))
    return Node(
        key=_id(entry.get("uuid"), what),
        parent=parent,
        role=role,
        text=text,
        created_s=read_time(entry.get("created_at")),
        left_out=left_out,
    ).unless_empty()


# -- Open WebUI


def read_open_webui(document: Mapping[str, Any], now_s: float) -> Imported:
    """Parse one chat of a list."""
    chat: Mapping[str, Any] = document["chat"]
    history = chat.get("history")
    if not isinstance(history, dict) or not isinstance(history.get("messages"), dict):
        raise RefusedError("its chat has no history of messages")
    system = read_text(_params(chat).get("system") or chat.get("system"), "the instructions")
    nodes = [_open_webui_node(key, entry) for key, entry in history["messages"].items()]
    return _instructed(document, nodes, now_s, system, head=history.get("currentId"))


def _params(chat: Mapping[str, Any]) -> Mapping[str, Any]:
    params = chat.get("params")
    return params if isinstance(params, dict) else {}


def _instructed(document: Mapping[str, Any], nodes: list[Node], now_s: float, system: str, *, head: Any) -> Imported:
    """Return an Open WebUI chat below its instructions, if it has any."""
    key = "\0instructions"
    if system.strip():
        nodes = [node if node.parent is not None else replace(node, parent=key) for node in nodes]
        nodes.insert(0, Node(key, None, "system", system))
    chat: Mapping[str, Any] = document["chat"]
    return import_tree(
        nodes,
        now_s,
        title=document.get("title") or chat.get("title"),
        created_s=read_time(document.get("created_at") or chat.get("timestamp")),
        updated_s=read_time(document.get("updated_at")),
        head=read_key(head),
        source=read_source("open-webui", document.get("id")),
    )


def _open_webui_node(key: str, entry: Any) -> Node:
    what = f"message {key[:60]!r}"
    content = read_object(entry, what).get("content")
    said = _blocks(content, what) if isinstance(content, list) else _Said(read_text(content, f"the text of {what}"), ())
    files = [each.get("type") if isinstance(each, dict) else None for each in read_list(entry.get("files"))]
    left_out = (*said.left_out, *("picture" if kind == "image" else "file" for kind in files))
    text = with_placeholders(said.text, left_out)
    role = entry.get("role") if entry.get("role") in ("system", "user", "assistant") else None
    return Node(
        key=key,
        parent=read_parent(entry.get("parentId"), what),
        role=role,
        text=text,
        created_s=read_time(entry.get("timestamp")),
        details=_model(entry.get("model"), role),
        left_out=left_out if role is not None else ("tool",),
    ).unless_empty()


def _model(value: Any, role: str | None) -> dict[str, Any] | None:
    text = read_text(value, "the model")[:512]
    return {"model": text} if text and role == "assistant" else None


# -- LibreChat


def read_librechat(document: Mapping[str, Any], now_s: float) -> Imported:
    """Parse a file of one conversation: messages that name their parents, or are nested in them."""
    nodes: list[Node] = []
    found: list[tuple[str | None, Any]] = []
    waiting: list[tuple[str | None, Any]] = [
        (None, each)
        for each in reversed(read_objects(document.get("messages", document.get("messagesTree")), "messages"))
    ]
    known: set[str] = set()
    while waiting:
        above, entry = waiting.pop()
        key = _id(read_object(entry, f"message {len(found)}").get("messageId"), f"message {len(found)}")
        known.add(key)
        found.append((above, entry))
        waiting += [(key, child) for child in reversed(read_list(entry.get("children")))]
    for above, entry in found:
        named = entry.get("parentMessageId")
        nodes.append(_librechat_node(entry, named if isinstance(named, str) and named in known else above))
    return import_tree(
        nodes,
        now_s,
        title=document.get("title"),
        created_s=min((node.created_s for node in nodes if node.created_s is not None), default=None),
        source=read_source("librechat", document.get("conversationId")),
    )


def _librechat_node(entry: Mapping[str, Any], parent: str | None) -> Node:
    key: str = entry["messageId"]
    what = f"message {key[:60]!r}"
    said = _blocks(entry.get("content"), f"the text of {what}")
    left_out = (*said.left_out, *["file"] * _num_files(entry.get("files")))
    text = with_placeholders(said.text or read_text(entry.get("text"), f"the text of {what}"), left_out)
    role = "user" if entry.get("isCreatedByUser") else "assistant"
    return Node(
        key=key,
        parent=parent,
        role=role,
        text=text,
        created_s=read_time(entry.get("createdAt")),
        details=_model(entry.get("model"), role),
        left_out=left_out,
    ).unless_empty()


# -- SillyTavern


def is_silly_tavern(lines: Sequence[Any]) -> bool:
    """Whether these lines are a SillyTavern chat: the first names the speakers."""
    first = lines[0] if lines else None
    return isinstance(first, dict) and "mes" not in first and {"user_name", "character_name"} <= first.keys()


def read_silly_tavern(lines: Sequence[Any], now_s: float) -> Imported:
    """Parse a chain of messages; unchosen swipes become siblings of the chosen ones."""
    header: Mapping[str, Any] = lines[0]
    nodes: list[Node] = []
    parent: str | None = None
    for place, entry in enumerate(lines[1:]):
        if not isinstance(entry, dict):
            raise RefusedError(f"line {place + 2} is no message")
        said, chosen = _swipes(entry, place)
        role = None if entry.get("is_system") else "user" if entry.get("is_user") else "assistant"
        created_s = read_time(entry.get("send_date"))
        for number, text in enumerate(said):
            left_out = ("note",) if role is None else ()
            node = Node(f"{place}.{number}", parent, role, text, created_s, number, left_out=left_out)
            nodes.append(node.unless_empty())
        parent = f"{place}.{chosen}"
    times = [node.created_s for node in nodes if node.created_s is not None]
    metadata = header.get("chat_metadata")
    name = metadata.get("integrity") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        name = f"{header.get('character_name')} {header.get('create_date')}"[:512]
    return import_tree(
        nodes,
        now_s,
        title=header.get("character_name"),
        created_s=min(times, default=None),
        head=parent,
        source=read_source("silly-tavern", name),
    )


def _swipes(entry: Mapping[str, Any], place: int) -> tuple[list[str], int]:
    """Return all alternative texts of a message, and the index of the chosen one."""
    what = f"the text of line {place + 2}"
    text = read_text(entry.get("mes"), what)
    others = [read_text(each, what) for each in read_list(entry.get("swipes"))]
    chosen = entry.get("swipe_id")
    if entry.get("is_user") or not isinstance(chosen, int) or not 0 <= chosen < len(others):
        return [text], 0
    return [*others[:chosen], text, *others[chosen + 1 :]], chosen

"""Parses files of conversations: radixkv's own export, ChatGPT's, OpenAssistant trees, and `foreign_files`.

A file holds one conversation, a list, or JSON lines.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from radixkv.gateway.api.conversations.files.exports import FORMAT, FORMAT_VERSION
from radixkv.gateway.api.conversations.files.file_values import (
    RefusedError,
    read_key,
    read_list,
    read_object,
    read_parent,
    read_source,
    read_text,
    read_time,
)
from radixkv.gateway.api.conversations.files.foreign_files import (
    is_silly_tavern,
    read_claude,
    read_librechat,
    read_open_webui,
    read_silly_tavern,
)
from radixkv.gateway.api.conversations.files.import_tree import (
    Imported,
    Node,
    import_tree,
    with_placeholders,
)
from radixkv.gateway.api.conversations.messages import MAX_TITLE_CHARACTERS
from radixkv.gateway.api.conversations.objects import MessageDetails
from radixkv.gateway.api.conversations.schema import ConversationChange
from radixkv.gateway.api.conversations.writing import Value
from radixkv.gateway.protocol.errors import ApiError, invalid
from radixkv.util.json_text import read_json

__all__ = ["Imported", "read_conversations"]

MAX_DOCUMENTS = 10_000
"""Conversations per file."""

MAX_LINES = 100_000
"""Of JSON lines, empty ones included."""

_CHATGPT_KINDS = {
    "thoughts": ("thoughts",),
    "reasoning_recap": ("thoughts",),
    "code": ("tool",),
    "execution_output": ("tool",),
    "user_editable_context": ("instructions",),
}
"""Kinds of omitted parts, by the kind of a message's content."""

_KEPT = ("settings", "tags", "pinned", "archived")
"""Fields of a conversation that an import restores."""

_ROLES = ("system", "user", "assistant")
_OPEN_ASSISTANT = {"prompter": "user", "assistant": "assistant", "system": "system"}


def read_conversations(body: bytes, now_s: float) -> list[Imported | RefusedError]:
    """Parse a file; returns its conversations in order, each as a whole or as the reason of its rejection.

    Raises:
        ApiError: 400: not JSON, or too many conversations.
    """
    documents = _documents(body)
    _check_number(len(documents))
    if is_silly_tavern(documents):
        return [_read_all_lines(documents, now_s)]
    return [_read(document, now_s) for document in documents]


def _read_all_lines(lines: list[Any], now_s: float) -> Imported | RefusedError:
    try:
        return read_silly_tavern(lines, now_s)
    except RefusedError as refusal:
        return refusal


def _check_number(num_documents: int) -> None:
    if num_documents > MAX_DOCUMENTS:
        raise invalid(f"the file holds {num_documents:,} conversations; send at most {MAX_DOCUMENTS:,} at once", "body")


def _documents(body: bytes) -> list[Any]:
    """Return the JSON documents of a file: a list's members, one document, or one per line."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8", code="invalid_json") from None
    whole = _parse(text)
    if not isinstance(whole, RefusedError):
        return whole if isinstance(whole, list) else [whole]
    num_lines = text.count("\n")
    if num_lines > MAX_LINES:
        message = (
            f"the body is neither JSON nor JSON lines, of which at most {MAX_LINES:,} are read: it has {num_lines:,}"
        )
        raise ApiError(400, f"{message}; {whole.reason}", code="invalid_json")
    _check_number(sum(1 for _ in _lines(text)))  # before any of them is parsed
    read = [_parse(line) for line in _lines(text)]
    if len(read) < 2 or all(isinstance(each, RefusedError) for each in read):
        raise ApiError(400, f"the body cannot be read: {whole.reason}", code="invalid_json")
    return read


def _lines(text: str) -> Iterator[str]:
    return (line.removesuffix("\n") for line in io.StringIO(text) if line.strip())


def _parse(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        return RefusedError(f"it is not JSON: {error}")


def _read(document: Any, now_s: float) -> Imported | RefusedError:
    if isinstance(document, RefusedError):
        return document
    try:
        for is_of, read in _FORMATS:
            if isinstance(document, dict) and is_of(document):
                return read(document, now_s)
        raise RefusedError(
            "it is none of the formats that are read: radixkv's export, ChatGPT's, Claude's, Open WebUI's, LibreChat's, "
            "SillyTavern's, OpenAssistant trees"
        )
    except RefusedError as refusal:
        return refusal


# -- our own


def _read_own(document: Mapping[str, Any], now_s: float) -> Imported:
    if document.get("version") != FORMAT_VERSION:
        raise RefusedError(f"its version is {str(document.get('version'))[:20]!r}; version {FORMAT_VERSION} is read")
    entries = document.get("messages")
    if not isinstance(entries, list):
        raise RefusedError("it has no list of messages")
    nodes = [_own_node(entry, place) for place, entry in enumerate(entries)]
    return import_tree(
        nodes,
        now_s,
        title=document.get("title"),
        created_s=read_time(document.get("created")),
        updated_s=read_time(document.get("updated")),
        head=read_key(document.get("head")),
        source=read_source("radixkv", document.get("id")),
        may_be_empty=True,
    )._replace(kept=_kept(document))


def _kept(document: Mapping[str, Any]) -> dict[str, Value]:
    """Return settings, tags and marks, as far as they are valid."""
    kept: dict[str, Value] = {}
    for name in _KEPT:
        try:
            values = ConversationChange.model_validate({name: document.get(name)}).values()
        except ValidationError:
            continue
        if _is_plain(values):
            kept |= values
    return kept


def _own_node(entry: Any, place: int) -> Node:
    what = f"message {place}"
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str) or entry.get("role") not in _ROLES:
        raise RefusedError(f"{what} has no id, or no role of {', '.join(_ROLES)}")
    status = entry.get("status", "complete")
    if status not in ("complete", "stopped", "failed"):
        raise RefusedError(f"the status of {what} is none of complete, stopped, failed")
    text, role = read_text(entry.get("text"), f"the text of {what}"), entry["role"]
    return Node(
        key=entry["id"],
        parent=read_parent(entry.get("parent"), what),
        role=role if text or role == "assistant" else None,  # a reply may be empty
        text=text,
        created_s=read_time(entry.get("created")),
        status=status,
        error=read_text(entry.get("error"), f"the error of {what}") or None,
        details=_details(entry.get("details")),
        is_starred=entry.get("starred") is True,
        name=read_text(entry.get("name"), f"the name of {what}")[:MAX_TITLE_CHARACTERS] or None,
    )


def _details(value: Any) -> dict[str, Any] | None:
    """Return the details of a reply, if they are valid."""
    try:
        details = MessageDetails.model_validate(value, strict=True)
    except ValidationError:
        return None
    known = details.model_dump(exclude_unset=True)
    return known if _is_plain(known) else None


def _is_plain(known: Mapping[str, Any]) -> bool:
    try:
        json.dumps(known, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


# -- ChatGPT: {"title", "create_time", "current_node", "mapping": {id: {"parent", "children", "message": {...} or null}}}


def _read_chatgpt(document: Mapping[str, Any], now_s: float) -> Imported:
    mapping: Mapping[str, Any] = document["mapping"]
    places: dict[str, int] = {}
    for entry in mapping.values():
        children = entry.get("children") if isinstance(entry, dict) else None
        for place, child in enumerate(read_list(children)):
            if isinstance(child, str):
                places.setdefault(child, place)
    nodes = [_chatgpt_node(key, entry, places.get(key, 0)) for key, entry in mapping.items()]
    return import_tree(
        nodes,
        now_s,
        title=document.get("title"),
        created_s=read_time(document.get("create_time")),
        updated_s=read_time(document.get("update_time")),
        head=read_key(document.get("current_node")),
        source=read_source("chatgpt", document.get("conversation_id") or document.get("id")),
    )


def _chatgpt_node(key: str, entry: Any, place: int) -> Node:
    what = f"node {key[:60]!r}"
    message = read_object(entry, what).get("message")
    parent = read_parent(entry.get("parent"), what)
    if not isinstance(message, dict):
        return Node(key, parent, None, "", place=place)
    author = message.get("author")
    role = author.get("role") if isinstance(author, dict) else None
    is_turn = role in _ROLES and message.get("recipient") in (None, "all")  # a message to a tool is not a turn
    text, left_out = _chatgpt_text(message.get("content"), key) if is_turn else ("", ("tool",))
    created_s = read_time(message.get("create_time"))
    return Node(key, parent, role, text, created_s, place, left_out=left_out).unless_empty()


def _chatgpt_text(content: Any, key: str) -> tuple[str, tuple[str, ...]]:
    """Return the texts among the parts of a message, with a line per omitted attachment, and the kinds of omitted parts."""
    kind = content.get("content_type") if isinstance(content, dict) else None
    if kind not in ("text", "multimodal_text"):
        return "", _CHATGPT_KINDS.get(str(kind), ())
    texts: list[str] = []
    left_out: list[str] = []
    for part in read_list(content.get("parts")):
        if isinstance(part, dict):
            part_kind = str(part.get("content_type"))
            left_out.append("picture" if "image" in part_kind else "audio" if "audio" in part_kind else "file")
        texts.append(read_text(part, f"the text of message {key[:60]!r}"))
    return with_placeholders("\n".join(text for text in texts if text), left_out), tuple(left_out)


# -- OpenAssistant: {"message_tree_id", "prompt": {"text", "role": "prompter", "replies": [{...}]}}


def _read_open_assistant(document: Mapping[str, Any], now_s: float) -> Imported:
    nodes: list[Node] = []
    waiting: list[tuple[str | None, Any]] = [(None, document["prompt"])]
    while waiting:
        parent, entry = waiting.pop()
        key = str(len(nodes))
        if not isinstance(entry, dict) or not isinstance(entry.get("replies", []), list):
            raise RefusedError(f"message {key} is no object with a list of replies")
        text = read_text(entry.get("text"), f"the text of message {key}")
        is_turn = text.strip() and not entry.get("deleted")
        nodes.append(Node(key, parent, _OPEN_ASSISTANT.get(str(entry.get("role"))) if is_turn else None, text))
        waiting += [(key, reply) for reply in reversed(entry.get("replies", []))]
    source = read_source("open-assistant", document.get("message_tree_id"))
    return import_tree(nodes, now_s, source=source)


_FORMATS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[Mapping[str, Any], float], Imported]], ...] = (
    (lambda document: document.get("format") == FORMAT, _read_own),
    (lambda document: isinstance(document.get("mapping"), dict), _read_chatgpt),
    (lambda document: isinstance(document.get("prompt"), dict), _read_open_assistant),
    (lambda document: isinstance(document.get("chat_messages"), list), read_claude),
    (lambda document: isinstance(document.get("chat"), dict), read_open_webui),
    (lambda document: "conversationId" in document, read_librechat),
)
"""Test and parser of each format."""

"""Conversations as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from radixkv.gateway.conversations.messages import Conversation, Message

__all__ = ["FORMAT", "FORMAT_VERSION", "export_json", "export_markdown", "file_headers"]

FORMAT = "radixkv-conversation"
FORMAT_VERSION = 1

_EXTENSIONS = {"json": "json", "markdown": "md"}
_MAX_NAME_CHARACTERS = 80


def export_json(conversation: Conversation, messages: Sequence[Message]) -> str:
    """The whole tree. A reply that is still being written is told as one that was stopped here."""
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created_s,
        "updated": conversation.updated_s,
        "messages": [_entry(message) for message in messages],
    }
    return json.dumps(document, ensure_ascii=False, indent=1)


def _entry(message: Message) -> dict[str, Any]:
    entry = message.body()
    del entry["seq"]
    return entry | {"status": "stopped"} if message.status == "running" else entry


def export_markdown(conversation: Conversation, messages: Sequence[Message], leaf: str | None) -> str:
    """The branch that ends with `leaf`, from its beginning."""
    by_id = {message.id: message for message in messages}
    path: list[Message] = []
    above = by_id.get(leaf or "")
    while above is not None:
        path.append(above)
        above = by_id.get(above.parent or "")
    turns = (f"## {message.role.capitalize()}\n\n{message.text}\n" for message in reversed(path))
    return "\n".join([f"# {conversation.title}\n", *turns])


def file_headers(title: str, format: str) -> Mapping[str, str]:
    """Headers that have a browser save the answer as a file named like the conversation."""
    extension = _EXTENSIONS[format]
    name = re.sub(r"[^\w -]+", " ", title)
    name = " ".join(name.split())[:_MAX_NAME_CHARACTERS].strip(" -") or "conversation"
    plain = " ".join(re.sub(r"[^A-Za-z0-9_-]+", " ", name).split()) or "conversation"
    value = f"attachment; filename=\"{plain}.{extension}\"; filename*=UTF-8''{quote(name)}.{extension}"
    return {"Content-Disposition": value}

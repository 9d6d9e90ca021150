"""Conversations as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

from radixkv.gateway.api.conversations.messages import Conversation, Message

__all__ = ["FORMAT", "FORMAT_VERSION", "export_html", "export_json", "export_markdown", "file_headers"]

FORMAT = "radixkv-conversation"
FORMAT_VERSION = 1

_EXTENSIONS = {"json": "json", "markdown": "md", "html": "html"}
_MAX_NAME_CHARACTERS = 80
_NAMES = {"system": "Instructions", "user": "You", "assistant": "Reply"}
_PAGE_HEAD = """<!doctype html>
<html lang="en"><head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ display: block; font: 16px/1.6 system-ui, sans-serif; height: auto; max-width: 44rem; margin: 0 auto; padding: 1rem; }}
article {{ margin: 1.5rem 0; overflow-wrap: break-word; }}
.user {{ border-inline-start: 3px solid; padding-inline-start: 1rem; }}
h2 {{ font-size: 1rem; }}
.about {{ font-size: 0.82rem; margin: 0 0 0.5rem; }}
.plain {{ white-space: pre-wrap; }}
</style>
</head><body><main>"""
_MARKS = re.compile(r"[\\`*_\[\]<>&]")
_ESCAPED = r"\\\g<0>"


def export_json(conversation: Conversation, messages: Sequence[Message]) -> str:
    """Return the whole tree, with its settings and marks. A reply that is still being written is exported as stopped."""
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "id": conversation.id,
        "title": conversation.title,
        "created": conversation.created_s,
        "updated": conversation.updated_s,
        "head": conversation.head,
        "settings": conversation.settings,
        "tags": list(conversation.tags),
        "pinned": conversation.is_pinned,
        "archived": conversation.is_archived,
        "messages": [_entry(message) for message in messages],
    }
    return json.dumps(document, ensure_ascii=False, indent=1)


def _entry(message: Message) -> dict[str, Any]:
    entry = message.body()
    del entry["seq"]
    return entry | {"status": "stopped"} if message.status == "running" else entry


def export_markdown(conversation: Conversation, messages: Sequence[Message], leaf: str | None) -> str:
    """Return the branch that ends with `leaf`: each message with its time, a reply with its model and settings."""
    turns = (
        f"## {message.role.capitalize()}\n\n*{_MARKS.sub(_ESCAPED, _about(message))}*\n\n{message.text}\n"
        for message in _branch(messages, leaf)
    )
    return "\n".join([f"# {conversation.title}\n", *turns])


def export_html(conversation: Conversation, messages: Sequence[Message], leaf: str | None) -> str:
    """Return the branch that ends with `leaf` as an HTML page of plain texts that loads and runs nothing."""
    title = escape(conversation.title)
    articles = (
        f'<article class="{message.role}">\n<h2>{_NAMES[message.role]}</h2>\n<p class="about">{escape(_about(message))}</p>\n'
        f'<div class="plain" dir="auto">{escape(message.text)}</div>\n</article>'
        for message in _branch(messages, leaf)
    )
    return "\n".join(
        [_PAGE_HEAD.format(title=title), f'<h1 dir="auto">{title}</h1>', *articles, "</main></body></html>\n"]
    )


def _branch(messages: Sequence[Message], leaf: str | None) -> list[Message]:
    by_id = {message.id: message for message in messages}
    path: list[Message] = []
    above = by_id.get(leaf or "")
    while above is not None:
        path.append(above)
        above = by_id.get(above.parent or "")
    return path[::-1]


def _about(message: Message) -> str:
    """Return the time of a message; for a reply also its model, settings, and status if stopped or failed."""
    details = message.details or {}
    settings = details.get("settings") or {}
    model = details.get("model") or settings.get("model")
    held = [
        f"{name.replace('_', ' ')} {_written(value)}"
        for name, value in settings.items()
        if name != "model" and value not in (None, "", [], {})
    ]
    status = message.status if message.status in ("stopped", "failed") else ""
    parts = [
        _time(message.created_s),
        str(model or ""),
        ", ".join(held),
        "edited" if details.get("edited") else "",
        status,
    ]
    return " · ".join(filter(None, parts))


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def file_headers(title: str, format: str) -> Mapping[str, str]:
    """Return headers that make a browser save the response as a file named like the conversation."""
    extension = _EXTENSIONS[format]
    name = re.sub(r"[^\w -]+", " ", title)
    name = " ".join(name.split())[:_MAX_NAME_CHARACTERS].strip(" -") or "conversation"
    plain = " ".join(re.sub(r"[^A-Za-z0-9_-]+", " ", name).split()) or "conversation"
    value = f"attachment; filename=\"{plain}.{extension}\"; filename*=UTF-8''{quote(name)}.{extension}"
    headers = {"Content-Disposition": value, "X-Content-Type-Options": "nosniff"}
    return {**headers, "Content-Security-Policy": "sandbox"} if format == "html" else headers

"""A conversation is a tree of messages. A message never changes, except for a reply that is being written."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixkv.gateway.protocol.errors import ApiError

__all__ = ["DEFAULT_TITLE", "MAX_TITLE_CHARACTERS", "Conversation", "Message", "new_id", "no_message", "title_of"]

DEFAULT_TITLE = "New conversation"
MAX_TITLE_CHARACTERS = 200
_CUT_CHARACTERS = 60


@dataclass(slots=True)
class Message:
    """One message.

    Attributes:
        id: unique within its conversation.
        parent: the message before it; None: the beginning of the conversation.
        role: system, user or assistant.
        status: complete, running, stopped or failed.
        error: why it failed, for users.
        created_s: seconds since 1970.
        seq: the conversation's version when it last changed.
        details: its origin, in the API's form.
        is_starred, name: bookmarks of the user.
    """

    id: str
    parent: str | None
    role: str
    text: str
    created_s: float
    status: str = "complete"
    error: str | None = None
    seq: int = 0
    details: dict[str, Any] | None = None
    is_starred: bool = False
    name: str | None = None

    @property
    def thinking(self) -> str:
        """Thoughts of the model before the reply."""
        return str((self.details or {}).get("thinking") or "")

    @property
    def counted_text(self) -> str:
        """All text that counts against the bounds: every text whose length the caller or the model chose."""
        stops = ((self.details or {}).get("settings") or {}).get("stop") or ()
        return "".join((self.text, self.thinking, self.name or "", *stops))

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {
            "id": self.id,
            "parent": self.parent,
            "role": self.role,
            "text": self.text,
            "status": self.status,
            "error": self.error,
            "created": self.created_s,
            "seq": self.seq,
            "details": self.details,
            "starred": self.is_starred,
            "name": self.name,
        }


class Conversation(NamedTuple):
    """A conversation without its messages.

    updated_s: unique within a namespace. version: grows with every change. head: the message that was added or finished last.
    settings: defaults of its replies. trashed_s: when it was moved to the trash; None: it was not.
    """

    id: str
    title: str
    created_s: float
    updated_s: float
    version: int
    head: str | None
    num_messages: int
    settings: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    is_pinned: bool = False
    is_archived: bool = False
    trashed_s: float | None = None

    def body(self) -> dict[str, Any]:
        """Return the object of the API."""
        return {
            "id": self.id,
            "title": self.title,
            "created": self.created_s,
            "updated": self.updated_s,
            "version": self.version,
            "head": self.head,
            "num_messages": self.num_messages,
            "settings": self.settings,
            "tags": list(self.tags),
            "pinned": self.is_pinned,
            "archived": self.is_archived,
            "trashed": self.trashed_s,
        }


def new_id(kind: str) -> str:
    """Return a new unique id, such as ``msg_...``."""
    return f"{kind}_{uuid.uuid4().hex}"


def no_message(message_id: str, param: str = "message_id") -> ApiError:
    """Return the rejection of an id that no message of the conversation has. `param`: the field."""
    told = f"message with id {message_id!r} not found in this conversation"
    return ApiError(404, told, code="not_found", param=param)


def title_of(text: str) -> str:
    """Return the first line of a text, cut between two words."""
    lines = text.strip().splitlines()
    line = lines[0].strip() if lines else ""
    if len(line) <= _CUT_CHARACTERS:
        return line or DEFAULT_TITLE
    return line[: _CUT_CHARACTERS + 1].rpartition(" ")[0].rstrip() or line[:_CUT_CHARACTERS]

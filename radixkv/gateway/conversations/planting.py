"""Messages as a file has them, made into a tree of ours: nothing of the file is trusted, and no depth of it is recursed into.

file   root (no text) - system (empty) - user - tool - assistant        what holds no text of anybody's is left out,
ours   user - assistant                                                 and what is below it moves up
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from radixkv.gateway.conversations.messages import MAX_TITLE_CHARACTERS, Message, new_id
from radixkv.gateway.conversations.writing import MAX_MESSAGES

__all__ = ["Imported", "Node", "RefusedError", "plant", "read_text", "read_time"]

_SHOWN_CHARACTERS = 60


class RefusedError(Exception):
    """Why a conversation of a file is not taken. `reason`: for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Node:
    """A message of a file.

    Attributes:
        key: names it there. parent: key of what it follows.
        role: system, user or assistant; None: it is left out.
        text: what it says.
        created_s: when, as the file says.
        place: among its siblings; those of one place stand as they do in the file.
        status, error, details: as of a message of ours.
    """

    key: str
    parent: str | None
    role: str | None
    text: str
    created_s: float | None = None
    place: int = 0
    status: str = "complete"
    error: str | None = None
    details: dict[str, Any] | None = None


class Imported(NamedTuple):
    """A conversation to be stored. `head`: id of the message where it was left."""

    title: str | None
    created_s: float | None
    messages: list[Message]
    head: str | None


def plant(
    nodes: Sequence[Node], now_s: float, *, title: Any = None, created_s: float | None = None, head: str | None = None
) -> Imported:
    """The tree that nodes make, parents first, with ids of its own. O(nodes · log nodes).

    Args:
        nodes: in any order.
        now_s: when messages without a time count as written.
        title, created_s: of the conversation.
        head: key of the node where it was left; by default it is the last one written.

    Raises:
        RefusedError: a key is there twice, a parent is missing, messages follow each other in a circle, or there are too many.
    """
    by_key, below = _by_key(nodes), _below(nodes)
    stands_for: dict[str | None, str | None] = {None: None}  # key -> id of the message, or of the nearest one above
    messages: list[Message] = []
    waiting = list(reversed(below.get(None, [])))
    while waiting:
        node = waiting.pop()
        waiting += reversed(below.get(node.key, []))
        parent = stands_for[node.parent]
        if node.role is None or (node.role == "system" and parent is not None):
            stands_for[node.key] = parent
            continue
        message = _message(node, node.role, parent, now_s)
        stands_for[node.key] = message.id
        messages.append(message)
    if len(stands_for) <= len(nodes):
        lost = next(node.key for node in nodes if node.key not in stands_for)
        raise RefusedError(f"message {_shown(lost)} stands below itself")
    if len(messages) > MAX_MESSAGES:
        raise RefusedError(f"it has {len(messages):,} messages; a conversation has at most {MAX_MESSAGES:,}")
    last = max(messages, key=lambda message: message.created_s).id if messages else None
    if messages and len({message.created_s for message in messages}) == 1:
        last = messages[-1].id
    kept_head = stands_for.get(head) if head in by_key else None
    return Imported(_title(title), created_s, messages, kept_head or last)


def _by_key(nodes: Sequence[Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        if node.key in found:
            raise RefusedError(f"message {_shown(node.key)} is there twice")
        found[node.key] = node
    return found


def _below(nodes: Sequence[Node]) -> dict[str | None, list[Node]]:
    """The nodes below each, in the order of siblings."""
    known = {node.key for node in nodes}
    below: dict[str | None, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.place):
        if node.parent is not None and node.parent not in known:
            raise RefusedError(f"message {_shown(node.parent)}, which {_shown(node.key)} follows, is missing")
        below.setdefault(node.parent, []).append(node)
    return below


def _message(node: Node, role: str, parent: str | None, now_s: float) -> Message:
    return Message(
        id=new_id("msg"),
        parent=parent,
        role=role,
        text=node.text,
        created_s=now_s if node.created_s is None else node.created_s,
        status=node.status,
        error=node.error,
        details={**(node.details or {}), "imported": True},
    )


def read_text(value: Any, what: str) -> str:
    """A text of a file; empty where it is none.

    Raises:
        RefusedError: it holds half a character.
    """
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RefusedError(f"{what} is not valid Unicode") from None
    return value


def read_time(value: Any) -> float | None:
    """A time of a file, in seconds since 1970; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        return None
    return float(value) if math.isfinite(value) else None


def _title(value: Any) -> str | None:
    title = " ".join(read_text(value, "the title").split())[:MAX_TITLE_CHARACTERS].rstrip()
    return title or None


def _shown(key: str) -> str:
    shown = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"
    return repr(shown)

"""Builds a conversation's tree from a file's messages: input is untrusted, and no depth of it is recursed into.

file   root (no text) - system (empty) - user - tool - assistant        messages without a user's or model's text are
ours   user - assistant                                                 left out, and their descendants move up
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from radixkv.gateway.api.conversations.files.file_values import RefusedError, read_text
from radixkv.gateway.api.conversations.messages import MAX_TITLE_CHARACTERS, Message, new_id
from radixkv.gateway.api.conversations.writing import MAX_MESSAGES, Value

__all__ = ["Imported", "Node", "import_tree", "with_placeholders"]

_SHOWN_CHARACTERS = 60
_SHOWN_KINDS = ("picture", "audio", "file")
"""Kinds of omitted parts that get a placeholder in the text."""


@dataclass(frozen=True, slots=True)
class Node:
    """A message of a file.

    Attributes:
        key: its id in the file. parent: key of its parent.
        role: system, user or assistant; None: the message is left out.
        text: its text.
        created_s: of its creation, in the file.
        place: order among its siblings; equal ones keep the order of the file.
        status, error, details, is_starred, name: as of `Message`.
        left_out: kinds of its omitted parts, with repetitions.
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
    left_out: tuple[str, ...] = ()
    is_starred: bool = False
    name: str | None = None

    def unless_empty(self) -> Node:
        """Return the node; left out where its text is blank."""
        return self if self.text.strip() else replace(self, role=None)


class Imported(NamedTuple):
    """A conversation to store.

    head: id of the message where the user left it. updated_s: its last change. source: identifies the conversation in its
    program; a repeated import is recognized by it, and messages by ids that hash their content. left_out: numbers by kind.
    kept: settings, tags and marks of a new conversation, by columns.
    """

    title: str | None
    created_s: float | None
    messages: list[Message]
    head: str | None
    updated_s: float | None = None
    source: str | None = None
    left_out: Mapping[str, int] = {}
    kept: Mapping[str, Value] = {}


def import_tree(
    nodes: Sequence[Node],
    now_s: float,
    *,
    title: Any = None,
    created_s: float | None = None,
    updated_s: float | None = None,
    head: str | None = None,
    source: str | None = None,
    may_be_empty: bool = False,
) -> Imported:
    """Build the tree of nodes, parents first, with new ids. O(nodes · log nodes).

    Args:
        nodes: in any order.
        now_s: time of messages without one.
        title, created_s, updated_s: of the conversation; `updated_s` is by default the time of its last message.
        source: see `Imported`.
        head: key of the node where the user left it; by default the last one written.

    Raises:
        RefusedError: a key is repeated, a parent is missing, messages form a cycle, there are too many, or there are none.
    """
    by_key, below = _by_key(nodes), _below(nodes)
    stands_for: dict[str | None, str | None] = {None: None}  # key -> id of the message, or of its nearest kept ancestor
    messages: list[Message] = []
    lost: dict[str | None, Counter[str]] = {}  # key of an omitted node -> parts omitted there and above
    waiting = list(reversed(below.get(None, [])))
    while waiting:
        node = waiting.pop()
        waiting += reversed(below.get(node.key, []))
        parent = stands_for[node.parent]
        if node.role is None or (node.role == "system" and parent is not None):
            stands_for[node.key] = parent
            lost[node.key] = lost.get(node.parent, Counter()) + Counter(node.left_out)
            continue
        missing = lost.get(node.parent, Counter()) + Counter(node.left_out)
        message = _message(node, node.role, parent, now_s, source, missing)
        stands_for[node.key] = message.id
        messages.append(message)
    if len(stands_for) <= len(nodes):
        circling = next(node.key for node in nodes if node.key not in stands_for)
        raise RefusedError(f"message {_shown(circling)} stands below itself")
    if not messages and not may_be_empty:
        raise RefusedError("it holds no text of anybody's")
    if len(messages) > MAX_MESSAGES:
        raise RefusedError(f"it has {len(messages):,} messages; a conversation has at most {MAX_MESSAGES:,}")
    last = max(messages, key=lambda message: message.created_s).id if messages else None
    if messages and len({message.created_s for message in messages}) == 1:
        last = messages[-1].id
    kept_head = stands_for.get(head) if head in by_key else None
    times = [node.created_s for node in nodes if node.created_s is not None]
    written_s = max(times, default=None) if updated_s is None else updated_s
    left_out = Counter(kind for node in nodes for kind in node.left_out)
    known = None if source is None else uuid.uuid5(uuid.NAMESPACE_OID, source).hex
    head_id = kept_head or last
    return Imported(_title(title), created_s, messages, head_id, written_s and min(written_s, now_s), known, left_out)


def with_placeholders(text: str, left_out: Sequence[str]) -> str:
    """Return a text with a line for each omitted part of its message."""
    lines = [f"[{kind} left out]" for kind in left_out if kind in _SHOWN_KINDS]
    return "\n".join([*([text] if text else []), *lines])


def _by_key(nodes: Sequence[Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        if node.key in found:
            raise RefusedError(f"message {_shown(node.key)} is there twice")
        found[node.key] = node
    return found


def _below(nodes: Sequence[Node]) -> dict[str | None, list[Node]]:
    """Return the children of each node, in the order of siblings."""
    known = {node.key for node in nodes}
    below: dict[str | None, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.place):
        if node.parent is not None and node.parent not in known:
            raise RefusedError(f"message {_shown(node.parent)}, which {_shown(node.key)} follows, is missing")
        below.setdefault(node.parent, []).append(node)
    return below


def _message(
    node: Node, role: str, parent: str | None, now_s: float, source: str | None, missing: Counter[str]
) -> Message:
    own_id = new_id("msg")
    if source is not None:
        named = "\n".join((source, parent or "", role, node.key, node.text))
        own_id = f"msg_{uuid.uuid5(uuid.NAMESPACE_OID, named).hex}"
    told = {"left_out": dict(missing)} if missing else {}
    return Message(
        id=own_id,
        parent=parent,
        role=role,
        text=node.text,
        created_s=now_s if node.created_s is None else node.created_s,
        status=node.status,
        error=node.error,
        details={**(node.details or {}), **told, "imported": True},
        is_starred=node.is_starred,
        name=node.name,
    )


def _title(value: Any) -> str | None:
    title = " ".join(read_text(value, "the title").split())[:MAX_TITLE_CHARACTERS].rstrip()
    return title or None


def _shown(key: str) -> str:
    shown = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"
    return repr(shown)

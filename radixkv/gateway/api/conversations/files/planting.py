"""Messages as a file has them, made into a tree of ours: nothing of the file is trusted, and no depth of it is recursed into.

file   root (no text) - system (empty) - user - tool - assistant        what holds no text of anybody's is left out,
ours   user - assistant                                                 and what is below it moves up
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

__all__ = ["Imported", "Node", "plant", "require_text", "with_placeholders"]

_SHOWN_CHARACTERS = 60
_SHOWN_KINDS = ("picture", "audio", "file")
"""Of what is left out: what a message speaks of."""


@dataclass(frozen=True, slots=True)
class Node:
    """A message of a file.

    Attributes:
        key: names it there. parent: key of what it follows.
        role: system, user or assistant; None: it is left out.
        text: what it says.
        created_s: when, as the file says.
        place: among its siblings; those of one place stand as they do in the file.
        status, error, details, is_starred, name: as of a message of ours.
        left_out: kinds of what is left out here, each as often as it is.
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
        """The same; left out where its text says nothing."""
        return self if self.text.strip() else replace(self, role=None)


class Imported(NamedTuple):
    """A conversation to be stored.

    head: id of the message where it was left. updated_s: when. source: names it in the program that it comes from; it is known
    again by that, and its messages by ids that follow from what they are. left_out: how many of each kind. kept: settings, tags
    and marks of a new one, by columns.
    """

    title: str | None
    created_s: float | None
    messages: list[Message]
    head: str | None
    updated_s: float | None = None
    source: str | None = None
    left_out: Mapping[str, int] = {}
    kept: Mapping[str, Value] = {}


def plant(
    nodes: Sequence[Node],
    now_s: float,
    *,
    title: Any = None,
    created_s: float | None = None,
    updated_s: float | None = None,
    head: str | None = None,
    source: str | None = None,
) -> Imported:
    """The tree that nodes make, parents first, with ids of its own. O(nodes · log nodes).

    Args:
        nodes: in any order.
        now_s: when messages without a time count as written.
        title, created_s, updated_s: of the conversation; the last by default when its last message was written.
        source: see `Imported`.
        head: key of the node where it was left; by default it is the last one written.

    Raises:
        RefusedError: a key is there twice, a parent is missing, messages follow each other in a circle, or there are too many.
    """
    by_key, below = _by_key(nodes), _below(nodes)
    stands_for: dict[str | None, str | None] = {None: None}  # key -> id of the message, or of the nearest one above
    messages: list[Message] = []
    lost: dict[str | None, Counter[str]] = {}  # key of a node that is left out -> what is left out there and above
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


def require_text(imported: Imported) -> Imported:
    """The same. Raises RefusedError: nobody says anything in it."""
    if not imported.messages:
        raise RefusedError("it holds no text of anybody's")
    return imported


def with_placeholders(text: str, left_out: Sequence[str]) -> str:
    """A text with a line for each thing of its message that is left out."""
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
    """The nodes below each, in the order of siblings."""
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

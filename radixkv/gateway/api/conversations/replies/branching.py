"""Copies a branch with changes: other instructions, a corrected message or a later beginning; other turns are copied.

system ── user ── reply ── user            the branch that ends there
   │        └ edited
   ├── user' ── reply' ── user'            a corrected message: the following ones are copied below it
system' ── user' ── reply' ── user'        other instructions: all messages are copied
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from radixkv.gateway.api.conversations.messages import Message, new_id, no_message
from radixkv.gateway.protocol.errors import invalid

__all__ = ["Wanted", "copy_branch"]

_CARRIED = ("model", "settings", "thinking", "thinking_tokens", "edited", "imported")
"""Details of a reply that its copy keeps."""


class Wanted(NamedTuple):
    """Changes of a branch.

    system: the instructions; empty: none; None: unchanged. edited, text: a message of it and its new text. start: the first
    message after the instructions; None: unchanged. leaf_id: id of the last message, so that a repeat adds nothing.
    """

    system: str | None = None
    edited: str | None = None
    text: str = ""
    start: str | None = None
    leaf_id: str | None = None


class _Turn(NamedTuple):
    """A message of the new branch. source: the message that it copies; None: new instructions."""

    source: Message | None
    role: str
    text: str


def copy_branch(path: Sequence[Message], wanted: Wanted, now_s: float) -> tuple[list[Message], list[Message]]:
    """Return the messages that the new branch shares with a path from the conversation's beginning, and the new ones below.

    O(messages).

    Raises:
        ApiError: 404: a named message is not on the path. 400: nothing would change, or the change is invalid.
    """
    turns = _edited([_Turn(message, message.role, message.text) for message in path], wanted)
    if wanted.start is not None:
        turns = _cut(turns, wanted.start)
    if wanted.system is not None:
        turns = _instructed(turns, wanted.system)
    num_shared = 0
    for message, turn in zip(path, turns, strict=False):
        if turn.source is not message or turn.text != message.text:
            break
        num_shared += 1
    if num_shared == len(turns):
        raise invalid("the branch would be as it is; say other instructions, an edit or a start", "body")
    shared = list(path[:num_shared])
    parent = shared[-1].id if shared else None
    copies: list[Message] = []
    for turn in turns[num_shared:]:
        copies.append(_copy(turn, parent, wanted.leaf_id, now_s))
        parent = copies[-1].id
    if wanted.leaf_id is not None:
        copies[-1].id = wanted.leaf_id
    return shared, copies


def _edited(turns: list[_Turn], wanted: Wanted) -> list[_Turn]:
    if wanted.edited is None:
        return turns
    place = _place(turns, wanted.edited, "edit.message")
    if turns[place].role == "system" and wanted.system is not None:
        raise invalid("the instructions are given twice; say them by system or by edit", "edit.message")
    if not wanted.text and turns[place].role != "assistant":
        raise invalid("edit.text must have at least one character", "edit.text")
    return [*turns[:place], turns[place]._replace(text=wanted.text), *turns[place + 1 :]]


def _cut(turns: list[_Turn], start: str) -> list[_Turn]:
    place = _place(turns, start, "start")
    if turns[place].role != "user":
        raise invalid(f"start is a message of role {turns[place].role}; a branch begins with a user's message", "start")
    return [turn for turn in turns[:place] if turn.role == "system"] + turns[place:]


def _instructed(turns: list[_Turn], system: str) -> list[_Turn]:
    has_some = bool(turns) and turns[0].role == "system"
    rest = turns[1:] if has_some else turns
    if not rest:
        raise invalid("the branch holds nothing but instructions; add others as a message of role system", "leaf")
    if has_some and turns[0].text == system:
        return turns
    return [_Turn(None, "system", system), *rest] if system else rest


def _place(turns: Sequence[_Turn], message_id: str, param: str) -> int:
    for place, turn in enumerate(turns):
        if turn.source is not None and turn.source.id == message_id:
            return place
    raise no_message(message_id, param)


def _copy(turn: _Turn, parent: str | None, leaf_id: str | None, now_s: float) -> Message:
    source = turn.source
    name = source.id if source is not None else turn.role
    own_id = new_id("msg") if leaf_id is None else f"msg_{uuid.uuid5(uuid.NAMESPACE_OID, f'{leaf_id} {name}').hex}"
    if source is None or turn.text != source.text:
        details: dict[str, Any] | None = {"edited": True} if turn.role == "assistant" else None
        return Message(own_id, parent, turn.role, turn.text, now_s, details=details)
    carried = {name: value for name, value in (source.details or {}).items() if name in _CARRIED}
    return Message(
        id=own_id,
        parent=parent,
        role=turn.role,
        text=turn.text,
        created_s=now_s,
        status=source.status,
        error=source.error,
        details={**carried, "copies": source.id},
    )

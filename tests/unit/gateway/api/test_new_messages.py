"""What may be asked of a conversation: fields that go together, and those that do not, by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from radixkv.gateway.api.conversations.schema import BulkChange, ConversationChange, NewMessage, ReplyOptions

ID, OTHER = "msg_" + "0" * 32, "msg_" + "1" * 32
USER = {"role": "user", "text": "hi"}
REPLY = {"role": "assistant", "text": "so"}

TAKEN: list[tuple[type[Any], dict[str, Any]]] = [
    (NewMessage, USER),
    (NewMessage, REPLY | {"text": "", "model": "m", "thinking": "hm"}),
    (NewMessage, USER | {"thinking": ""}),
    (NewMessage, {"role": "system", "text": "be brief"}),
    (NewMessage, USER | {"parent": ID, "position": 1}),
    (NewMessage, USER | {"id": ID, "replies": {"ids": [OTHER]}}),
    (NewMessage, USER | {"replies": {"ids": [OTHER]}}),
    (ReplyOptions, {"continue": True, "position": 0, "append": "x"}),
    (ReplyOptions, {"n": 2, "ids": [ID, OTHER]}),
    (BulkChange, {"ids": ["a"], "action": "tag", "tag": "x"}),
    (BulkChange, {"ids": ["a"], "action": "untag", "tag": "x"}),
    (BulkChange, {"ids": ["a"], "action": "pin"}),
]

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (NewMessage, USER | {"text": ""}, "text must have at least one character"),
    (NewMessage, {"role": "system", "text": "x", "parent": ID}, "a system message begins a conversation"),
    (NewMessage, USER | {"model": "m"}, "model names what wrote an assistant's message"),
    (NewMessage, USER | {"thinking": "hm"}, "thinking goes with an assistant's message"),
    (NewMessage, USER | {"position": 1}, "position goes with a parent"),
    (NewMessage, REPLY | {"parent": ID, "position": 1}, "position goes with a parent"),
    (NewMessage, USER | {"parent": ID, "position": 0}, "position goes with a parent"),
    (NewMessage, USER | {"replies": {"continue": True}}, "continue is asked for at the reply"),
    (NewMessage, REPLY | {"replies": {}}, "replies can be asked for to a user's message"),
    (NewMessage, USER | {"id": ID, "replies": {"ids": [ID]}}, "the message and its replies need different ids"),
    (ReplyOptions, {"position": 3}, "position goes with continue"),
    (ReplyOptions, {"append": "x"}, "append goes with continue"),
    (ReplyOptions, {"n": 2, "ids": [ID]}, "ids must be 2 different ones"),
    (ReplyOptions, {"n": 2, "ids": [ID, ID]}, "ids must be 2 different ones"),
    (BulkChange, {"ids": ["a"], "action": "tag"}, "tag goes with the actions tag and untag"),
    (BulkChange, {"ids": ["a"], "action": "pin", "tag": "x"}, "tag goes with the actions tag and untag"),
]


@pytest.mark.parametrize(("kind", "fields"), TAKEN, ids=lambda value: str(value)[:60])
def test_what_goes_together_is_taken(kind: type[Any], fields: dict[str, Any]) -> None:
    kind.model_validate(fields)


@pytest.mark.parametrize(("kind", "fields", "complaint"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_does_not_is_refused_and_said(kind: type[Any], fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        kind.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({}, {}),
        ({"title": "  A title "}, {"title": "A title"}),
        ({"title": " "}, {"title": "New conversation"}),
        ({"settings": None}, {"settings": None}),
        ({"pinned": True, "archived": False}, {"is_pinned": 1, "is_archived": 0}),
        ({"pinned": False}, {"is_pinned": 0}),
    ],
)
def test_a_change_holds_what_was_given_alone(fields: dict[str, Any], values: dict[str, Any]) -> None:
    assert ConversationChange.model_validate(fields).values() == values

"""Request fields about conversations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from radixkv.gateway.api.conversations.messages import DEFAULT_TITLE, MAX_TITLE_CHARACTERS
from radixkv.gateway.api.conversations.settings import Settings
from radixkv.gateway.api.conversations.writing import MAX_CONVERSATION_BYTES, MAX_MESSAGES, Value
from radixkv.gateway.protocol.api_model import ApiModel
from radixkv.gateway.protocol.fields import FAIL_FAST, MAX_NAME_CHARACTERS, Each, Name, Whole
from radixkv.gateway.turns.options import ModelName, Sharing
from radixkv.generation.params import MAX_LOGPROBS

__all__ = [
    "AlternativesAsked",
    "BranchCosts",
    "BulkChange",
    "ConversationChange",
    "MessageMarks",
    "NewBranch",
    "NewConversation",
    "NewMessage",
    "ReplyOptions",
    "Role",
    "dump_tags",
]

MAX_DRAFTS = 8
MAX_TAGS = 16
MAX_TAG_CHARACTERS = 64
MAX_IN_BULK = 200
MAX_APPENDED_CHARACTERS = 1024

Role = Literal["system", "user", "assistant"]
Text = Annotated[str, Field(min_length=1)]
Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE_CHARACTERS)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARACTERS)]
Tags = Annotated[list[Tag], Field(max_length=MAX_TAGS), FAIL_FAST]
Position = Annotated[Whole, Field(ge=0, le=MAX_CONVERSATION_BYTES)]
"""In characters of a text, as Unicode code points."""

MessageId = Annotated[str, Field(pattern=r"^msg_[0-9a-f]{32}$")]


class FirstMessage(ApiModel):
    """One of the messages that a new conversation begins with, each below the one before."""

    role: Role
    text: Text


class NewConversation(ApiModel):
    """A new conversation."""

    title: Title | None = None
    messages: Annotated[list[Annotated[FirstMessage, Each]], Field(max_length=MAX_MESSAGES), FAIL_FAST] | None = None
    settings: Settings | None = Field(None, description="Defaults of its replies.")


class ConversationChange(ApiModel):
    """Changes of a conversation; missing fields stay."""

    title: Title | None = None
    settings: Settings | None = Field(
        None, description="Replaces all settings; null, or an empty object, removes them."
    )
    tags: Tags | None = Field(None, description="Replaces all tags.")
    pinned: bool | None = None
    archived: bool | None = None

    def values(self) -> dict[str, Value]:
        """Return the changes by columns of a conversation."""
        values: dict[str, Value] = {}
        if self.title is not None:
            values["title"] = self.title.strip() or DEFAULT_TITLE
        if "settings" in self.model_fields_set:
            values["settings"] = None if self.settings is None else self.settings.dump()
        if self.tags is not None:
            values["tags"] = dump_tags(self.tags)
        for column, flag in (("is_pinned", self.pinned), ("is_archived", self.archived)):
            if flag is not None:
                values[column] = int(flag)
        return values


class BulkChange(ApiModel):
    """One change of several conversations."""

    ids: Annotated[list[Name], Field(max_length=MAX_IN_BULK), FAIL_FAST]
    action: Literal["trash", "restore", "delete", "archive", "unarchive", "pin", "unpin", "tag", "untag"]
    tag: Tag | None = Field(None, description="With `tag` and `untag`.")

    @model_validator(mode="after")
    def _require_a_tag_where_it_goes(self) -> BulkChange:
        if (self.tag is not None) is not self.action.endswith("tag"):
            raise ValueError("tag goes with the actions tag and untag")
        return self


class MessageMarks(ApiModel):
    """Star and name of a message; missing fields stay."""

    starred: bool | None = None
    name: Annotated[str, Field(max_length=MAX_TITLE_CHARACTERS)] | None = Field(None, description="Empty: removes it.")


class ReplyOptions(Settings):
    """Number of replies, and their settings."""

    draws = True

    n: Annotated[Whole, Field(ge=1, le=MAX_DRAFTS)] = Field(1, description="Number of drafts, siblings of each other.")
    ids: Annotated[list[MessageId], Field(max_length=MAX_DRAFTS), FAIL_FAST] | None = Field(
        None, description="Ids of the `n` replies, so that repeating the request begins nothing again."
    )

    continue_: bool = Field(
        False, alias="continue", description="Continue the text of the named reply, as siblings of it."
    )
    position: Position | None = Field(
        None, description="With `continue`: after so many characters of its text; default: all so far."
    )

    append: Annotated[str, Field(min_length=1, max_length=MAX_APPENDED_CHARACTERS)] | None = Field(
        None, description="With `continue`: text to append there first, such as another token than that reply's."
    )
    sharing: Sharing = None

    @model_validator(mode="after")
    def _require_something_to_go_on_from(self) -> ReplyOptions:
        for name in ("position", "append"):
            if getattr(self, name) is not None and not self.continue_:
                raise ValueError(f"{name} goes with continue")
        return self

    @model_validator(mode="after")
    def _require_an_id_for_each(self) -> ReplyOptions:
        if self.ids is not None and (len(self.ids) != self.n or len(set(self.ids)) != self.n):
            raise ValueError(f"ids must be {self.n} different ones, as many as n")
        return self


class NewMessage(ApiModel):
    """A message to add: below another message, or as a beginning of its own."""

    draws = True

    id: MessageId | None = Field(
        None, description="Chosen by the client, so that repeating the request adds nothing again."
    )
    parent: Annotated[Name, Field(min_length=1)] | None = None
    position: Position | None = Field(
        None,
        description="It follows so many characters of the reply `parent`, which may still be growing: a sibling of that reply "
        "that ends there is added first.",
    )
    role: Role
    text: Annotated[str, Field(description="At least one character; an assistant's may be empty.")]
    model: Annotated[Name, Field(min_length=1)] | None = Field(
        None,
        description="The model that wrote an assistant's message; without it the message counts as edited by hand.",
    )
    thinking: str | None = Field(None, description="Thoughts of the model before an assistant's message.")
    replies: ReplyOptions | None = Field(None, description="Replies to begin below it; the message must be a user's.")

    @model_validator(mode="after")
    def _require_a_place_that_makes_sense(self) -> NewMessage:
        if self.role != "assistant" and not self.text:
            raise ValueError("text must have at least one character")
        if self.role == "system" and self.parent is not None:
            raise ValueError("a system message begins a conversation; it has no parent")
        if self.role != "assistant" and self.model is not None:
            raise ValueError("model names what wrote an assistant's message")
        if self.role != "assistant" and self.thinking:
            raise ValueError("thinking goes with an assistant's message")
        if self.position is not None and (self.parent is None or self.role != "user" or self.position == 0):
            raise ValueError("position goes with a parent and a user's message, and is at least 1")
        if self.replies is not None and self.replies.continue_:
            raise ValueError("continue is asked for at the reply to go on from")
        if self.role != "user" and self.replies is not None:
            raise ValueError("replies can be asked for to a user's message")
        if self.replies is not None and self.id is not None and self.id in (self.replies.ids or ()):
            raise ValueError("the message and its replies need different ids")
        return self


class AlternativesAsked(ApiModel):
    """A position in a reply."""

    position: Position
    top: Annotated[Whole, Field(ge=1, le=MAX_LOGPROBS)] = 10


class Edit(ApiModel):
    """A corrected message."""

    message: Annotated[Name, Field(min_length=1)]
    text: str


class NewBranch(ApiModel):
    """A changed copy of a branch. At least one of `system`, `edit` and `start` makes it another branch."""

    leaf: Annotated[Name, Field(min_length=1)] = Field(description="Last message of the branch.")
    system: str | None = Field(None, description="Its instructions; empty: none; default: unchanged.")
    edit: Edit | None = Field(None, description="A message of it with another text; following messages are copied.")
    start: Annotated[Name, Field(min_length=1)] | None = Field(
        None, description="A user's message that it begins with, after its instructions; earlier messages are left out."
    )
    id: MessageId | None = Field(
        None, description="Id of its last message, so that repeating the request adds nothing."
    )
    dry_run: bool = Field(False, description="Add nothing, and return the cost of the next reply on it.")


MAX_ASKED = 100


class BranchCosts(ApiModel):
    """Last messages of branches."""

    messages: Annotated[
        list[Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]], Field(max_length=MAX_ASKED), FAIL_FAST
    ]
    model: ModelName | None = Field(None, description="Default: the conversation's, or the served one.")


def dump_tags(tags: Iterable[str]) -> str | None:
    """Serialize tags for storage, each once."""
    unique = list(dict.fromkeys(tags))
    return json.dumps(unique, ensure_ascii=False) if unique else None

"""What requests about conversations may say, and what their answers look like for the API's own description of itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from radixkv.gateway.api_model import ApiModel
from radixkv.gateway.conversations.messages import MAX_TITLE_CHARACTERS
from radixkv.gateway.conversations.store import MAX_CONVERSATION_BYTES, MAX_MESSAGES
from radixkv.gateway.fields import FAIL_FAST, Each, Name, Whole

__all__ = [
    "ConversationObject",
    "ConversationPage",
    "ConversationTree",
    "ImportAnswer",
    "MessageDetails",
    "MessageList",
    "MessageObject",
    "NewConversation",
    "NewMessage",
    "NewTitle",
    "RemovedMessages",
    "ReplyOptions",
]

MAX_DRAFTS = 8

Role = Literal["system", "user", "assistant"]
Text = Annotated[str, Field(min_length=1)]
Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE_CHARACTERS)]
Position = Annotated[Whole, Field(ge=0, le=MAX_CONVERSATION_BYTES)]
"""Characters of a text, as Unicode counts them."""

MessageId = Annotated[str, Field(pattern=r"^msg_[0-9a-f]{32}$")]


# -- requests


class FirstMessage(ApiModel):
    """One of the messages that a conversation begins with, each below the one before."""

    role: Role
    text: Text


class NewConversation(ApiModel):
    """A conversation to be kept."""

    title: Title | None = None
    messages: Annotated[list[Annotated[FirstMessage, Each]], Field(max_length=MAX_MESSAGES), FAIL_FAST] | None = None


class NewTitle(ApiModel):
    """What a conversation is to be called."""

    title: Title


class ReplyOptions(ApiModel):
    """How many replies, and how they are drawn."""

    draws = True

    n: Annotated[Whole, Field(ge=1, le=MAX_DRAFTS)] = Field(1, description="So many drafts, siblings of each other.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    ids: Annotated[list[MessageId], Field(max_length=MAX_DRAFTS), FAIL_FAST] | None = Field(
        None, description="The replies' ids, `n` of them, so that a repeat of the request begins nothing again."
    )

    continue_: bool = Field(
        False, alias="continue", description="Go on from the text of the reply that is named, as siblings of it."
    )
    position: Position | None = Field(
        None, description="With `continue`: from so many characters of its text; left out: from all there are now."
    )

    @model_validator(mode="after")
    def _require_something_to_go_on_from(self) -> ReplyOptions:
        if self.position is not None and not self.continue_:
            raise ValueError("position goes with continue")
        return self

    @model_validator(mode="after")
    def _require_an_id_for_each(self) -> ReplyOptions:
        if self.ids is not None and (len(self.ids) != self.n or len(set(self.ids)) != self.n):
            raise ValueError(f"ids must be {self.n} different ones, as many as n")
        return self


class NewMessage(ApiModel):
    """A message to be added: below another one, or as a beginning of its own."""

    draws = True

    id: MessageId | None = Field(
        None, description="Yours to choose, so that a repeat of the request adds nothing again."
    )
    parent: Annotated[Name, Field(min_length=1)] | None = None
    position: Position | None = Field(
        None,
        description="It follows so many characters of the reply `parent`, which may still be written: a sibling of that one "
        "that ends there is added before it.",
    )
    role: Role
    text: Annotated[str, Field(description="At least one character; an assistant's may be empty.")]
    model: Annotated[Name, Field(min_length=1)] | None = Field(
        None,
        description="The model that wrote an assistant's message; without it the message counts as edited by hand.",
    )
    thinking: str | None = Field(None, description="What the model thought before it wrote an assistant's message.")
    replies: ReplyOptions | None = Field(None, description="Replies to it to be begun; it must be a user's.")

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


# -- answers


class MessageDetails(BaseModel):
    """How a message came about.

    A reply: by which model, in how many tokens and milliseconds since it was asked for; `cached_tokens`: of the prompt, found
    in the cache, null where the generation was ended before it told; `drafts`: written at once, from one prompt, which is read
    once; `generation`: the id of the first of them; `thinking`: what the model thought before, in `thinking_tokens` of those
    generated. `continues`: the reply whose first `position` characters it begins with. `edited`: by hand. `imported`: from a
    file.
    """

    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    first_token_ms: float | None = None
    duration_ms: float | None = None
    finish_reason: str | None = None
    drafts: int | None = None
    generation: str | None = None
    thinking: str | None = None
    thinking_tokens: int | None = None
    continues: str | None = None
    position: int | None = None
    edited: bool | None = None
    imported: bool | None = None


class MessageObject(BaseModel):
    """A message. `seq`: the conversation's version when it last changed. `created`: seconds since 1970."""

    id: str
    parent: str | None
    role: Role
    text: str
    status: Literal["complete", "running", "stopped", "failed"]
    error: str | None
    created: float
    seq: int
    details: MessageDetails | None


class ConversationObject(BaseModel):
    """A conversation. `version` grows with every change; `head`: the message that was added or finished last."""

    id: str
    title: str
    created: float
    updated: float
    version: int
    head: str | None
    num_messages: int


class ConversationPage(BaseModel):
    """Some of them, the latest updated first."""

    conversations: list[ConversationObject]
    has_more: bool


class ConversationTree(BaseModel):
    """One with all its messages, in the order in which they came."""

    conversation: ConversationObject
    messages: list[MessageObject]


class MessageList(BaseModel):
    """Messages that were added, or were there."""

    messages: list[MessageObject]


class RemovedMessages(BaseModel):
    """What is gone."""

    ids: list[str]


class SkippedConversation(BaseModel):
    """One of a file that was not taken, and why. `index`: its place there, from 0."""

    index: int
    reason: str


class ImportAnswer(BaseModel):
    """What a file has brought."""

    conversations: list[ConversationObject]
    skipped: list[SkippedConversation]

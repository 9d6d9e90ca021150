"""What requests about conversations may say, and what their answers look like for the API's own description of itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from radixkv.gateway.conversations.messages import MAX_TITLE_CHARACTERS
from radixkv.gateway.conversations.settings import Settings
from radixkv.gateway.conversations.writing import MAX_CONVERSATION_BYTES, MAX_MESSAGES
from radixkv.gateway.fields import FAIL_FAST, MAX_NAME_CHARACTERS, Each, Name, Whole
from radixkv.gateway.options import ApiModel, ModelName
from radixkv.worker.sampling import MAX_LOGPROBS

__all__ = [
    "Alternatives",
    "AlternativesAsked",
    "BranchAnswer",
    "BranchCosts",
    "ConversationChange",
    "ConversationObject",
    "ConversationPage",
    "ConversationTree",
    "ImportAnswer",
    "MessageCosts",
    "MessageDetails",
    "MessageList",
    "MessageObject",
    "NewBranch",
    "NewConversation",
    "NewMessage",
    "RemovedMessages",
    "ReplyOptions",
    "answer_of",
]

MAX_DRAFTS = 8
MAX_APPENDED_CHARACTERS = 1024

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
    settings: Settings | None = Field(None, description="For replies whose request says nothing else.")


class ConversationChange(ApiModel):
    """What is to be different; what is left out stays."""

    title: Title | None = None
    settings: Settings | None = Field(None, description="All of them; null, or an empty object, for none.")


class ReplyOptions(Settings):
    """How many replies, and how they are drawn."""

    n: Annotated[Whole, Field(ge=1, le=MAX_DRAFTS)] = Field(1, description="So many drafts, siblings of each other.")
    ids: Annotated[list[MessageId], Field(max_length=MAX_DRAFTS), FAIL_FAST] | None = Field(
        None, description="The replies' ids, `n` of them, so that a repeat of the request begins nothing again."
    )

    continue_: bool = Field(
        False, alias="continue", description="Go on from the text of the reply that is named, as siblings of it."
    )
    position: Position | None = Field(
        None, description="With `continue`: from so many characters of its text; left out: from all there are now."
    )

    append: Annotated[str, Field(min_length=1, max_length=MAX_APPENDED_CHARACTERS)] | None = Field(
        None, description="With `continue`: what they say there, such as another token than that reply had."
    )

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
    """A message to be added: below another one, or as a beginning of its own."""

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
    replies: ReplyOptions | None = Field(None, description="Replies to it to be begun; it must be a user's.")

    @model_validator(mode="after")
    def _require_a_place_that_makes_sense(self) -> NewMessage:
        if self.role != "assistant" and not self.text:
            raise ValueError("text must have at least one character")
        if self.role == "system" and self.parent is not None:
            raise ValueError("a system message begins a conversation; it has no parent")
        if self.role != "assistant" and self.model is not None:
            raise ValueError("model names what wrote an assistant's message")
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
    """A place in a reply."""

    position: Position
    top: Annotated[Whole, Field(ge=1, le=MAX_LOGPROBS)] = 10


class Edit(ApiModel):
    """A message as it is to be corrected."""

    message: Annotated[Name, Field(min_length=1)]
    text: str


class NewBranch(ApiModel):
    """A branch that is to be told anew. At least one of `system`, `edit` and `start` makes it another one."""

    leaf: Annotated[Name, Field(min_length=1)] = Field(description="The message that the branch ends at.")
    system: str | None = Field(None, description="Its instructions; empty: none; left out: as they are.")
    edit: Edit | None = Field(None, description="A message of it with another text; what follows it is carried over.")
    start: Annotated[Name, Field(min_length=1)] | None = Field(
        None, description="A user's message that it begins with, behind its instructions; what is above is left out."
    )
    id: MessageId | None = Field(None, description="Of its last message, so that a repeat of the request adds nothing.")
    dry_run: bool = Field(False, description="Add nothing, and tell what the next reply on it would compute.")


MAX_ASKED = 100


class BranchCosts(ApiModel):
    """Messages at which branches end."""

    messages: Annotated[
        list[Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]], Field(max_length=MAX_ASKED), FAIL_FAST
    ]
    model: ModelName | None = Field(None, description="Left out: the conversation's, or the one that is served.")


# -- answers


class ReplySettings(BaseModel):
    """How a reply was drawn: what its request said, else its conversation, else the model; and the seed."""

    model: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: list[str]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    max_tokens: int


class MessageDetails(BaseModel):
    """How a message came about.

    A reply: by which model, in how many tokens and milliseconds since it was asked for; `cached_tokens`: of the prompt, found
    in the cache, null where the generation was ended before it told; `drafts`: written at once, from one prompt, which is read
    once; `generation`: the id of the first of them; `thinking`: what the model thought before, in `thinking_tokens` of those
    generated; `settings`: how it was drawn. `continues`: the reply whose first `position` characters it begins with, and behind
    them what was `appended`. `copies`: the message of which it is a copy, on another branch. `edited`: by hand. `imported`:
    from a file.
    """

    model: str | None = None
    settings: ReplySettings | None = None
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
    appended: str | None = None
    copies: str | None = None
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
    settings: dict[str, Any] | None = Field(
        description="As they were given, for replies whose request says nothing else."
    )


class SearchHit(BaseModel):
    """A message that holds what is searched for, first at `position`. `marks`: where the excerpt has it, [begin, end]."""

    message: str
    role: Role
    created: float
    position: int
    excerpt: str
    marks: list[list[int]]


class FoundConversation(ConversationObject):
    """A conversation; of a search with its newest messages that hold the text, none where its title alone does."""

    hits: list[SearchHit] | None = None
    has_more_hits: bool | None = None


class ConversationPage(BaseModel):
    """Some of them, the latest updated first."""

    conversations: list[FoundConversation]
    has_more: bool


class ConversationTree(BaseModel):
    """One with all its messages, in the order in which they came."""

    conversation: ConversationObject
    messages: list[MessageObject]


class MessageList(BaseModel):
    """Messages that were added, or were there."""

    messages: list[MessageObject]


class Alternative(BaseModel):
    """A token. `text`: to go on with it; null of an end of the reply, and of half a character. `logprob`: at temperature 1."""

    token: str
    text: str | None
    logprob: float


class Alternatives(Alternative):
    """The token of a reply that begins at `position`, its rank among all, and the most likely ones there."""

    model: str
    position: int
    rank: int
    alternatives: list[Alternative]


class CostObject(BaseModel):
    """Tokens of a branch, those that are cached now, those a reply computes, as many as the model takes. Null: not known."""

    prompt_tokens: int | None
    cached_tokens: int | None
    computed_tokens: int | None
    max_prompt_tokens: int


class MessageCost(CostObject):
    """Of the branch that ends at message `id`."""

    id: str


class MessageCosts(BaseModel):
    """In the order in which they were asked for."""

    messages: list[MessageCost]


class BranchAnswer(BaseModel):
    """The messages that were added, and the last of them; of a dry run its cost alone."""

    messages: list[MessageObject]
    leaf: str | None
    cost: CostObject | None


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


def answer_of(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What a route answers, for the API's own description of itself."""
    return {200: {"model": model, "description": "The answer"}}

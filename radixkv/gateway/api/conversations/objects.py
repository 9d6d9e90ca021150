"""What answers about conversations look like, for the API's own description of itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from radixkv.gateway.api.conversations.schema import Role

__all__ = [
    "Alternatives",
    "BranchAnswer",
    "BulkAnswer",
    "ConversationObject",
    "ConversationPage",
    "ConversationTree",
    "ImportAnswer",
    "MessageCosts",
    "MessageDetails",
    "MessageList",
    "MessageObject",
    "RemovedMessages",
    "TagList",
    "TrashedBranches",
    "answer_of",
]


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
    from a file, and what of it was `left_out` there and before it.
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
    left_out: dict[str, int] | None = None


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
    starred: bool
    name: str | None


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
    tags: list[str]
    pinned: bool
    archived: bool
    trashed: float | None = Field(description="When it was thrown away; null: it was not.")


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


class TrashedBranchObject(BaseModel):
    """A branch that was thrown away, by its top message; `num_messages` with all below it."""

    message: MessageObject
    trashed: float
    num_messages: int


class TrashedBranches(BaseModel):
    """Those of a conversation, the last thrown away first."""

    branches: list[TrashedBranchObject]


class TagCount(BaseModel):
    """A tag, and how many conversations have it."""

    tag: str
    num_conversations: int


class TagList(BaseModel):
    """All tags, in order."""

    tags: list[TagCount]


class RefusedChange(BaseModel):
    """A conversation that stays as it is, and why."""

    id: str
    reason: str


class BulkAnswer(BaseModel):
    """What was changed, what is not there, and what was refused."""

    ids: list[str]
    missing: list[str]
    refused: list[RefusedChange]


class RemovedMessages(BaseModel):
    """What is gone."""

    ids: list[str]


class SkippedConversations(BaseModel):
    """Those of a file that were not taken for one reason. `indices`: their places there, from 0; `index`: the first."""

    index: int
    reason: str
    indices: list[int]


class KnownConversation(BaseModel):
    """One that was imported before, as it is now, and how many messages were new."""

    conversation: ConversationObject
    num_added: int


class ImportAnswer(BaseModel):
    """What a file has brought. `left_out`: how many of each kind: picture, audio, file, tool, thoughts, instructions, note."""

    conversations: list[ConversationObject]
    known: list[KnownConversation]
    skipped: list[SkippedConversations]
    left_out: dict[str, int]


def answer_of(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """What a route answers, for the API's own description of itself."""
    return {200: {"model": model, "description": "The answer"}}

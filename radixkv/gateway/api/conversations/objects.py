"""Response models about conversations, for the API description."""

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
    "SearchHit",
    "TagList",
    "TrashedBranches",
]


class ReplySettings(BaseModel):
    """Sampling parameters of a reply: of its request, else its conversation, else the model; and the seed."""

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
    """Origin of a message.

    Of a reply: its model; its tokens; its milliseconds since the request. `cached_tokens`: prompt tokens found in the cache,
    null where the generation was ended before they were known. `loaded_tokens`: of these, in the worker's block store.
    `drafts`: replies generated at once from one prompt. `cost`: of all of them, by the
    worker's price list. `generation`: the id of the first of them. `thinking`: the model's
    thoughts before the reply, in `thinking_tokens` of the generated tokens. `settings`: its sampling parameters. `continues`:
    the reply whose first `position` characters it begins with, followed by the `appended` text. `copies`: the message on
    another branch that it copies. `edited`: by hand. `imported`: from a file; `left_out`: numbers of omitted parts there and
    before it.
    """

    model: str | None = None
    settings: ReplySettings | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    loaded_tokens: int | None = None
    generated_tokens: int | None = None
    cost: float | None = None
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
    settings: dict[str, Any] | None = Field(description="Defaults of its replies, as they were set.")
    tags: list[str]
    pinned: bool
    archived: bool
    trashed: float | None = Field(description="When it was moved to the trash; null: it was not.")


class SearchHit(BaseModel):
    """A message that matches a search, first at `position`, in characters. `excerpt`: of the text around it, on one line.
    `marks`: matches within the excerpt, [begin, end].
    """

    message: str
    role: Role
    created: float
    position: int
    excerpt: str
    marks: list[list[int]]


class FoundConversation(ConversationObject):
    """A conversation; in a search with its newest matching messages, none where only its title matches."""

    hits: list[SearchHit] | None = None
    has_more_hits: bool | None = None


class ConversationPage(BaseModel):
    """A page of conversations, latest updated first."""

    conversations: list[FoundConversation]
    has_more: bool


class ConversationTree(BaseModel):
    """A conversation with all its messages, in order of creation."""

    conversation: ConversationObject
    messages: list[MessageObject]


class MessageList(BaseModel):
    """Messages that were added, or existed already."""

    messages: list[MessageObject]


class Alternative(BaseModel):
    """A token. `text`: to continue with; null for an end token or half a character. `logprob`: at temperature 1."""

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
    """Tokens of a branch, its cached ones, those that a reply computes, and the model's maximum. Null: unknown."""

    prompt_tokens: int | None
    cached_tokens: int | None
    computed_tokens: int | None
    max_prompt_tokens: int


class MessageCost(CostObject):
    """Cost of the branch that ends at message `id`."""

    id: str


class MessageCosts(BaseModel):
    """Costs in the order of the request."""

    messages: list[MessageCost]


class BranchAnswer(BaseModel):
    """The added messages, and the last of them; for a dry run only its cost."""

    messages: list[MessageObject]
    leaf: str | None
    cost: CostObject | None


class TrashedBranchObject(BaseModel):
    """A branch in the trash, by its top message; `num_messages`: including its descendants."""

    message: MessageObject
    trashed: float
    num_messages: int


class TrashedBranches(BaseModel):
    """Branches of a conversation in the trash, latest first."""

    branches: list[TrashedBranchObject]


class TagCount(BaseModel):
    """A tag, and the number of conversations with it."""

    tag: str
    num_conversations: int


class TagList(BaseModel):
    """All tags, sorted."""

    tags: list[TagCount]


class RefusedChange(BaseModel):
    """A conversation that was not changed, and the reason."""

    id: str
    reason: str


class BulkAnswer(BaseModel):
    """Ids changed, ids not found, and rejected changes."""

    ids: list[str]
    missing: list[str]
    refused: list[RefusedChange]


class RemovedMessages(BaseModel):
    """Ids of the removed messages."""

    ids: list[str]


class SkippedConversations(BaseModel):
    """Conversations of a file skipped for one reason. `indices`: their places in the file, from 0; `index`: the first."""

    index: int
    reason: str
    indices: list[int]


class KnownConversation(BaseModel):
    """A conversation that was imported before, as it is now, and the number of new messages."""

    conversation: ConversationObject
    num_added: int


class ImportAnswer(BaseModel):
    """Result of an import. `left_out`: numbers by kind: picture, audio, file, tool, thoughts, instructions, note."""

    conversations: list[ConversationObject]
    known: list[KnownConversation]
    skipped: list[SkippedConversations]
    left_out: dict[str, int]

"""Real conversation trees as requests to a chat server: a user's turns from the trees, replies from the server.

    tree      user ─┬─ assistant ─┬─ user ─── assistant       requests    1  user
                    │             └─ user                                 2  go on from 1     3  1, edited
                    └─ assistant                                          4  1 regenerated

Each request goes through one of two OpenAI APIs and reports the number of its prompt's tokens found in the cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from bench.common.conversations import Tree

__all__ = ["Answer", "Api", "ByChat", "ByResponses", "Question", "questions_of", "shortfall"]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One request: a user's turn after an earlier request's reply. `is_repeated`: the same was sent before."""

    text: str
    parent: Question | None
    is_repeated: bool


def questions_of(tree: Tree, source: random.Random) -> list[Question]:
    """The requests of a tree, each after its parent, path by path in a shuffled order: it goes back and forth."""
    by_prefix: dict[tuple[str, ...], Question] = {}
    asked: set[tuple[str, ...]] = set()
    questions: list[Question] = []
    for path in source.sample(tree.paths, len(tree.paths)):
        texts = tuple(message["content"] for message in path)
        parent: Question | None = None
        for end in range(1, len(texts) + 1, 2):
            reply = texts[: end + 1]  # a reply of the tree stands for one of the server's
            if reply not in by_prefix:
                by_prefix[reply] = Question(texts[end - 1], parent, texts[:end] in asked)
                asked.add(texts[:end])
                questions.append(by_prefix[reply])
            parent = by_prefix[reply]
    return questions


SEED = 0
"""Of every reply: whether its text is tokenised otherwise does not depend on chance."""


class Answer(NamedTuple):
    """Response. `key`: names it in a later request. Counts are of tokens.

    num_lost: in the prompt up to the last reply's end, the tokens from the first difference on when all of it is tokenised
    as text; they would miss the cache. None: unknown.
    """

    key: Any
    num_prompt: int
    num_cached: int
    num_generated: int
    num_lost: int | None = None


def shortfall(question: Question, answer: Answer, parent: Answer | None) -> int:
    """Computed tokens that are not new, for a pool without evictions. At most 1 is correct.

    Tokens after the parent's last one are new; a repeated request has none, but its last token is always run.
    """
    if question.is_repeated:
        return answer.num_prompt - 1 - answer.num_cached
    if parent is None:
        return 0
    return parent.num_prompt + parent.num_generated - answer.num_cached


class Api(Protocol):
    """One of the APIs."""

    async def ask(self, client: Any, question: Question, parent: Answer | None) -> Answer: ...


@dataclass(frozen=True, slots=True)
class ByResponses:
    """The server keeps the conversation: each request names the response that it continues."""

    model: str
    max_tokens: int

    async def ask(self, client: Any, question: Question, parent: Answer | None) -> Answer:
        response = await client.responses.create(
            model=self.model,
            input=question.text,
            previous_response_id=parent.key if parent is not None else None,
            max_output_tokens=self.max_tokens,
        )
        usage = response.usage
        return Answer(response.id, usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens)


@dataclass(frozen=True, slots=True)
class ByChat:
    """The client keeps the conversation: each request sends all of it, as text.

    `tokenize`: messages to their ids as text.
    """

    model: str
    max_tokens: int
    tokenize: Callable[[Sequence[dict[str, str]]], Sequence[int]]

    async def ask(self, client: Any, question: Question, parent: Answer | None) -> Answer:
        before: Sequence[dict[str, str]] = parent.key if parent is not None else ()
        messages = [*before, {"role": "user", "content": question.text}]
        answer = await client.chat.completions.create(
            model=self.model,
            messages=messages,
            max_tokens=self.max_tokens,
            seed=SEED,
            extra_body={"return_token_ids": True},
        )
        reply = {"role": "assistant", "content": answer.choices[0].message.content}
        usage = answer.usage
        num_lost: int | None = None
        if parent is not None:
            as_text = self.tokenize(messages)
            pairs = zip(answer.prompt_token_ids, as_text, strict=False)
            num_same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(as_text))
            num_lost = max(0, parent.num_prompt + parent.num_generated - num_same)
        cached = usage.prompt_tokens_details.cached_tokens or 0
        return Answer([*messages, reply], usage.prompt_tokens, cached, usage.completion_tokens, num_lost)

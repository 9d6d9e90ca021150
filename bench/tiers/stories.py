"""Users' calls over two days: conversations, sessions of a coding agent, and long texts. The last call is the next day's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.serving.material import Material
from bench.serving.plan import Call, Quote, ReadyCall
from bench.serving.workloads import Ingredients

__all__ = ["Story", "conversations", "growing_sessions", "long_texts", "sessions"]


class Story(NamedTuple):
    """The calls of one user, each after the reply to the one before."""

    name: str
    calls: tuple[Call, ...]

    def prompt(self, number: int, replies: Sequence[Sequence[int]]) -> list[int]:
        """Token ids of a call's prompt, after these replies to the ones before."""
        return ReadyCall.of(self.calls[number], [[reply] for reply in replies]).prompt

    @property
    def num_tokens(self) -> int:
        """Most tokens of a prompt and its reply."""
        return max(
            call.num_tokens
            + sum(self.calls[part.call].num_tokens if isinstance(part, Quote) else len(part) for part in call.parts)
            for call in self.calls
        )


def conversations(from_: Ingredients, count: int, num_tokens: int, num_calls: int = 3) -> list[Story]:
    """OpenAssistant conversations up to their last message of a user, as imported; then turns of other users."""
    assert isinstance(from_.material, Material)
    turns = _user_turns(from_.material)
    stories = []
    for number, root in enumerate(from_.material.conversation_trees[:count]):
        path = _longest(root)
        while path[-1]["role"] != "user":
            path.pop()
        start = tuple(from_.text.prompt_ids(path))
        said = [from_.turn(turns[(number * num_calls + index) % len(turns)]) for index in range(num_calls - 1)]
        stories.append(_growing(f"conversation {number}", start, said, num_tokens))
    return stories


def sessions(from_: Ingredients, count: int, num_tokens: int, num_calls: int, longest: int) -> list[Story]:
    """The first prompts of mini-swe-agent sessions, as recorded, none above `longest` tokens. Each goes on from an earlier
    one, not from the reply here.
    """
    assert isinstance(from_.material, Material)
    stories: list[Story] = []
    for number, session in enumerate(from_.material.agent_sessions):
        prompts = [tuple(from_.text.encode(prompt)) for prompt in session[:num_calls]]
        if len(prompts) == num_calls and max(map(len, prompts)) <= longest and len(stories) < count:
            stories.append(Story(f"agent {number}", tuple(Call((prompt,), num_tokens) for prompt in prompts)))
    return stories


def growing_sessions(
    from_: Ingredients, count: int, num_tokens: int, num_calls: int, longest: int, step: int
) -> list[Story]:
    """Last prompts of mini-swe-agent sessions, of at most `longest` tokens; every call has `step` tokens more of its own."""
    assert isinstance(from_.material, Material)
    stories = []
    for number, session in enumerate(from_.material.agent_sessions[:count]):
        text = tuple(from_.text.encode(session[-1]))[:longest]
        ends = [len(text) - step * (num_calls - 1 - index) for index in range(num_calls)]
        stories.append(Story(f"agent {number}", tuple(Call((text[:end],), num_tokens) for end in ends)))
    return stories


def long_texts(from_: Ingredients, count: int, length: int, num_tokens: int, num_calls: int = 2) -> list[Story]:
    """Ends of agents' prompts, which share no first token, as histories of `length` tokens; then turns of a user."""
    assert isinstance(from_.material, Material)
    turns = [turn for turn in _user_turns(from_.material) if len(turn) > 60]
    texts = (tuple(from_.text.encode(session[-1])) for session in from_.material.agent_sessions)
    stories = []
    for number, text in enumerate([text for text in texts if len(text) >= length][:count]):
        said = [from_.turn(turns[number + count * index])[:32] for index in range(num_calls - 1)]
        stories.append(_growing(f"text {number}", text[-(length - num_tokens) :], said, num_tokens))
    return stories


def _user_turns(material: Material) -> list[str]:
    """First messages of the conversation trees, the last tree first."""
    return [root["content"] for root in reversed(material.conversation_trees)]


def _growing(name: str, start: tuple[int, ...], said: Sequence[tuple[int, ...]], num_tokens: int) -> Story:
    calls = [Call((start,), num_tokens)]
    for index, turn in enumerate(said):
        calls.append(Call((*calls[-1].parts, Quote(index), turn), num_tokens))
    return Story(name, tuple(calls))


def _longest(message: dict[str, Any]) -> list[dict[str, str]]:
    behind = max((_longest(reply) for reply in message["replies"]), key=len, default=[])
    return [{"role": message["role"], "content": message["content"]}, *behind]

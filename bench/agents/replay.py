"""Replay of the recorded requests, one after another, with the cost of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from time import perf_counter
from typing import Any, NamedTuple

import httpx
import numpy as np

from bench.agents.dictation import Dictated
from bench.agents.models import MODEL_NAME
from bench.agents.recording import Conversation, Request
from radixkv.core.tokens import unpack_tokens
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.generation.request import Generator

__all__ = ["Answer", "Played", "Replay", "Seen", "Turn", "ask", "interleaved", "replaying"]


class Turn(NamedTuple):
    """A request of a conversation. `place`: number of earlier turns; -1 for a request for a title."""

    agent: str
    project: str
    place: int
    request: Request


class Answer(NamedTuple):
    """Reported by the gateway: tokens of the prompt, the number of them found, seconds to the first token of the reply."""

    num_prompt: int
    num_cached: int
    first_s: float


class Played(NamedTuple):
    """A request and its cost. num_new: see `Seen`."""

    turn: Turn
    answer: Answer
    num_new: int

    @property
    def num_computed(self) -> int:
        """Tokens of the prompt that were not found."""
        return self.answer.num_prompt - self.answer.num_cached

    @property
    def num_beyond(self) -> int:
        """Computed tokens that are not new."""
        return self.num_computed - self.num_new


@dataclass
class Seen:
    """All prompts so far, each with its reply; independent of any cache."""

    _histories: list[np.ndarray[Any, np.dtype[np.uint32]]] = field(default_factory=list)

    def num_new(self, prompt: Sequence[int]) -> int:
        """Tokens of a prompt after the longest prefix that it shares with one of them. O(tokens · histories)."""
        ids = np.asarray(prompt, np.uint32)
        return len(ids) - max((_num_common(ids, history) for history in self._histories), default=0)

    def add(self, prompt: Sequence[int], reply: Sequence[int]) -> None:
        """Add one."""
        self._histories.append(np.asarray([*prompt, *reply], np.uint32))


def _num_common(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> int:
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def interleaved(conversations: Sequence[Conversation]) -> Iterator[Turn]:
    """The first request of every conversation, then the second of each, and so on."""
    for requests in zip_longest(*(_turns(conversation) for conversation in conversations)):
        yield from (turn for turn in requests if turn is not None)


def _turns(conversation: Conversation) -> Iterator[Turn]:
    place = 0
    for request in conversation.requests:
        yield Turn(conversation.agent, conversation.project, place if request.is_turn else -1, request)
        place += request.is_turn


def ask(client: httpx.Client, request: Request) -> Answer:
    """Send a request to the gateway, and read its stream to the end.

    Raises:
        RuntimeError: the request was refused, or nothing was generated.
    """
    body = {**request.body, "model": MODEL_NAME}
    first_s, usage = None, None
    started_s = perf_counter()
    with client.stream("POST", request.path, json=body) as answer:
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{request.path} was answered {answer.status_code}: {answer.read()[:500]!r}")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if first_s is None and event["type"].endswith("delta") and event["type"] != "message_delta":
                first_s = perf_counter() - started_s
            usage = event.get("response", event).get("usage") or usage
    if first_s is None or usage is None:
        raise RuntimeError(f"{request.path}: nothing was generated")
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return Answer(usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached, first_s)
    return Answer(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], first_s)


class Replay:
    """Requests through one gateway that started with empty caches.

    Attributes:
        dictated: the generator of the gateway; needs each reply before its request is played.
        played: the requests so far.
        prompt: token ids of the last one's.
    """

    def __init__(self, client: httpx.Client, dictated: Dictated) -> None:
        self.dictated = dictated
        self.played: list[Played] = []
        self.prompt: list[int] = []
        self._client = client
        self._seen = Seen()

    def play(self, turn: Turn) -> Played:
        """Send a request and count.

        Raises:
            AssertionError: the usage differs from the tokenizer's length, or reports more found tokens than possible.
        """
        answer = ask(self._client, turn.request)
        asked = self.dictated.asked
        assert asked is not None
        self.prompt = list(unpack_tokens(self.dictated.tokenize(asked, asked.history)))
        if len(self.prompt) != answer.num_prompt:
            raise AssertionError(f"a prompt of {len(self.prompt)} tokens was told as {answer.num_prompt}: {turn[:3]}")
        num_new = self._seen.num_new(self.prompt)
        if answer.num_cached > answer.num_prompt - num_new:
            raise AssertionError(f"{answer.num_cached} tokens were found where {num_new} are new: {turn[:3]}")
        self._seen.add(self.prompt, self.dictated.reply_ids)
        self.played.append(Played(turn, answer, num_new))
        return self.played[-1]


@contextmanager
def replaying(generator: Generator) -> Iterator[Replay]:
    """A gateway in front of a generator, and a replay through it."""
    dictated = Dictated(generator)
    config = GatewayConfig(listen="127.0.0.1:0", model_name=MODEL_NAME, drain_s=1.0)
    with (
        GatewayServer(dictated, config) as gateway,  # type: ignore[arg-type]  # a generator by its delegation
        httpx.Client(base_url=f"http://{gateway.address}", timeout=None, trust_env=False) as client,
    ):
        yield Replay(client, dictated)

"""Requests of sane clients: scripts that branch, with the same requests and seeds whenever they are played.

Replies must be the same each time, token by token. Later requests of a script continue earlier replies: further turns, drafts,
forks of a stored response, forks of a generation.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from bench.faults.asker import Asker, TryAgainError
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import ForkParams, GenerateParams, UnknownGenerationError

__all__ = ["KINDS", "Script"]

_MODEL = "typewriter"
_UNDER_WAY = ("queued", "in_progress")
_LOOK_S = 0.05


class Script(NamedTuple):
    """Requests in order. `kind`: one of `KINDS`; `number`: index within the kind."""

    kind: str
    number: int

    @property
    def route(self) -> str:
        """API that it uses."""
        return "grpc" if self.kind == "forks" else "http"

    def play(self, asker: Asker) -> list[str]:
        """All replies, in the order of the script."""
        return _PLAYS[self.kind](asker, self.number)


def _text(number: int, words: int = 24) -> str:
    """A distinct question, after a prefix shared with others."""
    source = random.Random(number)
    shared = f"You are one of {number % 3} helpers. " * 6
    return shared + " ".join(source.choice(("why", "tree", "sea", "moon", "how", "salt", "ship")) for _ in range(words))


def _drawing(number: int) -> dict[str, Any]:
    """Greedy for every third script, otherwise drawn with a seed."""
    return {"temperature": 0.0 if number % 3 == 0 else 1.0, "seed": 1000 + number}


def _chat(number: int, turns: Sequence[str], length: int, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    return {"model": _MODEL, "messages": messages, "max_tokens": length, **_drawing(number), **more}


def _play_chat(asker: Asker, number: int) -> list[str]:
    """Two turns, the second after the reply to the first."""
    path, turns = "/v1/chat/completions", [_text(number)]
    for follow_up in ("And then?", ""):
        body = _chat(number, turns, 64)
        answer = asker.retry("http", partial(asker.call, "POST", path, body))
        turns += [answer["choices"][0]["message"]["content"], follow_up]
    return turns[1::2]


def _play_stream(asker: Asker, number: int) -> list[str]:
    def attempt() -> str:
        chunks = asker.stream("/v1/chat/completions", _chat(number, [_text(number)], 128))
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])

    return [asker.retry("http", attempt)]


def _play_drafts(asker: Asker, number: int) -> list[str]:
    body = _chat(number, [_text(number)], 48, n=4)
    answer = asker.retry("http", lambda: asker.call("POST", "/v1/chat/completions", body))
    return [choice["message"]["content"] for choice in answer["choices"]]


def _play_responses(asker: Asker, number: int) -> list[str]:
    """A response, and two that continue it."""
    first, text = _ask(asker, number, _text(number), None)
    left, left_text = _ask(asker, number, "Go left.", first)
    right, right_text = _ask(asker, number, "Go right.", first)
    for response_id in (right, left, first):
        asker.retry("http", partial(asker.remove, f"/v1/responses/{response_id}"), counts=False)
    return [text, left_text, right_text]


def _ask(asker: Asker, number: int, text: str, previous: str | None, **more: Any) -> tuple[str, str]:
    """The id of a stored response, and its text."""
    body = {"model": _MODEL, "input": text, "max_output_tokens": 48, "previous_response_id": previous}
    body |= _drawing(number) | more
    answer = asker.retry("http", lambda: asker.call("POST", "/v1/responses", body))
    return answer["id"], _output(answer)


def _output(answer: dict[str, Any]) -> str:
    return "".join(part["text"] for item in answer["output"] for part in item["content"])


def _play_background(asker: Asker, number: int) -> list[str]:
    """A response in the background that ends whatever becomes of its gateway; each gateway has it, and then none has."""
    if asker.num_gateways > 1 and number % 2 == 0:
        place, spoken = _begin_streamed(asker, number)
    else:
        place, spoken = _ask(asker, number, _text(number), None, background=True, max_output_tokens=160)[0], None
    path = f"/v1/responses/{place}"
    while (answer := asker.retry("http", partial(asker.call, "GET", path), counts=False))["status"] in _UNDER_WAY:
        time.sleep(_LOOK_S)
    if answer["status"] not in ("completed", "incomplete"):
        raise RuntimeError(f"a response in the background {answer['status']}: {answer['error']}")
    if spoken not in (None, _output(answer)):
        raise RuntimeError(f"the events of a response told {spoken!r}, it is {_output(answer)!r}")
    for _ in range(asker.num_gateways):
        again = asker.retry("http", partial(asker.call, "GET", path), counts=False)
        if again != answer:
            raise RuntimeError(f"a stored response has become another: {again}, it was {answer}")
    then, text = _ask(asker, number, "And then?", place)
    for response in (then, place):
        asker.retry("http", partial(asker.remove, f"/v1/responses/{response}"), counts=False)
    for _ in range(asker.num_gateways):
        asker.retry("http", partial(asker.require_missing, path), counts=False)
    return [_output(answer), text]


def _begin_streamed(asker: Asker, number: int) -> tuple[str, str | None]:
    """The id of a response in the background, and its text by its events, which gateways replay in turn; None: with Redis, some
    of them are lost.
    """
    body = {"model": _MODEL, "input": _text(number), "background": True, "max_output_tokens": 160, **_drawing(number)}
    (begun,) = asker.retry("http", lambda: list(asker.stream("/v1/responses", body, leave_after=1)))
    path = f"/v1/responses/{begun['response']['id']}"
    told = [begun]

    def follow() -> bool:
        for _, event in asker.follow(f"{path}?stream=true&starting_after={len(told) - 1}"):
            if "sequence_number" not in event:
                return False
            if event["sequence_number"] != len(told):
                raise RuntimeError(f"event {len(told)} of a response is {event}")
            told.append(event)
            if "response" in event and event["response"]["status"] not in _UNDER_WAY:
                return True
        raise AssertionError("it ends by an error")

    try:
        is_whole = asker.retry("http", follow, counts=False)
    except RuntimeError as error:
        if "not_streamable" not in str(error):
            raise
        is_whole = False
    spoken = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    return begun["response"]["id"], spoken if is_whole else None


def _play_conversation(asker: Asker, number: int) -> list[str]:
    """A kept conversation, with two drafts of a reply; one that the gateway could not finish is requested again."""
    base = "/v1/radixkv/conversations"
    place = asker.retry("http", lambda: asker.call("POST", base, {"title": f"script {number}"}), counts=False)["id"]
    question = {"id": f"msg_{uuid.uuid4().hex}", "role": "user", "text": _text(number)}
    asker.retry("http", lambda: asker.call("POST", f"{base}/{place}/messages", question), counts=False)

    def attempt() -> list[str]:
        ids = [f"msg_{uuid.uuid4().hex}" for _ in range(2)]
        body = {"n": 2, "ids": ids, "max_tokens": 48, **_drawing(number)}
        asker.call("POST", f"{base}/{place}/messages/{question['id']}/replies", body)
        path = f"{base}/{place}"
        while True:
            if asker.num_gateways > 1 and number % 2 == 0:
                drafts = asker.retry("http", partial(_follow, asker, path, ids), counts=False)
            else:
                tree = asker.retry("http", partial(asker.call, "GET", path), counts=False)
                found = {each["id"]: each for each in tree["messages"]}
                if not found.keys() >= set(ids):
                    raise RuntimeError(f"replies that were begun are lost: {ids}, there are {list(found)}")
                drafts = [found[each] for each in ids]
            if all(draft["status"] == "complete" for draft in drafts):
                return [draft["text"] for draft in drafts]
            for draft in drafts:
                if draft["status"] in ("failed", "stopped"):
                    what = f"a reply {draft['status']}: {draft['error']}"
                    if asker.num_gateways > 1:  # another one would have ended it
                        raise RuntimeError(what)
                    raise TryAgainError(what, is_reported=bool(draft["error"]))
            time.sleep(_LOOK_S)

    drafts = asker.retry("http", attempt)
    asker.retry("http", partial(asker.remove, f"{base}/{place}"), counts=False)
    for _ in range(asker.num_gateways):
        asker.retry("http", partial(asker.require_missing, f"{base}/{place}"), counts=False)
    return drafts


def _follow(asker: Asker, path: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """One try to follow replies to their ends; the text so far begins the text at the end."""
    messages: dict[str, dict[str, Any]] = {}
    for name, data in asker.follow(f"{path}/events"):
        if name == "snapshot":
            messages = {message["id"]: message for message in data["messages"]}
        elif name == "delta":
            messages[data["id"]]["text"] += data["text"]
        elif name == "message":
            told = messages.get(data["id"], {"text": ""})["text"]
            if not data["text"].startswith(told):
                raise RuntimeError(f"a follower was told {told!r} of a reply that ends as {data['text']!r}")
            messages[data["id"]] = data
        if all(messages.get(each, {"status": "running"})["status"] != "running" for each in ids):
            return [messages[each] for each in ids]
    raise AssertionError("it ends by an error")


def _play_forks(asker: Asker, number: int) -> list[str]:
    """Four drafts, and a fork of each of two of them; a restarted worker has none, so all are requested again."""
    sampling = SamplingParams(max_tokens=64, n=4, **_drawing(number))
    prompt = [ord(char) - 31 for char in _text(number)]

    def attempt() -> list[list[int]]:
        generation, drafts = asker.generate(GenerateParams(token_ids=prompt, sampling=sampling))
        forks = []
        for branch in (1, 2):
            position = len(prompt) + min(24, len(drafts[branch]))
            again = SamplingParams(max_tokens=32, **_drawing(number + branch))
            try:
                params = ForkParams(generation_id=generation, branch=branch, position=position, sampling=again)
                forks += asker.fork(params)
            except UnknownGenerationError as error:
                raise TryAgainError(f"UnknownGenerationError: {error}", is_reported=True) from None
        return drafts + forks

    return ["".join(map(chr, ids)) for ids in asker.retry("grpc", attempt)]


def _play_leaver(asker: Asker, number: int) -> list[str]:
    """Hangs up in the middle of a stream; the text received until then is compared too."""
    received: list[str] = []

    def attempt() -> None:
        received.clear()
        for chunk in asker.stream("/v1/chat/completions", _chat(number, [_text(number)], 128), leave_after=6):
            received.extend(choice["delta"].get("content") or "" for choice in chunk["choices"])

    asker.retry("http", attempt, counts=False)
    asker.ledger.cancelled()
    return ["".join(received)[:3]]


_PLAYS = {
    "chat": _play_chat,
    "stream": _play_stream,
    "drafts": _play_drafts,
    "responses": _play_responses,
    "background": _play_background,
    "conversation": _play_conversation,
    "forks": _play_forks,
    "leaver": _play_leaver,
}
KINDS = tuple(_PLAYS)

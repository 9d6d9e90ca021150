"""Texts that are slow to read: words that a template searches, prompts hundreds of times too long, stop strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from bench.hostile.bodies import BODY_BYTES
from bench.hostile.stack import Site
from bench.hostile.wire import Attack, Outcomes, call, chat, flood, status_of
from radixkv.v1 import generation_pb2, generation_pb2_grpc

__all__ = ["ATTACKS", "LONG_TEXTS"]

TEXT_BYTES = BODY_BYTES - 4096
_REFUSED = frozenset({"400", "413", "429", "503"})
_CODES = frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE"})
_GRPC_BYTES = 7 << 20
_CALL_S = 30.0

LONG_TEXTS: tuple[Callable[[int], str], ...] = (
    lambda size: "7" * size,
    lambda size: " " * size,
    lambda size: "a" * size,
    lambda size: "word " * (size // 5),
    lambda size: "\n" * (size // 2),
    lambda size: "é" * (size // 6),
    lambda size: "🙂" * (size // 12),
    lambda size: "<|im_end|>" * (size // 10),
    lambda size: "a1" * (size // 2),
    lambda size: "\u0301" * (size // 6),
)
"""Texts of about so many bytes of JSON, each slow for some part of a tokenizer."""


def _marks(size: int) -> str:
    """A text with every word of a list whose words may be searched one by one."""
    words, length = [], 0
    for number in range(size // 10):
        word = f"Reply{number}here"
        length += len(word)
        if length > size:
            break
        words.append(word)
    return "".join(words)


def _follow_up(site: Site, seconds: float, scale: float, *, path: str) -> Outcomes:
    """A turn after a reply known to the gateway, with the words in it."""
    status, told = call(site, "/v1/chat/completions", chat(site, max_tokens=4, ignore_eos=True))
    reply = json.loads(told)["choices"][0]["message"]["content"] if status == "200" else "x"
    size = min(TEXT_BYTES, int(4 * 549_000 * max(0.25, scale)))
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": reply or "x"},
        {"role": "user", "content": _marks(size)},
    ]
    body = {"model": site.model, "messages": turns} | ({} if path.endswith("count_tokens") else {"max_tokens": 1})
    sent = json.dumps(body).encode()
    return flood(seconds, 2, lambda _: status_of(site, path, sent))


def _too_long(site: Site, seconds: float, scale: float, *, num_at_once: int) -> Outcomes:  # noqa: ARG001  # as all
    asked = [json.dumps(_body(site, number, text(TEXT_BYTES))[1]).encode() for number, text in enumerate(LONG_TEXTS)]
    paths = [_body(site, number, "")[0] for number in range(len(LONG_TEXTS))]

    def one(number: int) -> str:
        place = number % len(asked)
        return status_of(site, paths[place], asked[place])

    return flood(seconds, num_at_once, one)


def _body(site: Site, number: int, text: str) -> tuple[str, Any]:
    """Every way to send a text, in turn."""
    ways: tuple[tuple[str, Any], ...] = (
        ("/v1/chat/completions", chat(site, text)),
        ("/v1/messages/count_tokens", {"model": site.model, "messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", {"model": site.model, "prompt": text, "max_tokens": 1}),
        ("/v1/responses", {"model": site.model, "input": text, "max_output_tokens": 1}),
        ("/v1/messages", chat(site) | {"system": text}),
    )
    return ways[number % len(ways)]


def _over_grpc(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Tokenize and Generate, as texts, as messages and after a history."""
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
    texts = [text(_GRPC_BYTES) for text in LONG_TEXTS[:4]]
    metadata = (("authorization", "Bearer a"),)
    with grpc.insecure_channel(site.worker, options=options) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated

        def one(number: int) -> str:
            text = texts[number % len(texts)]
            messages = generation_pb2.ChatMessages(messages=[generation_pb2.ChatMessage(role="user", content=text)])
            prompt = generation_pb2.Prompt(messages=messages) if number % 2 else generation_pb2.Prompt(text=text)
            try:
                if number % 4 < 2:
                    stub.Tokenize(generation_pb2.TokenizeRequest(prompt=prompt), timeout=_CALL_S, metadata=metadata)
                else:
                    for _ in stub.Generate(
                        generation_pb2.GenerateRequest(prompt=prompt), timeout=_CALL_S, metadata=metadata
                    ):
                        pass
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return flood(seconds, 8, one)


def _marks_over_grpc(site: Site, seconds: float, scale: float) -> Outcomes:
    """The words after a history of token ids."""
    text = _marks(int(4 * 549_000 * max(0.25, scale)))
    turns = [
        generation_pb2.ChatMessage(role="user", content="Hello"),
        generation_pb2.ChatMessage(role="assistant", content="Hi"),
        generation_pb2.ChatMessage(role="user", content=text),
    ]
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(site.worker, options=options) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated
        prompt = generation_pb2.Prompt(messages=generation_pb2.ChatMessages(messages=turns))
        request = generation_pb2.TokenizeRequest(prompt=prompt, history=b"\x05\0\0\0" * 8)

        def one(_: int) -> str:
            try:
                stub.Tokenize(request, timeout=_CALL_S, metadata=(("authorization", "Bearer a"),))
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return flood(seconds, 2, one)


def _stops(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """As many and as long stop strings as HTTP accepts, over drafts; half of them made to overlap with the reply."""
    stops = [("a" * 1023 + chr(0x100 + number)) if number % 2 else (" the" * 255 + str(number)) for number in range(64)]
    body = chat(site, stop=stops, n=16, max_tokens=64, ignore_eos=True, logit_bias={"260": 100})
    sent = json.dumps(body).encode()
    return flood(seconds, 2, lambda _: status_of(site, "/v1/chat/completions", sent))


def _stops_over_grpc(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Stop strings of any length."""
    sampling = generation_pb2.SamplingParams(
        max_tokens=64, n=8, ignore_eos=True, stop=["a" * 20_000 + str(i) for i in range(64)]
    )
    request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="Hello"), sampling=sampling)
    with grpc.insecure_channel(site.worker, options=[("grpc.enable_retries", 0)]) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated

        def one(_: int) -> str:
            try:
                for _ in stub.Generate(request, timeout=seconds, metadata=(("authorization", "Bearer a"),)):
                    pass
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return flood(seconds, 2, one)


ATTACKS = (
    Attack("a row of words, count_tokens", partial(_follow_up, path="/v1/messages/count_tokens"), _REFUSED | {"200"}),
    Attack("a row of words, follow-up", partial(_follow_up, path="/v1/chat/completions"), _REFUSED | {"200"}),
    Attack("a row of words, gRPC", _marks_over_grpc, _CODES),
    Attack("prompts of 4 MiB, 8 at once", partial(_too_long, num_at_once=8), _REFUSED, "400", 5.0),
    Attack("prompts of 7 MiB, gRPC", _over_grpc, _CODES, "INVALID_ARGUMENT", 4.0),
    Attack("stop strings", _stops, _REFUSED | {"200"}, "200", 4.0),
    Attack("stop strings, gRPC", _stops_over_grpc, frozenset({"INVALID_ARGUMENT"}), "INVALID_ARGUMENT", 2.0),
)

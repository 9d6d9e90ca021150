"""Grammars that are slow to compile or slow to follow, by every way in, most of them abandoned after a second."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from bench.hostile.stack import Site
from bench.hostile.wire import Attack, Outcomes, chat, flood, status_of
from radixkv.v1 import generation_pb2, generation_pb2_grpc

__all__ = ["ATTACKS", "SLOW_LARKS", "SLOW_REGEXES", "slow_schemas"]

HANG_UP_S = 1.0
NUM_AT_ONCE = 8
_ALLOWED = frozenset({"200", "400", "422", "429", "503", "hung up"})
_CODES = frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE"})


def slow_schemas(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas by the keyword that makes them slow or large; another `number` gives others of the same kind."""
    odd = 99_999_989 - 2 * number
    slow = {"type": "integer", "multipleOf": odd}
    yield "multipleOf", slow
    yield "multipleOf of a fraction", {"type": "number", "multipleOf": odd / 1000}
    yield "multipleOf of a million", {"type": "integer", "multipleOf": 1_000_003 + 2 * number}
    yield (
        "product of small ones",
        {"allOf": [{"type": "integer", "multipleOf": each} for each in (9973, 9967 - number % 7)]},
    )
    yield "multipleOf in a property", {"type": "object", "properties": {"a": slow}, "required": ["a"]}
    yield "multipleOf behind $ref", {"$defs": {"x": slow}, "$ref": "#/$defs/x"}
    yield "many of them", {"anyOf": [{"type": "integer", "multipleOf": 9001 + 2 * (number + i)} for i in range(400)]}
    yield "properties", {"type": "object", "properties": {f"p{number}_{i}": {} for i in range(8000)}}
    yield "patternProperties", {"type": "object", "patternProperties": {f"a.*{i}.*{number}": {} for i in range(300)}}
    yield "pattern, nested repeats", {"type": "string", "pattern": f"^(([a-z]{{1,50}}){{1,50}}){{1,{50 + number}}}$"}
    yield "pattern, far back", {"type": "string", "pattern": f"^.*a.{{{500 + number}}}b.{{500}}$"}
    yield "length", {"type": "string", "minLength": 1_000_000 + number, "maxLength": 2_000_000 + number}
    yield (
        "items",
        {"type": "array", "items": {"type": "integer"}, "minItems": 100_000 + number, "maxItems": 200_000 + number},
    )
    yield "range", {"type": "integer", "minimum": 10**300 + number, "maximum": 10**308}
    yield "enum", {"enum": [f"{number}-{i}-" + "x" * 5 for i in range(20_000)]}
    yield "prefixItems", {"type": "array", "prefixItems": [{"enum": [i, number, "a"]} for i in range(4000)]}
    yield "required", {"type": "object", "required": [f"r{number}_{i}" for i in range(4000)]}
    yield "dependent alternatives", _nested(number)


def _nested(number: int) -> dict[str, Any]:
    """Alternatives within alternatives: 2^14 ways through few characters."""
    schema: dict[str, Any] = {"type": "integer", "maximum": number}
    defs: dict[str, Any] = {"d0": schema}
    for level in range(1, 15):
        ref = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"allOf": [{"anyOf": [ref, {"type": "string"}]}, {"anyOf": [{"minLength": level}, ref]}]}
    return {"$defs": defs, "$ref": "#/$defs/d14"}


SLOW_REGEXES = (
    "(.{1,400}){1,400}",
    "((a|b|ab|ba){1,300}){1,300}",
    "([a-z]*[0-9]*){1000}x{5000}",
    ".*a.{900}b.{900}",
    r"(\p{L}{1,200}){1,200}",
)
SLOW_LARKS = (
    'start: %json {"type":"integer","multipleOf":99999989}',
    "start: A\nA: /.*a.{30}/ & /.*b.{31}/ & /.*c.{32}/",
    "start: A{1,1000000}\nA: /[a-z]/",
    "start: " + "(" * 150 + '"a"' + "*)" * 150,
    "start: A\nA: /(.{0,900}x){0,90}/",
)


def _over_http(site: Site, seconds: float, scale: float, *, body: Callable[[Site, Any], tuple[str, Any]]) -> Outcomes:  # noqa: ARG001  # as all
    first = random.randrange(1 << 20)

    def one(number: int) -> str:
        kinds = list(slow_schemas(first + number))
        # Every other one has the keyword known as the slowest.
        schema = kinds[number // 2 % len(kinds)][1] if number % 2 else kinds[0][1]
        path, asked = body(site, schema)
        return status_of(site, path, asked, within_s=HANG_UP_S)

    return flood(seconds, NUM_AT_ONCE, one)


def _as_object(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def _response_format(site: Site, schema: Any) -> tuple[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return "/v1/chat/completions", chat(site, response_format=form)


def _tools(site: Site, schema: Any) -> tuple[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": _as_object(schema), "strict": True}}
    return "/v1/chat/completions", chat(site, tools=[tool], tool_choice="required")


def _text_format(site: Site, schema: Any) -> tuple[str, Any]:
    form = {"type": "json_schema", "name": "a", "schema": schema}
    return "/v1/responses", {"model": site.model, "input": "Hello", "max_output_tokens": 1, "text": {"format": form}}


def _background(site: Site, schema: Any) -> tuple[str, Any]:
    path, body = _text_format(site, schema)
    return path, body | {"background": True}


def _anthropic_tools(site: Site, schema: Any) -> tuple[str, Any]:
    tools = [{"name": "f", "input_schema": _as_object(schema)}]
    return "/v1/messages", chat(site, tools=tools, tool_choice={"type": "any"})


def _anthropic_format(site: Site, schema: Any) -> tuple[str, Any]:
    return "/v1/messages", chat(site, output_config={"format": {"type": "json_schema", "schema": schema}})


def _grpc(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    first = random.randrange(1 << 20)
    options = [("grpc.enable_retries", 0)]
    with grpc.insecure_channel(site.worker, options=options) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated

        def one(number: int) -> str:
            schemas = list(slow_schemas(first + number))
            grammars = itertools.chain(
                ({"json_schema": json.dumps(schema)} for _, schema in (schemas[0], schemas[number % len(schemas)])),
                ({"regex": SLOW_REGEXES[number // 4 % len(SLOW_REGEXES)] + str(number)},),
                ({"lark": SLOW_LARKS[number // 4 % len(SLOW_LARKS)].replace("99999989", str(99_999_989 - number))},),
            )
            kind = next(itertools.islice(grammars, number % 4, None))
            sampling = generation_pb2.SamplingParams(max_tokens=4, grammar=generation_pb2.Grammar(**kind))
            request = generation_pb2.GenerateRequest(prompt=generation_pb2.Prompt(text="Hello"), sampling=sampling)
            try:
                for _ in stub.Generate(request, timeout=HANG_UP_S, metadata=(("authorization", "Bearer a"),)):
                    pass
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return flood(seconds, NUM_AT_ONCE, one)


def _wide_again(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """The same wide schema repeatedly, with replies of some tokens: the cost of following it."""
    schema = {"type": "object", "properties": {f"p{i}": {} for i in range(8000)}}
    path, body = _response_format(site, schema)
    sent = json.dumps(body | {"max_tokens": 32}).encode()
    return flood(seconds, 4, lambda _: status_of(site, path, sent))


def _just_allowed(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Schemas that are large and honest, a new one each time."""
    first = random.randrange(1 << 20)

    def one(number: int) -> str:
        schema = {"type": "object", "properties": {f"p{first + number}_{i}": {"type": "string"} for i in range(200)}}
        path, body = _response_format(site, schema)
        return status_of(site, path, body | {"max_tokens": 16})

    return flood(seconds, NUM_AT_ONCE, one)


ATTACKS = (
    Attack("slow grammars, response_format", partial(_over_http, body=_response_format), _ALLOWED, seconds=4.0),
    Attack("slow grammars, tools", partial(_over_http, body=_tools), _ALLOWED),
    Attack("slow grammars, Responses", partial(_over_http, body=_text_format), _ALLOWED),
    Attack("slow grammars, background responses", partial(_over_http, body=_background), _ALLOWED),
    Attack("slow grammars, Anthropic tools", partial(_over_http, body=_anthropic_tools), _ALLOWED),
    Attack("slow grammars, Anthropic format", partial(_over_http, body=_anthropic_format), _ALLOWED),
    Attack("slow grammars, gRPC", _grpc, _CODES),
    Attack("a wide schema again and again", _wide_again, _ALLOWED - {"200"} | {"timeout"}, seconds=4.0),
    Attack("many new schemas of 200 properties", _just_allowed, frozenset({"200", "400", "429", "503"}), seconds=4.0),
)

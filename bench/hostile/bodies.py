"""Large bodies: a list of wrong items in every place of every route where the gateway's own description has a list or a map,
and valid ones as large as a body may be.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench.hostile.stack import Site
from bench.hostile.wire import Attack, Outcomes, send_all, status_of

__all__ = ["ATTACKS", "wrong_lists"]

BODY_BYTES = 4 * (1 << 20) - 1024
_MAX_DEPTH = 4
_REFUSED = frozenset({"400", "413", "422", "429"})
_TAKEN = _REFUSED | {"200", "404"}
"""Some lists are valid in their place, and some routes name missing items."""
_FILLED = "\x00here\x00"
"""Placeholder in a body for the long list."""


class _Walk:
    """Bodies that are valid except for one place, for each list and map that a schema has."""

    def __init__(self, schemas: dict[str, Any], model: str) -> None:
        self._schemas = schemas
        self._known = {"model": model}

    def places(self, schema: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, Any, str]]:
        """Name of the place, the body with `_FILLED` in it, and its filling."""
        for each in self._alternatives(schema):
            if each.get("type") == "array" or "prefixItems" in each:
                yield "[]", _FILLED, "1,"
                yield "[]", _FILLED, '{"role":1,"type":1},'
                if depth < _MAX_DEPTH:
                    for name, body, filling in self.places(each.get("items", {}), depth + 1):
                        yield f"[]{name}", [body], filling
            elif each.get("type") == "object" or "properties" in each:
                if "properties" not in each:
                    yield "{}", _FILLED, ""
                good = self._needed(each)
                for name, inner in each.get("properties", {}).items() if depth < _MAX_DEPTH else ():
                    for rest, body, filling in self.places(inner, depth + 1):
                        yield f".{name}{rest}", good | {name: body}, filling

    def _alternatives(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in schema:
            yield from self._alternatives(self._schemas[schema["$ref"].rsplit("/", 1)[1]])
        for name in ("anyOf", "oneOf", "allOf"):
            for each in schema.get(name, ()):
                yield from self._alternatives(each)
        if "type" in schema or "properties" in schema:
            yield schema

    def _needed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """An object's required fields, with values that fit."""
        inner = schema.get("properties", {})
        return {name: self._known.get(name) or self._least(inner[name]) for name in schema.get("required", [])}

    def _least(self, schema: dict[str, Any]) -> Any:
        """A value that fits."""
        first = next(self._alternatives(schema), {})
        if "enum" in first or "const" in first:
            return first.get("const", first.get("enum", [None])[0])
        kind = first.get("type")
        if kind == "array":
            return [self._least(first.get("items", {}))] * max(1, first.get("minItems", 1))
        if kind == "object":
            return self._needed(first)
        return {"string": "user", "integer": 1, "number": 1.0, "boolean": True}.get(str(kind))


def _fill(body: Any, filling: str, size: int) -> bytes:
    """The body with a list, or a map if there is no filling, of that size in its place."""
    if filling:
        long = "[" + (filling * (size // len(filling)))[:-1] + "]"
    else:
        long = "{" + ",".join(f'"k{number}":1' for number in range(size // 12)) + "}"
    return json.dumps(body).replace(json.dumps(_FILLED), long).encode()


def wrong_lists(site: Site, size: int) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    """Route, name of the place and body for every list and map in every request that the gateway describes."""
    connection = http.client.HTTPConnection(site.gateway, timeout=30.0)
    connection.request("GET", "/openapi.json", headers={"authorization": "Bearer a"})
    described = json.loads(connection.getresponse().read())
    connection.close()
    walk = _Walk(described["components"]["schemas"], site.model)
    for path, operations in described["paths"].items():
        schema = (
            operations.get("post", {})
            .get("requestBody", {})
            .get("content", {})
            .get("application/json", {})
            .get("schema")
        )
        if not schema:
            continue
        named = (
            path.replace("{conversation_id}", "conv_1").replace("{message_id}", "msg_1").replace("{response_id}", "r")
        )
        for name, body, filling in walk.places(schema):
            yield named, name, partial(_fill, body, filling, size)
    for path in ("/v1/radixkv/cache/labels", "/v1/radixkv/cache/search", "/v1/radixkv/cache/evict"):
        for field in ("nodes", "ids", "words", "tokens", "token_ids"):
            yield path, f".{field}[]", partial(_fill, {field: _FILLED}, "1,", size)


def _in_turn(
    site: Site, seconds: float, bodies: Iterator[tuple[str, Callable[[], bytes]]], *, at_once: int = 2
) -> Outcomes:
    """Send bodies until all are sent or the time is over."""
    until_s = time.monotonic() + seconds

    def calls() -> Iterator[Callable[[], str]]:
        for path, make in bodies:
            yield lambda path=path, make=make: status_of(site, path, make()) if time.monotonic() < until_s else "unsent"

    found = send_all(at_once, calls())
    del found["unsent"]
    return found


def _lists(site: Site, seconds: float, scale: float, *, part: str) -> Outcomes:
    """Lists of routes below `part`, each at full size; if the time is short, those with the fewest brackets."""
    size = BODY_BYTES if scale >= 0.25 else BODY_BYTES // 4
    places = [(path, name, make) for path, name, make in wrong_lists(site, size) if path.startswith(part)]
    places.sort(key=lambda place: (place[1].count("[") + place[1].count("."), place[0]))
    return _in_turn(site, seconds, ((path, make) for path, _, make in places))


def _valid(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Valid bodies, as full as possible."""
    user = {"role": "user", "content": ""}
    num = BODY_BYTES // (len(json.dumps(user)) + 1)
    common = {"model": site.model, "max_tokens": 1}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    nested: Any = 1
    for _ in range(60):
        nested = {"a": nested}

    def made(body: dict[str, Any], field: str, item: Any, more: int) -> Callable[[], bytes]:
        text = json.dumps(item)
        return lambda: (
            json.dumps(body | {field: _FILLED})
            .replace(json.dumps(_FILLED), "[" + ",".join([text] * more) + "]")
            .encode()
        )

    bodies: list[tuple[str, Callable[[], bytes]]] = [
        ("/v1/chat/completions", made(common, "messages", user, num)),
        ("/v1/messages", made(common, "messages", {"role": "user", "content": "a"}, num // 2)),
        (
            "/v1/messages/count_tokens",
            made({"model": site.model}, "messages", {"role": "user", "content": "a"}, num // 2),
        ),
        ("/v1/responses", made({"model": site.model, "max_output_tokens": 1}, "input", user, num)),
        ("/v1/chat/completions", made(common | {"messages": [user]}, "tools", tool, 20_000)),
        (
            "/v1/chat/completions",
            made(common, "messages", {"role": "user", "content": [{"type": "text", "text": ""}] * 400}, 200),
        ),
        ("/v1/completions", made(common, "prompt", 5, BODY_BYTES // 3)),
        ("/v1/completions", made(common, "prompt", "a", BODY_BYTES // 5)),
        ("/v1/chat/completions", made(common | {"messages": [user]}, "unknown", nested, 3000)),
        ("/v1/chat/completions", made(common | {"messages": [user]}, "unknown", 1, BODY_BYTES // 3)),
        ("/v1/radixkv/conversations", made({}, "messages", {"role": "user", "text": "a"}, BODY_BYTES // 40)),
        ("/v1/radixkv/conversations/import", made({"mapping": {}}, "conversations", {"title": "a"}, BODY_BYTES // 16)),
    ]
    return _in_turn(site, seconds, itertools.chain(bodies, bodies))


def _as_names(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Long texts in place of short ones, and JSON that is slow to parse."""
    long = "a" * (BODY_BYTES - 4096)
    body = {"model": site.model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    digits = ("9" * (BODY_BYTES - 4096)).encode()
    whole = json.dumps(body).encode()
    bodies = [
        ("/v1/chat/completions", lambda: json.dumps(body | {"model": long}).encode()),
        ("/v1/chat/completions", lambda: json.dumps(body | {"user": long, "messages": 1}).encode()),
        ("/v1/chat/completions", lambda: json.dumps(body | {"stop": long}).encode()),
        ("/v1/chat/completions", lambda: whole.replace(b'"max_tokens": 1', b'"max_tokens": ' + digits)),
        ("/v1/chat/completions", lambda: b"[" * (BODY_BYTES - 10)),
        ("/v1/chat/completions", lambda: b'{"a":' * (BODY_BYTES // 5)),
        ("/v1/chat/completions", lambda: json.dumps(body | {"tool_choice": long}).encode()),
        ("/v1/chat/completions", lambda: json.dumps(body | {"response_format": {"type": long}}).encode()),
        ("/v1/radixkv/conversations/import", lambda: b"[" * (BODY_BYTES - 10)),
        ("/v1/radixkv/conversations/import", lambda: b"{}\n" * (BODY_BYTES // 3)),
        ("/v1/radixkv/conversations/import", lambda: b"1\n" * (BODY_BYTES // 2)),
    ]
    return _in_turn(site, seconds, iter(bodies))


ATTACKS = (
    Attack("lists of wrong items, chat", partial(_lists, part="/v1/chat"), _TAKEN, "400", 6.0),
    Attack("lists of wrong items, completions", partial(_lists, part="/v1/completions"), _TAKEN, "400"),
    Attack("lists of wrong items, responses", partial(_lists, part="/v1/responses"), _TAKEN, "400", 5.0),
    Attack("lists of wrong items, messages", partial(_lists, part="/v1/messages"), _TAKEN, "400", 5.0),
    Attack(
        "lists of wrong items, conversations and tree",
        partial(_lists, part="/v1/radixkv"),
        _TAKEN | {"403"},
        "400",
    ),
    Attack("giant bodies that are right", _valid, _REFUSED | {"200"}, "400", 5.0),
    Attack("giant texts where a word is meant", _as_names, _TAKEN, "400", 5.0),
)

"""Hostile HTTP/1.1 against the gateway: bodies over every route of its own description, and bytes that barely resemble HTTP."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from typing import Any, NamedTuple
from urllib.parse import quote

__all__ = ["HttpAttack", "HttpCase"]

CALL_S = 60.0
READ_BYTES = 4096
_LEAVES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    2**31,
    2**63,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\ud800",
    "\x00",
    "é日🙂",
    "x" * 5000,
    [],
    {},
    [[[[[[]]]]]],
    {"type": "text", "text": "a"},
)
_MAX_DEPTH = 6


class HttpCase(NamedTuple):
    """One request. `raw`: bytes to send instead, over a separate connection."""

    number: int
    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    raw: bytes | None = None


class HttpAttack:
    """Draws requests and sends them. `send` is thread-safe.

    Args:
        seed: all randomness comes from it and a case's number.
        address: of the gateway.
    """

    def __init__(self, seed: int, address: str) -> None:
        self._seed = seed
        self._address = address
        connection = http.client.HTTPConnection(address, timeout=CALL_S)
        connection.request("GET", "/openapi.json")
        self._schema = json.loads(connection.getresponse().read())
        connection.close()
        self._operations = [
            (method.upper(), path, operation)
            for path, operations in sorted(self._schema["paths"].items())
            for method, operation in operations.items()
        ]

    @property
    def num_operations(self) -> int:
        """Number of attacked methods of routes."""
        return len(self._operations)

    def draw(self, number: int) -> HttpCase:
        """Case `number` of this seed."""
        source = random.Random(f"{self._seed}:http:{number}")
        if source.random() < 0.15:
            return HttpCase(number, "raw", "", b"", {}, _raw(source))
        method, path, operation = source.choice(self._operations)
        for name in ("{model}", "{response_id}", "{conversation_id}", "{message_id}"):
            path = path.replace(name, quote(source.choice(("a", "resp_1", "\x00", "..%2f..", "é", "x" * 3000))))
        if source.random() < 0.3:
            path += "?" + source.choice(
                ("limit=-1", "after=%ff", "limit=99999999999999999999", "stream=maybe", "&&==&")
            )
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        value = self._value(source, content.get("schema", {}), 0)
        body = json.dumps(value, ensure_ascii=True).encode()
        if source.random() < 0.1:
            at = source.randint(0, len(body))
            body = source.choice((body[:at], body[:at] + source.randbytes(4) + body[at:], b'{"a":' * 3000, b"\xff\xfe"))
        kind = source.choice(("application/json",) * 9 + ("text/plain",))
        return HttpCase(number, method, path, body, {"content-type": kind})

    def _value(self, source: random.Random, schema: dict[str, Any], depth: int) -> Any:
        """A value that usually fits."""
        if source.random() < 0.08 or depth > _MAX_DEPTH:
            return source.choice(_LEAVES)
        if "$ref" in schema:
            return self._value(source, self._schema["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], depth)
        for name in ("anyOf", "oneOf", "allOf"):
            if name in schema:
                return self._value(source, source.choice(schema[name]), depth)
        if "enum" in schema or "const" in schema:
            return source.choice(schema.get("enum", [schema.get("const")]))
        return self._typed(source, schema, depth)

    def _typed(self, source: random.Random, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            needed = schema.get("required", [])
            value = {
                name: self._value(source, inner, depth + 1)
                for name, inner in schema.get("properties", {}).items()
                if name in needed or source.random() < 0.15
            }
            if "max_tokens" in value and isinstance(value["max_tokens"], int):
                value["max_tokens"] = min(value["max_tokens"], 16)
            return value if source.random() < 0.9 else value | {"unknown": 1}
        if kind == "array":
            return [
                self._value(source, schema.get("items", {}), depth + 1) for _ in range(source.choice((0, 1, 1, 2, 5)))
            ]
        if kind == "string":
            return source.choice(("", "a", "user", "Hello there", "é日🙂", "model"))
        if kind == "integer":
            return source.choice((0, 1, 2, 5))
        if kind == "number":
            return source.choice((0.0, 0.5, 1.0))
        return source.choice((True, False)) if kind == "boolean" else source.choice(_LEAVES)

    def send(self, case: HttpCase) -> tuple[HttpCase, str, str]:
        """Send it and read the response. Returns the case, the status, and the fault found, empty for none."""
        started_s = time.monotonic()
        try:
            status = self._send_raw(case.raw) if case.raw is not None else self._send(case)
        except OSError as error:
            status = "closed" if not isinstance(error, TimeoutError) else "hang"
        except (http.client.HTTPException, ValueError) as error:
            status = f"unreadable answer: {error!r}"
        is_wrong = status in ("500", "501", "hang") or status.startswith("unreadable")
        fault = f"{status} after {time.monotonic() - started_s:.1f} s" if is_wrong else ""
        return case, status, fault

    def _send(self, case: HttpCase) -> str:
        connection = http.client.HTTPConnection(self._address, timeout=CALL_S)
        try:
            connection.request(case.method, case.path, case.body, case.headers)
            answer = connection.getresponse()
            answer.read(READ_BYTES)
            return str(answer.status)
        finally:
            connection.close()

    def _send_raw(self, raw: bytes) -> str:
        host, port = self._address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=CALL_S) as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(READ_BYTES)
        return answer.split(b" ", 2)[1].decode("ascii", "replace") if answer.startswith(b"HTTP/") else "closed"


def _raw(source: random.Random) -> bytes:
    """Bytes on which a careless server fails."""
    target = b"/v1/chat/completions"
    head = b"POST " + target + b" HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    kinds = (
        head + b"x: " + b"a" * source.choice((8_000, 70_000, 300_000)) + b"\r\n\r\n",
        head + b"".join(b"x-%d: a\r\n" % i for i in range(source.choice((200, 5000)))) + b"\r\n",
        chunked + source.choice((b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nab", b"1;" + b"a" * 70_000)),
        chunked + b"2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        head + b"content-length: " + source.choice((b"-1", b"9" * 30, b"5, 6", b"abc", b"+2")) + b"\r\n\r\n{}",
        head + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"GET " + b"/" + b"a" * source.choice((2_000, 100_000)) + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /\xff\xfe\x00 HTTP/1.1\r\nhost: \xff\r\nauthorization: Bearer \xff\xfe\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + source.randbytes(64),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01" + source.randbytes(200),
        source.randbytes(source.randrange(1, 500)),
        head + b"upgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        head + b"expect: 100-continue\r\ncontent-length: 10\r\n\r\n{}",
        head + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    )
    return source.choice(kinds)

"""The requests of a batch: parsing of a line, and the key that orders them by prefix.

Requests with a common prefix run next to each other, so that the next one finds it in the cache. The key has four bytes for
every `BLOCK_CHARACTERS` of the prompt's beginning, each of which depends on all before it:

    few-shot examples | question 1      a1 7c 03 | 9e ...
    few-shot examples | question 2      a1 7c 03 | 44 ...     sorted by key, they are adjacent
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from radixkv.util.json_text import read_json

__all__ = [
    "ENDPOINTS",
    "MAX_REQUESTS",
    "BatchLine",
    "LineError",
    "prefix_key",
    "read_line",
    "read_message_request",
]

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")

MAX_REQUESTS = 50_000
"""Per batch."""

BLOCK_CHARACTERS = 128
MAX_KEY_CHARACTERS = 65_536
"""Of a prompt's beginning that count for its place: PostgreSQL's index takes no row of 2,704 bytes."""

_FIELDS = ("model", "tools", "system", "instructions", "documents", "messages", "prompt", "input")
"""Of all APIs, in the order of their place in a prompt."""

_AT_ONCE = ("stream", "background")
"""Fields that request another response than a whole one; a file can hold only whole ones."""

_MESSAGE_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_ID_CHARACTERS = 512


class LineError(Exception):
    """A line that is not a valid request: the batch fails.

    Attributes:
        code: stable name of the fault. param: the faulty field, if any. place: index of the line in its call.
    """

    def __init__(self, code: str, message: str, param: str | None = None, place: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.place = place


class BatchLine(NamedTuple):
    """One request. `body`: JSON to post. `refused`: a field that requests another response than a whole one, if any."""

    custom_id: str
    body: bytes
    prefix: bytes
    refused: str | None


def prefix_key(body: Mapping[str, Any]) -> bytes:
    """Return the key that orders requests by the beginnings of their prompts, of at most 2,048 bytes. O(length)."""
    text = json.dumps([body.get(name) for name in _FIELDS]).encode()
    key, value = bytearray(), 0
    for start in range(0, min(len(text), MAX_KEY_CHARACTERS), BLOCK_CHARACTERS):
        value = zlib.crc32(text[start : start + BLOCK_CHARACTERS], value)
        key += value.to_bytes(4, "big")
    return bytes(key)


def read_line(text: bytes, endpoint: str) -> BatchLine:
    """Parse a line of an OpenAI batch's file: `custom_id`, `method`, `url` and `body`.

    Raises:
        LineError: not a valid request to `endpoint`.
    """
    try:
        line = read_json(text)
    except ValueError as error:
        reason = getattr(error, "msg", "it is no text")
        raise LineError("invalid_json_line", f"this line is not JSON: {reason}") from None
    if not isinstance(line, dict):
        raise LineError("invalid_json_line", "this line is not a JSON object")
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_ID_CHARACTERS or not _is_text(custom_id):
        bound = f"a text of 1 to {_MAX_ID_CHARACTERS} characters"
        raise LineError("invalid_custom_id", f"custom_id must be {bound}", "custom_id")
    if line.get("method") != "POST":
        raise LineError("invalid_method", f"method must be POST, not {_shown(line.get('method'))}", "method")
    if line.get("url") != endpoint:
        raise LineError("invalid_url", f"url must be the batch's {endpoint}, not {_shown(line.get('url'))}", "url")
    return _request(custom_id, line.get("body"), "body")


def read_message_request(item: Any) -> BatchLine:
    """Parse an entry of `requests` of an Anthropic message batch: `custom_id` and `params`.

    Raises:
        LineError: not a valid entry.
    """
    if not isinstance(item, dict):
        raise LineError("invalid_value", "must be an object with custom_id and params")
    custom_id = item.get("custom_id")
    if not isinstance(custom_id, str) or _MESSAGE_ID.fullmatch(custom_id) is None:
        raise LineError("invalid_value", "must be 1 to 64 letters, digits, _ and -", "custom_id")
    return _request(custom_id, item.get("params"), "params")


def _request(custom_id: str, body: Any, name: str) -> BatchLine:
    if not isinstance(body, dict):
        raise LineError("invalid_body", f"{name} must be an object: the body of the request", name)
    refused = next((each for each in _AT_ONCE if body.get(each)), None)
    return BatchLine(custom_id, json.dumps(body).encode(), prefix_key(body), refused)


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" or character == "\0" for character in text)


def _shown(value: Any) -> str:
    return json.dumps(value)[:100]

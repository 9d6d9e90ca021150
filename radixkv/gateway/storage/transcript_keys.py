"""Keys of conversations: hashes of everything that can matter to the model, chained message by message."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from radixkv.generation.request import Message
from radixkv.util.json_text import read_json

__all__ = ["canonical", "digest", "message_bytes", "root_key"]


def root_key(model: bytes, namespace: str, tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> bytes:
    """Return the root of every conversation's chain."""
    return digest(model, namespace.encode(), canonical(list(tools)), canonical(dict(arguments)))


def message_bytes(message: Message) -> bytes:
    """Serialize a message as far as the model sees it. Absent fields equal empty ones; ids of the gateway are dropped."""
    fields = {name: value for name, value in message.items() if value not in (None, "", [], {})}
    if "tool_calls" in fields:
        fields["tool_calls"] = [_canonical_call(call) for call in fields["tool_calls"]]
    return canonical([[name, fields[name]] for name in sorted(fields)])


def _canonical_call(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # arguments that are not JSON stay text
            arguments = read_json(arguments)
    return [function.get("name"), arguments]


def canonical(value: Any) -> bytes:
    """Serialize to JSON, the same for equal values."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")


def digest(*parts: bytes) -> bytes:
    """Hash the parts, including their boundaries."""
    hashed = hashlib.blake2b(digest_size=32)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()

"""Lines and files of traces: JSON or plain text, and the requests of a conversation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radixkv.simulate.errors import TraceError

__all__ = ["conversations_in", "parse_lines", "tree_requests"]


def parse_lines(path: Path, lines: Sequence[str]) -> list[Any]:
    """Every line that is not empty: as JSON if the first is JSON, otherwise as text.

    Raises:
        TraceError: no line, or a line that is not JSON after a first one that is.
    """
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise TraceError(f"{path} holds no request")
    if not filled[0][1].lstrip().startswith(("{", '"')):
        return [line for _, line in filled]
    return [_json(path, number, line) for number, line in filled]


def conversations_in(folder: Path) -> list[str]:
    """The requests of all conversations in a folder's .json and .jsonl files, file by file in order of name.

    A conversation is a list of messages, or an object with one in ``messages`` or ``conversations``, or a tree of
    messages with ``replies``, alone or under ``prompt``. A message has a ``role`` (or ``from``) and a ``content`` (or ``text``,
    ``value``).

    Raises:
        TraceError: no such file, or one with other content.
    """
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jsonl"))
    if not files:
        raise TraceError(f"{folder} holds no .json or .jsonl file")
    requests: list[str] = []
    for path in files:
        for number, document in _documents(path):
            try:
                requests += _requests_of(document)
            except (KeyError, TypeError, AttributeError) as error:
                raise TraceError(f"{path}, conversation {number}: no list or tree of messages ({error!r})") from None
    return requests


def _documents(path: Path) -> Iterator[tuple[int, Any]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        lines = [line for line in text.splitlines() if line.strip()]
        yield from enumerate((_json(path, number, line) for number, line in enumerate(lines, 1)), 1)
        return
    document = _json(path, 1, text)
    is_many = isinstance(document, list) and document and not _is_message(document[0])
    yield from enumerate(document if is_many else [document], 1)


def _json(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {number}: no JSON ({error.msg} at column {error.colno})") from None


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and ("role" in item or "from" in item)


def _requests_of(document: Any) -> list[str]:
    if isinstance(document, dict):
        for key in ("messages", "conversations"):
            if key in document:
                return _of_line(document[key])
        return tree_requests(document.get("prompt", document))
    return _of_line(document)


def _of_line(messages: Sequence[dict[str, Any]]) -> list[str]:
    """One request before each reply, and one at the end if no reply follows."""
    requests, said = [], ""
    for message in messages:
        if _role(message) in ("assistant", "gpt") and said:
            requests.append(said)
        said += _spoken(message)
    if messages and _role(messages[-1]) not in ("assistant", "gpt"):
        requests.append(said)
    return requests


def tree_requests(message: dict[str, Any], before: str = "") -> list[str]:
    """One request for each reply of the model below a message, depth first; `before`: the text before."""
    before += _spoken(message)
    requests: list[str] = []
    for reply in message.get("replies", ()):
        if _role(reply) == "assistant":
            requests.append(before)
        requests += tree_requests(reply, before)
    return requests


def _role(message: dict[str, Any]) -> str:
    return str(message["role"] if "role" in message else message["from"])


def _spoken(message: dict[str, Any]) -> str:
    content = next((message[key] for key in ("content", "text", "value") if isinstance(message.get(key), str)), None)
    if content is None:
        raise KeyError("content")
    return f"{_role(message)}: {content}\n"

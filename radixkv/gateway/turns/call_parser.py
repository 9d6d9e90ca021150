"""Parses function calls out of a streaming reply.

Models write calls in the form of their template. Two forms are parsed:

    Hermes, Qwen     text <tool_call>{"name": "f", "arguments": {...}}</tool_call> <tool_call>...
    Llama 3, Mistral {"name": "f", "parameters": {...}}, or a list of such, at the beginning of the reply

A call is emitted as soon as its name is complete, its arguments as they arrive. A call of an unknown function is text.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from radixkv.generation.thought_splitter import overlap
from radixkv.util.json_text import read_json

__all__ = ["CallParser", "CallPiece", "FunctionCalled"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'[\s\[,;]*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""A call up to the beginning of its arguments."""

_NO_HEAD = re.compile(
    r"""[\s\[,;]* (?: [^\s\[,;{] | \{\s* (?: [^\s"]
        | "(?!name"|arguments"|parameters")[^"]*"
        | "name"\s*:\s* (?: [^\s"] | "([^"\\]*)" ) ) )""",
    re.VERBOSE,
)
"""Text that begins no call, unless its group is the name of a function."""

_MARK, _MARK_IN_STRING = re.compile(r'["{}]'), re.compile(r'["\\]')


class FunctionCalled:
    """A call found in a reply.

    Attributes:
        arguments: JSON as written by the model so far. is_cut: the reply has ended within them.
    """

    __slots__ = ("_pieces", "call_id", "is_cut", "name")

    def __init__(self, name: str, arguments: str = "") -> None:
        self.call_id = f"call_{uuid.uuid4().hex[:24]}"
        self.name = name
        self.is_cut = False
        self._pieces = [arguments]

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def grow(self, arguments: str) -> None:
        """Append to its arguments."""
        self._pieces.append(arguments)


class CallPiece(NamedTuple):
    """Growth of a call. `number`: of the call, from 0; `begins`, `ends`: whether this is its first, its last piece."""

    call: FunctionCalled
    number: int
    arguments: str
    begins: bool
    ends: bool


class _ObjectEnd:
    """Finds the end of nested JSON objects in a streamed text. `depth`: of open objects. O(characters)."""

    __slots__ = ("_in_string", "_is_escaped", "depth")

    def __init__(self) -> None:
        self.depth = 1
        self._in_string = self._is_escaped = False

    def find(self, text: str, depth: int) -> int | None:
        """Return where in the next piece the depth becomes this; None: nowhere."""
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped, at = False, at + 1
                continue
            mark = (_MARK_IN_STRING if self._in_string else _MARK).search(text, at)
            if mark is None:
                return None
            at = mark.end()
            if mark.group() == '"':
                self._in_string = not self._in_string
            elif mark.group() == "\\":
                self._is_escaped = True
            else:
                self.depth += 1 if mark.group() == "{" else -1
                if self.depth == depth:
                    return at
        return None


class CallParser:
    """Splits a streaming reply into visible text and calls. O(characters).

    Text that may be the beginning of a call is held back.

    Args:
        names: the functions offered; with none, everything is text.
        takes_one_call: drop everything after the first call.
        must_call: the reply is constrained to calls, so the beginning of a call is never text.

    Attributes:
        is_over: further input is dropped.
        has_cut: some input was dropped.
    """

    def __init__(self, names: Collection[str], *, takes_one_call: bool = False, must_call: bool = False) -> None:
        self.is_over = False
        self.has_cut = False
        self._takes_one_call = takes_one_call
        self._must_call = must_call
        self._names = frozenset(names)
        self._held = ""
        self._has_text = False
        self._num_calls = 0
        self._call: FunctionCalled | None = None  # the open one
        self._end = _ObjectEnd()
        self._has_arguments = False  # the open call's arguments are complete
        self._is_tagged = False  # the open or last call is between tags
        self._follows_call = False  # separators between and after calls are not text

    def push(self, text: str) -> tuple[str, list[CallPiece]]:
        """Take in more text; returns the text that certainly belongs to no call, and the growth of calls."""
        if not self._names:
            return text, []
        shown: list[str] = []
        pieces: list[CallPiece] = []
        self._held += text
        while self._held and self._advance(shown, pieces):
            pass
        return self._show(shown), _merged(pieces)

    def flush(self) -> tuple[str, list[CallPiece]]:
        """Return the rest at the end of the reply."""
        held, self._held = self._held, ""
        pieces: list[CallPiece] = []
        text = held.strip()
        if self._call is not None:
            if not self._has_arguments:
                self._call.is_cut = True
                self._grow("", pieces, ends=True)
            return "", pieces
        if not self._names or not text.startswith(("{", "[", _OPEN)):
            return self._show([held]), []
        if self._add_whole(text.removeprefix(_OPEN), pieces):
            return "", pieces
        if self._must_call or (text.startswith(_OPEN) and _begins_call(text.removeprefix(_OPEN), self._names)):
            self.has_cut = True
            return "", []
        return self._show([held]), []

    def _advance(self, shown: list[str], pieces: list[CallPiece]) -> bool:
        """Consume some of the held text; False: more is needed."""
        if self.is_over:
            self.has_cut, self._held = self.has_cut or bool(self._held.strip()), ""
            return False
        if self._call is not None:
            return self._advance_call(pieces)
        if self._follows_call:
            self._held = self._held.lstrip("\n" if self._is_tagged else "\n\r\t ,;]")
            if not self._held:
                return False
        if self._may_be_bare(shown):
            head = _HEAD.match(self._held)
            if head is not None and head[1] in self._names:
                return self._begin(head, pieces, is_tagged=False)
            if _begins_call(self._held, self._names) and _OPEN not in self._held:
                return False
        self._follows_call = False
        return self._advance_text(shown, pieces)

    def _advance_text(self, shown: list[str], pieces: list[CallPiece]) -> bool:
        start = self._held.find(_OPEN)
        if start < 0:
            num_held = overlap(self._held, _OPEN)
            shown.append(self._held[: len(self._held) - num_held])
            self._held = self._held[len(self._held) - num_held :]
            return False
        shown.append(self._held[:start])
        self._held = self._held[start:]
        inner = self._held[len(_OPEN) :].lstrip()
        head = _HEAD.match(self._held, len(_OPEN)) if inner.startswith("{") else None
        if head is not None and head[1] in self._names:
            return self._begin(head, pieces, is_tagged=True)
        end = self._held.find(_CLOSE)
        if _begins_call(inner, self._names):
            if end < 0:
                return False
            if self._add_whole(self._held[len(_OPEN) : end], pieces):
                self._is_tagged, self._held = True, self._held[end + len(_CLOSE) :]
                return True
        shown.append(_OPEN)
        self._held = self._held[len(_OPEN) :]
        return True

    def _begin(self, head: re.Match[str], pieces: list[CallPiece], *, is_tagged: bool) -> bool:
        """Begin a call and consume its head."""
        self._held = self._held[head.end() :]
        self._is_tagged, self._has_arguments, self._end = is_tagged, False, _ObjectEnd()
        self._call = FunctionCalled(head[1])
        pieces.append(CallPiece(self._call, self._num_calls, "", True, False))
        return True

    def _advance_call(self, pieces: list[CallPiece]) -> bool:
        """Consume the arguments of the open call; after them the rest of its object and its tag, which hold no content."""
        if not self._has_arguments:
            end = self._end.find(self._held, depth=1)
            taken, self._held = self._held[:end], "" if end is None else self._held[end:]
            self._has_arguments = end is not None
            self._grow(taken, pieces, ends=self._has_arguments)
            return self._has_arguments
        past = self._held.find(_CLOSE) + len(_CLOSE) if _CLOSE in self._held else None
        if not self._is_tagged:
            past = self._end.find(self._held, depth=0)
            self._held = "" if past is None else self._held
        if past is None:
            return False
        self._held = self._held[past:]
        self._ended()
        return True

    def _grow(self, arguments: str, pieces: list[CallPiece], *, ends: bool) -> None:
        assert self._call is not None, "it is open"
        self._call.grow(arguments)
        pieces.append(CallPiece(self._call, self._num_calls, arguments, False, ends))

    def _ended(self) -> None:
        self._call = None
        self._num_calls += 1
        self._follows_call = True
        self.is_over = self._takes_one_call

    def _add_whole(self, text: str, pieces: list[CallPiece]) -> bool:
        """Add the calls of a text that consists of calls only; returns whether it does."""
        try:
            value = read_json(text)
        except ValueError:
            return False
        calls = [_as_call(item, self._names) for item in (value if isinstance(value, list) else [value])]
        found = [call for call in calls if call is not None]
        if not found or len(found) < len(calls):
            return False
        for call in found[:1] if self._takes_one_call else found:
            pieces.append(CallPiece(call, self._num_calls, call.arguments, True, True))
            self._ended()
        self.has_cut = self._takes_one_call and len(found) > 1
        return True

    def _may_be_bare(self, shown: Sequence[str]) -> bool:
        """Whether a call may begin here without a tag: no text was shown yet."""
        return not self._has_text and not any(shown)

    def _show(self, pieces: Sequence[str]) -> str:
        text = "".join(pieces)
        self._has_text = self._has_text or bool(text)
        return text


def _merged(pieces: Sequence[CallPiece]) -> list[CallPiece]:
    """Merge pieces: one per call."""
    merged: list[CallPiece] = []
    for piece in pieces:
        before = merged.pop() if merged and merged[-1].call is piece.call else None
        arguments = before.arguments + piece.arguments if before else piece.arguments
        merged.append(piece._replace(arguments=arguments, begins=before.begins if before else piece.begins))
    return merged


def _begins_call(text: str, names: Collection[str]) -> bool:
    """Whether the text may be the beginning of a call of one of the functions."""
    found = _NO_HEAD.match(text)
    return found is None or found[1] in names


def _as_call(value: Any, names: Collection[str]) -> FunctionCalled | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, dict):
        return FunctionCalled(value["name"], json.dumps(arguments, ensure_ascii=False))
    return FunctionCalled(value["name"], arguments) if isinstance(arguments, str) else None

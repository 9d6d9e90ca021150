"""Splits a streaming reply into the model's thoughts and its answer.

    <think> thoughts </think> answer                             by marks; the prompt may have opened them
    <|channel|>analysis<|message|> thoughts <|end|><|start|>assistant<|channel|>final<|message|> answer    harmony

Thoughts come first in a reply: a mark after them, or in a reply that starts with other text, is text. In harmony they may
come in any message of the analysis channel.
"""

from __future__ import annotations

import re

from radixkv.generation.thinking import ThinkingMarks

__all__ = ["HarmonySplitter", "Splitter", "overlap", "splitter_of"]

_HEADER_END = "<|message|>"
_BODY_ENDS = ("<|end|>", "<|start|>", "<|channel|>")
_BODY_END = re.compile("|".join(map(re.escape, _BODY_ENDS)))
_HEADER_STARTS = ("<|channel|>", "<|start|>", "<|constrain|>", "<|message|>", "to=")
_CHANNEL, _RECIPIENT = re.compile(r"<\|channel\|>\s*(\w+)"), re.compile(r"to=functions\.([\w.-]+)")
MAX_HEADER_CHARACTERS = 500


class Splitter:
    """Splits by marks. O(characters).

    Args:
        marks: of the model; None: it has none, and all text is the answer.

    Attributes:
        is_thinking: whether the next text is a thought.
    """

    def __init__(self, marks: ThinkingMarks | None) -> None:
        self.is_thinking = False
        self._marks = marks
        self._held = ""
        self._is_over = marks is None
        self._may_open = True
        self._has_thought = self._strips_answer = False

    def open(self) -> None:
        """The prompt has opened the thoughts."""
        self.is_thinking = not self._is_over

    def begin(self, text: str) -> tuple[str, str]:
        """Push the text that a reply continues. Returns its (thought, answer); neither is returned again."""
        thought, said = self.push(text)
        if self.is_thinking and not self._held.strip("\n"):
            thought, self._held = thought + self._held, ""
        return thought, said

    def push(self, text: str) -> tuple[str, str]:
        """Push more text. Returns its certain (thought, answer)."""
        if self._is_over:
            return "", self._answer(text)
        self._held += text
        assert self._marks is not None, "else it is over"
        if self._may_open:
            begun = self._held.lstrip()
            if begun.startswith(self._marks.opens):
                self.is_thinking, self._held = True, begun[len(self._marks.opens) :]
            elif self._marks.opens.startswith(begun):
                return "", ""  # it may be the mark
            self._may_open = False
            if not self.is_thinking:
                return self._end()
        return self._think(self._marks.closes)

    def flush(self) -> tuple[str, str]:
        """The (thought, answer) held back, at the end of the reply."""
        held, self._held = self._held, ""
        return (held.strip("\n"), "") if self.is_thinking else ("", held)

    def _think(self, closes: str) -> tuple[str, str]:
        if not self._has_thought:
            self._held = self._held.lstrip("\n")
            self._has_thought = bool(self._held)
        thought, mark, rest = self._held.partition(closes)
        if mark:
            self.is_thinking, self._held, self._strips_answer = False, rest, True
            return thought.rstrip("\n"), self._end()[1]
        sure = self._held[: len(self._held) - overlap(self._held, closes)].rstrip("\n")
        self._held = self._held[len(sure) :]
        return sure, ""

    def _end(self) -> tuple[str, str]:
        self._is_over = True
        held, self._held = self._held, ""
        return "", self._answer(held)

    def _answer(self, text: str) -> str:
        """Strip the lines between the closing mark and the answer."""
        if self._strips_answer:
            text = text.lstrip("\n")
            self._strips_answer = not text
        return text


class HarmonySplitter(Splitter):
    """Splits by the channels of messages: analysis is thought, the others are the answer.

    A message to a function becomes the call that `CallParser` reads.
    """

    def __init__(self, marks: ThinkingMarks) -> None:
        super().__init__(marks)
        self._is_header, self._is_call = True, False

    def open(self) -> None:
        """Do nothing: the first message of the reply names its channel."""

    def push(self, text: str) -> tuple[str, str]:
        """Push more text. Returns its certain (thought, answer)."""
        self._held += text
        thought: list[str] = []
        said: list[str] = []
        while self._held and (self._read_header(said) if self._is_header else self._read_body(thought, said)):
            pass
        return "".join(thought), "".join(said)

    def flush(self) -> tuple[str, str]:
        """The (thought, answer) held back, at the end of the reply; an incomplete header is dropped."""
        held, self._held = self._held, ""
        if self._is_header:
            return "", "" if held.lstrip().startswith("<|") else held
        return (held, "") if self.is_thinking else ("", held)

    def _read_header(self, said: list[str]) -> bool:
        begun = self._held.lstrip()
        if not any(begun.startswith(start) or start.startswith(begun) for start in _HEADER_STARTS):
            self._is_header = False  # a message without a header
            return True
        header, mark, _ = begun[:MAX_HEADER_CHARACTERS].partition(_HEADER_END)
        if not mark and len(begun) < MAX_HEADER_CHARACTERS:
            return False
        if not mark:
            said.append(begun[:1])  # so the text is no header
            self._held, self._is_header = begun[1:], False
            return True
        rest = begun[len(header) + len(mark) :]
        self._held, self._is_header = rest, False
        function, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        self._is_call = function is not None
        self.is_thinking = function is None and (channel is not None and channel[1] == "analysis")
        if function is not None:
            said.append(f'<tool_call>{{"name": "{function[1]}", "arguments": ')
        return True

    def _read_body(self, thought: list[str], said: list[str]) -> bool:
        end = _BODY_END.search(self._held)
        kept = 0 if end else max(overlap(self._held, mark) for mark in _BODY_ENDS)
        body = self._held[: end.start() if end else len(self._held) - kept]
        (thought if self.is_thinking else said).append(body)
        if end is None:
            self._held = self._held[len(body) :]
            return False
        if self._is_call:
            said.append("}</tool_call>")
        self._held = self._held[end.end() if end.group() == "<|end|>" else end.start() :]
        self._is_header, self.is_thinking, self._is_call = True, False, False
        return True


def splitter_of(marks: ThinkingMarks | None) -> Splitter:
    """The splitter for a model with these marks."""
    return HarmonySplitter(marks) if marks is not None and marks.is_harmony else Splitter(marks)


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)

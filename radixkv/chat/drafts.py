"""Replies in the terminal, read and shown as they stream, with thoughts apart from answers.

bot thinks> The user greets.      dimmed where the terminal can
bot> Good day.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from radixkv.core.tokens import TOKEN_BYTES
from radixkv.generation.request import Generator
from radixkv.generation.thinking import NUM_TAIL_TOKENS, ThinkingMarks
from radixkv.generation.thought_splitter import splitter_of

__all__ = ["Draft", "ReplyView", "can_dim", "folded", "opens_thoughts"]

SAYS, THINKS = "bot", "bot thinks"
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


class Draft:
    """A reply as it streams.

    Attributes:
        token_ids: all of them, including those of thoughts.
        text, thinking: the answer, and the thoughts before it.
        is_done: whether it was shown as a whole.
    """

    __slots__ = ("_may_think", "_splitter", "is_done", "text", "thinking", "token_ids")

    def __init__(self, marks: ThinkingMarks | None, *, has_opened: bool = False) -> None:
        self.token_ids: list[int] = []
        self.text = self.thinking = ""
        self.is_done = False
        self._may_think = marks is not None
        self._splitter = splitter_of(marks)
        if has_opened:
            self.open()

    def open(self) -> None:
        """The prompt has opened its thoughts."""
        self._splitter.open()

    @property
    def speaker(self) -> str:
        """Speaker of the next text; empty if not known yet."""
        return THINKS if self._splitter.is_thinking else SAYS if self.text or not self._may_think else ""

    def take(self, token_ids: Sequence[int], text: str) -> tuple[str, str]:
        """Append tokens and text. Returns the certain (thought, answer)."""
        self.token_ids.extend(token_ids)
        return self._grow(*self._splitter.push(text))

    def end(self) -> tuple[str, str]:
        """Append text held back as a possible mark. Returns its (thought, answer)."""
        return self._grow(*self._splitter.flush())

    def _grow(self, thought: str, said: str) -> tuple[str, str]:
        self.thinking += thought
        self.text += said
        return thought, said


class ReplyView:
    """Shows one reply as it streams.

    Args:
        write: of the terminal.
        dims: whether it can dim a text.
    """

    def __init__(self, write: Callable[[str], None], dims: bool) -> None:
        self._write = write
        self._dims = dims
        self._speaker = ""

    def expect(self, draft: Draft) -> None:
        """Print the speaker of the next text in advance."""
        self._begin(draft.speaker)

    def _begin(self, speaker: str) -> None:
        if speaker and speaker != self._speaker:
            if self._speaker:
                self._write("\n")
            self._put(f"{speaker}> ", is_dim=speaker == THINKS)
            self._speaker = speaker

    def show(self, thought: str, said: str) -> None:
        """Print more of the reply, thoughts before the answer."""
        for speaker, text in ((THINKS, thought), (SAYS, said)):
            if text:
                self._begin(speaker)
                self._put(text, is_dim=speaker == THINKS)

    def _put(self, text: str, *, is_dim: bool) -> None:
        # One write, so that an interrupt leaves the terminal undimmed.
        self._write(f"{_DIM}{text}{_PLAIN}" if is_dim and self._dims else text)


def opens_thoughts(generator: Generator, prompt: bytes) -> bool:
    """Whether a prompt of packed ids has opened the thoughts of its reply."""
    marks, tail = generator.model().thinking, prompt[-NUM_TAIL_TOKENS * TOKEN_BYTES :]
    return marks is not None and bool(tail) and marks.has_opened(generator.detokenize(tail))


def folded(thinking: str) -> str:
    """A line in place of thoughts when a reply is shown again; empty without thoughts."""
    return f"({len(thinking.split())} words of thoughts)\n" if thinking else ""


def can_dim(output: TextIO) -> bool:
    """Whether the output is a terminal that dims text."""
    return output.isatty() and os.environ.get("TERM") != "dumb"

"""Texts of random words in the shapes of the archives, for a quick run if those are missing."""

from __future__ import annotations

import random
from typing import Any

from bench.serving.material import FewShot

__all__ = ["MadeUp"]

WORDS = (
    "tree",
    "node",
    "token",
    "cache",
    "branch",
    "fork",
    "reads",
    "writes",
    "holds",
    "the",
    "a",
    "red",
    "blue",
    "eight",
)


class MadeUp:
    """Made-up replacement of `Material`."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)
        names = ("object_counting", "sports_understanding", "web_of_lies")
        self.big_bench = {name: FewShot(name, self._text(400), self._texts(250, 20)) for name in names}
        self.conversation_trees = [self._tree(4) for _ in range(16)]
        self.two_turns = [self._texts(2, 30) for _ in range(16)]
        self.agent_sessions = [self._growing(6, 400) for _ in range(8)]
        self.games = [self._game() for _ in range(16)]

    def _text(self, num_words: int) -> str:
        return " ".join(self._source.choices(WORDS, k=num_words)).capitalize() + "."

    def _texts(self, count: int, num_words: int) -> list[str]:
        return [self._text(num_words) for _ in range(count)]

    def _tree(self, depth: int, role: str = "user") -> dict[str, Any]:
        other = "assistant" if role == "user" else "user"
        replies = [self._tree(depth - 1, other) for _ in range(2)] if depth else []
        return {"role": role, "content": self._text(20), "replies": replies}

    def _growing(self, count: int, num_words: int) -> list[str]:
        pieces = self._texts(count, num_words)
        return ["\n".join(pieces[: index + 1]) for index in range(count)]

    def _game(self) -> list[dict[str, Any]]:
        states = [line + "\n" for line in self._texts(6, 8)]
        numbers = " ".join(str(self._source.randint(1, 13)) for _ in range(4))
        steps, kept = [], [""]
        for _ in range(3):
            candidates = [state + line for state in kept for line in states]
            kept = candidates[:5]
            steps.append({"x": numbers, "new_ys": candidates, "select_new_ys": kept})
        return steps

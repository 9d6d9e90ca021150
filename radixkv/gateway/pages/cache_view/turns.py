"""Turns in token ids that a chat template has written: role and text, without the template's special tokens.

    <|im_start|> user ⏎ Hello <|im_end|> ⏎ <|im_start|> ass         the edge of a node
    istant ⏎ Hi! <|im_end|>                                         one below it

A special token is followed by a role, or by more text of the same role. No template's tokens are built in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

__all__ = ["Turn", "read_turns"]

_ROLES = ("system", "developer", "user", "assistant", "model", "tool", "ipython")
"""Role names of chat templates."""

_ROLE = re.compile(rf"\s*({'|'.join(_ROLES)})(?:\s*$|\s*\n|(?=:))")


class Turn(NamedTuple):
    """One turn; `role`: empty where unknown."""

    role: str
    text: str


def read_turns(
    token_ids: Iterable[int],
    spellings: Mapping[int, bytes],
    special_ids: Collection[int],
    above: Iterable[int] = (),
) -> list[Turn]:
    """Return the turns of these tokens; `above`: the tokens right before them, which give the first role. O(tokens)."""
    reading = _Reading()
    for token_id in above:
        reading.read(spellings[token_id], token_id in special_ids)
    reading.begin()
    for token_id in token_ids:
        reading.read(spellings[token_id], token_id in special_ids)
    reading.end()
    return reading.turns


class _Reading:
    """Runs of ordinary tokens between special ones; some bytes may belong to the tokens above."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._role = ""
        self._run = bytearray()
        self._num_above = 0
        self._follows_special = False

    def begin(self) -> None:
        """Keep only the role of the tokens read so far."""
        self.turns.clear()
        self._num_above = len(self._run)

    def read(self, spelling: bytes, is_special: bool) -> None:
        if not is_special:
            self._run += spelling
            return
        self.end_run()
        self._follows_special = True

    def end(self) -> None:
        """A role's name may be cut off here."""
        text = self._run.decode(errors="replace").strip()
        if not (self._follows_special and any(role.startswith(text) and role != text for role in _ROLES)):
            self.end_run()

    def end_run(self) -> None:
        text = self._run.decode(errors="replace")
        found = _ROLE.match(text) if self._follows_special else None
        if found is not None:
            self._role = found[1]
        own = self._run[max(self._num_above, len(found[0].encode()) if found is not None else 0) :]
        text = own.decode(errors="replace").strip("\ufffd").strip()
        if text or (found is not None and len(self._run) > self._num_above):
            if self.turns and self.turns[-1] == (self._role, ""):
                self.turns.pop()
            self.turns.append(Turn(self._role, text))
        self._run.clear()
        self._num_above = 0
        self._follows_special = False

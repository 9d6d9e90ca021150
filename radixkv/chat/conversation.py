"""A conversation as a tree: every regenerated reply and every edited message is a sibling; nothing is overwritten.

    (start) ─┬─ you: hello ─┬─ Hi!            branch 1
             │              └─ Good day.      branch 2, regenerated
             └─ you: hallo ─── Guten Tag!     branch 3, message 1 edited

A branch keeps its number for the life of the conversation: a reply after its end continues it, and every other reply starts a
branch with the next number.

Each turn keeps the exact token ids of the history up to its end. So a reply generated here is never tokenised again, and the
turns after it reuse all that is cached.
"""

from __future__ import annotations

from collections.abc import Iterator

from radixkv.core.errors import RadixKVError
from radixkv.core.tokens import pack_tokens
from radixkv.generation.request import Message
from radixkv.generation.stream import Usage

__all__ = ["FOLLOWS", "ChatError", "Conversation", "Turn"]

FOLLOWS = {"start": ("system", "user"), "system": ("user",), "user": ("assistant",), "assistant": ("user",)}
"""Roles of the turns that may follow a turn of each role."""

_SHOWN_CHARACTERS = 60
_SIGNS = {"system": "sys", "user": "you", "assistant": " ↳"}


class ChatError(RadixKVError):
    """A chat command that cannot be run; the message names a valid one."""


class Turn:
    """One message.

    Attributes:
        role: ``"user"`` or ``"assistant"``; ``"start"`` for the root; ``"system"`` for a prompt below it.
        text: written or generated text.
        thinking: of a reply: the model's thoughts before it.
        history: packed token ids of the conversation up to this turn's end; of a user's turn, up to the start of the reply.
            Empty until the reply's stream has started, and for a reply known as text alone.
        usage: of a reply: its cost.
        branch: of a reply: the number of the branch that ends here; None if the branch continues, or for other turns.
    """

    __slots__ = ("branch", "children", "history", "parent", "role", "text", "thinking", "usage")

    def __init__(self, role: str, text: str, parent: Turn | None, history: bytes = b"", thinking: str = "") -> None:
        self.role = role
        self.text = text
        self.thinking = thinking
        self.parent = parent
        self.history = history
        self.usage: Usage | None = None
        self.branch: int | None = None
        self.children: list[Turn] = []
        if parent is not None:
            parent.children.append(self)

    @property
    def message(self) -> Message:
        """Message for the chat template."""
        thoughts = {"reasoning_content": self.thinking} if self.thinking else {}
        return {"role": self.role, "content": self.text, **thoughts}

    def path(self) -> list[Turn]:
        """The turns from the first message to this one, without the start."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None and turn.role != "start":
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]


class Conversation:
    """The tree of turns and the user's place in it. The current turn is a reply, or the start."""

    def __init__(self, system_prompt: str | None = None) -> None:
        self.system_prompt = system_prompt
        self.num_branches = 0  # numbers given so far
        self.start = Turn("start", "", None)
        self.current = self.start

    # -- growing ------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> Turn:
        """A user's message after the current turn. Its reply is added by `reply`."""
        return Turn("user", text, self.current)

    def reply(
        self, message: Turn, prompt: bytes, token_ids: list[int], text: str, usage: Usage | None, thinking: str = ""
    ) -> Turn:
        """A sampled reply, which becomes the current turn."""
        message.history = prompt
        turn = Turn("assistant", text, message, prompt + pack_tokens(token_ids), thinking)
        turn.usage = usage
        self.end_branch(turn)
        self.current = turn
        return turn

    def end_branch(self, reply: Turn) -> None:
        """Give a new reply its branch's number: that of the reply it continues, or the next."""
        before = reply.parent.parent if reply.parent is not None else None
        if before is not None and before.branch is not None:
            reply.branch, before.branch = before.branch, None
        else:
            self.num_branches += 1
            reply.branch = self.num_branches

    def begun(self, message: Turn, text: str) -> tuple[Turn, str]:
        """The reply to `message` on the current branch, and its text up to the end of the first `text` in it.

        Raises:
            ChatError: the reply does not contain the text.
        """
        path = self.current.path()
        reply = path[path.index(message) + 1]
        index = reply.text.find(text)
        if index < 0:
            raise ChatError(f"that reply does not say {text!r}; name a part of it, word for word")
        return reply, reply.text[: index + len(text)]

    def withdraw(self, message: Turn) -> None:
        """Take back a message that never got a reply."""
        if message.parent is not None and not message.children:
            message.parent.children.remove(message)

    def messages_for(self, message: Turn) -> tuple[bytes, list[Message]]:
        """History and messages to send for a message: ids of the last reply with known ids, and the messages after it."""
        path = message.path()
        known = [index for index, turn in enumerate(path) if turn.role == "assistant" and turn.history]
        history, rest = (path[known[-1]].history, path[known[-1] + 1 :]) if known else (b"", path)
        messages: list[Message] = [turn.message for turn in rest]
        if not known and self.system_prompt is not None and path[0].role != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return history, messages

    # -- walking ------------------------------------------------------------------------------------------------------

    def last_message(self) -> Turn:
        """The message that the current reply answers.

        Raises:
            ChatError: there is no message yet.
        """
        if self.current.parent is None:
            raise ChatError("there is no reply to regenerate yet; write something first")
        return self.current.parent

    def message(self, number: int) -> Turn:
        """The user's message `number` (from 1) on the current branch.

        Raises:
            ChatError: the branch has no such message.
        """
        messages = [turn for turn in self.current.path() if turn.role == "user"]
        if not 1 <= number <= len(messages):
            raise ChatError(
                f"this branch has messages 1 to {len(messages)}, not {number}"
                if messages
                else "nothing has been said on this branch yet"
            )
        return messages[number - 1]

    def edit(self, number: int, text: str) -> Turn:
        """A sibling of message `number` with another text; the old message and its replies stay as their own branch."""
        return Turn("user", text, self.message(number).parent)

    def fork(self, number: int | None = None) -> Turn:
        """Go to the reply to message `number` (0: the start; None: stay), so that the next message opens a branch there."""
        if number is None:
            return self.current
        if number == 0:
            self.current = self.start
        else:
            message = self.message(number)
            path = self.current.path()
            self.current = path[path.index(message) + 1]
        return self.current

    def branches(self) -> list[Turn]:
        """Ends of all branches, in the order of their numbers."""
        ends = ((turn.branch, turn) for turn, _ in self._walk() if turn.branch is not None)
        return [turn for _, turn in sorted(ends, key=lambda end: end[0])]

    def turns(self) -> list[Turn]:
        """Every turn after the start, each after its parent, siblings in order."""
        return [turn for turn, _ in self._walk()]

    def switch(self, number: int) -> Turn:
        """Go to the end of branch `number`.

        Raises:
            ChatError: there is no such branch.
        """
        end = next((turn for turn in self.branches() if turn.branch == number), None)
        if end is None:
            last = self.num_branches
            raise ChatError(f"there are branches 1 to {last}, not {number}" if last else "there are no branches yet")
        self.current = end
        return self.current

    # -- showing ------------------------------------------------------------------------------------------------------

    def branch_lines(self) -> list[str]:
        """One line per branch: its number, its length, its last reply; `*` at the current turn."""
        return [
            f"{'*' if turn is self.current else ' '} {turn.branch:>2}  {(len(turn.path()) + 1) // 2} turns  {_short(turn)}"
            for turn in self.branches()
        ]

    def tree_lines(self) -> list[str]:
        """The whole tree; `*` at the current turn, numbers at the ends of branches."""
        lines = [f"(start){' *' if self.current is self.start else ''}"]
        for turn, prefix in self._walk():
            number = f"  [{turn.branch}]" if turn.branch is not None else ""
            lines.append(f"{prefix}{_short(turn)}{number}{' *' if turn is self.current else ''}")
        return lines

    def _walk(self) -> Iterator[tuple[Turn, str]]:
        """Every turn after the start, in order, with its prefix in a drawing of the tree.

        A turn without siblings is drawn below its parent without indentation, so that long chats stay narrow.
        """
        pending = [(child, "") for child in reversed(self.start.children)]
        while pending:
            turn, indent = pending.pop()
            siblings = turn.parent.children if turn.parent is not None else []
            is_alone, is_last = len(siblings) == 1, siblings[-1] is turn
            yield turn, indent + ("" if is_alone else "└─ " if is_last else "├─ ")
            deeper = indent + ("" if is_alone else "   " if is_last else "│  ")
            pending.extend((child, deeper) for child in reversed(turn.children))


def _short(turn: Turn) -> str:
    text = " ".join(turn.text.split()) or ("(ended within its thoughts)" if turn.thinking else "")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"{_SIGNS[turn.role]} {text}"

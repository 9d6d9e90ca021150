"""Conversations of the terminal in files: the whole tree of turns with their token ids, rewritten after every reply.

A file is one JSON object. It is replaced as a whole, so that a reader always finds a whole conversation. A file that another
process has written meanwhile is not replaced: the conversation continues in another file next to it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from radixkv.chat.conversation import FOLLOWS, ChatError, Conversation, Turn
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import unpack_tokens
from radixkv.util.folders import state_folder

__all__ = ["SavedChat", "chats_folder", "saved_names"]

_FORMAT, _VERSION = "radixkv-chat", 1
_NAME = re.compile(r"[\w][\w .-]{0,99}")


def chats_folder() -> Path:
    """Folder of a user's chats."""
    return state_folder() / "chats"


def saved_names(folder: Path) -> list[str]:
    """Names of the chats in a folder, the last written first."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.stem for path in files]


class SavedChat:
    """One conversation under a name.

    Args:
        folder, name: folder and name of the file.
        model_name: model of the token ids.

    Raises:
        ChatError: an invalid file name.
    """

    def __init__(self, folder: Path, name: str, model_name: str) -> None:
        self.name = _checked(name)
        self._folder = folder
        self._model_name = model_name
        self._seen: tuple[int, int] | None = None  # the file as last written or read

    def write(self, conversation: Conversation) -> bool:
        """Write the conversation. Returns whether under another name, because another process has written the file.

        Raises:
            ChatError: the file cannot be written.
        """
        wanted = self.name
        while self._stamp() not in (None, self._seen):
            stem, _, number = self.name.rpartition("-")
            self.name = f"{stem}-{int(number) + 1}" if stem and number.isdecimal() else f"{self.name}-2"
            self._seen = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._folder, suffix=".part", delete=False, encoding="utf-8"
            ) as part:
                json.dump(_to_json(conversation, self._model_name), part)
                part.flush()
                os.fsync(part.fileno())
            os.replace(part.name, self._path)
        except OSError as error:
            raise ChatError(f"{self._path} cannot be written: {error.strerror}; nothing was changed") from None
        self._seen = self._stamp()
        return self.name != wanted

    def read(self) -> Conversation:
        """The conversation that was saved under the name.

        Raises:
            ChatError: there is none, it is of another model, or the file has another format.
        """
        stamp = self._stamp()
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            conversation = _from_json(told, self._model_name)
        except FileNotFoundError:
            names = ", ".join(saved_names(self._folder)) or "none is"
            raise ChatError(f"no chat is saved as {self.name!r}; saved: {names}") from None
        except OSError as error:
            raise ChatError(f"{self._path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise ChatError(f"{self._path} holds no chat that can be read; nothing was changed") from None
        self._seen = stamp
        return conversation

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.name}.json"

    def _stamp(self) -> tuple[int, int] | None:
        try:
            told = self._path.stat()
        except OSError:
            return None
        return told.st_mtime_ns, told.st_ino


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ChatError(
            "a chat's name is letters, digits, spaces, dots, - and _, at most 100, and begins with none of the last four"
        )
    return name


def _to_json(conversation: Conversation, model_name: str) -> dict[str, Any]:
    turns = conversation.turns()
    numbers = {id(turn): index for index, turn in enumerate(turns)}
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "model": model_name,
        "system_prompt": conversation.system_prompt,
        "num_branches": conversation.num_branches,
        "current": numbers.get(id(conversation.current)),
        "turns": [
            {
                "role": turn.role,
                "text": turn.text,
                "thinking": turn.thinking,
                "parent": numbers.get(id(turn.parent)),
                "history": base64.b64encode(turn.history).decode("ascii"),
                "branch": turn.branch,
            }
            for turn in turns
        ],
    }


def _from_json(told: dict[str, Any], model_name: str) -> Conversation:
    if told["format"] != _FORMAT or told["version"] != _VERSION:
        raise ValueError("not this version's")
    if told["model"] != model_name:
        raise ChatError(
            f"that chat was with the model {told['model']!r}, and this is {model_name!r}; nothing was changed"
        )
    conversation = Conversation(told["system_prompt"])
    turns: list[Turn] = []
    for each in told["turns"]:
        parent = conversation.start if each["parent"] is None else turns[each["parent"]]
        is_reply = each["role"] == "assistant"
        thinking = each.get("thinking", "")  # older files have none
        if each["role"] not in FOLLOWS[parent.role] or not (
            isinstance(each["text"], str) and isinstance(thinking, str)
        ):
            raise ValueError("turns do not alternate")
        history = base64.b64decode(each["history"], validate=True)
        try:
            unpack_tokens(history)
        except InvalidArgumentError as error:
            raise ValueError from error
        turn = Turn(each["role"], each["text"], parent, history, thinking)
        turn.branch = each["branch"] if is_reply and each["branch"] is not None else None
        turns.append(turn)
    conversation.num_branches = int(told["num_branches"])
    numbers = [turn.branch for turn in turns if turn.branch is not None]
    ends = [turn for turn in turns if turn.role == "assistant" and not turn.children]
    in_range = all(1 <= number <= conversation.num_branches for number in numbers)
    if len(set(numbers)) != len(numbers) or not in_range or any(turn.branch is None for turn in ends):
        raise ValueError("branches are not numbered")
    current = told["current"]
    conversation.current = conversation.start if current is None else turns[current]
    if conversation.current.role not in ("start", "assistant"):
        raise ValueError("stands on a message")
    return conversation

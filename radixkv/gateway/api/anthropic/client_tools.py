"""Tools that the Messages API names by a type alone and that the client runs: shell, text editor, memory.

{"type": "bash_20250124", "name": "bash"}    offered to the model as a function with the description and schema given here

A type ends in the date of its version. Computer use is not among them: its results are pictures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["ClientTool", "client_tool"]

_TYPE = re.compile(r"(bash|text_editor|memory)_(\d{8})")

_NO_UNDO = "20250429"
"""The first version of the text editor without `undo_edit`."""

_TEXT, _LINE = {"type": "string"}, {"type": "integer", "minimum": 0}
_LINES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}

_EDITS: dict[str, Mapping[str, Any]] = {
    "path": _TEXT | {"description": "Absolute path of a file or directory."},
    "view_range": _LINES | {"description": "view: first and last line, from 1; -1: to the end."},
    "file_text": _TEXT | {"description": "create: content of the file."},
    "old_str": _TEXT | {"description": "str_replace: text that stands in the file exactly once."},
    "insert_line": _LINE | {"description": "insert: line to insert after; 0: at the beginning."},
}


class ClientTool(NamedTuple):
    """A tool as the prompt describes it."""

    description: str | None
    parameters: dict[str, Any] | None


def client_tool(kind: str | None) -> ClientTool | None:
    """The tool of a type; None where a server runs it, or where the request itself describes it."""
    named = _TYPE.fullmatch(kind or "")
    if named is None:
        return None
    if named[1] == "bash":
        return _BASH
    if named[1] == "memory":
        return _MEMORY
    return _EDITOR if named[2] >= _NO_UNDO else _EDITOR_WITH_UNDO


def _commands(
    description: str, commands: str, required: tuple[str, ...], **properties: Mapping[str, Any]
) -> ClientTool:
    command = {"type": "string", "enum": commands.split()}
    schema = {"type": "object", "properties": {"command": command, **properties}, "required": ["command", *required]}
    return ClientTool(description, schema)


_REPLACED = _TEXT | {"description": "str_replace: text in its place. insert: text of the new lines."}
_EDITOR = _commands(
    "View, create and change text files.", "view create str_replace insert", ("path",), **_EDITS, new_str=_REPLACED
)
_EDITOR_WITH_UNDO = _commands(
    "View, create and change text files; undo the last change of a file.",
    "view create str_replace insert undo_edit",
    ("path",),
    **_EDITS,
    new_str=_REPLACED,
)
_MEMORY = _commands(
    "Keep notes in files under /memories, which outlast this conversation. View the directory before a task.",
    "view create str_replace insert delete rename",
    (),
    **_EDITS,
    new_str=_TEXT | {"description": "str_replace: text in its place."},
    insert_text=_TEXT | {"description": "insert: text of the new lines."},
    old_path=_TEXT | {"description": "rename: path up to now."},
    new_path=_TEXT | {"description": "rename: path from now on."},
)
_BASH = ClientTool(
    "Run commands in a shell that keeps its state between calls.",
    {
        "type": "object",
        "properties": {
            "command": _TEXT | {"description": "The command to run."},
            "restart": {"type": "boolean", "description": "Start the shell anew instead."},
        },
    },
)

"""`radixkv conversations`: exports a gateway's conversations to a file, or imports files."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import DEFAULT_GATEWAY, add_command, say
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.chat.kept import KeptChats

__all__ = ["add"]

PAGE = 200
BATCH_BYTES = 2_000_000

EPILOG = """\
export writes JSON lines, one conversation each, including archived ones: all branches, settings, tags, pins, stars and names.
Conversations in the trash are left out. import reads such files, exports of the chat page, and those of ChatGPT, Claude, Open
WebUI, LibreChat, SillyTavern and OpenAssistant's trees. A conversation imported before gets only its new messages.

examples:
  radixkv conversations export all.jsonl
  radixkv conversations export work.jsonl --tag work --gateway https://chat.example.org --token-file me.key
  radixkv conversations import all.jsonl conversations.json
"""


def add(commands: Any) -> None:
    """Add the command."""
    command = add_command(commands, "conversations", _run, "save the conversations of a gateway, or import some")
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    command.add_argument("action", choices=("export", "import"), help="into a file, or from files")
    command.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="the file to write, which must not exist; or the files to read",
    )
    command.add_argument(
        "--gateway", metavar="URL", default=DEFAULT_GATEWAY, help="which gateway (default %(default)s)"
    )
    command.add_argument("--tag", metavar="TAG", help="export only conversations with this tag")
    add_client_flags(command)


def _run(options: argparse.Namespace) -> int:
    from radixkv.chat.kept import KeptChats

    chats = KeptChats(options.gateway, client_credentials(options))
    if options.action == "export":
        if len(options.files) > 1:
            raise InvalidArgumentError("FILE", str(options.files[1]), "one file to write")
        return _export(chats, options.files[0], options.tag)
    if options.tag is not None:
        raise InvalidArgumentError("--tag", options.tag, "given with export alone")
    return max(_import(chats, path) for path in options.files)


def _export(chats: KeptChats, path: Path, tag: str | None) -> int:
    try:
        file = path.open("x", encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError("FILE", str(path), f"one that can be written: {error.strerror}") from None
    count = 0
    try:
        with file:
            for conversation_id in _ids(chats, tag):
                file.write(json.dumps(chats.call("GET", f"/{conversation_id}/export"), ensure_ascii=False) + "\n")
                count += 1
    except BaseException:
        path.unlink()  # a part of them would look complete
        raise
    say(f"{count:,} conversations: {path}")
    return 0


def _ids(chats: KeptChats, tag: str | None) -> Iterator[str]:
    """Ids of all conversations outside the trash."""
    from urllib.parse import urlencode

    for archived in ("false", "true"):
        query: dict[str, Any] = {"limit": PAGE, "archived": archived} | ({} if tag is None else {"tag": tag})
        while True:
            page = chats.call("GET", f"?{urlencode(query)}")
            yield from [each["id"] for each in page["conversations"]]
            if not page["has_more"]:
                break
            query["before"] = page["conversations"][-1]["updated"]


def _import(chats: KeptChats, path: Path) -> int:
    """Import a file. Returns the exit status: 1 if a conversation of the file was skipped."""
    entries = _read(path)
    num_imported = num_known = 0
    skipped: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for batch in _batches(entries):
        answer = chats.call("POST", "/import", batch)
        num_imported += len(answer["conversations"])
        num_known += len(answer["known"])
        left_out.update(answer["left_out"])
        for each in answer["skipped"]:
            skipped[each["reason"]] += len(each["indices"])
    known = f", {num_known:,} known already" if num_known else ""
    lost = (
        f"; not readable here: {', '.join(f'{kind} ({count:,})' for kind, count in left_out.items())}"
        if left_out
        else ""
    )
    say(f"{path}: {num_imported:,} imported{known}{lost}")
    for reason, count in skipped.items():
        say(f"  {count:,} skipped: {reason}")
    return 1 if skipped else 0


def _read(path: Path) -> list[Any]:
    """The conversations of a file: a list's members, one document, or one of each line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError("FILE", str(path), f"a text that can be read: {error}") from None
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise InvalidArgumentError("FILE", str(path), f"JSON or JSON lines: {error}") from None
    return whole if isinstance(whole, list) else [whole]


def _batches(entries: Sequence[Any]) -> Iterator[list[Any]]:
    """The entries in pieces that a gateway accepts; a larger entry is sent alone, and rejected there."""
    batch: list[Any] = []
    size = 0
    for entry in entries:
        own = len(json.dumps(entry))
        if batch and size + own > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += own
    if batch:
        yield batch

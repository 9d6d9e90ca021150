"""`radixkv key`: a new key, in a file for the client, and its digest, in the keys file of servers."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radixkv.cli.flags import add_command, say
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import SHARING

__all__ = ["add"]

EPILOG = """\
examples:
  radixkv key team-a --keys keys.toml --token-file team-a.key
  radixkv key worker --role holder --all-namespaces --keys keys.toml --token-file worker.key
  radixkv key board --role reader --names team-a --names team-b --keys keys.toml --token-file board.key
"""


def add(commands: Any) -> None:
    """Add the command."""
    key = add_command(commands, "key", _run, "make a key: draw it, write it to a file, and add it to a keys file")
    key.formatter_class, key.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    key.add_argument("name", metavar="NAME", help="tenant of the key, and its namespace")
    key.add_argument("--keys", type=Path, required=True, metavar="FILE", help="the keys file, which grows by a tenant")
    key.add_argument(
        "--token-file", type=Path, required=True, metavar="FILE", help="file for the key; must not exist yet"
    )
    key.add_argument(
        "--role",
        action="append",
        metavar="ROLE",
        help="client, reader, holder or admin; may be given several times (default: client)",
    )
    key.add_argument(
        "--names",
        action="append",
        metavar="NAMESPACE",
        help="a namespace that the tenant may name; may be given several times (default: its own)",
    )
    key.add_argument(
        "--sharing",
        choices=SHARING,
        help="of cached prefixes: in its namespace, within one conversation, or none (default: on); the file may change it",
    )
    key.add_argument("--all-namespaces", action="store_true", help="the tenant may name every namespace")


def _run(options: argparse.Namespace) -> int:
    from radixkv.net.tenants import KeyRing

    if options.names and options.all_namespaces:
        raise InvalidArgumentError("--names", options.names, "left out along with --all-namespaces")
    if options.keys.exists():
        KeyRing(options.keys)  # existing errors are reported for this file, not for its copy
    token = secrets.token_urlsafe(32)
    _write_new(options.token_file, token + "\n")
    try:
        with _next(options.keys.resolve()) as keys:
            with keys.open("a") as file:
                file.write(_row(options, token))
            KeyRing(keys)
    except BaseException:
        options.token_file.unlink()
        raise
    say(f"{options.token_file} holds the key of {options.name}, {options.keys} its digest")
    return 0


def _row(options: argparse.Namespace, token: str) -> str:
    """A tenant of a keys file. JSON's strings and lists of strings are valid TOML."""
    fields: dict[str, Any] = {"name": options.name, "keys": [f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"]}
    if options.role:
        fields["roles"] = options.role
    if options.sharing:
        fields["sharing"] = options.sharing
    if options.names or options.all_namespaces:
        fields["namespaces"] = options.names or ["*"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["", "[[tenant]]", *lines, ""])


def _write_new(path: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        bound = f"a file that is not there yet and can be made: {error.strerror}"
        raise InvalidArgumentError("--token-file", str(path), bound) from None


@contextlib.contextmanager
def _next(path: Path) -> Iterator[Path]:
    """A copy of a file that replaces it atomically, if the context ends without an error.

    Raises:
        InvalidArgumentError: another process has changed the file meanwhile, or it cannot be written.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        before = path.read_bytes() if path.exists() else b""
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(before)
        if path.exists():
            shutil.copystat(path, new)
        yield new
        with new.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists() and path.read_bytes() != before:
            raise InvalidArgumentError("--keys", str(path), "left alone meanwhile: somebody else has changed it")
        new.replace(path)
    except OSError as error:
        raise InvalidArgumentError("--keys", str(path), f"a file that can be written: {error.strerror}") from None
    finally:
        new.unlink(missing_ok=True)

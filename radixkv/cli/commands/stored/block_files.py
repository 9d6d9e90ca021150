"""`radixkv export` and `radixkv import`: the KV of a history in a file, from one worker to another."""

from __future__ import annotations

import argparse
import os
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from radixkv.cli.flags import DEFAULT_GATEWAY, DEFAULT_WORKER_ADDRESS, add_command, say
from radixkv.cli.prompts import PROMPT, add_prompt, encode, read_prompt
from radixkv.cli.security_flags import add_client_flags, client_credentials
from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.tokens import num_tokens, pack_tokens
from radixkv.stores.block_file import exported_tokens

__all__ = ["add"]

EXIT_INCOMPLETE = 1
PIECE_BYTES = 1 << 20

EXPORT = f"""\
The file is a safetensors file with two tensors, tokens and blocks, and holds nothing of the namespace. It is not encrypted:
keep it as secret as the text. Of the prompt it has what the worker has in whole blocks, from the first on.

{PROMPT}

A reply of a gateway is named by its response id, or by conversation and message, as in the address of the chat page. The worker
must be the gateway's, and the key one of a holder there, and of the reply's tenant at the gateway.

examples:
  radixkv export chat.safetensors chat.json
  radixkv export story.safetensors --text "Once upon a time" --namespace team-a --worker 10.0.0.1:50052
  radixkv export reply.safetensors --response resp_68f1
  radixkv export branch.safetensors --branch conv_1/msg_7 --gateway http://10.0.0.1:8000 --worker 10.0.0.1:50052
"""

IMPORT = """\
The worker needs a block store (--disk-cache, --remote) and the same model, adapter, dtype, block size and KV format as the one
that wrote the file. All of the file is checked before anything is stored. A checksum shows damage and no forgery, and replies
depend on what a file holds: import those of authors whom you trust. Exits with 1 if the block store has no room for all of it.

examples:
  radixkv import chat.safetensors
  radixkv import chat.safetensors --namespace team-b --worker 10.0.0.2:50052
"""


def add(commands: Any) -> None:
    """Add the commands."""
    export = add_command(commands, "export", _export, "write what a worker has of a history's KV into a file")
    load = add_command(commands, "import", _import, "put the KV of an exported file into a worker's block store")
    export.add_argument("file", metavar="FILE", type=Path, help="the file to write, which must not exist")
    add_prompt(export)
    export.add_argument("--response", metavar="ID", help="a stored response of a gateway, in place of PROMPT")
    export.add_argument("--branch", metavar="CONVERSATION/MESSAGE", help="a branch of a conversation there")
    export.add_argument("--gateway", metavar="URL", default=DEFAULT_GATEWAY, help="which gateway (default %(default)s)")
    load.add_argument("file", metavar="FILE", type=Path, help="the file to read")
    for command, epilog in ((export, EXPORT), (load, IMPORT)):
        command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, epilog
        command.add_argument("--namespace", metavar="NAME", help="namespace of the KV (default: default)")
        command.add_argument(
            "--worker", metavar="ADDRESS", default=DEFAULT_WORKER_ADDRESS, help="which worker (default %(default)s)"
        )
        add_client_flags(command)


def _export(options: argparse.Namespace) -> int:
    from radixkv.generation.client import GenerationClient

    prompt, namespace = _find(options)
    path = options.file
    with GenerationClient(options.worker, credentials=client_credentials(options)) as worker:
        tokens = pack_tokens(encode(prompt, worker))
        pieces = worker.export(tokens, namespace)
        head = next(pieces)  # before there is a file: the worker may have nothing
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InvalidArgumentError("FILE", str(path), f"one that can be written: {error.strerror}") from None
        try:
            with open(descriptor, "wb") as file:
                file.writelines(chain((head,), pieces))
        except BaseException:
            path.unlink()
            raise
    say(f"{path}: {exported_tokens(head):,} of {num_tokens(tokens):,} tokens, {path.stat().st_size:,} bytes")
    return 0


def _find(options: argparse.Namespace) -> tuple[Any, str]:
    """The prompt and its namespace, as they are given or as a gateway has them."""
    given = {name: getattr(options, name) for name in ("response", "branch") if getattr(options, name) is not None}
    if not given:
        return read_prompt(options), options.namespace or DEFAULT_NAMESPACE
    name = next(iter(given))
    if len(given) > 1 or options.prompt or options.text is not None or options.namespace is not None:
        raise InvalidArgumentError(f"--{name}", given[name], "given without another prompt and --namespace")
    if name == "branch":
        conversation, _, message = options.branch.partition("/")
        given = {"branch": {"conversation": conversation, "message": message}}
    from radixkv.chat.kept import KeptChats

    told = KeptChats(options.gateway, client_credentials(options)).call("POST", "", given, below="/tokens")
    return told["token_ids"], told["cache_namespace"]


def _import(options: argparse.Namespace) -> int:
    from radixkv.generation.client import GenerationClient

    try:
        file = options.file.open("rb")
    except OSError as error:
        raise InvalidArgumentError("FILE", str(options.file), f"one that can be read: {error.strerror}") from None
    with file, GenerationClient(options.worker, credentials=client_credentials(options)) as worker:
        imported = worker.import_(iter(partial(file.read, PIECE_BYTES), b""), options.namespace or DEFAULT_NAMESPACE)
    say(f"{options.file}: {imported.num_stored_tokens:,} of {imported.num_tokens:,} tokens are stored")
    return 0 if imported.num_stored_tokens == imported.num_tokens else EXIT_INCOMPLETE

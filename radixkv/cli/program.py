"""The program: its commands, and a one-line message when one fails."""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from radixkv.cli.commands import (
    batch,
    chat,
    check,
    cluster,
    conversations,
    explain,
    gateway,
    key,
    quota,
    serve,
    stats,
    top,
    tree,
    up,
    worker,
)
from radixkv.cli.commands.sizing import plan, replay
from radixkv.cli.commands.stored import block_files, store
from radixkv.cli.other_names import hint
from radixkv.core.errors import RadixKVError
from radixkv.net.signals import EXIT_INTERRUPTED

__all__ = ["main", "run"]

EXIT_ERROR = 1
EXIT_BROKEN_PIPE = 141
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

COMMANDS = (
    up,
    serve,
    worker,
    gateway,
    cluster,
    chat,
    conversations,
    batch,
    top,
    stats,
    tree,
    explain,
    quota,
    store,
    block_files,
    check,
    key,
    plan,
    replay,
)
"""In the order of the help."""

EXTRAS = {
    **dict.fromkeys(
        ("fastapi", "uvicorn", "prometheus_client", "pydantic", "python_multipart", "starlette"), "gateway"
    ),
    **dict.fromkeys(("zmq", "msgspec"), "events"),
    "matplotlib": "plot",
    "ray": "ray",
}
"""Extra that installs a missing package; for any other package, the worker's."""

EPILOG = """\
examples:
  radixkv up                                     service, worker and a chat, in one process
  radixkv up --model Qwen/Qwen2.5-0.5B-Instruct  the same with another model (a Hugging Face id or a folder)
  radixkv serve --listen unix:/run/radixkv.sock  the cache service alone; it needs no torch
  radixkv worker --service 127.0.0.1:50051       a decode worker for that service
  radixkv chat --worker 127.0.0.1:50052          chat with a worker that runs elsewhere
  radixkv gateway --worker 127.0.0.1:50052       the OpenAI and Anthropic APIs over HTTP for it
  radixkv batch in.jsonl out.jsonl               the requests of a file, answered into another one, with a progress bar
  radixkv conversations export all.jsonl         what the chat page of a gateway keeps, into a file
  radixkv top --worker 127.0.0.1:50052           load, rates, latencies and the pool of a worker, live
  radixkv tree --worker 127.0.0.1:50052          what the cache holds, drawn as the tree that it is
  radixkv explain --text "Once upon a time"      why a prompt is cached or is not, and since when
  radixkv quota tenant --blocks 25%              a quarter of the pool for one namespace, whatever the others do
  radixkv erase team-a                           all that is cached and stored of a namespace, keys first
  radixkv export chat.safetensors chat.json      what is cached of a chat, for another worker of that model
  radixkv import chat.safetensors                the same, into a worker's block store
  radixkv key team-a --keys keys.toml --token-file team-a.key
                                                 a new key, and its digest in the file that servers take with --keys
  radixkv plan llama-3-8b --memory 24GiB         where the memory would go, and how many sequences fit
  radixkv replay trace.jsonl --capacity 1%,5%    hit rates of a cache of that size on a recorded load

exit status: 0 when done, also of a server that was stopped by SIGTERM or Ctrl-C; 1 after an error, printed in one line;
2 for wrong arguments; 130 for Ctrl-C before a server serves, or in any other command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status. Errors that radixkv raises on purpose are one line on standard error."""
    options = _parse(arguments)
    try:
        status: int = options.run(options)
    except RadixKVError as error:
        print(f"radixkv: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("radixkv"):
            raise
        extra = EXTRAS.get((error.name or "").partition(".")[0], "worker")
        print(
            f"radixkv: {error.name} is not installed, which this command needs: pip install 'radixkv[{extra}]'",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _end_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"radixkv: what is written finds no room: {error.strerror}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # it was the output
            _end_output()
        return EXIT_ERROR
    return status


def _end_output() -> None:
    """Discard the rest of standard output, which could not be written at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run() -> NoReturn:
    """The program: `main`, and the end of the process.

    Triton's bindings print a long list of their own leaks while an interpreter ends, so with them it ends before.
    """
    status = main()
    if "triton" in sys.modules:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(
        prog="radixkv",
        description="A radix tree of token prefixes over KV blocks, and a decode worker that makes branching nearly free.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"radixkv {version('radixkv')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for command in COMMANDS:
        command.add(commands)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:  # argparse would print the usage of the whole program
        parsing = commands.choices[options.command]
        known = parsing._option_string_actions  # argparse has no other list of them
        told = hint(unknown, known) or f"radixkv {options.command} --help lists them"
        parsing.error(f"{' '.join(unknown)}: no such argument; {told}")
    return options

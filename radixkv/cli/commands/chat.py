"""`radixkv chat`: a branching chat in the terminal."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import add_command, say
from radixkv.cli.model_flags import add_model_flags, describe, worker_config
from radixkv.cli.security_flags import add_client_flags, client_credentials

if TYPE_CHECKING:
    from radixkv.chat.terminal import ChatOptions
    from radixkv.client import Credentials
    from radixkv.generation.params import SamplingDefaults
    from radixkv.generation.request import Generator

__all__ = ["add", "add_chat_flags", "run_chat"]


def add(commands: Any) -> None:
    """Add the command."""
    chat = add_command(commands, "chat", _run, "chat in this terminal, with a model in this process or with a worker")
    chat.add_argument("--worker", metavar="ADDRESS", help="a running worker; without it the model is loaded here")
    chat.add_argument(
        "--gateway",
        metavar="URL",
        help="a gateway, such as http://127.0.0.1:8000 of radixkv up, whose kept conversations /resume lists too",
    )
    add_client_flags(chat)
    add_model_flags(chat)
    add_chat_flags(chat)
    chat.add_argument("--system", metavar="TEXT", help="system prompt (default: that of the model's template)")


def add_chat_flags(command: argparse.ArgumentParser) -> None:
    """Flags of the replies in the terminal's chat."""
    flags = command.add_argument_group("chat")
    flags.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="longest reply in tokens (default %(default)s)"
    )
    flags.add_argument("--seed", type=int, metavar="N", help="makes sampling repeatable")


def _run(options: argparse.Namespace) -> int:
    if options.worker:
        from radixkv.generation.client import GenerationClient

        with GenerationClient(options.worker, credentials=client_credentials(options)) as client:
            run_chat(client, options, options.gateway, client_credentials(options))
        return 0
    config = worker_config(options, None, None)
    from radixkv.worker.run import Worker

    with Worker(config) as worker:
        say(describe(worker))
        run_chat(worker.engine, options, options.gateway, client_credentials(options))
    return 0


def run_chat(
    generator: Generator,
    options: argparse.Namespace,
    gateway: str | None = None,
    credentials: Credentials | None = None,
) -> None:
    """Chat until the user leaves. `gateway`: URL of one whose kept conversations can be resumed; `credentials`: for it."""
    from radixkv.chat import terminal
    from radixkv.chat.kept import KeptChats

    kept = None if gateway is None else KeptChats(gateway, credentials)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terminal.run_chat(generator, _chat_options(options, generator.model().sampling), kept)


def _chat_options(options: argparse.Namespace, defaults: SamplingDefaults) -> ChatOptions:
    from radixkv.chat.terminal import ChatOptions
    from radixkv.generation.params import SamplingParams

    drawing = defaults.fill(options.temperature, None, options.top_p, None)
    sampling = SamplingParams(**drawing, max_tokens=options.max_tokens, seed=options.seed)
    return ChatOptions(sampling, options.system)

"""The command line: `radixkv up`, `serve`, `worker`, `chat`, `stats`. Flags are parsed here and nowhere else."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from radixkv.core.errors import RadixKVError

if TYPE_CHECKING:
    from radixkv.chat.terminal import ChatOptions
    from radixkv.worker.request import Generator
    from radixkv.worker.run import Worker, WorkerConfig

__all__ = ["main"]

DEFAULT_SERVICE_ADDRESS = "127.0.0.1:50051"
DEFAULT_WORKER_ADDRESS = "127.0.0.1:50052"
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EPILOG = """\
examples:
  radixkv up                                     service, worker and a chat, in one process
  radixkv up --model Qwen/Qwen2.5-0.5B-Instruct  the same with another model (a Hugging Face id or a folder)
  radixkv serve --listen unix:/run/radixkv.sock  the cache service alone; it needs no torch
  radixkv worker --service 127.0.0.1:50051       a decode worker for that service
  radixkv chat --worker 127.0.0.1:50052          chat with a worker that runs elsewhere
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Errors that radixkv raises on purpose are one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except RadixKVError as error:
        print(f"radixkv: {error}", file=sys.stderr)
        return EXIT_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("radixkv"):
            raise
        print(
            f"radixkv: {error.name} is not installed, which this command needs: pip install 'radixkv[worker]'",
            file=sys.stderr,
        )
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output has had enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


# -- commands ---------------------------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    from radixkv.service import ServiceConfig, run_service

    config = ServiceConfig(
        addresses=tuple(options.listen or [DEFAULT_SERVICE_ADDRESS]),
        lease_ttl_s=options.lease_ttl,
        max_message_bytes=int(options.max_message_mib * 2**20),
    )

    def on_ready(addresses: tuple[str, ...]) -> None:
        _say(f"radixkv cache service on {' and '.join(addresses)}; Ctrl-C stops it")

    run_service(config, on_ready)
    return 0


def _worker(options: argparse.Namespace) -> int:
    config = _worker_config(options, options.service, options.listen)
    from radixkv.worker.run import run_worker

    def on_ready(worker: Worker) -> None:
        _say(f"{_serving(worker, options.service)}\nCtrl-C stops it.")

    run_worker(config, on_ready)
    return 0


def _up(options: argparse.Namespace) -> int:
    from radixkv.service import ServiceConfig, ServiceThread

    with ServiceThread(ServiceConfig(addresses=(options.service_listen,))) as service:
        config = _worker_config(options, service.addresses[0], options.listen)
        from radixkv.worker.run import Worker, run_worker

        if options.no_chat or not sys.stdin.isatty():

            def on_ready(worker: Worker) -> None:
                _say(_serving(worker, service.addresses[0]))
                _say(f"Chat from another terminal: radixkv chat --worker {worker.address}\nCtrl-C stops it.")

            run_worker(config, on_ready)
        else:
            with Worker(config) as worker:
                _say(_serving(worker, service.addresses[0]))
                _run_chat(worker.engine, options)
    return 0


def _chat(options: argparse.Namespace) -> int:
    if options.worker:
        from radixkv.worker.generation_client import GenerationClient

        with GenerationClient(options.worker) as client:
            _run_chat(client, options)
        return 0
    config = _worker_config(options, None, None)
    from radixkv.worker.run import Worker

    with Worker(config) as worker:
        _say(_described(worker))
        _run_chat(worker.engine, options)
    return 0


def _stats(options: argparse.Namespace) -> int:
    from radixkv.client import connect

    with connect(options.service) as reader:
        pools = reader.stats_all()
    for name, stats in pools.items():
        _say(f"pool {name}")
        for field, value in stats._asdict().items():
            _say(f"  {field:<24} {value:>14,}")
    if not pools:
        _say("no pool is attached; start a worker with: radixkv worker --service " + options.service)
    return 0


# -- pieces of commands -----------------------------------------------------------------------------------------------


def _worker_config(options: argparse.Namespace, service: str | None, listen: str | None) -> WorkerConfig:
    from radixkv.worker.threads import configure_threads

    configure_threads()  # before anything imports torch
    from radixkv.worker.run import WorkerConfig

    return WorkerConfig(
        model=options.model,
        service=service,
        listen=listen,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        dtype=options.dtype,
        device=options.device,
        pool_name=options.pool,
    )


def _described(worker: Worker) -> str:
    model, pool = worker.engine.model(), worker.runner.pool
    return (
        f"{model.name} on {worker.runner.device} in {worker.runner.dtype}: {model.max_length:,} tokens of context, "
        f"{pool.num_blocks:,} blocks of {pool.block_size} tokens"
    )


def _serving(worker: Worker, service_address: str) -> str:
    return f"{_described(worker)}\n  generation     {worker.address}\n  cache service  {service_address}"


def _run_chat(generator: Generator, options: argparse.Namespace) -> None:
    from radixkv.chat.terminal import run_chat

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_chat(generator, _chat_options(options))


def _chat_options(options: argparse.Namespace) -> ChatOptions:
    from radixkv.chat.terminal import ChatOptions
    from radixkv.worker.sampling import SamplingParams

    sampling = SamplingParams(
        temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens, seed=options.seed
    )
    return ChatOptions(sampling, options.system)


def _say(text: str) -> None:
    print(text, flush=True)


# -- flags ------------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    from importlib.metadata import version

    parser = argparse.ArgumentParser(
        prog="radixkv",
        description="A radix tree of token prefixes over KV blocks, and a decode worker that makes branching nearly free.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"radixkv {version('radixkv')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    for add in (_add_up, _add_serve, _add_worker, _add_chat, _add_stats):
        add(commands)
    return parser


def _add_up(commands: Any) -> None:
    up = _command(commands, "up", _up, "start service, worker and a chat in this process")
    _add_model_flags(up)
    _add_chat_flags(up)
    up.add_argument(
        "--listen",
        metavar="ADDRESS",
        default=DEFAULT_WORKER_ADDRESS,
        help="where generation is served (default %(default)s)",
    )
    up.add_argument(
        "--service-listen",
        metavar="ADDRESS",
        default=DEFAULT_SERVICE_ADDRESS,
        help="where the cache service listens: host:port or unix:path (default %(default)s)",
    )
    up.add_argument("--no-chat", action="store_true", help="serve only, also where there is a terminal")


def _add_serve(commands: Any) -> None:
    serve = _command(commands, "serve", _serve, "start the cache service alone (needs no torch)")
    serve.add_argument(
        "--listen",
        metavar="ADDRESS",
        action="append",
        help=f"host:port or unix:path; may be given several times (default {DEFAULT_SERVICE_ADDRESS})",
    )
    serve.add_argument(
        "--lease-ttl",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a worker that is silent for this long loses its pool (default %(default)s)",
    )
    serve.add_argument(
        "--max-message-mib", type=float, default=16.0, metavar="MIB", help="largest message read (default %(default)s)"
    )


def _add_worker(commands: Any) -> None:
    worker = _command(commands, "worker", _worker, "start a decode worker for a cache service")
    _add_service_flag(worker)
    worker.add_argument(
        "--listen", metavar="ADDRESS", default=DEFAULT_WORKER_ADDRESS, help="where it serves (default %(default)s)"
    )
    _add_model_flags(worker)


def _add_chat(commands: Any) -> None:
    chat = _command(commands, "chat", _chat, "chat in this terminal, with a model in this process or with a worker")
    chat.add_argument("--worker", metavar="ADDRESS", help="a running worker; without it the model is loaded here")
    _add_model_flags(chat)
    _add_chat_flags(chat)


def _add_stats(commands: Any) -> None:
    stats = _command(commands, "stats", _stats, "print what the pools of a service hold and have saved")
    _add_service_flag(stats)


def _command(commands: Any, name: str, run: Any, help_text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help_text, description=help_text[0].upper() + help_text[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def _add_service_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--service", metavar="ADDRESS", default=DEFAULT_SERVICE_ADDRESS, help="the cache service (default %(default)s)"
    )


def _add_model_flags(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group("model and pool")
    flags.add_argument(
        "--model",
        default="default",
        metavar="NAME",
        help="a Hugging Face id or a folder; default: SmolLM2-135M-Instruct, fetched on first use (93 MB)",
    )
    flags.add_argument(
        "--num-blocks", type=int, default=2048, metavar="N", help="KV blocks in the pool (default %(default)s)"
    )
    flags.add_argument(
        "--block-size", type=int, default=16, metavar="TOKENS", help="tokens per block (default %(default)s)"
    )
    flags.add_argument(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16", "float16"],
        help="of weights and KV; auto takes what is fast here (default %(default)s)",
    )
    flags.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="default %(default)s")
    flags.add_argument(
        "--pool", default="default", metavar="NAME", help="the pool's name at the service (default %(default)s)"
    )


def _add_chat_flags(command: argparse.ArgumentParser) -> None:
    flags = command.add_argument_group("chat")
    flags.add_argument("--system", metavar="TEXT", help="system prompt (default: what the model's template brings)")
    flags.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0 is greedy (default %(default)s)")
    flags.add_argument("--top-p", type=float, default=0.95, metavar="P", help="nucleus (default %(default)s)")
    flags.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="longest reply in tokens (default %(default)s)"
    )
    flags.add_argument("--seed", type=int, metavar="N", help="makes sampling repeatable")


if __name__ == "__main__":
    sys.exit(main())

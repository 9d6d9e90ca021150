"""`radixkv up`: service, worker and a chat in this process."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from radixkv.cli.commands.chat import add_chat_flags, run_chat
from radixkv.cli.commands.gateway import DEFAULT_HTTP_ADDRESS, Front, add_gateway_flags
from radixkv.cli.commands.worker import describe_addresses
from radixkv.cli.flags import (
    DEFAULT_SERVICE_ADDRESS,
    DEFAULT_WORKER_ADDRESS,
    add_cache_flags,
    add_command,
    cache_settings,
    say,
)
from radixkv.cli.kv_event_flags import add_kv_event_flags, describe_kv_events, kv_event_settings
from radixkv.cli.model_flags import add_model_flags, worker_config
from radixkv.cli.security_flags import add_client_flags, add_server_flags, client_credentials, security_of
from radixkv.util.heaps import collector_at_rest, keep_heaps_small, set_heap_aside

if TYPE_CHECKING:
    from radixkv.client import Credentials
    from radixkv.worker.run import Worker, WorkerConfig

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command."""
    up = add_command(commands, "up", _run, "start service, worker and a chat in this process")
    add_model_flags(up, has_disk=True)
    add_chat_flags(up)
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
    up.add_argument(
        "--http",
        metavar="ADDRESS",
        default=DEFAULT_HTTP_ADDRESS,
        help="where the OpenAI and Anthropic APIs are served (default %(default)s)",
    )
    add_cache_flags(up)
    add_server_flags(up)
    add_client_flags(up)
    up.add_argument("--no-http", dest="http", action="store_const", const=None, help="serve no HTTP")
    add_gateway_flags(up)
    add_kv_event_flags(up)
    up.add_argument("--no-chat", action="store_true", help="serve only, even with a terminal")


def _run(options: argparse.Namespace) -> int:
    from radixkv.client import Credentials
    from radixkv.service import ServiceConfig, ServiceThread

    keep_heaps_small()
    terminal = client_credentials(options)
    own_key = secrets.token_urlsafe()
    credentials = Credentials(token=own_key) if options.keys is not None else None
    security = security_of(options)
    with ExitStack() as stack:
        stack.enter_context(collector_at_rest())
        settings = ServiceConfig(
            addresses=(options.service_listen, *_way_in(options, stack)),
            security=replace(security, own_key=own_key),
            **cache_settings(options),
            **kv_event_settings(options),
        )
        service = stack.enter_context(ServiceThread(settings))
        front = Front(options, service.addresses[-1], credentials, is_optional=True)
        config = worker_config(options, service.addresses[-1], options.listen, options.drain)
        front.import_code()
        _serve(
            replace(config, security=security, credentials=credentials), front, service.addresses[0], options, terminal
        )
    return 0


def _way_in(options: argparse.Namespace, stack: ExitStack) -> tuple[str, ...]:
    """Address for this process to a service with keys or TLS: a socket that no other user may open."""
    if options.keys is None and options.tls_cert is None:
        return ()
    folder = stack.enter_context(TemporaryDirectory(prefix="radixkv-"))
    return (f"unix:{folder}/service",)


def _serve(
    config: WorkerConfig,
    front: Front,
    service_address: str,
    options: argparse.Namespace,
    terminal: Credentials | None,
) -> None:
    """Serve until the user leaves the chat or, without a chat, until a signal. `terminal`: the chat's credentials."""
    from radixkv.worker.run import Worker, run_worker

    def describe(worker: Worker) -> str:
        return describe_addresses(worker, service_address) + describe_kv_events(options) + front.line

    if options.no_chat or not sys.stdin.isatty():

        def on_ready(worker: Worker) -> None:
            say(describe(worker))
            say(f"Chat from another terminal: radixkv chat --worker {worker.address}\nCtrl-C stops it.")

        run_worker(config, on_ready, front.beside)
    else:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        with Worker(config) as worker, front.beside(worker):
            set_heap_aside()
            say(describe(worker))
            run_chat(worker.engine, options, front.page_url, terminal)

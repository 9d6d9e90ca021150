"""`radixkv gateway`: the OpenAI and Anthropic APIs in front of a worker; and the same for a worker of this process."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixkv.cli.flags import DEFAULT_WORKER_ADDRESS, add_command, say, say_stage
from radixkv.cli.security_flags import (
    add_client_flags,
    add_server_flags,
    client_credentials,
    limits_of,
    security_of,
    server_tls,
)
from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.net.signals import StopSignals, exit_at_interrupt
from radixkv.util.folders import state_folder
from radixkv.util.heaps import keep_heaps_small, set_heap_aside

if TYPE_CHECKING:
    from radixkv.client import Credentials
    from radixkv.gateway.backend.routed import RoutedGenerator
    from radixkv.gateway.config import GatewayConfig
    from radixkv.gateway.server import GatewayServer
    from radixkv.generation.client import GenerationClient
    from radixkv.generation.request import Generator, ModelInfo
    from radixkv.net.limits import Limiter
    from radixkv.worker.run import Worker

__all__ = ["DEFAULT_HTTP_ADDRESS", "Front", "add", "add_gateway_flags", "gateway_config", "make_gateway"]

DEFAULT_HTTP_ADDRESS = "127.0.0.1:8000"
_PACKAGES = ("fastapi", "uvicorn", "pydantic", "prometheus_client", "python_multipart")
"""Required packages of a gateway, checked before a model is loaded."""

_LOOK_S = 0.5
"""Between two looks for the first worker, in seconds."""


def add(commands: Any) -> None:
    """Add the command."""
    gateway = add_command(
        commands, "gateway", _run, "serve the OpenAI and Anthropic APIs over HTTP, in front of a worker"
    )
    gateway.add_argument(
        "--worker",
        metavar="ADDRESS",
        help=f"a running worker (without --service, default {DEFAULT_WORKER_ADDRESS})",
    )
    gateway.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="with --worker, its cache service; without, one whose workers are all served: each request goes to the one that "
        "holds most of its prompt and is least busy. May be given several times; the name of a host stands for all its "
        "addresses. Pins, quotas, clears and the tree page reach all their pools. Without a worker yet, it waits for one",
    )
    gateway.add_argument(
        "--pool",
        default="default",
        metavar="NAME",
        help="with --worker, its pool at that service (default %(default)s)",
    )
    gateway.add_argument(
        "--listen",
        dest="http",
        metavar="ADDRESS",
        default=DEFAULT_HTTP_ADDRESS,
        help="host:port (default %(default)s)",
    )
    add_server_flags(gateway, asks_certificates=False)
    add_client_flags(gateway)
    gateway.add_argument(
        "--worker-wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long a request waits for a worker that cannot be reached or is stopping; running streams continue when it "
        "is back (default %(default)s)",
    )
    add_gateway_flags(gateway)


def add_gateway_flags(command: argparse.ArgumentParser) -> None:
    """Flags of access, limits, stored state, and shutdown."""
    flags = command.add_argument_group("HTTP")
    flags.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="without --keys, also answer requests with this host name; may be given several times",
    )
    flags.add_argument("--model-name", metavar="NAME", help="name of the model in the APIs (default: the worker's)")
    flags.add_argument(
        "--state",
        metavar="FILE|URL",
        help="SQLite file of stored responses, conversations and the token ids of replies, postgresql://user@host/database "
        "for any number of gateways, or none: they end with the process "
        "(default: a file of yours, in RADIXKV_STATE or your platform's state folder)",
    )
    flags.add_argument(
        "--shared",
        metavar="URL",
        help="redis://host:port of the Valkey or Redis server of all gateways: tenants' limits hold over all of them "
        "(default: each gateway grants its share)",
    )
    flags.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow calls of pages of this origin, * for any; may be given several times",
    )
    flags.add_argument("--requests-per-minute", type=int, metavar="N", help="per tenant (default: no limit)")
    flags.add_argument("--tokens-per-minute", type=int, metavar="N", help="per tenant (default: no limit)")
    flags.add_argument(
        "--max-concurrent", type=int, metavar="N", help="requests at once per tenant (default: no limit)"
    )
    flags.add_argument(
        "--max-body-mib", type=float, default=4.0, metavar="MIB", help="largest request (default %(default)s)"
    )
    flags.add_argument(
        "--system",
        metavar="TEXT",
        help="system prompt of conversations on the page without one, and of the chat in the terminal "
        "(default: that of the model's template)",
    )
    flags.add_argument(
        "--reply-tokens",
        type=int,
        default=4096,
        metavar="N",
        help="longest reply to a chat without a length (default %(default)s)",
    )
    flags.add_argument(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long generations, responses in the background and replies of conversations may go on after SIGTERM or "
        "Ctrl-C; new requests are rejected meanwhile, a second signal ends the process at once (default %(default)s)",
    )
    flags.add_argument("--log-requests", action="store_true", help="one line per request on standard error")


def make_gateway(
    generator: Generator,
    options: argparse.Namespace,
    service: str | None,
    credentials: Credentials | None,
    limiter: Limiter | None = None,
) -> tuple[GatewayServer, str]:
    """The gateway of the flags, to be entered; and a notice if it cannot keep state that it should keep.

    Args:
        service: address of the cache service, if known. credentials: for it.
        limiter: of the worker of this process; None: a new one.

    Raises:
        InvalidArgumentError: a flag is out of bounds, or the keys file cannot be read.
    """
    from radixkv.gateway.server import GatewayServer

    if options.log_requests:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log = logging.getLogger("radixkv.gateway")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    state_file, notice = _state_file(options.state)
    return GatewayServer(generator, gateway_config(options, state_file, service, credentials), limiter), notice


class Front:
    """The gateway of the flags, next to a worker of this process; none if the flags name no address.

    Args:
        options: the flags.
        service: address of the worker's cache service. credentials: for it.
        is_optional: without the required packages, continue with a notice.

    Raises:
        UnavailableError: its address is in use; raised before the long work of loading a model.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        service: str,
        credentials: Credentials | None,
        *,
        is_optional: bool = False,
    ) -> None:
        self._options = options
        self._credentials = credentials
        self._service = service
        self._server: GatewayServer | None = None
        self._notice = ""
        self._importing: threading.Thread | None = None
        self._is_served = bool(options.http)
        if self._is_served and is_optional and find_spec("fastapi") is None:
            say("No OpenAI API over HTTP: that needs pip install 'radixkv[gateway]'.")
            self._is_served = False
        if self._is_served:
            for package in _PACKAGES:
                if find_spec(package) is None:
                    raise ModuleNotFoundError(name=package)
            from radixkv.net.addresses import parse_address

            address = parse_address(options.http)
            replace(security_of(options), tls=server_tls(options)).check_address(address)
            address.require_free()

    def import_code(self) -> None:
        """Start importing its code, on a thread in parallel with loading a model."""
        if self._is_served:
            self._importing = threading.Thread(target=import_module, args=("radixkv.gateway.server",))
            self._importing.start()

    @contextmanager
    def beside(self, worker: Worker) -> Iterator[None]:
        """Serve while the context is open."""
        if not self._is_served:
            yield
            return
        say_stage("gateway")
        if self._importing is not None:
            self._importing.join()
        asked = (self._options, self._service, self._credentials, worker.limiter)
        server, self._notice = make_gateway(worker.engine, *asked)
        with server:
            self._server = server
            yield

    @property
    def page_url(self) -> str | None:
        """URL of the page; None without one."""
        return self._server.page_url if self._server is not None else None

    @property
    def line(self) -> str:
        """Its addresses, to print below the worker's."""
        if self._server is None:
            return ""
        url, page = self._server.url, self._server.page_url
        return f"\n  OpenAI API     {url}\n  chat page      {page}\n  tree page      {page}tree{self._notice}"


def _state_file(chosen: str | None) -> tuple[Path | str | None, str]:
    """The chosen file or URL, or the user's own; None and a notice if that cannot be used.

    Raises:
        InvalidArgumentError: the URL of another kind of database.
    """
    if chosen is not None:
        if chosen.startswith(("postgresql://", "postgres://")):
            return chosen, ""
        if "://" in chosen:  # no folder of that name: it may hold a password
            raise InvalidArgumentError("--state", f"{chosen.partition('://')[0]}://…", "a file or postgresql://…")
        return (None if chosen == "none" else Path(chosen)), ""
    from radixkv.gateway.storage.database import is_in_use

    folder = state_folder()
    path = folder / "gateway.sqlite"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_in_use(path):
            return path, ""
        reason = "is held by another gateway"
        others = (folder / f"gateway-{number}.sqlite" for number in itertools.count(2))
        other = str(next(each for each in others if not is_in_use(each)))
    except OSError as error:
        reason, other = f"cannot be used, {error.strerror}", "FILE"
    return None, f"\nResponses and conversations are not kept: {path} {reason}. To keep them: --state {other}"


def gateway_config(
    options: argparse.Namespace, state_file: Path | str | None, service: str | None, credentials: Credentials | None
) -> GatewayConfig:
    """The gateway's settings from the flags."""
    from radixkv.gateway.config import GatewayConfig

    return GatewayConfig(
        listen=options.http,
        keys_file=options.keys,
        allow_anonymous=options.allow_anonymous,
        tls=server_tls(options),
        allow_plaintext=options.allow_plaintext,
        allow_hosts=tuple(options.allow_host),
        model_name=options.model_name,
        max_tokens=options.reply_tokens,
        system_prompt=options.system,
        limits=limits_of(options),
        max_body_bytes=int(options.max_body_mib * 2**20),
        cors_origins=tuple(options.cors),
        drain_s=options.drain,
        worker_wait_s=getattr(options, "worker_wait", 0.0),  # none for a worker of this process
        log_requests=options.log_requests,
        state_file=state_file,
        shared_url=options.shared,
        service=service,
        service_credentials=credentials,
        pool_name=options.pool,
    )


def _first_model(generator: GenerationClient | RoutedGenerator, of: str) -> ModelInfo:
    """The model of the worker, once there is one: they come and go while the gateway serves, too.

    Raises:
        RadixKVError: the worker cannot be asked.
    """
    is_said = False
    while True:
        try:
            return generator.model()
        except UnavailableError as error:
            if not is_said:
                say(f"Waiting for {of}: {error}")
            is_said = True
        time.sleep(_LOOK_S)


@exit_at_interrupt()
def _run(options: argparse.Namespace) -> int:
    from radixkv.gateway.backend.routed import RoutedGenerator
    from radixkv.generation.client import GenerationClient

    keep_heaps_small()
    credentials = client_credentials(options)
    services, worker = options.service, options.worker
    if worker is not None and len(services) > 1:
        raise InvalidArgumentError("--service", services, "one with --worker, or several without it")
    generator: GenerationClient | RoutedGenerator
    if services and worker is None:
        generator, of = RoutedGenerator(services, credentials=credentials), f"the workers of {', '.join(services)}"
    else:
        worker = worker or DEFAULT_WORKER_ADDRESS
        generator, of = GenerationClient(worker, retries=False, credentials=credentials), f"the worker at {worker}"
    with StopSignals() as signals, generator:
        model = _first_model(generator, of)  # before listening: without a worker there is nothing to serve
        server, notice = make_gateway(generator, options, services[0] if services else None, credentials)
        with server:
            set_heap_aside()
            signals.listen()
            say(f"OpenAI API on {server.url} for {model.name} of {of}; Ctrl-C stops it")
            say(f"Chat page on {server.page_url}{notice}")
            signals.wait()
    return 0

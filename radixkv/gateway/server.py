"""The gateway as a server: uvicorn on its own thread, with a graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.gateway.app import create_app
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.http.connections import Connection, Connections
from radixkv.gateway.http.listener import Listener, allow_open_files
from radixkv.generation.request import Generator
from radixkv.net.addresses import Address
from radixkv.net.limits import Limiter
from radixkv.net.tls import ServerTls, TlsWatch

__all__ = ["GatewayServer"]

_START_S = 60.0
_GRACE_S = 2.0
"""For the remaining requests after every stream was ended."""

_TICKS_PER_LOOK = 10
"""uvicorn ticks ten times a second."""

_LOG = logging.getLogger(__name__)
_SILENT = logging.Logger(__name__, level=logging.CRITICAL + 1)


class GatewayServer:
    """Serves the API while entered as a context manager. Leaving it drains: new requests are rejected with 503; streams,
    background responses and replies of conversations continue for up to `config.drain_s` and are then ended with an error.

        with GatewayServer(engine, GatewayConfig(listen="127.0.0.1:0")) as server:
            print(server.url)

    Attributes:
        address: ``host:port``, with the actual port for port 0.
        app: the application.

    Raises on entering:
        InvalidArgumentError: an address that cannot be parsed, or is not safe to listen on.
        UnavailableError: the address is in use, or this process may not listen there.
        DatabaseError: the state file cannot be opened.
    """

    def __init__(
        self, generator: Generator, config: GatewayConfig | None = None, limiter: Limiter | None = None
    ) -> None:
        self.config = config or GatewayConfig()
        self.app: FastAPI = create_app(generator, self.config, limiter)
        self.address = self.config.listen
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: _Server | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Base URL of the API: ``http://host:port/v1``."""
        return f"{self._scheme}://{self.address}/v1"

    @property
    def page_url(self) -> str:
        """The chat page: ``http://host:port/``."""
        return f"{self._scheme}://{self.address}/"

    @property
    def _scheme(self) -> str:
        return "http" if self.config.tls is None else "https"

    @property
    def is_alive(self) -> bool:
        """Whether it serves."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> GatewayServer:
        tls = self.config.tls
        if tls is not None:
            tls.check()
        allow_open_files()
        sock = _listen(self.config)
        host, port = sock.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        started = threading.Event()
        uvicorn_config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            ssl_certfile=tls.certificate_file if tls is not None else None,
            ssl_keyfile=tls.key_file if tls is not None else None,
            http=partial(Connection, connections=self.app.state.connections),  # type: ignore[arg-type]  # makes a protocol
            timeout_graceful_shutdown=int(_GRACE_S),
        )
        self._server = _Server(uvicorn_config, started, tls, self.app.state.connections)
        self._thread = threading.Thread(target=self._run, args=(sock, started), name="radixkv-gateway", daemon=True)
        self._thread.start()
        if not started.wait(_START_S) or self._failure is not None:
            self._thread.join(_GRACE_S)
            if self.app.state.failure is not None:
                raise self.app.state.failure
            why = f"it was not ready within {_START_S:.0f} s" if self._failure is None else repr(self._failure)
            raise UnavailableError(f"the gateway did not start: {why}")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(self) -> None:
        """Reject new requests; running ones continue, except event streams. From any thread; may be repeated."""
        self.app.state.gate.is_draining = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end_what_waits)

    def close(self) -> None:
        """Drain, end the remaining requests, stop. May be repeated."""
        self.drain()
        if self._thread is None or self._loop is None:
            return
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join()

    def _end_what_waits(self) -> None:
        self.app.state.connections.drain()
        conversations = getattr(self.app.state, "conversations", None)
        if conversations is not None:
            conversations.end_followers()

    async def _stop(self) -> None:
        assert self._server is not None
        state, loop = self.app.state, asyncio.get_running_loop()
        until_s = loop.time() + self.config.drain_s
        has_ended = await state.gate.wait_empty(self.config.drain_s)
        for tasks in (state.response_tasks, state.conversations.message_tasks):
            has_ended = has_ended and await tasks.wait_empty(until_s - loop.time())
        if not has_ended:
            _LOG.warning("what still runs after %g s is ended with an error", self.config.drain_s)
            for tasks in (state.response_tasks, state.conversations.message_tasks):
                tasks.abort_all()
            state.backend.fail_all(UnavailableError("the server is stopping"))
            await state.gate.wait_empty(_GRACE_S)
        self._server.should_exit = True

    def _run(self, sock: socket.socket, started: threading.Event) -> None:
        assert self._server is not None
        try:
            factory = self._server.config.get_loop_factory()
            with asyncio.Runner(loop_factory=factory) as runner:
                self._loop = runner.get_loop()
                runner.run(self._server.serve(sockets=[sock]))
        except BaseException as error:
            self._failure = error
            if self.app.state.failure is None:  # which is raised where the gateway is started
                _LOG.exception("the gateway has stopped")
        finally:
            sock.close()
            started.set()


class _Server(uvicorn.Server):
    """Signals its start, sweeps its connections, and reloads its certificate when that changes."""

    def __init__(
        self, config: uvicorn.Config, started: threading.Event, tls: ServerTls | None, connections: Connections
    ) -> None:
        super().__init__(config)
        self._has_started = started
        self._connections = connections
        self._tls = tls
        self._watch = TlsWatch(tls) if tls is not None else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        log, self.lifespan.logger = self.lifespan.logger, _SILENT  # a failure is raised, not logged
        await self.lifespan.startup()
        self.lifespan.logger = log
        if self.lifespan.should_exit:
            raise UnavailableError("the application has not started")

        def connection() -> asyncio.BaseProtocol:
            make = self.config.http_protocol_class
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]

        self.servers = [Listener(sock, connection, self.config.ssl) for sock in sockets]  # type: ignore[misc]
        self.started = True
        self._has_started.set()

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_LOOK == 0:
            self._connections.sweep(asyncio.get_running_loop().time())
        if self._watch is not None and counter % _TICKS_PER_LOOK == 0 and self._watch.has_changed():
            assert self._tls is not None
            assert self.config.ssl is not None
            self.config.ssl.load_cert_chain(self._tls.certificate_file, self._tls.key_file)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the embedding program handles signals."""
        yield


def _cut_off_the_silent(sock: socket.socket, unread_s: float) -> None:
    """Disconnect peers that read nothing, or are unreachable, for `unread_s`. Accepted sockets inherit the options."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, round(unread_s / 4))
    values = {"TCP_USER_TIMEOUT": round(1000 * unread_s), "TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": seconds}
    for name, value in values.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listen(config: GatewayConfig) -> socket.socket:
    host, _, port_text = config.listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port_text.isdecimal() or int(port_text) > 65535:
        raise InvalidArgumentError("listen", config.listen, "host:port, such as 127.0.0.1:8000")
    config.security.check_address(Address(host, int(port_text), ""))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _cut_off_the_silent(sock, config.unread_s)
        sock.bind((host, int(port_text)))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise UnavailableError(f"cannot listen on {config.listen}: {error}") from None
    return sock

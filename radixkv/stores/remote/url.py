"""The value of `--remote`: parsed and checked once; its secrets appear in no repr, log or error."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url

from radixkv.core.errors import InvalidArgumentError

__all__ = ["CONNECT_TIMEOUT_S", "RemoteUrl"]

CONNECT_TIMEOUT_S = 2.0
"""For the connection with its TLS handshake, and for the login and the PING after it."""

_SCHEMES = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
_OPTIONS = {"db", "username", "password", "cluster"}
_TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
_TLS_OPTIONS = _TLS_FILES | {"ssl_cert_reqs", "ssl_check_hostname"}


@dataclass(frozen=True)
class RemoteUrl:
    """Where a server is and how to log in.

    Attributes:
        place: the address and database without secrets, for logs and for the journal.
        is_cluster: whether to ask the server for the other servers of its cluster.
        db: number of the database.
    """

    place: str
    is_cluster: bool = False
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    _kind: type[Any] = field(default=Connection, repr=False)
    _options: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> RemoteUrl:
        """Check a URL: ``redis://[user:password@]host[:port][/db]``, ``rediss://`` with TLS, ``unix://path``.

        Options follow a ``?``: ``cluster=1``, ``db``, ``username``, ``password``, and with TLS ``ssl_ca_certs``,
        ``ssl_certfile``, ``ssl_keyfile``, ``ssl_cert_reqs``, ``ssl_check_hostname``.

        Raises:
            InvalidArgumentError: names ``--remote`` and the part that is wrong; shows no part that may hold a secret.
        """
        scheme = url.partition("://")[0] if "://" in url else ""
        if scheme not in _SCHEMES:
            raise InvalidArgumentError("--remote", "…", "a URL that begins with redis://, rediss:// or unix://")
        try:
            given = _check(url, scheme)
            options = parse_url(url)  # type: ignore[no-untyped-call] # the package does not type it
        except ValueError as error:  # its text is ours, or names an option without its value
            raise InvalidArgumentError("--remote", f"{scheme}://…", str(error)) from None
        for name in ("db", "cluster", "connection_class"):
            options.pop(name, None)
        if scheme == "rediss":
            options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")
        host, path, db = options.get("host", ""), options.get("path", ""), int(given["db"])
        return cls(
            place=(f"unix://{path}" if scheme == "unix" else _place(scheme, host, options.get("port", 6379)))
            + (f"?db={db}" if db else ""),
            is_cluster=given.get("cluster") == "1",
            db=db,
            username=options.pop("username", None),
            password=options.pop("password", None),
            _kind=_SCHEMES[scheme],
            _options=options,
        )

    @property
    def host(self) -> str:
        """Empty for the path of a socket."""
        return str(self._options.get("host", ""))

    def at(self, host: str, port: int) -> RemoteUrl:
        """The same login and TLS options for another server of a cluster."""
        place = _place(self.place.partition("://")[0], host, port)
        return replace(self, place=place, _options=self._options | {"host": host, "port": port})

    def connect(self) -> socket.socket:
        """A connected socket, non-blocking, after the TLS handshake where there is one. The name look-up has no timeout.

        Raises:
            redis.RedisError, OSError: with the cause as `__context__`.
        """
        connection = self._kind(
            **self._options,
            socket_timeout=CONNECT_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            redis_connect_func=lambda _: None,  # the login follows in `wire`, with its bounds
        )
        connection.connect()
        connected: socket.socket = connection._sock
        connection._sock = None  # so that the connection's end does not close it
        connected.setblocking(False)
        return connected


def _place(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _check(url: str, scheme: str) -> dict[str, str]:
    """The options of a URL, with `db`.

    Raises:
        ValueError: the bound in words.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError("a URL with a port from 1 to 65535 and options of the form name=value") from None
    allowed = _OPTIONS | (_TLS_OPTIONS if scheme == "rediss" else set())
    if unknown := sorted(set(given) - allowed):
        names = ", ".join(name for name in unknown if name.isidentifier() and len(name) <= 32) or "unreadable names"
        raise ValueError(f"without other options than {', '.join(sorted(allowed))} (found: {names})")
    is_socket = scheme == "unix"
    has_path = parts.path not in ("", "/")
    given.setdefault("db", parts.path[1:] if has_path and not is_socket else "0")
    db = given["db"]
    checks = {
        "without a #; in a password it is written %23": not parts.fragment,
        "with the path of a socket, as unix:///run/valkey/valkey.sock": has_path or not is_socket,
        "with a host, as redis://localhost:6379": parts.hostname or is_socket,
        "with a port from 1 to 65535": port != 0,
        "with the number of a database after the /, 0 by default": db.isascii() and db.isdigit() and len(db) <= 5,
        "with cluster=0 or cluster=1": given.get("cluster", "0") in ("0", "1"),
        "with ssl_cert_reqs=required or none": given.get("ssl_cert_reqs", "required") in ("required", "none"),
        "with ssl_check_hostname=true or false": given.get("ssl_check_hostname", "true") in ("true", "false"),
    }
    for name in sorted(_TLS_FILES & set(given)):
        checks[f"with a readable file as {name}"] = os.path.isfile(given[name]) and os.access(given[name], os.R_OK)
    for bound, holds in checks.items():
        if not holds:
            raise ValueError(bound)
    if given.get("cluster") == "1" and (is_socket or int(db)):
        raise ValueError("without a database and with redis:// or rediss:// where cluster=1")
    return given

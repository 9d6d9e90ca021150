"""Addresses to listen on: ``host:port`` or ``unix:path``; each is checked to be free before gRPC binds it.

gRPC alone would share a TCP port that is in use, or take over a unix socket that another process still serves.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from typing import NamedTuple

from radixkv.core.errors import InvalidArgumentError, UnavailableError

__all__ = ["Address", "is_own_host", "parse_address"]

MAX_UNIX_PATH_BYTES = 107
_CONNECT_TIMEOUT_S = 1.0


class Address(NamedTuple):
    """An address to listen on. Exactly one of `host` and `path` is not empty."""

    host: str
    port: int
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"

    @property
    def is_own(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.path) or is_own_host(self.host)

    def require_free(self) -> None:
        """Check that no process serves this address.

        Raises:
            UnavailableError: a process serves it, or this process may not listen there.
            InvalidArgumentError: this machine has no such host or folder.
        """
        if self.path:
            _require_free_path(self.path)
        else:
            _require_free_port(self.host, self.port)

    def with_port(self) -> Address:
        """This address, with a port that is free now in place of port 0: for servers that do not report theirs."""
        if self.path or self.port:
            return self
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.create_server((self.host.strip("[]"), 0), family=family) as probe:
            return self._replace(port=probe.getsockname()[1])


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        InvalidArgumentError: neither ``host:port`` with a port from 0 to 65535 nor ``unix:path``.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        path = path[2:] if path.startswith("///") else path
        if not path or len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            raise InvalidArgumentError("address", text, f"unix: and a path of 1 to {MAX_UNIX_PATH_BYTES} bytes")
        return Address("", 0, path)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgumentError("address", text, "host:port, with a port from 0 to 65535, or unix:path")
    return Address(host, int(port), "")


def is_own_host(host: str) -> bool:
    """Whether a host's name or IP address is a loopback address, so that it always means the local machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _require_free_port(host: str, port: int) -> None:
    try:
        candidates = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise InvalidArgumentError("address", f"{host}:{port}", f"a host of this machine ({error.strerror})") from None
    for family, kind, protocol, _, sockaddr in candidates:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(sockaddr)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise _in_use(f"{host}:{port}", f"{host}:0 takes a free port") from None
                if error.errno == errno.EADDRNOTAVAIL:
                    raise InvalidArgumentError("address", f"{host}:{port}", "a host of this machine") from None
                raise UnavailableError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def _require_free_path(path: str) -> None:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise InvalidArgumentError("address", f"unix:{path}", "in a folder that exists")
    if not os.access(folder, os.W_OK):
        raise UnavailableError(f"cannot listen on unix:{path}: no right to write in {folder}")
    if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise UnavailableError(f"cannot listen on unix:{path}: a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise UnavailableError(f"cannot listen on unix:{path}: {error.strerror or error}") from None
    raise _in_use(f"unix:{path}", "choose another path")


def _in_use(address: str, alternative: str) -> UnavailableError:
    return UnavailableError(
        f"{address} is in use by another process; stop that one, or serve on another address ({alternative})"
    )

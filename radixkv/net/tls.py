"""Transport security of a server: keys, TLS, and the addresses that it refuses to listen on without them."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.addresses import Address, is_own_host
from radixkv.net.tenants import KeyRing, TenantLimits

__all__ = ["Security", "ServerTls", "TlsWatch", "bind", "owner_only"]

_LOG = logging.getLogger(__name__)
_OWNER_ONLY = 0o177


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A server's TLS certificate, and the authorities of client certificates. PEM files, read again when they change.

    Attributes:
        certificate_file: its certificate chain, up to an authority that clients know.
        key_file: the private key of it.
        client_ca_file: certificates of the authorities that sign clients'; each client then needs one. None: none is asked for.
    """

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def check(self) -> None:
        """Check that the files can be read and belong together.

        Raises:
            InvalidArgumentError: they do not.
        """
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate_file, self.key_file)
            if self.client_ca_file is not None:
                context.load_verify_locations(self.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            files = [str(path) for path in self._files()]
            raise InvalidArgumentError(
                "tls", files, f"PEM files that can be read and belong together: {error}"
            ) from None

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when a file does.

        Raises:
            OSError: a file is gone.
        """
        found = [os.stat(path) for path in self._files()]
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)

    def _files(self) -> tuple[Path, ...]:
        given = (self.certificate_file, self.key_file, self.client_ca_file)
        return tuple(path for path in given if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Authentication of a server's callers, and protection of its transport.

    Attributes:
        keys_file: TOML file of tenants and their rights, see `tenants`; None: every caller may do everything.
        own_key: another key, of an admin: for the process that the server is part of.
        tls: None: plaintext. Unix sockets are always plaintext, and open to their owner alone.
        allow_anonymous: listen where other machines can reach it, though callers need neither key nor certificate.
        allow_plaintext: listen there without TLS, though keys are sent: a proxy in front does TLS.
        limits: of a tenant that the keys file gives none.
    """

    keys_file: Path | None = None
    own_key: str | None = field(default=None, repr=False)
    tls: ServerTls | None = None
    allow_anonymous: bool = False
    allow_plaintext: bool = False
    limits: TenantLimits = field(default_factory=TenantLimits)

    def ring(self) -> KeyRing:
        """The known credentials.

        Raises:
            InvalidArgumentError: the keys file cannot be read.
        """
        return KeyRing(self.keys_file, self.limits, own_key=self.own_key)

    def check_address(self, address: Address) -> None:
        """Check that it is safe to listen on an address.

        Raises:
            InvalidArgumentError: other machines can reach it, and any of them could call, or read keys on the way.
        """
        if address.is_own:
            return
        needs_certificate = self.tls is not None and self.tls.client_ca_file is not None
        if self.keys_file is None and not needs_certificate and not self.allow_anonymous:
            bound = (
                "an address of this machine alone, unless there is a keys file (--keys FILE) or clients need a certificate "
                "(--tls-client-ca FILE), or anonymous callers are allowed (--allow-anonymous)"
            )
            raise InvalidArgumentError("address", str(address), bound)
        if self.keys_file is not None and self.tls is None and not self.allow_plaintext:
            bound = (
                "an address of this machine alone, unless there is TLS (--tls-cert FILE --tls-key FILE), since keys would be "
                "sent in plaintext, or something in front of it does TLS (--allow-plaintext)"
            )
            raise InvalidArgumentError("address", str(address), bound)

    def check_endpoint(self, name: str, endpoint: str) -> None:
        """Check that it is safe to publish at a ZMQ endpoint, which has neither keys nor TLS.

        Raises:
            InvalidArgumentError: other machines can reach it.
        """
        scheme, _, place = endpoint.partition("://")
        if scheme == "tcp" and not is_own_host(place.rpartition(":")[0]) and not self.allow_anonymous:
            bound = "of this machine alone, since whoever reaches it sees all token ids, or allowed (--allow-anonymous)"
            raise InvalidArgumentError(name, endpoint, bound)


def bind(server: Any, address: Address, security: Security) -> int:
    """Make a gRPC server listen; returns the port, which is new for port 0. Only its owner may open a unix socket.

    Raises:
        InvalidArgumentError: it is not safe to listen there, the files of TLS do not fit, or there is no such host.
        UnavailableError: it is in use, or this process may not listen there.
        RuntimeError: the same, found by gRPC.
    """
    security.check_address(address)
    address.require_free()
    if address.path:
        with owner_only():
            return int(server.add_insecure_port(str(address)))
    if security.tls is None:
        return int(server.add_insecure_port(str(address)))
    return int(server.add_secure_port(str(address), _grpc_credentials(security.tls)))


@contextlib.contextmanager
def owner_only() -> Iterator[None]:
    """Restrict files that this process creates meanwhile to its user."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


class TlsWatch:
    """Detects changes of the TLS files to valid ones."""

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._stamp: tuple[tuple[int, int, int], ...] = ()
        self.has_changed()

    def has_changed(self) -> bool:
        """Whether to read them again; invalid files are logged once and leave those before in use."""
        try:
            if (now := self._tls.stamp()) == self._stamp:
                return False
            self._stamp = now
            self._tls.check()
        except (OSError, InvalidArgumentError) as error:
            _LOG.error("the TLS files read before stay in use: %s", error)
            return False
        _LOG.info("read %s", self._tls.certificate_file)
        return True


def _grpc_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Credentials whose files are checked for changes at every handshake."""
    tls.check()
    watch = TlsWatch(tls)

    def fetch() -> Any:
        return _configuration(tls) if watch.has_changed() else None

    needs_certificate = tls.client_ca_file is not None
    make: Any = grpc.dynamic_ssl_server_credentials
    credentials: grpc.ServerCredentials = make(_configuration(tls), fetch, needs_certificate)
    return credentials


def _configuration(tls: ServerTls) -> Any:
    make: Any = grpc.ssl_server_certificate_configuration
    pair = (tls.key_file.read_bytes(), tls.certificate_file.read_bytes())
    return make([pair], tls.client_ca_file.read_bytes() if tls.client_ca_file is not None else None)

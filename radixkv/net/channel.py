"""A client's credentials, and the gRPC channel that uses them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.addresses import Address, parse_address
from radixkv.net.keepalive import client_keepalive

__all__ = ["Credentials", "make_channel"]

MAX_TOKEN_CHARACTERS = 4096
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a caller, and of the connection. With `ca_file` or a certificate it uses TLS.

    Attributes:
        token: the key that is sent with every call; never in plaintext to another machine.
        token_file: a file that holds it, read again when it changes.
        ca_file: PEM certificates of the authorities that sign the server's.
        certificate_file, key_file: PEM certificate chain and private key for a server that asks for one; both or none.

    Raises:
        InvalidArgumentError: a token and a file of one, or a certificate without its key.
    """

    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if self.token is not None and self.token_file is not None:
            raise InvalidArgumentError("token_file", str(self.token_file), "left out where a token is given")
        if (self.certificate_file is None) != (self.key_file is None):
            raise InvalidArgumentError(
                "certificate_file", self.certificate_file, "given along with key_file, or neither"
            )

    @property
    def is_secure(self) -> bool:
        """Whether the connection is TLS."""
        return self.ca_file is not None or self.certificate_file is not None

    @property
    def has_token(self) -> bool:
        """Whether a token is sent."""
        return self.token is not None or self.token_file is not None

    def read_token(self) -> str:
        """The current token; empty where there is none.

        Raises:
            InvalidArgumentError: the file holds none, or cannot be read.
        """
        return _TokenFile(self.token_file).read() if self.token_file is not None else self.token or ""


def make_channel(address: str, credentials: Credentials | None, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """A channel to a service or worker; nothing is sent yet. `options`: beyond those of every channel.

    Raises:
        InvalidArgumentError: an address that cannot be read; a file of the credentials that cannot; a token that would be sent
            in plaintext to another machine.
    """
    where = parse_address(address)
    options = [*_OPTIONS, *options, *client_keepalive()]
    if credentials is None:
        return grpc.insecure_channel(str(where), options=options)
    if credentials.has_token and not (credentials.is_secure or where.is_own):
        bound = "an address of this machine, or reached by TLS (--tls-ca FILE): a token is never sent in plaintext to another"
        raise InvalidArgumentError("address", address, bound)
    channel = _open(where, credentials, options)
    if not credentials.has_token:
        return channel
    token = _TokenFile(credentials.token_file).read if credentials.token_file else lambda: credentials.token or ""
    token()  # an unreadable file raises now
    return grpc.intercept_channel(channel, _Bearer(token))


def _open(where: Address, credentials: Credentials, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    if not credentials.is_secure or where.path:
        return grpc.insecure_channel(
            str(where), options=[*options, ("grpc.enable_http_proxy", 0)]
        )  # a proxy would read it
    secured = grpc.ssl_channel_credentials(
        _read(credentials.ca_file), _read(credentials.key_file), _read(credentials.certificate_file)
    )
    return grpc.secure_channel(str(where), secured, options=options)


def _read(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise InvalidArgumentError("credentials", str(path), f"a file that can be read: {error.strerror}") from None


class _TokenFile:
    """A token file that may be replaced while it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        """The current token; the last one where the file is briefly missing."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                token = self._path.read_text().strip()
                if not token.isascii() or not token.isprintable() or not 0 < len(token) <= MAX_TOKEN_CHARACTERS:
                    bound = f"a file of one token of 1 to {MAX_TOKEN_CHARACTERS} ASCII characters"
                    raise InvalidArgumentError("token_file", str(self._path), bound)
                self._token, self._stamp = token, stamp
        except OSError as error:
            if not self._token:
                bound = f"a file that can be read: {error.strerror}"
                raise InvalidArgumentError("token_file", str(self._path), bound) from None
        return self._token


class _Details(NamedTuple):
    """`grpc.ClientCallDetails` as values; gRPC reads them by these names."""

    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str | bytes]] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Sends a token with every call."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See `grpc.UnaryUnaryClientInterceptor`."""
        return continuation(self._signed(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See `grpc.UnaryStreamClientInterceptor`."""
        return continuation(self._signed(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See `grpc.StreamUnaryClientInterceptor`."""
        return continuation(self._signed(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        """See `grpc.StreamStreamClientInterceptor`."""
        return continuation(self._signed(client_call_details), request_iterator)

    def _signed(self, details: Any) -> _Details:
        return _Details(
            method=details.method,
            timeout=details.timeout,
            metadata=[*(details.metadata or ()), ("authorization", f"Bearer {self._token()}")],
            credentials=details.credentials,
            wait_for_ready=getattr(details, "wait_for_ready", None),
            compression=getattr(details, "compression", None),
        )

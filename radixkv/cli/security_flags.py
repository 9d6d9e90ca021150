"""Flags of access to a server, by keys and TLS; and of a client's credentials."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from radixkv.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from radixkv.client import Credentials
    from radixkv.net.tenants import TenantLimits
    from radixkv.net.tls import Security, ServerTls

__all__ = ["add_client_flags", "add_server_flags", "client_credentials", "limits_of", "security_of", "server_tls"]

TOKEN_FILE_VARIABLE = "RADIXKV_TOKEN_FILE"


def add_server_flags(command: argparse.ArgumentParser, *, asks_certificates: bool = True) -> None:
    """`--keys` and its companions."""
    flags = command.add_argument_group("access")
    flags.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="TOML of keys, their tenants and rights; without it every client that reaches an address may do everything",
    )
    flags.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve TLS with this certificate chain (PEM)")
    flags.add_argument("--tls-key", type=Path, metavar="FILE", help="the private key of that certificate (PEM)")
    if asks_certificates:
        flags.add_argument(
            "--tls-client-ca",
            type=Path,
            metavar="FILE",
            help="over gRPC, accept only clients with a certificate that one of these vouches for (PEM)",
        )
    flags.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="without --keys, also listen on addresses that other machines can reach",
    )
    flags.add_argument(
        "--allow-plaintext",
        action="store_true",
        help="without TLS, listen there although keys are sent: a proxy in front of it does TLS",
    )


def security_of(options: argparse.Namespace) -> Security:
    """The flags' values.

    Raises:
        InvalidArgumentError: a certificate without its key, or a key without its certificate.
    """
    from radixkv.net.tls import Security

    tls, client_ca = server_tls(options), getattr(options, "tls_client_ca", None)
    if client_ca is not None:
        if tls is None:
            raise InvalidArgumentError("--tls-client-ca", str(client_ca), "given along with --tls-cert and --tls-key")
        tls = replace(tls, client_ca_file=client_ca)
    return Security(
        keys_file=options.keys,
        tls=tls,
        allow_anonymous=options.allow_anonymous,
        allow_plaintext=options.allow_plaintext,
        limits=limits_of(options),
    )


def limits_of(options: argparse.Namespace) -> TenantLimits:
    """A gateway's default limits of tenants, from its flags; none for other commands."""
    from radixkv.net.tenants import LIMITS, TenantLimits

    return TenantLimits(**{limit: getattr(options, limit, None) for limit in LIMITS})


def server_tls(options: argparse.Namespace) -> ServerTls | None:
    """A server's certificate, without client certificates; None: plaintext.

    Raises:
        InvalidArgumentError: as `security_of`.
    """
    from radixkv.net.tls import ServerTls

    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise InvalidArgumentError(
            "--tls-cert", options.tls_cert and str(options.tls_cert), "given along with --tls-key"
        )
    return ServerTls(certificate_file=options.tls_cert, key_file=options.tls_key)


def add_client_flags(command: argparse.ArgumentParser) -> None:
    """`--token-file` and its companions."""
    flags = command.add_argument_group("credentials")
    flags.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"a file with the key to send, over TLS or within this machine only (default: {TOKEN_FILE_VARIABLE}, if set)",
    )
    flags.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="connect by TLS, to servers that one of these vouches for (PEM)"
    )
    flags.add_argument("--tls-client-cert", type=Path, metavar="FILE", help="a client certificate (PEM)")
    flags.add_argument("--tls-client-key", type=Path, metavar="FILE", help="its private key (PEM)")


def client_credentials(options: argparse.Namespace) -> Credentials | None:
    """Credentials from the flags and the environment; None: none.

    Raises:
        InvalidArgumentError: a certificate without its key, or a key without its certificate.
    """
    from radixkv.client import Credentials

    variable = os.environ.get(TOKEN_FILE_VARIABLE)
    token_file = options.token_file or (Path(variable) if variable else None)
    given = Credentials(
        token_file=token_file,
        ca_file=options.tls_ca,
        certificate_file=options.tls_client_cert,
        key_file=options.tls_client_key,
    )
    return given if given.has_token or given.is_secure else None

"""Certificates for tests: an authority, and what it vouches for."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


@dataclass(frozen=True)
class Certificate:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """Vouches for certificates of this machine."""

    folder: Path
    own: Certificate

    @classmethod
    def make(cls, folder: Path, name: str = "authority") -> Authority:
        own = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl(own, name)
        return cls(folder, own)

    def issue(self, common_name: str) -> Certificate:
        """A further certificate; one of that name before is replaced."""
        issued = Certificate(self.folder / f"{common_name}.pem", self.folder / f"{common_name}.key")
        _openssl(issued, common_name, "-CA", str(self.own.certificate), "-CAkey", str(self.own.key))
        return issued


def _openssl(made: Certificate, common_name: str, *further: str) -> None:
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = ["openssl", "req", "-x509", *_KEY, "-subj", f"/CN={common_name}", *further]
    if further:
        command += ["-addext", names]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)

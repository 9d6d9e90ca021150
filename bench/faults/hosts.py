"""Hosts as network namespaces on a bridge, between any two of which the network can be cut.

    bench, clients (.254) ──┬── host 1 (.1)
                      bridge├── host 2 (.2)
                            └── host 3 (.3)

A cut is silent in both directions, as of a broken switch: each end sends the other's packets to a station that does not exist,
and neither gets an error. Connections live on, and go on after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

__all__ = ["OUTSIDE", "Hosts"]

OUTSIDE = "bench"
"""The host of the bench and its clients: the machine itself."""

_NOWHERE = "02:00:00:00:00:00"


class Hosts:
    """A context manager: the hosts exist within it.

    Args:
        names: of the hosts; at most 200.

    Attributes:
        addresses: of each host and `OUTSIDE`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        pid = os.getpid()
        self._bridge = f"rkv{pid}"
        self._spaces = {name: f"rkv{pid}-{number}" for number, name in enumerate(names, 1)}
        subnet = f"198.{18 + pid % 2}.{pid // 2 % 256}"  # of the block for measurements, which no network has
        self.addresses = {name: f"{subnet}.{number}" for number, name in enumerate(names, 1)} | {
            OUTSIDE: f"{subnet}.254"
        }

    @classmethod
    def are_possible(cls) -> bool:
        """Whether this user may make some on this machine."""
        if shutil.which("ip") is None or os.geteuid() != 0:
            return False
        with contextlib.suppress(subprocess.CalledProcessError), cls(["one", "two"]):
            return True
        return False

    def __enter__(self) -> Self:
        try:
            _ip(f"link add {self._bridge} type bridge")
            _ip(f"addr add {self.addresses[OUTSIDE]}/24 dev {self._bridge}")
            _ip(f"link set {self._bridge} up")
            for name, space in self._spaces.items():
                _ip(f"netns add {space}")
                _ip(f"link add {space} type veth peer name eth0 netns {space}")
                _ip(f"link set {space} master {self._bridge} up")
                _ip(f"-n {space} addr add {self.addresses[name]}/24 dev eth0")
                for device in ("lo", "eth0"):
                    _ip(f"-n {space} link set {device} up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def prefix(self, host: str) -> tuple[str, ...]:
        """The beginning of the command line of a process on a host."""
        return ("ip", "netns", "exec", self._spaces[host])

    def cut(self, host: str, others: Iterable[str]) -> None:
        """Cut the network between a host and others."""
        for one, other in self._ways(host, others):
            _ip(f"{one} neigh replace {other} lladdr {_NOWHERE} nud permanent dev {self._device(one)}")

    def mend(self, host: str, others: Iterable[str]) -> None:
        """Undo `cut`."""
        for one, other in self._ways(host, others):
            _ip(f"{one} neigh del {other} dev {self._device(one)}")

    def _ways(self, host: str, others: Iterable[str]) -> list[tuple[str, str]]:
        """Both directions to each of the others: where the command runs, and the address of the other end."""
        pairs = [pair for other in others if other != host for pair in ((host, other), (other, host))]
        return [("" if one == OUTSIDE else f"-n {self._spaces[one]}", self.addresses[other]) for one, other in pairs]

    def _device(self, where: str) -> str:
        return "eth0" if where else self._bridge

    def _remove(self) -> None:
        for device in (*self._spaces.values(), self._bridge):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"link del {device}")
        for space in self._spaces.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"netns del {space}")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=10)

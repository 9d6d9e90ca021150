"""The workers of several cache services: addresses, loads, and the part of a prompt that each holds.

All services are asked at once, and waited for 20 ms at most. The workers of a service that is silent are those that it named
last: candidates without a match, until it answers or they refuse. Between requests a thread asks twice a second.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from radixkv.client import Credentials, RemoteReader
from radixkv.core.api import DEFAULT_NAMESPACE, PoolRoute
from radixkv.core.errors import InvalidArgumentError, RadixKVError, UnavailableError
from radixkv.core.namespaces import owner_of
from radixkv.net.addresses import parse_address

__all__ = ["ANSWER_S", "Members", "PendingClear", "resolve"]

MAX_SERVICES = 16
ANSWER_S = 0.02
"""How long services are waited for."""

_LOOK_S, _LOOK_PAUSE_S = 1.0, 0.5
_SILENT_S = 2.0
"""A service that has not answered for so long is gone: it does not answer the looks either."""

_LOOKUPS_PAUSE_S = 5.0
"""Between two look-ups of the names of services."""

_LOG = logging.getLogger(__name__)


class _Known(NamedTuple):
    """The answer of a service, with the time of it."""

    routes: Mapping[str, PoolRoute]
    at_s: float


class PendingClear(NamedTuple):
    """A clear of a namespace that a pool has not confirmed; with an empty name, no pool of the service."""

    service: str
    pool: str
    namespace: str


class Members:
    """The workers of some cache services. Any thread may call it; `close` it at the end.

    Args:
        services: their addresses, or a function that returns those of now. The name of a host stands for all its addresses,
            and is looked up again.
        credentials: for them; with TLS a name stands for one address, since certificates name hosts.
        clock: seconds, monotonic.

    Raises:
        InvalidArgumentError: no service, too many, or an address that cannot be read.
    """

    def __init__(
        self,
        services: Sequence[str] | Callable[[], Sequence[str]],
        *,
        credentials: Credentials | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not callable(services):
            if not 1 <= len(services) <= MAX_SERVICES:
                raise InvalidArgumentError("services", f"{len(services)} of them", f"from 1 to {MAX_SERVICES}")
            for service in services:
                parse_address(service)
        self._names = services if callable(services) else lambda: services
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._readers: dict[str, RemoteReader] = {}
        self._places: dict[str, list[str]] = {}  # addresses of each name
        self._known: dict[str, _Known] = {}
        self._met: dict[str, set[str]] = {}  # names of all pools that a service ever had, for clears
        self._noted: set[str] = set()  # services that did not answer, which is logged once of those that never have
        self._pending = self._confirmed = frozenset[PendingClear]()
        self._closing = threading.Event()
        self._resolve()
        self._look()
        self._thread = threading.Thread(target=self._keep_looking, name="radixkv-members", daemon=True)
        self._thread.start()

    def ask(self, tokens: bytes, namespace: str = DEFAULT_NAMESPACE, wait_s: float = ANSWER_S) -> list[PoolRoute]:
        """The part of a prompt that the pool of each worker has; of a silent service, its last known workers without a match.
        Without the pools where a clear of the namespace is pending.

        Loads are as old as they say, also of silent services. O(pools). Waits `wait_s` at most.
        """
        with self._lock:
            readers = dict(self._readers)
        calls: dict[str, Callable[[], dict[str, PoolRoute]]] = {}
        for service, reader in readers.items():
            with contextlib.suppress(UnavailableError):  # it was let go meanwhile
                calls[service] = reader.begin_route(tokens, namespace, wait_s)
        offers: dict[str, PoolRoute] = {}
        for service, call in calls.items():
            try:
                routes = call()
            except RadixKVError as error:
                self._note_silent(service, error)
                routes = self._remembered(service)
            else:
                with self._lock:
                    if service in self._readers:
                        self._known[service] = _Known(routes, self._clock())
                        self._met.setdefault(service, set()).update(routes)
            for pool, route in routes.items():
                if route.worker.generation_address and not self._is_held_back(service, pool, namespace):
                    offers[route.worker.generation_address] = route
        return list(offers.values())

    def met(self) -> dict[str, list[str]]:
        """The pools that each service has or had, by the service's address; of one that never answered none."""
        with self._lock:
            return {service: sorted(self._met.get(service, ())) for service in self._readers}

    def hold_back(self, pending: frozenset[PendingClear], confirmed: frozenset[PendingClear]) -> None:
        """From now on, leave pools out for namespaces whose clear is pending there, or at their service but not `confirmed`."""
        self._pending, self._confirmed = pending, confirmed

    def known(self) -> list[PoolRoute]:
        """The workers that were named last, without a match. O(pools)."""
        with self._lock:
            services = list(self._known)
        routes = [route for service in services for route in self._remembered(service).values()]
        return [route for route in routes if route.worker.generation_address]

    def stalled(self) -> set[str]:
        """Addresses of the workers whose service is gone: a request waits there until it is back. O(pools)."""
        with self._lock:
            gone = [known for known in self._known.values() if self._clock() - known.at_s > _SILENT_S]
        return {route.worker.generation_address for known in gone for route in known.routes.values()}

    def close(self) -> None:
        """Close the connections."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()

    def _note_silent(self, service: str, error: RadixKVError) -> None:
        with self._lock:
            is_new = service not in self._known and service not in self._noted
            self._noted.add(service)
        level = logging.WARNING if is_new else logging.DEBUG
        _LOG.log(level, "the service at %s did not say who holds a prompt: %s", service, error)

    def _is_held_back(self, service: str, pool: str, namespace: str) -> bool:
        if not self._pending:
            return False
        clears = [PendingClear(service, pool, cleared) for cleared in (namespace, owner_of(namespace))]
        of_service = [clear._replace(pool="") for clear in clears if clear not in self._confirmed]
        return not self._pending.isdisjoint([*clears, *of_service])

    def _remembered(self, service: str) -> dict[str, PoolRoute]:
        with self._lock:
            known = self._known.get(service)
        if known is None:
            return {}
        age_s = self._clock() - known.at_s
        return {
            name: PoolRoute(0, 0, route.worker._replace(load_age_s=route.worker.load_age_s + age_s))
            for name, route in known.routes.items()
        }

    def _keep_looking(self) -> None:
        resolved_s = self._clock()
        while not self._closing.wait(_LOOK_PAUSE_S):
            try:
                if self._clock() - resolved_s > _LOOKUPS_PAUSE_S:
                    resolved_s = self._clock()
                    self._resolve()
                self._look()
            except Exception as error:  # of whatever names the services
                _LOG.error("the services are those of before: %r", error)

    def _look(self) -> None:
        self.ask(b"", wait_s=_LOOK_S)

    def _resolve(self) -> None:
        """Open readers of new addresses, close those of addresses that are gone."""
        is_secure = self._credentials is not None and self._credentials.is_secure
        names = self._names()
        places = {name: [name] if is_secure else resolve(name, self._places.get(name, ())) for name in names}
        found = [address for addresses in places.values() for address in addresses]
        with self._lock:
            self._places = places
            gone = [self._readers.pop(address) for address in set(self._readers) - set(found)]
            self._known = {address: known for address, known in self._known.items() if address in found}
            self._met = {address: met for address, met in self._met.items() if address in found}
            self._noted &= set(found)
            for address in found:
                if address not in self._readers:
                    self._readers[address] = RemoteReader(address, credentials=self._credentials, retries=False)
        for reader in gone:
            reader.close()


def resolve(name: str, known: Sequence[str] = ()) -> list[str]:
    """All addresses of a service's host; the name itself where it is none. One that cannot be looked up now has those `known`
    of before, or itself.
    """
    address = parse_address(name)
    if address.path:
        return [name]
    host = address.host.strip("[]")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return [name]
    try:
        found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of a name that none can have
        _LOG.warning("the name %s cannot be looked up: %s", host, error)
        return list(known) or [name]
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    if host == "localhost":  # one service, at one of them
        return [name]
    return [f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}" for host in hosts]

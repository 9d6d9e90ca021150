"""All pools of the gateway's cache services: a call goes to each of them at once, and is answered by pool.

A service that is silent is named in the answer, and delays it by no more than the call's deadline.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

from radixkv.client import Credentials, RemoteReader
from radixkv.core.errors import RadixKVError, UnavailableError, UnknownPoolError

__all__ = ["ASK_S", "Answers", "CachePools", "PoolName"]

ASK_S = 2.0
"""How long each call to a pool may take."""

_PAUSE_S = 2.0
"""A service that let a call wait is not asked for so long, but for calls with a longer deadline."""

_SLOW_S = 0.1
_NUM_THREADS = 32

_Result = TypeVar("_Result")


class PoolName(NamedTuple):
    """A pool: the address of its service, and its name there."""

    service: str
    pool: str

    @property
    def key(self) -> str:
        """Stands for both without showing the address."""
        return blake2b("\n".join(self).encode(), digest_size=6).hexdigest()


class Answers(NamedTuple, Generic[_Result]):
    """Answers by pool, in the order of services and of names; and the services that gave none, with the reason."""

    by_pool: Mapping[PoolName, _Result]
    silent: Mapping[str, UnavailableError]

    def require(self, name: Callable[[str], str] = str, *, is_all: bool = False) -> Mapping[PoolName, _Result]:
        """Return the answers. `name`: names a service in a message. `is_all`: every service has to answer.

        Raises:
            UnavailableError: there is none, or not all, and a service is silent; the message names it.
            UnknownPoolError: there is none, since no worker holds a pool.
        """
        if self.silent and (is_all or not self.by_pool):
            names = ", ".join(map(name, self.silent))
            raise UnavailableError(f"not all pools were reached, no answer of {names}: try again, which is harmless")
        if not self.by_pool:
            raise UnknownPoolError("no worker holds a pool")
        return self.by_pool


class CachePools:
    """The pools of a gateway's services. Any thread may call it; `close` it at the end.

    Args:
        met: returns the addresses of the services that there are now, each with the pools that it is known to have or have had;
            calls go to all pools that are attached. Or the only pool.
        credentials: for the services.
    """

    def __init__(
        self, met: Callable[[], Mapping[str, Sequence[str]]] | PoolName, *, credentials: Credentials | None = None
    ) -> None:
        self._only = met if isinstance(met, PoolName) else None
        self._met = met if not isinstance(met, PoolName) else lambda: {met.service: [met.pool]}
        self._credentials = credentials
        self._lock = threading.Lock()
        self._readers: dict[str, RemoteReader] = {}
        self._paused: dict[str, tuple[float, UnavailableError]] = {}  # when a call that waited in vain ended, and how
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="radixkv-pools")

    @property
    def is_one(self) -> bool:
        """Whether there is only one pool, whichever are attached."""
        return self._only is not None

    def known(self) -> list[PoolName]:
        """All pools that there are or were, sorted; with an empty name those of a service that never answered."""
        return sorted(PoolName(service, name) for service, names in self._met().items() for name in names or ("",))

    def ask(
        self,
        call: Callable[[RemoteReader], _Result],
        timeout_s: float = ASK_S,
        services: Collection[str] | None = None,
    ) -> Answers[_Result]:
        """Make a call to every pool, the services at once and the pools of one in turn. `services`: None: all.

        Raises:
            RadixKVError: a pool refused it; the other pools have got it all the same.
        """
        asked = {
            service: self._threads.submit(self._ask_one, reader, call, timeout_s)
            for service, reader in self._open().items()
            if services is None or service in services
        }
        by_pool: dict[PoolName, _Result] = {}
        silent: dict[str, UnavailableError] = {}
        refusal: RadixKVError | None = None
        for service, future in asked.items():
            try:
                by_pool |= future.result()
            except UnavailableError as error:
                silent[service] = error
            except RadixKVError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return Answers(by_pool, silent)

    def ask_pool(self, pool: PoolName, call: Callable[[RemoteReader], _Result], timeout_s: float = ASK_S) -> _Result:
        """Make a call to one pool; raises what `RemoteReader` raises."""
        readers = self._open()
        if pool.service not in readers:
            raise UnknownPoolError(f"{pool.service} is no service of this gateway")
        return call(readers[pool.service].of_pool(pool.pool, timeout_s))

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _open(self) -> dict[str, RemoteReader]:
        """Return a reader of each service; closes those of services that are gone."""
        services = sorted(self._met())
        with self._lock:
            gone = [self._readers.pop(service) for service in set(self._readers) - set(services)]
            for service in services:
                if service not in self._readers:
                    made = RemoteReader(service, credentials=self._credentials, retries=self.is_one)
                    self._readers[service] = made
            readers = {service: self._readers[service] for service in services}
        for reader in gone:
            reader.close()
        return readers

    def _ask_one(
        self, reader: RemoteReader, call: Callable[[RemoteReader], _Result], timeout_s: float
    ) -> dict[PoolName, _Result]:
        began_s, found = time.monotonic(), dict[PoolName, _Result]()
        ended_s, failure = self._paused.get(reader.address, (-math.inf, None))
        if failure is not None and timeout_s <= ASK_S and began_s < ended_s + _PAUSE_S:
            raise failure
        try:
            names = [self._only.pool] if self._only is not None else list(reader.of_pool("", timeout_s).stats_all())
            for name in names:
                with suppress(UnknownPoolError):  # its worker left just now
                    found[PoolName(reader.address, name)] = call(reader.of_pool(name, timeout_s))
        except UnavailableError as error:
            if time.monotonic() - began_s > _SLOW_S:
                self._paused[reader.address] = (time.monotonic(), error)
            raise
        self._paused.pop(reader.address, None)
        return found

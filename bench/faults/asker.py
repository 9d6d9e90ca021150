"""Sane retries of a client, and a ledger of all tries.

Script ── play ──> Asker ── try, wait a little, try again ──> gateway or worker
                     └──> Ledger: finished, failed, cancelled, and when
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import httpx

from radixkv.core.errors import UnavailableError
from radixkv.generation.client import GenerationClient
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.generation.stream import Delta

__all__ = ["GIVE_UP_S", "Asker", "Done", "Failure", "Heard", "HungError", "Ledger", "TryAgainError"]

GIVE_UP_S = 90.0
"""From the first try of a request: longer than any restart. A request that waits longer was lost."""
_SILENCE_S = 75.0
"""A gateway may wait silently for its worker for a minute, for a response in one piece."""
_CONNECT_S = 3.0
"""After which the next gateway is asked."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0
_RETRIED = frozenset({429, 502, 503, 504})
_VARYING = re.compile(r"/\S+|\b[0-9a-f]{8,}\b|\d+")

_Answer = TypeVar("_Answer")


class HungError(Exception):
    """A request that got neither a result nor a retryable error."""


class TryAgainError(Exception):
    """A try has failed in a retryable way. `is_reported`: by radixkv's own status and message."""

    def __init__(self, what: str, *, is_reported: bool) -> None:
        super().__init__(what)
        self.is_reported = is_reported


class Done(NamedTuple):
    """A completed request. Times of the monotonic clock, of the first try and of the response."""

    route: str
    client: int
    begun_s: float
    ended_s: float
    num_tries: int


class Failure(NamedTuple):
    """A failed try. `is_reported`: by radixkv's own status and message, not by a broken connection."""

    route: str
    at_s: float
    what: str
    is_reported: bool


@dataclass(slots=True)
class Heard:
    """A generation over gRPC: the time at which the worker accepted it, and the number of its tokens received."""

    taken_s: float
    num_tokens: int = 0


class Ledger:
    """Results of all tries; thread-safe for writers.

    Attributes:
        num_tries: of requests; finished + failed, once all clients have left. num_cancelled: given up by their caller.
        num_sent: requests over HTTP, including those for preparation and clean-up.
        heard: generations over gRPC.
        done, failures: completed requests, failed tries.
        wrong: faults that must never occur.
    """

    def __init__(self) -> None:
        self.num_tries = 0
        self.num_sent = 0
        self.heard: list[Heard] = []
        self.num_cancelled = 0
        self.done: list[Done] = []
        self.failures: list[Failure] = []
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def tried(self) -> None:
        """Count a started try."""
        with self._lock:
            self.num_tries += 1

    def finished(self, done: Done) -> None:
        """Add a completed request."""
        with self._lock:
            self.done.append(done)

    def failed(self, route: str, what: str, *, is_reported: bool) -> None:
        """Add a failed try; numbers, paths and ids are removed from the message."""
        with self._lock:
            self.failures.append(Failure(route, time.monotonic(), _VARYING.sub("_", what)[:160], is_reported))

    def cancelled(self) -> None:
        """Count a try given up by its caller."""
        with self._lock:
            self.num_cancelled += 1

    def sent(self) -> None:
        """Count a request sent over HTTP."""
        with self._lock:
            self.num_sent += 1

    def taken(self) -> Heard:
        """Add a generation accepted by a worker over gRPC, to count its tokens."""
        with self._lock:
            self.heard.append(Heard(time.monotonic()))
            return self.heard[-1]

    def went_wrong(self, what: str) -> None:
        """Add a fault that must never occur: a wrong reply, a failure that no retry mends, a request without an end."""
        with self._lock:
            self.wrong.append(what)


class Asker:
    """One client's connections, and its retries: with growing pauses, until it gives up. Gateways are asked in turn.

    Args:
        urls: of the gateways.
        worker: address of a worker.
        ledger: of all tries.
        number: of the client.
        is_stopped: whether to give up between two tries.
    """

    def __init__(
        self, urls: Sequence[str], worker: str, ledger: Ledger, number: int, is_stopped: Callable[[], bool]
    ) -> None:
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._gateways = [httpx.Client(base_url=url, timeout=timeout) for url in urls]
        self._turn = number
        self.worker = GenerationClient(worker)
        self.ledger = ledger
        self.number = number
        self._is_stopped = is_stopped
        self._jitter = random.Random(number)

    def close(self) -> None:
        """Close the connections."""
        for gateway in self._gateways:
            gateway.close()
        self.worker.close()

    @property
    def num_gateways(self) -> int:
        """Where there are several, what one begins another ends."""
        return len(self._gateways)

    def retry(self, route: str, attempt: Callable[[], _Answer], *, counts: bool = True) -> _Answer:
        """The result of the first successful try. `counts`: whether the ledger counts it as a request.

        Raises:
            HungError: no try succeeded for too long.
        """
        begun_s = time.monotonic()
        wait_s = _FIRST_WAIT_S
        for num_tries in range(1, 10_000):
            if counts:
                self.ledger.tried()
            try:
                answer = attempt()
            except TryAgainError as error:
                if counts:
                    self.ledger.failed(route, str(error), is_reported=error.is_reported)
                if time.monotonic() - begun_s > GIVE_UP_S or self._is_stopped():
                    raise HungError(f"{route}: no answer within {GIVE_UP_S:g} s; the last try: {error}") from None
                time.sleep(wait_s * self._jitter.uniform(0.5, 1.0))
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                if counts:
                    self.ledger.finished(Done(route, self.number, begun_s, time.monotonic(), num_tries))
                return answer
        raise AssertionError("a client gives up long before")

    # -- HTTP

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """One try of a request with a JSON response."""
        with _transport():
            response = self._next_gateway().request(method, path, json=body)
        _check(response)
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer

    def stream(self, path: str, body: Any, leave_after: int | None = None) -> Iterator[dict[str, Any]]:
        """One try of a streamed chat completion: its chunks. `leave_after`: hang up after so many."""
        with _transport(), self._next_gateway().stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                _check(response)
            count = 0
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if not line.startswith("data: "):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    _refused(chunk["error"], "an event of a stream")
                yield chunk
                count += 1
                if leave_after is not None and count >= leave_after:
                    return
            raise TryAgainError("a stream broke off without an end", is_reported=False)

    def follow(self, path: str) -> Iterator[tuple[str, Any]]:
        """One try of a stream of events: their names and data."""
        with _transport(), self._next_gateway().stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                _check(response)
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))
        raise TryAgainError("a stream of events ended", is_reported=True)

    def remove(self, path: str) -> None:
        """One try of a removal. A missing item counts as removed: an earlier try may have removed it."""
        with _transport():
            response = self._next_gateway().delete(path)
        if response.status_code != 404:
            _check(response)

    def require_missing(self, path: str) -> None:
        """One try to see that an item is gone."""
        with _transport():
            response = self._next_gateway().get(path)
        if response.status_code < 400:
            raise RuntimeError(f"{path} is removed, and found")
        if response.status_code != 404:
            _check(response)

    def _next_gateway(self) -> httpx.Client:
        self.ledger.sent()
        self._turn += 1
        return self._gateways[self._turn % len(self._gateways)]

    # -- gRPC

    def generate(self, params: GenerateParams) -> tuple[str, list[list[int]]]:
        """One try of a generation: its id, and the tokens of each branch."""
        with _grpc():
            return _collect(self.worker.generate(params), params.sampling.n, self.ledger.taken())

    def fork(self, params: ForkParams) -> list[list[int]]:
        """One try of a fork: the tokens of each branch."""
        with _grpc():
            return _collect(self.worker.fork(params), params.sampling.n, self.ledger.taken())[1]


def _collect(stream: Any, num_branches: int, heard: Heard) -> tuple[str, list[list[int]]]:
    replies: list[list[int]] = [[] for _ in range(num_branches)]
    with stream:
        for event in stream:
            if isinstance(event, Delta):
                replies[event.branch].extend(event.token_ids)
                heard.num_tokens += len(event.token_ids)
    if stream.usage is None:
        raise TryAgainError("a stream broke off without an end", is_reported=False)
    return stream.generation_id, replies


class _transport:  # noqa: N801  # reads as a verb at its uses
    """Makes a broken connection retryable; silence is not."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout)):
            raise HungError(f"nothing was heard for {_SILENCE_S:g} s") from None
        if isinstance(error, httpx.TransportError):
            raise TryAgainError(f"{type(error).__name__}: {error}", is_reported=False) from None


class _grpc:  # noqa: N801  # as above
    """Makes errors of a stopped or stopping worker retryable."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnavailableError):
            raise TryAgainError(f"UnavailableError: {error}", is_reported=True) from None


def _check(response: httpx.Response) -> None:
    if response.status_code < 400:
        return
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        raise RuntimeError(f"status {response.status_code} without an error to read: {response.text[:200]}") from None
    _refused(error, str(response.status_code), response.status_code)


def _refused(error: dict[str, Any], where: str, status: int = 503) -> None:
    """Raise for a retryable error, or for a fault of the server or of this bench."""
    is_passing = status in _RETRIED and error.get("code") in ("unavailable", "draining", "overloaded")
    if not is_passing or not error.get("message"):
        raise RuntimeError(f"{where}: {error}")
    raise TryAgainError(f"{where} {error['code']}: {error['message']}", is_reported=True)

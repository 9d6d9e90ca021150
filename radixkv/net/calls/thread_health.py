"""gRPC's health service of a server of threads, outside its threads and the limit of its calls; see `health`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from radixkv.net.calls.health import MAX_CHECKS, MAX_WATCHERS, HealthStatus, Newest, address_of, watcher_places
from radixkv.net.calls.malformed import reader
from radixkv.net.calls.thread_calls import Begin, ThreadCall

__all__ = ["ThreadHealth"]

_parse = reader(health_pb2.HealthCheckRequest.FromString)


class _Watcher:
    """A client that gets every change of status. One thread at a time writes to it."""

    __slots__ = ("_lock", "_status", "_told", "call", "request")

    def __init__(self, call: ThreadCall, request: Any, status: HealthStatus) -> None:
        self.call = call
        self.request = request
        self._status = status
        self._told: Any = None
        self._lock = threading.Lock()

    def tell(self) -> None:
        with self._lock:
            answer = self._status.watched(self.request)
            if answer != self._told:
                self._told = answer
                self.call.send(answer)


class ThreadHealth:
    """Health for `ThreadCalls`. A watcher holds a thread only while it reads a status.

    Args:
        names: of the services.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._status = HealthStatus(names)
        self._places = watcher_places()
        self._waiting = Newest(MAX_CHECKS)
        self._threads = ThreadPoolExecutor(MAX_CHECKS + MAX_WATCHERS, thread_name_prefix="radixkv-health")
        self._watchers: set[_Watcher] = set()
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Set all services to SERVING."""
        self._status.serve()
        self._tell()

    def refuse(self) -> None:
        """Set all services to NOT_SERVING, permanently, and notify watchers."""
        self._status.refuse()
        self._tell()

    def stop(self) -> None:
        """End the threads, once the server has ended all calls."""
        self._threads.shutdown()

    def handler(self, method: str) -> tuple[Begin, Any] | None:
        """The begin function of a method, and its serialiser of answers; None for an unknown method."""
        begin = {"Check": self._begin_check, "Watch": self._begin_watch}.get(method.rpartition("/")[2])
        return None if begin is None else (begin, health_pb2.HealthCheckResponse.SerializeToString)

    def _begin_check(self, call: ThreadCall) -> None:
        token = self._waiting.enter(call.context.cancel)
        if not call.context.add_callback(lambda: self._waiting.leave(token)):
            self._waiting.leave(token)
        self._threads.submit(call.serve, self._check)

    def _check(self, call: ThreadCall) -> None:
        answer = self._status.find(call.read(_parse))
        if answer is None:
            call.context.set_code(grpc.StatusCode.NOT_FOUND)
            call.context.set_details("no service has this name")
        else:
            call.send(answer)
        call.finish()

    def _begin_watch(self, call: ThreadCall) -> None:
        place = self._places.take(address_of(call.context.peer()))
        if not call.context.add_callback(place.close):
            place.close()
        self._threads.submit(call.serve, self._watch)

    def _watch(self, call: ThreadCall) -> None:
        watcher = _Watcher(call, call.read(_parse), self._status)
        with self._lock:
            self._watchers.add(watcher)
        if not call.context.add_callback(lambda: self._leave(watcher)):
            self._leave(watcher)
        watcher.tell()

    def _leave(self, watcher: _Watcher) -> None:
        with self._lock:
            self._watchers.discard(watcher)

    def _tell(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            self._threads.submit(watcher.tell)

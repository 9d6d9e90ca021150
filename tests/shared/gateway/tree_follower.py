"""A program that follows the tree as the page does: what it was sent, event by event, and byte by byte."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

__all__ = ["Follower", "follower"]

CACHE = "/v1/radixkv/cache"
DEADLINE_S = 300.0


class Follower:
    """`nodes`: rows by id, as told; `gone`, `left`: what has left the tree, by events and by listings; `raw`: all bytes."""

    def __init__(self, address: str, key: str = "", query: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=f"http://{address}{CACHE}", headers=headers, timeout=DEADLINE_S)
        self.hello: dict[str, Any] = {}
        self.points: list[list[Any]] = []
        self.nodes: dict[int, list[Any]] = {}
        self.gone: list[list[Any]] = []
        self.left: list[list[Any]] = []
        self.status: dict[str, Any] = {}
        self.raw = b""
        self.num_tree_bytes = 0
        self._news = threading.Condition()
        self._is_closing = False
        self._answer = self.client.send(self.client.build_request("GET", f"/events{query}"), stream=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_until(self, holds: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
        with self._news:
            assert self._news.wait_for(holds, deadline_s), "it was not told in time"

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json={} if body is None else body)

    def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):  # the server has closed it
            self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._answer.close()
        self.client.close()

    def _run(self) -> None:
        try:
            rest = b""
            for chunk in self._answer.iter_bytes():
                self.raw += chunk
                *events, rest = (rest + chunk).split(b"\n\n")
                with self._news:
                    for event in events:
                        self._hear(event)
                    self._news.notify_all()
        except (httpx.HTTPError, httpx.StreamError, OSError):
            if not self._is_closing:
                raise

    def _hear(self, event: bytes) -> None:
        if event.startswith(b":"):
            return
        name, _, data = event.decode().partition("\n")
        told = json.loads(data.removeprefix("data: "))
        match name.removeprefix("event: "):
            case "hello":
                self.hello = told
            case "status":
                self.status = told
            case "points":
                self.points += told["points"]
            case "gone":
                self.gone += told["gone"]
            case "tree":
                self.num_tree_bytes += len(event)
                if told["reset"]:
                    self.nodes.clear()
                self.nodes.update({row[0]: row for row in told["nodes"]})
                self.left += told["gone"]
                for view_id, _, _ in told["gone"]:
                    self.nodes.pop(view_id, None)


@contextmanager
def follower(address: str, key: str = "", query: str = "") -> Iterator[Follower]:
    """Follows while it is entered. `query`: of the request, which may name a pool."""
    follower = Follower(address, key, query)
    try:
        yield follower
    finally:
        follower.close()

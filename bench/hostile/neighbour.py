"""The attacker's neighbour: tenant "b" sends requests steadily over every way in, and records times to the first token.

Each way has a thread and sends a request once an interval. During a long wait it sends fewer than planned; the missed requests
are counted with the rest of that wait, so that a stall of 20 s is not a single slow request.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from bench.hostile.stack import Site
from radixkv.v1 import generation_pb2, generation_pb2_grpc, prefix_cache_pb2, prefix_cache_pb2_grpc

__all__ = ["CHAT", "WAYS", "Neighbour", "Sample"]

CHAT, SCHEMA, WRITE, GENERATE, LOOK, HEALTH = "chat", "schema", "write", "generate", "look", "health"
WAYS = (CHAT, SCHEMA, WRITE, GENERATE, LOOK, HEALTH)
"""A chat, one with a new schema, a new conversation; a generation at the worker; a call of the cache service; a balancer's
health request to the gateway, without a key."""
CALL_S = 8.0
INTERVALS_S = {CHAT: 0.06, SCHEMA: 0.5, WRITE: 0.3, GENERATE: 0.12, LOOK: 0.12, HEALTH: 0.3}


class Sample(NamedTuple):
    """One request. `at_s`: its actual or planned time, by the monotonic clock. `failure`: empty if it was served."""

    way: str
    at_s: float
    took_s: float
    failure: str


class Neighbour:
    """Sends requests from entering it as a context manager to leaving it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ending = threading.Event()
        self._samples: list[Sample] = []
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._ask, args=(way,), name=f"neighbour {way}") for way in WAYS]

    def __enter__(self) -> Neighbour:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def between(self, begin_s: float, end_s: float) -> list[Sample]:
        """Requests that overlap these times."""
        found = self._samples.copy()
        return [sample for sample in found if sample.at_s <= end_s and sample.at_s + sample.took_s >= begin_s]

    def wait_answered(self, since_s: float, timeout_s: float) -> bool:
        """Wait until each way has served a request made after `since_s`; False if one has not in time."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            samples = self._samples.copy()
            if {sample.way for sample in samples if sample.at_s > since_s and not sample.failure} == set(WAYS):
                return True
            time.sleep(0.01)
        return False

    def _ask(self, way: str) -> None:
        interval_s = INTERVALS_S[way]
        with self._caller(way) as ask:
            while not self._ending.is_set():
                started_s = time.monotonic()
                try:
                    ask()
                    failure = ""
                except grpc.RpcError as error:
                    failure = f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]  # it is a call
                except (OSError, http.client.HTTPException, ValueError) as error:
                    failure = repr(error)
                took_s = time.monotonic() - started_s
                self._samples.append(Sample(way, started_s, took_s, failure))
                for number in range(1, int(took_s / interval_s)):
                    late_s = number * interval_s
                    self._samples.append(Sample(way, started_s + late_s, took_s - late_s, failure))
                self._ending.wait(max(0.0, interval_s - took_s))

    @contextmanager
    def _caller(self, way: str) -> Iterator[Callable[[], None]]:
        if way in (CHAT, SCHEMA, WRITE, HEALTH):
            yield {CHAT: self._chat, SCHEMA: self._chat_by_schema, WRITE: self._write, HEALTH: self._health}[way]
        else:
            address = self._site.worker if way == GENERATE else self._site.service
            with grpc.insecure_channel(address, options=[("grpc.enable_retries", 0)]) as channel:
                yield self._generation(channel) if way == GENERATE else self._look(channel)

    def _chat(self, **more: Any) -> None:
        """One token: the first of a reply."""
        content = f"What about {next(self._numbers)}?"
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
        self._post("/v1/chat/completions", body | {"model": self._site.model} | more)

    def _chat_by_schema(self) -> None:
        schema = {"type": "object", "properties": {f"p{next(self._numbers)}": {"type": "string"}}}
        self._chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})

    def _write(self) -> None:
        told = self._post("/v1/radixkv/conversations", {"messages": [{"role": "user", "text": "Hello"}]})
        self._request("DELETE", f"/v1/radixkv/conversations/{told['id']}", None)

    def _health(self) -> None:
        self._request("GET", "/health", None, key="")

    def _post(self, path: str, body: Any) -> Any:
        return json.loads(self._request("POST", path, json.dumps(body)))

    def _request(self, method: str, path: str, body: str | None, key: str = "b") -> bytes:
        connection = http.client.HTTPConnection(self._site.gateway, timeout=CALL_S)
        try:
            headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            told = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise ValueError(f"HTTP {answer.status}: {told[:200]!r}")
        return told

    def _generation(self, channel: grpc.Channel) -> Callable[[], None]:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated
        sampling = generation_pb2.SamplingParams(max_tokens=1, ignore_eos=True)

        def ask() -> None:
            prompt = generation_pb2.Prompt(text=f"The number {next(self._numbers)} is")
            request = generation_pb2.GenerateRequest(prompt=prompt, sampling=sampling)
            for _ in stub.Generate(request, timeout=CALL_S, metadata=(("authorization", "Bearer b"),)):
                pass

        return ask

    def _look(self, channel: grpc.Channel) -> Callable[[], None]:
        stub: Any = prefix_cache_pb2_grpc.PrefixCacheStub(channel)  # type: ignore[no-untyped-call]  # generated
        metadata = (("authorization", "Bearer router"),)
        return lambda: stub.Stats(prefix_cache_pb2.StatsRequest(), timeout=CALL_S, metadata=metadata)

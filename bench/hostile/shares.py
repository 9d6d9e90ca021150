"""One tenant's work against all tenants' shares: streams, priority, urgency, retention, pins, searches, the keys file."""

from __future__ import annotations

import json
import random
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from bench.hostile.stack import Site, keys_text, write_keys
from bench.hostile.wire import Attack, Outcomes, call, chat, flood, status_of
from radixkv.v1 import generation_pb2, generation_pb2_grpc, prefix_cache_pb2, prefix_cache_pb2_grpc, types_pb2

__all__ = ["ATTACKS", "prompt_of"]

PROMPT_TOKENS = 1500
_CODES = frozenset({"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "CANCELLED"})
_HTTP = frozenset({"200", "400", "404", "408", "409", "413", "429", "503", "504", "hung up"})


def prompt_of(number: int, num_tokens: int = PROMPT_TOKENS) -> bytes:
    """Packed ids of a prompt that shares no block with that of another number."""
    source = random.Random(number)
    return struct.pack(f"<{num_tokens}I", *(source.randrange(1000, 40_000) for _ in range(num_tokens)))


def _generations(
    site: Site,
    seconds: float,
    scale: float,  # noqa: ARG001  # as all
    *,
    key: str = "a",
    num_at_once: int = 32,
    max_tokens: int = 64,
    **more: Any,
) -> Outcomes:
    """Repeated generations of long prompts, so many at once."""
    first = random.randrange(1 << 30)
    sampling = generation_pb2.SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    until_s = time.monotonic() + seconds
    with grpc.insecure_channel(site.worker, options=options) as channel:
        stub: Any = generation_pb2_grpc.GenerationStub(channel)  # type: ignore[no-untyped-call]  # generated

        def one(number: int) -> str:
            prompt = generation_pb2.Prompt(token_ids=prompt_of(first + number))
            request = generation_pb2.GenerateRequest(prompt=prompt, sampling=sampling, **more)
            left_s = max(0.1, until_s - time.monotonic())
            try:
                for _ in stub.Generate(request, timeout=left_s, metadata=(("authorization", f"Bearer {key}"),)):
                    pass
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:  # type: ignore[attr-defined]  # it is a call
                    time.sleep(0.05)
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return flood(seconds, num_at_once, one)


def _urgent(site: Site, seconds: float, scale: float) -> Outcomes:
    """Urgent prompts, each with its own time limit."""
    with ThreadPoolExecutor(3) as threads:
        parts = [
            threads.submit(_generations, site, seconds, scale, num_at_once=12, timeout_s=timeout_s)
            for timeout_s in (0.3, 1.0, 3.0)
        ]
        return sum((part.result() for part in parts), Counter())


_RETAINED = (types_pb2.Retention(priority=100),)
_PINS = (generation_pb2.PrefixPin(num_tokens=PROMPT_TOKENS, ttl_s=604_800.0),)


def _pins(site: Site, seconds: float, scale: float) -> Outcomes:
    """Pin as much as allowed, by generations and by calls of the cache service."""
    found = _generations(site, seconds / 2, scale, num_at_once=8, max_tokens=1, pins=_PINS)
    metadata = (("authorization", "Bearer a"),)
    with grpc.insecure_channel(site.service) as channel:
        stub: Any = prefix_cache_pb2_grpc.PrefixCacheStub(channel)  # type: ignore[no-untyped-call]  # generated

        def one(number: int) -> str:
            request = prefix_cache_pb2.PinRequest(namespace="a", tokens=prompt_of(number), ttl_s=604_800.0)
            try:
                stub.Pin(request, timeout=5.0, metadata=metadata)
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]  # it is a call
            return "OK"

        return found + flood(seconds / 2, 8, one)


def _drafts(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Requests of 128 drafts each, over HTTP, abandoned at the end."""
    body = json.dumps(chat(site, n=128, max_tokens=400, ignore_eos=True)).encode()
    return flood(seconds, 16, lambda _: status_of(site, "/v1/chat/completions", body, within_s=2.0))


def _searches(site: Site, seconds: float, scale: float, *, key: str, num_at_once: int) -> Outcomes:
    """Conversations of 900 KB each, and searches through them."""
    path = "/v1/radixkv/conversations"
    long = json.dumps({"title": "x", "messages": [{"role": "user", "text": "lorem " * 150_000}]}).encode()
    found: Outcomes = Counter()
    for _ in range(max(8, int(28 * scale))):
        found[status_of(site, path, long, key)] += 1
    queries = ("ipsum", "m l" * 60, "orem lorem x", "é")

    def one(number: int) -> str:
        query = queries[number % len(queries)].replace(" ", "%20").replace("é", "%C3%A9")
        return status_of(site, f"{path}?search={query}", None, key, method="GET")

    found += flood(seconds, num_at_once, one)
    _forget(site, key)
    return found


def _imports(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """Files of many small conversations, eight at once."""
    path = "/v1/radixkv/conversations/import"
    tree = {"title": "x", "mapping": {"r": {"id": "r", "message": None, "parent": None, "children": ["m"]}}}
    tree["mapping"]["m"] = {  # type: ignore[index]  # it is a dictionary
        "id": "m",
        "parent": "r",
        "children": [],
        "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["hello " * 50]}},
    }
    sent = json.dumps([tree] * 500).encode()
    found = flood(seconds, 8, lambda _: status_of(site, path, sent))
    _forget(site, "a")
    return found


def _exports(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """One long conversation that is read, exported and listed by a hundred at once."""
    path = "/v1/radixkv/conversations"
    messages = [{"role": ("user", "assistant")[i % 2], "text": "lorem " * 60} for i in range(1500)]
    status, told = call(site, path, {"messages": messages})
    own = f"{path}/{json.loads(told)['id']}" if status == "200" else path
    paths = (own, f"{own}/export", f"{own}/export?format=markdown", f"{path}?limit=200", "/v1/radixkv/replay")
    found = flood(seconds, 100, lambda number: status_of(site, paths[number % len(paths)], None, method="GET"))
    _forget(site, "a")
    return found


def _forget(site: Site, key: str) -> None:
    """Delete stored items, so that the next attack starts alike; for a few seconds at most."""
    path, until_s = "/v1/radixkv/conversations", time.monotonic() + 5.0
    while time.monotonic() < until_s:
        status, told = call(site, f"{path}?limit=200", None, key, method="GET")
        listed = json.loads(told)["conversations"] if status == "200" else []
        for each in listed:
            if time.monotonic() > until_s:
                return
            call(site, f"{path}/{each['id']}", None, key, method="DELETE")
        if not listed:
            return


def _keys_file(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    """The keys file is written as by careless editors: emptied, filled in pieces, truncated anywhere for a moment.

    Meanwhile a key with few rights sends requests beyond them; "200" would be more than it may have.
    """
    path, whole = Path(site.keys_file), keys_text()
    source, ending = random.Random(0), threading.Event()
    digest = whole.split('name = "team"')[1]
    half = whole.index(digest) + digest.index("]") + 1  # just after the keys of a reader

    def write() -> None:
        while not ending.is_set():
            for cut in (0, half, source.randrange(len(whole)), source.randrange(len(whole))):
                with path.open("r+") as file:
                    file.truncate(0)
                    file.write(whole[:cut])
                    file.flush()
                    ending.wait(0.4)
                    file.write(whole[cut:])
                ending.wait(0.7)
            path.write_text("")
            ending.wait(2.5)
            path.write_text(whole)
            ending.wait(1.5)

    writer = threading.Thread(target=write)
    writer.start()
    try:

        def one(number: int) -> str:
            time.sleep(0.02)
            key = ("team", "holder", "a")[number % 3]
            status = status_of(site, "/v1/models", None, key, method="GET")
            expected = "200" if key == "a" else "403"
            return "as ever" if status == expected else f"{key}: {status}"

        return flood(seconds, 2, one)
    finally:
        ending.set()
        writer.join()
        write_keys(path)


ATTACKS = (
    Attack(
        "256 streams of a limited tenant, gRPC",
        partial(_generations, key="limited", num_at_once=256, max_tokens=2000),
        _CODES,
        "RESOURCE_EXHAUSTED",
        4.0,
    ),
    Attack(
        "300 streams of a tenant without limits, gRPC",
        partial(_generations, num_at_once=300, max_tokens=2000),
        _CODES,
        seconds=4.0,
    ),
    Attack("priority 100", partial(_generations, priority=100, max_tokens=8), _CODES, "OK", 4.0),
    Attack("urgent timeouts", _urgent, _CODES, seconds=4.0),
    Attack("retention 100 for good", partial(_generations, retention=_RETAINED, max_tokens=1), _CODES, "OK"),
    Attack("pins", _pins, _CODES),
    Attack("requests of 128 drafts", _drafts, _HTTP),
    Attack("100 searches at once", partial(_searches, key="a", num_at_once=100), _HTTP, seconds=4.0),
    Attack("searches and stores of a limited tenant", partial(_searches, key="limited", num_at_once=100), _HTTP, "429"),
    Attack("imports", _imports, _HTTP),
    Attack("100 readers of one long conversation", _exports, _HTTP),
    Attack("a keys file that is written in place", _keys_file, frozenset({"as ever"}), "as ever", 12.0),
)

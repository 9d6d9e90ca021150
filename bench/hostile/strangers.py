"""Attacks without a key, or with one of few rights: endless heads, missing bodies, readers that never read, idle streams."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

from bench.hostile.stack import Site
from bench.hostile.wire import SOURCES, Attack, Outcomes, connect, flood, hold_connections, hold_streams, status_of

__all__ = ["ATTACKS"]

MIB = 1 << 20
_GET = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n"
_REFUSED = frozenset({"400", "401", "403", "404", "408", "413", "414", "429", "431", "503", "closed"})


def _grow_head(site: Site, seconds: float, scale: float, *, begin: bytes, piece: bytes) -> Outcomes:
    """Send a head until it is refused or 64 MiB, times the scale, are accepted, repeatedly."""
    size = max(4 * MIB, int(64 * MIB * scale))

    def one(_: int) -> str:
        try:
            with connect(site.gateway) as made:
                made.sendall(begin)
                for _ in range(size // len(piece)):
                    made.sendall(piece)
                made.settimeout(0.2)
                heard = made.recv(4096)
                return heard.split(b" ", 2)[1].decode() if heard.startswith(b"HTTP/") else "closed"
        except TimeoutError:
            return "taken"
        except OSError:
            return "closed"

    return flood(seconds, 2, one)


def _slow_heads(site: Site, seconds: float, scale: float) -> Outcomes:
    return hold_connections(site.gateway, max(300, int(1100 * scale)), _GET + b"x: ", seconds, drip=b"a")


def _missing_bodies(site: Site, seconds: float, scale: float, *, key: str, path: str, drip: bytes = b"") -> Outcomes:  # noqa: ARG001  # as all
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n"
    head += f"authorization: Bearer {key}\r\n\r\n{{"
    return hold_connections(site.gateway, 1100, head.encode(), seconds, drip=drip)


def _deaf_readers(site: Site, seconds: float, scale: float, *, path: str, at_once: int = 40) -> Outcomes:  # noqa: ARG001  # as all
    """Request a file repeatedly and read nothing of it; with fewer at once, repeatedly and from many addresses."""
    requests = f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode() * at_once
    if at_once == 40:
        return hold_connections(site.gateway, 1100, requests, seconds, reads=False)
    return hold_connections(site.gateway, 300, requests, seconds, reads=False, drip=requests, sources=SOURCES)


def _silent(site: Site, seconds: float, scale: float) -> Outcomes:
    num = max(300, int(1100 * scale))
    found: Outcomes = Counter()
    for address in (site.gateway, site.worker, site.service):
        found += hold_connections(address, num, b"", seconds / 3)
    return found


def _event_streams(site: Site, seconds: float, scale: float, *, path: str) -> Outcomes:  # noqa: ARG001  # as all
    """Streams of events of one tenant, held silently."""
    request = f"GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\n\r\n"
    return hold_connections(site.gateway, 1100, request.encode(), seconds)


def _metrics(site: Site, seconds: float, scale: float) -> Outcomes:  # noqa: ARG001  # as all
    def one(_: int) -> str:
        status = status_of(site, "/metrics", None, "", method="GET")
        time.sleep(0.01)
        return status

    return flood(seconds, 200, one)


def _streams(
    site: Site, seconds: float, scale: float, *, where: str, path: str, full: int, sent: bytes | None, key: str = ""
) -> Outcomes:
    return hold_streams(getattr(site, where), path, max(300, int(full * scale)), seconds, sent=sent, key=key)


_WATCH = "/grpc.health.v1.Health/Watch"
_CHECK = "/grpc.health.v1.Health/Check"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_GENERATE = "/radixkv.v1.Generation/Generate"
_STATS = "/radixkv.v1.PrefixCache/Stats"
_EVENTS = "/radixkv.v1.PrefixCache/Events"
_ATTACH = "/radixkv.v1.Workers/Attach"
_STREAMS = frozenset({"open", "refused"})

ATTACKS = (
    Attack("many headers", partial(_grow_head, begin=_GET, piece=b"x-a: " + b"b" * 1000 + b"\r\n"), _REFUSED),
    Attack("one long header", partial(_grow_head, begin=_GET + b"x: ", piece=b"b" * 4096), _REFUSED),
    Attack("a long path", partial(_grow_head, begin=b"GET /", piece=b"b" * 4096), _REFUSED),
    Attack(
        "a long chunk extension",
        partial(
            _grow_head,
            begin=b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer limited\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n1;",
            piece=b"b" * 4096,
        ),
        _REFUSED,
    ),
    Attack(
        "trailers without end",
        partial(
            _grow_head,
            begin=b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer limited\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
            piece=b"x-a: " + b"b" * 1000 + b"\r\n",
        ),
        _REFUSED,
    ),
    Attack("slow heads", _slow_heads, _REFUSED | {"open"}),
    Attack("silent connections", _silent, _REFUSED | {"open"}),
    Attack(
        "bodies that never come, limited tenant",
        partial(_missing_bodies, key="limited", path="/v1/chat/completions"),
        _REFUSED | {"open"},
        "429",
    ),
    Attack(
        "bodies that never come, tenant without limits",
        partial(_missing_bodies, key="a", path="/v1/responses"),
        _REFUSED | {"open"},
    ),
    Attack(
        "bodies byte by byte, imports",
        partial(_missing_bodies, key="a", path="/v1/radixkv/conversations/import", drip=b"1"),
        _REFUSED | {"open"},
    ),
    Attack(
        "bodies that never come, no such path",
        partial(_missing_bodies, key="a", path="/nowhere"),
        _REFUSED | {"405", "open"},
    ),
    Attack(
        "deaf readers of a static file", partial(_deaf_readers, path="/static/vendor/highlight.js"), _STREAMS | _REFUSED
    ),
    Attack(
        "deaf readers with many addresses",
        partial(_deaf_readers, path="/openapi.json", at_once=6),
        _STREAMS | _REFUSED,
    ),
    Attack("deaf readers of the page", partial(_deaf_readers, path="/"), _STREAMS | _REFUSED),
    Attack("deaf readers of the schema", partial(_deaf_readers, path="/openapi.json"), _STREAMS | _REFUSED),
    Attack("deaf readers of metrics", partial(_deaf_readers, path="/metrics"), _STREAMS | _REFUSED),
    Attack(
        "viewers of the tree page",
        partial(_event_streams, path="/v1/radixkv/cache/events"),
        _REFUSED | {"200", "open"},
        "429",
    ),
    Attack("metrics over 200 connections", _metrics, frozenset({"200", "429", "503", "closed"}), "200"),
    Attack(
        "health streams at the worker",
        partial(_streams, where="worker", path=_WATCH, full=520, sent=b""),
        _STREAMS,
        "refused",
    ),
    Attack(
        "health streams at the service",
        partial(_streams, where="service", path=_WATCH, full=4200, sent=b""),
        _STREAMS,
        "refused",
        4.0,
    ),
    Attack(
        "health calls without a message at the worker",
        partial(_streams, where="worker", path=_CHECK, full=520, sent=None),
        _STREAMS,
    ),
    Attack(
        "calls without a key or a message at the worker",
        partial(_streams, where="worker", path=_GENERATE, full=520, sent=None),
        _STREAMS,
    ),
    Attack(
        "calls without a message at the worker",
        partial(_streams, where="worker", path=_GENERATE, full=520, sent=None, key="a"),
        _STREAMS,
    ),
    Attack(
        "reflection streams at the worker",
        partial(_streams, where="worker", path=_REFLECTION, full=520, sent=None, key="a"),
        _STREAMS,
    ),
    Attack(
        "calls without a key or a message at the service",
        partial(_streams, where="service", path=_STATS, full=4200, sent=None),
        _STREAMS,
    ),
    Attack(
        "calls without a message at the service",
        partial(_streams, where="service", path=_STATS, full=4200, sent=None, key="team"),
        _STREAMS,
    ),
    Attack(
        "event streams at the service",
        partial(_streams, where="service", path=_EVENTS, full=4200, sent=b"\x1a\x06team-x\x20\x01", key="team"),
        _STREAMS,
    ),
    Attack(
        "holders that say nothing at the service",
        partial(_streams, where="service", path=_ATTACH, full=4200, sent=None, key="holder"),
        _STREAMS,
    ),
)

"""Parts of the health service: whose address a peer has, and whom one call too many ends."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from radixkv.net.calls.health import HealthStatus, Newest, address_of

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:54321", "10.1.2.3"),
        ("ipv6:%5B2001:db8::1%5D:54321", "2001:db8::/64"),
        ("ipv6:[2001:db8::ffff:1]:9", "2001:db8::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:", "unix"),
        ("unix:/run/socket", "unix"),
    ],
)
def test_a_peer_is_known_by_its_machine_or_network_and_not_by_its_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_one_call_too_many_ends_the_oldest_that_still_waits() -> None:
    ended: list[str] = []
    calls = Newest(2)
    first = calls.enter(lambda: ended.append("first"))
    calls.enter(lambda: ended.append("second"))
    calls.leave(first)
    calls.enter(lambda: ended.append("third"))
    assert not ended
    calls.enter(lambda: ended.append("fourth"))
    assert ended == ["second"]
    calls.leave(first)
    calls.enter(lambda: ended.append("fifth"))
    assert ended == ["second", "third"]


def test_what_refuses_serves_never_again() -> None:
    status, request = HealthStatus(("a",)), health_pb2.HealthCheckRequest(service="a")
    assert status.find(request).status == NOT_SERVING
    status.serve()
    assert (status.find(request).status, status.watched(request).status) == (SERVING, SERVING)
    status.refuse()
    status.serve()
    assert status.find(request).status == NOT_SERVING
    other = health_pb2.HealthCheckRequest(service="b")
    assert status.find(other) is None
    assert status.watched(other).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

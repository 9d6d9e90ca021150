"""The listener that Prometheus reads: where it says it is, for as long as it is held, and what is told of namespaces."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable

import pytest
from own_threads import own_threads
from prometheus_client.core import GaugeMetricFamily, Metric

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.net.metrics import serve_metrics


def one_gauge() -> Iterable[Metric]:
    yield GaugeMetricFamily("radixkv:answer", "What it is", value=42)


def read(address: str) -> str:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=300)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_it_listens_where_it_says_and_no_longer_than_it_is_held(host: str) -> None:
    threads = own_threads()
    with serve_metrics(f"{host}:0", one_gauge) as address:
        assert address.startswith(f"{host}:")
        assert address != f"{host}:0"
        assert "radixkv:answer 42.0" in read(address)
    with pytest.raises(ConnectionRefusedError):
        read(address)
    assert own_threads() <= threads


def test_a_named_port_is_the_one_that_it_listens_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        with pytest.raises(UnavailableError, match="in use"), serve_metrics(f"127.0.0.1:{port}", one_gauge):
            pass
    with serve_metrics(f"127.0.0.1:{port}", one_gauge) as address:
        assert address == f"127.0.0.1:{port}"
        assert "radixkv:answer 42.0" in read(address)


def test_without_an_address_nobody_listens() -> None:
    threads = own_threads()
    with serve_metrics(None, one_gauge) as address:
        assert address == ""
        assert own_threads() <= threads


def test_what_is_no_port_of_a_host_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="host:port"), serve_metrics("unix:/tmp/metrics", one_gauge):
        pass

"""A server or a client that cannot begin leaves nothing behind: no thread of its own, no address taken, no lease."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from resp_servers import free_port

from radixkv import PoolHeldError, PoolShape, PrefixCache, RadixKVError, UnavailableError, connect
from radixkv.generation.client import GenerationClient
from radixkv.net.tls import Security
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer


@pytest.fixture
def taken() -> Iterator[str]:
    """An address in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(HashRunner(16, 4), PrefixCache(16, 4)) as engine:
        yield engine


def own_threads() -> set[threading.Thread]:
    """radixkv's; those of earlier tests may still be ending."""
    return {thread for thread in threading.enumerate() if "radixkv" in thread.name}


@pytest.mark.parametrize(
    "settings",
    [
        lambda first, taken: {"addresses": (*first, taken)},
        lambda first, taken: {"addresses": first, "metrics_address": taken},
        lambda first, *_: {"addresses": (*first, "nowhere")},
        lambda first, *_: {"addresses": first, "security": Security(keys_file=Path("/nowhere/keys.toml"))},
        lambda first, *_: {"addresses": (*first, "0.0.0.0:0")},
    ],
    ids=["address in use", "metrics in use", "no address", "no keys", "not safe"],
)
def test_a_service_that_cannot_begin_listens_nowhere(
    settings: Callable[[tuple[str, ...], str], dict[str, Any]], taken: str, tmp_path: Path
) -> None:
    path, port, threads = tmp_path / "service", free_port(), own_threads()
    config = ServiceConfig(**settings((f"unix:{path}", f"127.0.0.1:{port}"), taken))
    with pytest.raises(RadixKVError), ServiceThread(config):
        pass
    assert not path.exists()
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert own_threads() <= threads


def test_a_worker_s_server_that_cannot_begin_leaves_its_engine_as_it_is(engine: Engine, taken: str) -> None:
    threads = own_threads()
    with pytest.raises(UnavailableError, match=taken), GenerationServer(engine, taken):
        pass
    assert own_threads() <= threads
    assert engine.is_alive
    with GenerationServer(engine, "127.0.0.1:0") as server, GenerationClient(server.address) as client:
        assert client.model().block_size == 4


def test_a_holder_that_is_refused_leaves_nothing_and_the_one_before_holds_on(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/service"
    with ServiceThread(ServiceConfig(addresses=(address,))), connect(address, PoolShape(16, 4)) as first:
        threads = own_threads()
        for pool in (PoolShape(16, 4), PoolShape(32, 4)):
            with pytest.raises(PoolHeldError):
                connect(address, pool)
        with pytest.raises(RadixKVError):
            connect(address, PoolShape(0, 4, "other"))
        assert own_threads() <= threads
        first.acquire([1, 2])
        with contextlib.closing(connect(address)) as reader:
            assert list(reader.stats_all()) == ["default"]
    assert own_threads() < threads


def test_a_client_that_reaches_nobody_leaves_nothing(tmp_path: Path) -> None:
    threads = own_threads()
    with pytest.raises(UnavailableError):
        connect(f"unix:{tmp_path}/nobody", PoolShape(16, 4), timeout_s=0.1)
    with GenerationClient(f"unix:{tmp_path}/nobody", retries=False) as client, pytest.raises(UnavailableError):
        client.model()
    assert own_threads() <= threads

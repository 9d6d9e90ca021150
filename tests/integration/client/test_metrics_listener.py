"""`--metrics` of a cache service alone, and of a worker that speaks gRPC alone: read as Prometheus reads them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from resp_servers import free_port

from radixkv import PoolShape, connect, pack_tokens
from radixkv.cli import main
from radixkv.core.api import BlockTimes, CacheStats, NamespaceUsage
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.net.metrics import MAX_NAMESPACES, OTHERS, PoolFigures, pool_metrics

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def running(*command: str) -> Iterator[list[str]]:
    """A command that has said that it is up; what it said. It must stop by itself when told to."""
    program = [sys.executable, "-m", "radixkv", *command]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if "Ctrl-C" in line:
                break
        try:
            yield said
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()


def scrape(address: str) -> Series:
    text = httpx.get(f"http://{address}/metrics", timeout=300).raise_for_status().text
    families = text_string_to_metric_families(text)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for f in families for sample in f.samples}


def test_a_service_alone_tells_of_every_pool_and_namespace(tmp_path: Path) -> None:
    metrics, service = free_address(), f"unix:{tmp_path}/service"
    with running("serve", "--listen", service, "--metrics", metrics) as said:
        assert f"http://{metrics}/metrics" in "".join(said)
        assert not any(name == "radixkv:kv_sequences" for name, _ in scrape(metrics)), "there is no pool yet"
        with connect(service, PoolShape(64, name="first")) as first, connect(service, PoolShape(32, name="second")):
            for _ in range(2):
                seq = first.acquire(pack_tokens(range(32)), namespace='ten"ant\n')
                first.insert(seq.seq_id, 32)
                first.release(seq.seq_id)
            told = scrape(metrics)
            pools = frozenset({("pool", "first")}), frozenset({("pool", "second")})
            assert told["radixkv:kv_query_tokens_total", pools[0]] == 64
            assert told["radixkv:kv_hit_tokens_total", pools[0]] == 31
            assert told["radixkv:kv_query_tokens_total", pools[1]] == 0
            assert told["radixkv:kv_blocks", pools[1] | {("state", "free")}] == 32
            assert told["radixkv:prefix_cache_hit_rate", pools[0] | {("namespace", 'ten"ant\n')}] == 31 / 64


@pytest.mark.thorough
def test_a_worker_that_speaks_grpc_alone_tells_of_its_engine(tmp_path: Path, default_model: str) -> None:
    metrics, service = free_address(), f"unix:{tmp_path}/service"
    model = ("--model", default_model, "--num-blocks", "64")
    worker = ("worker", "--service", service, "--listen", f"unix:{tmp_path}/worker", "--metrics", metrics, *model)
    with running("serve", "--listen", service), running(*worker):
        told = {name: value for (name, labels), value in scrape(metrics).items() if not labels}
        assert told["radixkv:num_requests_waiting"] == told["radixkv:num_requests_running"] == 0
        assert told["radixkv:prefix_cache_hit_rate"] == 0
        assert told["radixkv:generation_tokens_total"] == 0
        assert ("radixkv:recent_queue_time_seconds", frozenset({("quantile", "0.99")})) in scrape(metrics)


@pytest.mark.parametrize("command", ["serve", pytest.param("worker", marks=pytest.mark.thorough)])
def test_an_address_in_use_is_refused_by_name(command: str, tmp_path: Path, default_model: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        finished = subprocess.run(
            [sys.executable, "-m", "radixkv", command, "--metrics", address]
            + (["--listen", f"unix:{tmp_path}/service"] if command == "serve" else ["--model", default_model]),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert finished.returncode == 1
    assert f"{address} is in use" in finished.stderr, finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("address", ["unix:/tmp/metrics", "9100", "127.0.0.1:99999"])
def test_an_address_of_another_form_is_refused_by_name(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--listen", "127.0.0.1:0", "--metrics", address]) == 1
    assert "host:port" in capsys.readouterr().err


def test_no_more_namespaces_are_told_apart_than_a_bound() -> None:
    cache = PrefixCache(16)
    usages = [
        NamespaceUsage(f"n{index}", 0, 0, 0, None, None, num_query_tokens=1000 - index, num_hit_tokens=500)
        for index in range(MAX_NAMESPACES + 3)
    ]
    figures: tuple[CacheStats, BlockTimes] = cache.stats(), cache.block_times()
    (family,) = (
        family
        for family in pool_metrics([PoolFigures(*figures, usages, "p")])
        if family.name == "radixkv:prefix_cache_hit_rate"
    )
    rates = {sample.labels["namespace"]: sample.value for sample in family.samples}
    assert len(rates) == MAX_NAMESPACES + 1
    assert rates["n0"] == 0.5
    assert rates[OTHERS] == 1500 / (900 + 899 + 898)


def test_of_several_pools_every_figure_names_its_pool() -> None:
    caches = {"p": PrefixCache(16), "q": PrefixCache(32)}
    for length, cache in enumerate(caches.values(), 16):
        cache.acquire([1] * length)
    pools = [PoolFigures(cache.stats(), cache.block_times(), cache.usage(), name) for name, cache in caches.items()]
    families = list(pool_metrics(pools))
    assert len(families) == len(list(pool_metrics([pools[0]._replace(pool=None)])))
    for family in families:
        named = {sample.labels["pool"] for sample in family.samples}
        assert named == {"p", "q"}, family.name
    told = {(each.name, each.labels["pool"]): each.value for family in families for each in family.samples}
    assert [told["radixkv:kv_query_tokens_total", name] for name in caches] == [16, 17]


def test_how_many_more_requests_fit_now_and_what_each_namespace_has_held() -> None:
    now_s = 0.0
    cache = PrefixCache(130, 16, clock=lambda: now_s)
    seq = cache.acquire([1] * 16, reserve=16, namespace="a")
    now_s = 10.0
    figures = PoolFigures(cache.stats(), cache.block_times(), cache.usage(), None)
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for family in pool_metrics([figures])
        for sample in family.samples
    }
    assert told["radixkv:kv_more_requests", "1024"] == 2, "130 blocks less one held and one promised, in 64 each"
    assert told["radixkv:kv_more_requests", "4096"] == 0
    assert told["radixkv:kv_held_token_seconds_total", "a"] == 160
    cache.release(seq.seq_id)
    assert cache.stats().num_more(16) == 130
    assert cache.stats().num_more(17) == 65

"""A cluster on Ray Serve: two workers of the byte model, two gateways, one machine. Needs ``pip install 'radixkv[ray]'``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import yaml
from byte_model import save_byte_model
from free_ports import free_port

from radixkv.cli.commands.cluster import _settings
from radixkv.cli.program import _parse, main
from radixkv.client import connect
from radixkv.core.errors import InvalidArgumentError
from radixkv.stores.settings import StoreSettings
from radixkv.worker.run import WorkerConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own code
    ray = pytest.importorskip("ray")
    from ray import serve

    from radixkv.ray.app import ClusterSettings, app, make_app
    from radixkv.ray.autoscaling import BACKLOG_S, by_backlog

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray and its packages warn of themselves

PROMPT = "the same long beginning of every prompt, " * 4


class Cluster:
    """The running application, and its clients."""

    def __init__(self, settings: ClusterSettings, url: str) -> None:
        self.settings, self.url = settings, url

    def ask(self, prompt: str, num_tokens: int = 4) -> dict[str, Any]:
        body = {"model": "bytes", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def num_cached(self, prompt: str) -> int:
        return self.ask(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def pids(self, name: str) -> set[int]:
        """Processes of the actors of this name, by the titles that Ray gives them."""
        titles = {each.pid: each.info["cmdline"] or [""] for each in psutil.process_iter(["cmdline"])}
        return {pid for pid, title in titles.items() if title[0].startswith(f"ray::{name}")}


def wait_for(what: Callable[[], Any], seconds: float = 90) -> Any:
    until_s = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if found := what():
                return found
        assert time.monotonic() < until_s
        time.sleep(0.3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("model") / "bytes"
    save_byte_model(folder)
    port = free_port()
    worker = WorkerConfig(model=str(folder), num_blocks=256, dtype="float32", drain_s=10)
    settings = ClusterSettings(workers=2, gateways=2, port=free_port(), worker=worker)
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(make_app(settings), name="radixkv")
        made = Cluster(settings, f"http://127.0.0.1:{port}")
        wait_for(lambda: made.ask("hello"))
        yield made
    finally:
        serve.shutdown()
        ray.shutdown()


def test_a_prompt_is_found_from_any_gateway(cluster: Cluster) -> None:
    cluster.ask(PROMPT)
    assert [cluster.num_cached(PROMPT) for _ in range(8)] == [len(PROMPT) - 1] * 8


def test_tokens_are_streamed_as_they_come(cluster: Cluster) -> None:
    body = {"model": "bytes", "prompt": "stream", "max_tokens": 200, "temperature": 0, "stream": True}
    times_s = []
    with httpx.stream("POST", f"{cluster.url}/v1/completions", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if line:
                times_s.append(time.monotonic())
    assert len(times_s) > 20
    assert times_s[len(times_s) // 2] - times_s[0] > 0.01


def test_a_killed_service_comes_back_where_it_was_and_knows_the_trees(cluster: Cluster) -> None:
    cluster.ask(PROMPT)
    before = cluster.pids("CacheNode")
    (service,) = before
    os.kill(service, signal.SIGKILL)
    wait_for(lambda: cluster.pids("CacheNode") - before)
    assert wait_for(lambda: cluster.num_cached(PROMPT) == len(PROMPT) - 1)


def test_a_killed_worker_is_replaced_and_no_request_fails(cluster: Cluster) -> None:
    before = cluster.pids("ServeReplica:radixkv:Worker")
    assert len(before) == 2
    with _asking(cluster) as load:
        os.kill(min(before), signal.SIGKILL)
        wait_for(lambda: len(cluster.pids("ServeReplica:radixkv:Worker") - {min(before)}) == 2)
    assert load.num_answers > 0
    assert not load.failures


def test_all_replicas_are_replaced_under_load_and_no_request_fails(cluster: Cluster) -> None:
    before = cluster.pids("ServeReplica:radixkv:Worker")
    with _asking(cluster) as load:
        changed = replace(cluster.settings.worker, num_blocks=320)
        serve.run(make_app(replace(cluster.settings, worker=changed)), name="radixkv")
    assert not before & cluster.pids("ServeReplica:radixkv:Worker")
    assert load.num_answers > 0
    assert not load.failures


def test_replicas_that_follow_each_other_have_pools_of_the_same_names(cluster: Cluster) -> None:
    with connect(f"127.0.0.1:{cluster.settings.port}") as reader:
        numbers = {int(name.removeprefix("worker-")) for name in reader.stats_all()}
    assert len(numbers) == 2
    assert max(numbers) < 6, "two replicas, one killed, two replaced"


def test_workers_come_and_go_with_the_backlog_and_no_request_fails(cluster: Cluster) -> None:
    def num_running() -> int:
        states = serve.status().applications["radixkv"].deployments["Worker"].replica_states
        return states.get("RUNNING", 0) if len(states) == 1 else 0

    serve.run(make_app(replace(cluster.settings, workers=(1, 3))), name="radixkv")
    wait_for(lambda: num_running() == 1)
    with _asking(cluster, num_clients=160, num_repeats=20) as load:
        wait_for(lambda: num_running() == 3, 150)
    wait_for(lambda: num_running() == 1, 150)
    assert cluster.ask("still there")
    assert load.num_answers > 0
    assert not load.failures


@contextlib.contextmanager
def _asking(cluster: Cluster, num_clients: int = 4, num_repeats: int = 1) -> Iterator[SimpleNamespace]:
    """Clients ask one prompt after the other meanwhile, and a little longer. No prompt begins as another does."""
    load, is_over = SimpleNamespace(num_answers=0, failures=[]), threading.Event()

    def ask(client: int) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            try:
                cluster.ask(f"{client} {number} {PROMPT[:40]}" * num_repeats, num_tokens=24)
                load.num_answers += 1
            except httpx.HTTPError as error:
                load.failures.append(repr(error))

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield load
        time.sleep(2)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("backlogs", "wanted"),
    [([0.0, 0.0], 1), ([BACKLOG_S], 1), ([BACKLOG_S, 0.1], 2), ([9 * BACKLOG_S], 4), ([], 3)],
)
def test_workers_follow_the_backlog(backlogs: list[float], wanted: int) -> None:
    context = SimpleNamespace(
        aggregated_metrics={"backlog_s": dict(enumerate(backlogs))},
        target_num_replicas=3,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
    )
    assert by_backlog(context)[0] == wanted


def test_the_command_takes_a_keys_file(tmp_path: Path) -> None:
    keys = ["--keys", str(tmp_path / "keys.toml"), "--token-file", str(tmp_path / "team.key")]
    assert main(["key", "team", *keys]) == 0
    settings = _settings(_parse(["cluster", "up", *keys[:2], "--service-port", str(free_port())]))
    for security in (settings.worker.security, settings.service.security):
        assert security.own_key
        security.ring()
    assert make_app(settings)


def test_an_unknown_argument_of_a_file_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"args\.worker\.modle"):
        app({"worker": {"modle": "x"}})


def test_the_file_of_the_documentation_is_an_application() -> None:
    readme = Path(__file__).parents[3] / "radixkv" / "gateway" / "README.md"
    (text,) = re.findall(r"```yaml\n(.*?)```", readme.read_text(), re.S)
    (told,) = yaml.safe_load(text)["applications"]
    assert told["import_path"] == f"{app.__module__}:{app.__name__}"
    assert isinstance(app(told["args"]), serve.Application)


def test_the_command_takes_free_ports() -> None:
    settings = _settings(_parse(["cluster", "up", "--service-port", "0"]))
    assert settings.port > 0


@pytest.mark.parametrize("wrong", ["--http unix:/tmp/radixkv.sock", "--gpus -1", "--gpus nan"])
def test_a_flag_out_of_its_bound_is_one_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "up", *wrong.split(), "--service-port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong.split()[1] in line


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"workers": (3, 1)}, {"gateways": 0}, {"worker_resources": {"num_gpus": -1}}],
    ids=str,
)
def test_a_cluster_of_nothing_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        make_app(ClusterSettings(**wrong))


def test_a_disk_level_is_rejected() -> None:
    worker = WorkerConfig(store=StoreSettings(disk=(Path("/tmp/x"), 1 << 30)))
    with pytest.raises(InvalidArgumentError, match="remote level"):
        make_app(ClusterSettings(worker=worker))

"""The commands that serve, in the test's own process: what they say, what answers there, and their end by a signal."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from byte_model import save_byte_model

from radixkv import PoolShape, PrefixCache, connect
from radixkv.cli import main
from radixkv.generation.client import GenerationClient
from radixkv.net.signals import STOP_SIGNALS
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a server changes of its process."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gc.enable()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_byte_model(tmp_path_factory.mktemp("bytes")))


class Output(io.StringIO):
    """Once the server says that it is up, looks at it on a thread, and then sends the signal."""

    def __init__(self, look: Callable[[str], None], until: str) -> None:
        super().__init__()
        self._look = look
        self._until = until
        self.thread: threading.Thread | None = None
        self.fault: BaseException | None = None

    def flush(self) -> None:
        if self.thread is None and self._until in self.getvalue():
            self.thread = threading.Thread(target=self._run)
            self.thread.start()

    def _run(self) -> None:
        try:
            self._look(self.getvalue())
        except BaseException as fault:
            self.fault = fault
        os.kill(os.getpid(), signal.SIGTERM)


def served(
    command: Sequence[str],
    look: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    until: str = "Ctrl-C stops it",
) -> str:
    """What a command says that is stopped once it was looked at."""
    output = Output(look, until)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        assert main(command) == 0
    assert output.thread is not None, "it has not begun to serve"
    output.thread.join(300)
    if output.fault is not None:
        raise output.fault
    return output.getvalue()


def url_of(said: str, what: str) -> str:
    found = re.search(rf"{what}\s+(\S+)", said)
    assert found is not None, said
    return found[1]


def test_a_cache_service_says_where_it_is_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [f"unix:{tmp_path}/{name}" for name in ("one", "two")]

    def look(said: str) -> None:
        assert said == f"radixkv cache service on {paths[0]} and {paths[1]}; Ctrl-C stops it\n"
        for path in paths:
            with connect(path, PoolShape(16, name=path[-3:])) as holder:
                assert holder.stats().eviction == "lru"

    served(["serve", "--listen", paths[0], "--listen", paths[1], "--eviction", "lru"], look, monkeypatch)
    assert not (tmp_path / "one").exists(), "its sockets are gone"


def test_a_gateway_serves_the_worker_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = f"unix:{tmp_path}/worker"

    def look(said: str) -> None:
        url, page = (url_of(said, what) for what in ("OpenAI API on", "Chat page on"))
        assert f"for hash of the worker at {worker}" in said
        assert "Responses and conversations are not kept" not in said
        assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "named"
        assert httpx.get(page).status_code == 200

    with Engine(HashRunner(64, 4), PrefixCache(64, 4), model_name="hash") as engine, GenerationServer(engine, worker):
        command = ["gateway", "--worker", worker, "--listen", "127.0.0.1:0", "--state", "none", "--drain", "0.1"]
        served([*command, "--model-name", "named", "--log-requests"], look, monkeypatch, "Chat page on")
    assert re.search(r"\d+ req_\S+ default GET /v1/models status=200", capfd.readouterr().err)


@pytest.mark.parametrize("is_http", [True, False])
def test_a_worker_serves_grpc_and_http_and_its_metrics(
    is_http: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, listen = f"unix:{tmp_path}/service", f"unix:{tmp_path}/worker"

    def look(said: str) -> None:
        assert f"\n  generation     {listen}\n  cache service  {service}" in said
        assert "deterministic" in said
        with GenerationClient(listen) as client:
            assert client.model().vocab_size > 0
        assert ("OpenAI API" in said) is is_http
        if is_http:
            page = url_of(said, "chat page")
            assert httpx.get(page).status_code == 200
            assert url_of(said, "tree page") == f"{page}tree"
            assert httpx.get(f"{url_of(said, 'OpenAI API')}/models").status_code == 200

    command = ["worker", "--service", service, "--listen", listen, "--model", model, "--num-blocks", "32"]
    more = ["--http", "127.0.0.1:0"] if is_http else []
    with ServiceThread(ServiceConfig(addresses=(service,))):
        served([*command, *more, "--state", "none", "--drain", "0.1", "--deterministic"], look, monkeypatch)


@pytest.mark.parametrize("has_keys", [False, True])
def test_up_serves_all_three_and_with_keys_no_stranger(
    has_keys: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, listen = f"unix:{tmp_path}/service", f"unix:{tmp_path}/worker"

    def look(said: str) -> None:
        assert url_of(said, "generation") == listen
        assert url_of(said, "cache service") == service
        assert f"Chat from another terminal: radixkv chat --worker {listen}\nCtrl-C stops it." in said
        status = httpx.get(f"{url_of(said, 'OpenAI API')}/models").status_code
        assert status == (401 if has_keys else 200)
        assert httpx.get(f"{url_of(said, 'tree page')}").status_code == 200

    command = ["up", "--no-chat", "--model", model, "--num-blocks", "32", "--state", "none", "--drain", "0.1"]
    command += ["--disk-cache", "none"]
    command += ["--listen", listen, "--service-listen", service, "--http", "127.0.0.1:0"]
    if has_keys:
        keys, token = tmp_path / "keys.toml", tmp_path / "token"
        assert main(["key", "team", "--keys", str(keys), "--token-file", str(token)]) == 0
        command += ["--keys", str(keys), "--token-file", str(token)]
    served(command, look, monkeypatch)


def test_up_without_http_serves_none(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["--listen", f"unix:{tmp_path}/worker", "--service-listen", f"unix:{tmp_path}/service"]
    command = [
        "up",
        "--no-chat",
        "--no-http",
        "--disk-cache",
        "none",
        "--model",
        model,
        "--num-blocks",
        "32",
        "--drain",
        "0.1",
        *addresses,
    ]
    assert "OpenAI API" not in served(command, lambda _: None, monkeypatch)

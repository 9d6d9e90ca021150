"""A router that exists, NVIDIA Dynamo's standalone KV indexer, follows a pool over ZMQ and knows what is cached.

Its wheel is large and pins other packages, so it is not among ours: `pip install --no-deps ai-dynamo-runtime` runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from resp_servers import free_port
from waiting import wait_until

from radixkv import PoolShape, connect
from radixkv.client import RemoteHolder
from radixkv.service import ServiceConfig, ServiceThread

pytest.importorskip("dynamo.indexer", reason="pip install --no-deps ai-dynamo-runtime")

TIMEOUT_S = 300.0


class Indexer:
    """The indexer in a process of its own, asked over HTTP."""

    def __init__(self, log: Path) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "dynamo.indexer", "--port", str(self._port), "--threads", "1"]
        with log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))

    def register(self, config: ServiceConfig) -> None:
        worker = {
            "instance_id": 7,
            "endpoint": config.kv_events_endpoint,
            "replay_endpoint": config.kv_events_replay_endpoint,
            "model_name": "model",
            "block_size": 16,
        }
        wait_until(lambda: self._post("/register", worker) is not None)

    def num_matched(self, tokens: list[int]) -> int:
        """How many leading tokens the worker is believed to have cached."""
        answer = self._post("/query", {"token_ids": tokens, "model_name": "model"})
        return 0 if answer is None else int(answer["scores"].get("7", {}).get("0", 0))

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except OSError:
            return None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def store(holder: RemoteHolder, tokens: list[int]) -> None:
    seq = holder.acquire(tokens)
    holder.insert(seq.seq_id, len(tokens))
    holder.release(seq.seq_id)


@pytest.fixture
def config() -> ServiceConfig:
    return ServiceConfig(
        addresses=("127.0.0.1:0",),
        kv_events_endpoint=f"tcp://127.0.0.1:{free_port()}",
        kv_events_replay_endpoint=f"tcp://127.0.0.1:{free_port()}",
    )


@pytest.fixture
def indexer(tmp_path: Path) -> Iterator[Indexer]:
    indexer = Indexer(tmp_path / "indexer.log")
    yield indexer
    indexer.stop()


def test_it_knows_what_is_cached_also_of_before_it_came(config: ServiceConfig, indexer: Indexer) -> None:
    with ServiceThread(config) as service, connect(service.addresses[0], PoolShape(256)) as holder:
        old, trunk = list(range(1000, 1064)), list(range(48))
        branch = [*trunk[:32], *[7] * 32]
        store(holder, old)
        indexer.register(config)
        store(holder, trunk)  # its number shows the indexer that it missed something, so it asks for a replay

        def knows_the_trunk() -> bool:
            store(holder, [*trunk, *[holder.stats().num_queries] * 16])
            return indexer.num_matched(trunk) == 48

        wait_until(knows_the_trunk)
        store(holder, branch)
        wait_until(lambda: indexer.num_matched(branch) == 64)
        assert indexer.num_matched(old) == 64
        assert indexer.num_matched([*branch[:40], *[9] * 24]) == 32
        holder.evict(1000)
        wait_until(lambda: indexer.num_matched(branch) == indexer.num_matched(old) == 0)
        store(holder, old)
        wait_until(lambda: indexer.num_matched(old) == 64)

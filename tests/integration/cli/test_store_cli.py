"""What `radixkv stats` and `radixkv top` print of a worker's block store, and what a worker prints of it when it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stored_engine import ask, draw, serving
from waiting import wait_until

from radixkv import PrefixCache
from radixkv.cli import main
from radixkv.service import ServiceConfig, ServiceThread
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer


def test_stats_and_top_print_a_line_for_each_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        serving(tmp_path) as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
    ):
        ask(engine, draw(1, 50))
        wait_until(lambda: engine.stats().levels[0].num_written == 13)
        assert main(["stats", "--service", service.addresses[0], "--worker", server.address]) == 0
        told, line = capsys.readouterr().out, "13 blocks, 6.50 KiB of 780 KiB; 0 read, 0 missed, 13 written, 0 lost"
        assert f"worker {server.address}\n  disk" in told
        assert line in told
        assert main(["top", "--worker", server.address, "--interval", "0.05"]) == 0
        assert line in capsys.readouterr().out
        assert main(["top", "--worker", server.address, "--interval", "0.05", "--json"]) == 0
        (level,) = json.loads(capsys.readouterr().out)["levels"]
        assert (level["level"], level["num_written"]) == ("disk", 13)


def test_a_worker_without_a_block_store_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        Engine(HashRunner(20, 4), PrefixCache(20, 4)) as engine,
        GenerationServer(engine, "127.0.0.1:0") as server,
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
    ):
        assert main(["stats", "--service", service.addresses[0], "--worker", server.address]) == 0
    assert f"worker {server.address}: it has no block store" in capsys.readouterr().out

"""Batches that outlast the process that began them, and their windows."""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from batch_calls import CHAT, body_of, client_of, create, ended, jsonl, line, results
from chat_stack import GibberishRunner, Watched, gateway, gibberish_engine
from openai import OpenAI
from waiting import wait_until

from radixkv.core.errors import UnavailableError
from radixkv.gateway.api.jobs import quotas
from radixkv.gateway.api.jobs.batches import Batch, BatchStore
from radixkv.gateway.config import GatewayConfig
from radixkv.worker.server import GenerationServer

COMMAND = (sys.executable, "-m", "radixkv", "gateway")
NUM_REQUESTS = 60


@contextmanager
def gateway_process(worker: str, state: Path) -> Iterator[tuple[OpenAI, subprocess.Popen[str]]]:
    """A gateway in a process of its own."""
    arguments = (*COMMAND, "--worker", worker, "--listen", "127.0.0.1:0", "--state", str(state), "--drain", "1")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://\S+", process.stdout.readline())
            assert url is not None
            with OpenAI(base_url=url[0], api_key="none", max_retries=0) as client:
                yield client, process
        finally:
            process.kill()


def hold_after(num_requests: int, engine: Watched, runner: GibberishRunner) -> None:
    """Have the model compute nothing more once so many requests have come."""
    forward = type(runner).forward

    def forward_or_wait(*given: Any) -> Any:
        if len(engine.prompts) >= num_requests:
            runner.gate.close()
        return forward(runner, *given)

    runner.forward = forward_or_wait  # type: ignore[method-assign]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_batch_goes_on_behind_the_end_of_its_gateway(default_model: str, tmp_path: Path, end: signal.Signals) -> None:
    names = [f"request {number}" for number in range(NUM_REQUESTS)]
    with (
        gibberish_engine(default_model, max_model_len=256) as (engine, runner, _),
        GenerationServer(engine, "127.0.0.1:0") as worker,
    ):
        hold_after(NUM_REQUESTS // 2, engine, runner)
        with gateway_process(worker.address, tmp_path / "state.sqlite") as (client, process):
            batch = create(client, *(line(name, body_of(name)) for name in names))
            while True:
                counts = client.batches.retrieve(batch.id).request_counts
                if counts is not None and counts.completed >= 5:
                    break
            os.kill(process.pid, end)
            process.wait()
        with closing(sqlite3.connect(tmp_path / "state.sqlite")) as state:
            finished = {name for (name,) in state.execute("SELECT custom_id FROM batch_requests WHERE state = 1")}
        assert counts.completed <= len(finished) < NUM_REQUESTS, "it was ended in the middle"
        hold_after(10**6, engine, runner)
        runner.gate.open()
        with gateway_process(worker.address, tmp_path / "state.sqlite") as (client, _):
            done = client.batches.retrieve(batch.id)
            assert done.request_counts is not None
            assert done.request_counts.completed >= len(finished)
            batch = ended(client, batch)
            assert batch.status == "completed"
            found = results(client, batch.output_file_id)
        assert set(found) == set(names)
        prompts = (engine.shown(place) for place in range(len(engine.prompts)))
        made = Counter(name[0] for prompt in prompts if (name := re.search(r"request \d+", prompt)))
        assert set(made) == set(names)
        assert all(made[name] == 1 for name in finished), "what had a result was not made again"


def test_a_batch_whose_lines_were_half_read_is_read_again(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.0, state_file=tmp_path / "state.sqlite")
    lines = [line(str(number), body_of(f"{number}?")) for number in range(3000)]
    with gibberish_engine(default_model, max_model_len=256) as (engine, runner, _):
        runner.gate.close()
        with gateway(engine, config) as server, client_of(server) as client:
            batch = create(client, *lines)
            while (now := client.batches.retrieve(batch.id)).status == "validating":
                if now.request_counts is not None and now.request_counts.total:
                    break
        with gateway(engine, config) as server, client_of(server) as client:
            now = ended(client, batch, ("validating",))
            assert now.status == "in_progress"
            assert now.request_counts is not None
            assert now.request_counts.total == len(lines)
            runner.gate.open()
            client.batches.cancel(batch.id)
            ended(client, batch)


def test_a_batch_whose_start_was_stored_and_not_answered_runs(
    default_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the connection to the database is lost during the commit."""
    begin = BatchStore.begin

    async def begin_unanswered(store: BatchStore, batch: Batch) -> bool:
        await begin(store, batch)
        raise UnavailableError("its database does not answer")

    monkeypatch.setattr(BatchStore, "begin", begin_unanswered)
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.0)
    with (
        gibberish_engine(default_model, max_model_len=256) as (engine, _, _),
        gateway(engine, config) as server,
        client_of(server) as client,
    ):
        batch = create(client, line("one", body_of("one?")))
        assert set(results(client, ended(client, batch).output_file_id)) == {"one"}


def test_a_gateway_that_stops_ends_what_runs_of_its_batches_and_the_next_one_makes_it(
    default_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.0, state_file=tmp_path / "state.sqlite")
    with gibberish_engine(default_model, max_model_len=256) as (engine, runner, _):
        runner.gate.close()
        with gateway(engine, config) as server, client_of(server) as client:
            batch = create(client, *(line(str(number), body_of(f"{number}?")) for number in range(3)))
            wait_until(lambda: len(engine.prompts) == 3)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        runner.gate.open()
        wait_until(lambda: engine.stats().engine.num_generations == 0)
        assert engine.stats().engine.num_cancelled == 3
        with gateway(engine, config) as server, client_of(server) as client:
            assert set(results(client, ended(client, batch).output_file_id)) == {"0", "1", "2"}


def test_an_upload_that_was_cut_off_is_gone(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.0, state_file=tmp_path / "state.sqlite")
    with gibberish_engine(default_model, max_model_len=256) as (engine, _, _):
        with gateway(engine, config) as server, client_of(server) as client:
            kept = client.files.create(file=("kept.jsonl", jsonl({"a": 1})), purpose="batch")
        with gateway(engine, config) as server, client_of(server) as client:
            assert [file.id for file in client.files.list()] == [kept.id]
            assert client.files.content(kept.id).content == jsonl({"a": 1})


def test_what_has_not_begun_within_the_window_expires(default_model: str, tmp_path: Path) -> None:
    config = GatewayConfig(listen="127.0.0.1:0", drain_s=0.0, state_file=tmp_path / "state.sqlite")
    with gibberish_engine(default_model, max_model_len=256) as (engine, runner, _):
        runner.gate.close()
        with gateway(engine, config) as server, client_of(server) as client:
            batch = create(client, *(line(str(number), body_of(f"{number}?")) for number in range(50)))
            assert ended(client, batch, ("validating",)).status == "in_progress"
        with closing(sqlite3.connect(tmp_path / "state.sqlite")) as state, state:
            state.execute("UPDATE batches SET window_s = window_s - ?", (quotas.DAY_S,))
        with gateway(engine, config) as server, client_of(server) as client:
            batch = ended(client, batch)
            assert batch.status == "expired"
            left = results(client, batch.error_file_id)
        assert {each["error"]["code"] for each in left.values()} == {"batch_expired"}
        assert len(left) == 50
        runner.gate.open()


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_file_of_the_largest_size_is_never_in_memory_as_a_whole(default_model: str, tmp_path: Path) -> None:
    lines = (line(f"request-{number}", body_of(f"{number} " + "word " * 380)) for number in range(50_000))
    content = jsonl(*lines)
    assert 95_000_000 < len(content) <= 100 * 2**20
    with (
        gibberish_engine(default_model, max_model_len=256) as (engine, runner, _),
        GenerationServer(engine, "127.0.0.1:0") as worker,
        gateway_process(worker.address, tmp_path / "state.sqlite") as (client, process),
    ):
        runner.gate.close()
        ended(client, create(client, line("first", {})))
        before = _peak_bytes(process.pid)
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        while (now := client.batches.retrieve(batch.id)).status == "validating":
            pass
        assert now.status == "in_progress"
        assert now.request_counts is not None
        assert now.request_counts.total == 50_000
        assert client.files.content(file.id).content == content
        assert _peak_bytes(process.pid) - before < 64 * 2**20
        runner.gate.open()

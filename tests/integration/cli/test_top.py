"""`radixkv top` on a worker that runs: one reading where nobody watches, a live screen in a terminal."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal

from radixkv import PrefixCache
from radixkv.cli import main
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams
from radixkv.testing.hash_model import HashRunner
from radixkv.worker.engine.engine import Engine
from radixkv.worker.server import GenerationServer

pytestmark = pytest.mark.thorough

NUM_BLOCKS, BLOCK_SIZE = 20, 4
RADIXKV = str(Path(sys.executable).parent / "radixkv")


@pytest.fixture
def runner() -> HashRunner:
    return HashRunner(NUM_BLOCKS, BLOCK_SIZE, max_model_len=100)


@pytest.fixture
def engine(runner: HashRunner) -> Iterator[Engine]:
    with Engine(runner, PrefixCache(NUM_BLOCKS, BLOCK_SIZE), model_name="hash") as engine:
        yield engine
        runner.gate.open()


@pytest.fixture
def address(engine: Engine) -> Iterator[str]:
    with GenerationServer(engine, "127.0.0.1:0") as server:
        yield server.address


def generate(engine: Engine) -> None:
    list(
        engine.generate(GenerateParams(token_ids=range(1, 13), sampling=SamplingParams(max_tokens=4, ignore_eos=True)))
    )


def test_one_reading_is_printed_as_text_where_there_is_no_terminal(
    engine: Engine, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(engine)
    generate(engine)
    assert main(["top", "--worker", address, "--interval", "0.05"]) == 0
    out = capsys.readouterr().out
    assert f"hash at {address}" in out
    assert "0 running, 0 waiting" in out
    assert "2 finished" in out
    assert "of 20 in all" in out


def test_one_reading_is_printed_as_json(engine: Engine, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    generate(engine)
    assert main(["top", "--worker", address, "--json", "--interval", "0.05"]) == 0
    reading = json.loads(capsys.readouterr().out)
    assert (reading["model"], reading["engine"]["num_finished"]) == ("hash", 1)
    assert reading["engine"]["num_generated_tokens"] == 4
    assert reading["cache"]["num_blocks"] == NUM_BLOCKS
    assert reading["rates_per_second"]["decode_tokens"] == 0


def test_a_terminal_shows_what_changes_until_ctrl_c(engine: Engine, address: str) -> None:
    terminal = Terminal([RADIXKV, "top", "--worker", address, "--interval", "0.05"])
    try:
        terminal.wait_for("hash at 127")
        terminal.wait_for("0 finished")
        generate(engine)
        terminal.wait_for("1 finished")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("1 finished")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


def test_a_worker_that_goes_away_is_waited_for(engine: Engine) -> None:
    with GenerationServer(engine, "127.0.0.1:0") as server:
        address = server.address
        terminal = Terminal([RADIXKV, "top", "--worker", address, "--interval", "0.05"])
        try:
            terminal.wait_for("0 finished")
        except BaseException:
            terminal.close()
            raise
    try:
        terminal.wait_for("trying again")
        with GenerationServer(engine, address):
            generate(engine)
            terminal.wait_for("1 finished")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()

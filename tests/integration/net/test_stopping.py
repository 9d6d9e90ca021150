"""How processes end by a signal: in order at the first, at once at the second, and never with a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from radixkv import connect
from radixkv.net.signals import StopSignals, exit_at_interrupt
from radixkv.worker.server import GenerationServer

pytestmark = pytest.mark.thorough

WAITER = """
import time
from radixkv.net.signals import StopSignals
with StopSignals() as signals:
    signals.listen()
    assert not signals.wait(0.01)
    print("serves", flush=True)
    assert signals.wait()
    print("drains", flush=True)
    time.sleep(3600)
"""
ELSEWHERE = """
import signal, threading
from radixkv.net.signals import StopSignals
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
with StopSignals() as signals:
    signals.listen()
    threading.Timer(0.2, lambda: signal.pthread_kill(other.ident, signal.SIGTERM)).start()
    assert signals.wait()
    print("drains")
"""
STARTER = """
import threading
from radixkv.net.signals import exit_at_interrupt
with exit_at_interrupt():
    print("starts", flush=True)
    while True:  # Python's own handler breaks the lock of a thread that starts, now and then
        threading.Thread(target=int).start()
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def rest(process: subprocess.Popen[str]) -> tuple[str, int]:
    said, _ = process.communicate(timeout=300)
    return said, process.returncode


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_what_drains_at_once_and_without_a_word(
    first: signal.Signals, second: signal.Signals
) -> None:
    with running("-c", WAITER) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serves\n"
        process.send_signal(first)
        assert process.stdout.readline() == "drains\n"
        process.send_signal(second)
        assert rest(process) == ("", -second)


def test_a_signal_that_another_thread_takes_is_noticed() -> None:
    """As the kernel hands one over now and then, although the main thread waits too."""
    with running("-c", ELSEWHERE) as process:
        assert rest(process) == ("drains\n", 0)


def test_signals_do_what_they_did_before_and_afterwards() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals() as signals:
        assert [signal.getsignal(number) for number in SIGNALS] == before
        signals.listen()
        signal.raise_signal(signal.SIGTERM)
        assert signals.wait(300)
        assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_ctrl_c_ends_a_server_that_starts_at_once_and_without_a_word() -> None:
    for _ in range(3):
        with running("-c", STARTER) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "starts\n"
            process.send_signal(signal.SIGINT)
            assert rest(process) == ("", 130)


def test_ctrl_c_does_what_it_did_before_once_a_server_has_started() -> None:
    before = signal.getsignal(signal.SIGINT)
    with exit_at_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_service_ends_with_0_although_somebody_follows_its_events(number: signal.Signals, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/service"
    with running("-m", "radixkv", "serve", "--listen", address, "--drain", "5") as process, connect(address) as eye:
        assert process.stdout is not None
        assert "Ctrl-C stops it" in process.stdout.readline()
        assert eye.stats_all() == {}
        process.send_signal(number)
        assert rest(process) == ("", 0)


def test_ctrl_c_before_a_worker_serves_ends_it_with_130_and_no_traceback(tmp_path: Path) -> None:
    """It waits for its cache service, which is not there."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = tf.LlamaConfig(vocab_size=64, num_hidden_layers=1, eos_token_id=2, **sizes)
    tf.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    program = (
        "import sys, radixkv.client\n"
        "from radixkv.cli import program\n"
        "attach = radixkv.client.connect\n"
        "radixkv.client.connect = lambda *a, **k: print('attaches', flush=True) or attach(*a, **k)\n"
        f"sys.exit(program.main(['worker', '--service', 'unix:{tmp_path}/nobody', '--listen', 'unix:{tmp_path}/worker',"
        f" '--model', '{tmp_path}/model', '--num-blocks', '16', '--device', 'cpu']))\n"
    )
    with running("-c", program) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "attaches\n")
        assert not [line for line in lines if "Traceback" in line]
        process.send_signal(signal.SIGINT)
        assert rest(process) == ("", 130)


def test_a_generation_server_that_never_started_can_be_told_to_refuse() -> None:
    server = GenerationServer(object(), "127.0.0.1:0")  # type: ignore[arg-type]  # asked nothing
    server.refuse()
    server.stop()

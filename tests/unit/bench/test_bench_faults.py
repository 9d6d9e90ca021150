"""The hosts and clocks of `bench.faults --cluster`."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.faults import clocked
from bench.faults.hosts import OUTSIDE, Hosts

ECHO = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("ready", flush=True)
    taken, _ = server.accept()
    while received := taken.recv(1):
        taken.send(received)
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if not Hosts.are_possible():
        pytest.skip("hosts need `ip` and root's rights")
    with Hosts(["one", "two"]) as hosts:
        yield hosts


def test_a_connection_is_silent_during_a_cut_and_goes_on_after_it(hosts: Hosts) -> None:
    command = [*hosts.prefix("one"), sys.executable, "-S", "-c", ECHO]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        with socket.create_connection((hosts.addresses["one"], 7000), timeout=10) as connection:
            connection.sendall(b"a")
            assert connection.recv(1) == b"a"
            hosts.cut("one", ["one", "two", OUTSIDE])
            connection.sendall(b"b")
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            with pytest.raises(TimeoutError):
                socket.create_connection((hosts.addresses["one"], 7000), timeout=0.3)
            hosts.mend("one", ["one", "two", OUTSIDE])
            connection.settimeout(10)
            assert connection.recv(1) == b"b"


def test_nothing_is_left_of_hosts(hosts: Hosts) -> None:
    made = set(os.listdir("/sys/class/net"))
    hosts.__exit__(None, None, None)
    left = set(os.listdir("/sys/class/net"))
    assert len(made - left) == 3  # two hosts, and what connects them


def test_signals_set_the_wall_clock_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    true_s, ahead_s, monotonic_s = time.time, [], time.monotonic

    def run(*_: object, **__: object) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2):
            os.kill(os.getpid(), number)
            ahead_s.append(round(time.time() - true_s()))
            assert round(time.time_ns() / 1e9 - time.time()) == 0

    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr(runpy, "run_module", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        clocked.main()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ahead_s == [90, 0, -90]
    assert time.monotonic is monotonic_s


def test_the_clocked_command_is_radixkv() -> None:
    script = str(Path(clocked.__file__))
    shown = subprocess.run([sys.executable, "-P", script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("radixkv ")

"""An orderly end by a signal: the first one is waited for, the second one kills, and all is as before afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from radixkv.net.signals import (
    EXIT_INTERRUPTED,
    STOP_SIGNALS,
    StopSignals,
    _exit,
    exit_at_interrupt,
    let_the_next_kill,
)


def _open_files() -> set[str]:
    """What the process has open; other threads open and close as they like."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    found = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == before, "a test that leaves a handler behind"


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_is_waited_for_and_the_second_one_kills(number: signal.Signals) -> None:
    before = handlers()
    with StopSignals() as signals:
        assert handlers() == before, "until it listens, nothing is changed"
        signals.listen()
        assert not signals.wait(0.0)
        os.kill(os.getpid(), number)
        assert signals.wait(300.0)
        assert signals.wait()
        assert handlers() == [signal.SIG_DFL] * len(STOP_SIGNALS)
    assert handlers() == before


def test_a_signal_ends_a_wait_that_has_begun() -> None:
    with StopSignals() as signals:
        signals.listen()
        sender = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM))
        sender.start()
        began_s = time.monotonic()
        assert signals.wait(300.0)
        assert time.monotonic() - began_s < 200
        sender.join()


def test_a_wait_ends_with_its_time_and_another_signal_is_no_stop() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        with StopSignals() as signals:
            signals.listen()
            os.kill(os.getpid(), signal.SIGUSR1)
            began_s = time.monotonic()
            assert not signals.wait(0.03)
            assert 0.03 <= time.monotonic() - began_s < 200
            assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_pipe_of_one_that_was_there_before_is_given_back_and_its_own_closed() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    own = set()
    try:
        with StopSignals() as signals:
            signals.listen()
            own.add(os.readlink(f"/proc/self/fd/{signals._reading}"))
        with StopSignals() as signals:  # it does not come to listen
            own.add(os.readlink(f"/proc/self/fd/{signals._reading}"))
        assert len(own) == 2
        assert not own & _open_files()
    finally:
        assert signal.set_wakeup_fd(before) == writing
        os.close(reading)
        os.close(writing)


def test_before_a_server_serves_an_interrupt_ends_it_at_once() -> None:
    before = handlers()
    with exit_at_interrupt():
        assert handlers() == [_exit, before[1]]
    with pytest.raises(KeyError), exit_at_interrupt():
        raise KeyError
    assert handlers() == before


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: the child ends at once
def test_its_end_is_that_of_an_interrupt() -> None:
    pid = os.fork()
    if pid == 0:
        _exit(signal.SIGINT, None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_INTERRUPTED


def test_the_next_signal_kills() -> None:
    before = handlers()
    try:
        let_the_next_kill()
        assert handlers() == [signal.SIG_DFL] * len(STOP_SIGNALS)
    finally:
        for number, handler in zip(STOP_SIGNALS, before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]

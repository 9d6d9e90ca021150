"""What a test's own code has begun or logged: the other threads of the process come, go and log by themselves."""

from __future__ import annotations

import logging
import threading

import pytest


def own_threads() -> set[threading.Thread]:
    """Those that Python code has begun; gRPC's core calls back now and then from others."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What this thread has logged: others of the process log when they like."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]

"""The threads that Python code has begun: those of gRPC's core, which call back now and then, come and go by themselves."""

from __future__ import annotations

import threading


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}

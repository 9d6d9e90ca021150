"""Ports for servers that are told where to listen."""

from __future__ import annotations

import socket

from bench.faults.stack import free_port as any_free_port

__all__ = ["free_port"]


def free_port() -> int:
    """A free port that no connection gets, and no other test process of this machine while this one lives."""
    while True:
        port = any_free_port()
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0radixkv port {port}")
        except OSError:  # another process has it
            mark.close()
        else:
            mark.detach()  # until this process ends
            return port

"""A program at a pseudo-terminal, driven as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

__all__ = ["Terminal"]

PATIENCE_S = 300
ROWS, COLUMNS = 40, 120


class Terminal:
    """A process at a pseudo-terminal, driven as a person would."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._seen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until the pattern has come since the last wait; the match."""
        deadline = time.monotonic() + PATIENCE_S
        while (match := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} did not come; there is:\n{self._seen}"
            readable, _, _ = select.select([self._master], [], [], 1.0)
            if readable:
                self._seen += os.read(self._master, 65536).decode(errors="replace")
        self._seen = self._seen[match.end() :]
        return match[0]

    def wait_for_end(self, timeout: float = PATIENCE_S) -> int:
        """Read until the program has ended, as a full terminal would hold it up; its exit code."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended; there is:\n{self._seen}"
            readable, _, _ = select.select([self._master], [], [], 0.1)
            if readable:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    self._seen += os.read(self._master, 65536).decode(errors="replace")
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

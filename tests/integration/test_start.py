"""What a person at a terminal sees while `radixkv up` starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from terminal import Terminal

RADIXKV = str(Path(sys.executable).parent / "radixkv")


@pytest.mark.usefixtures("default_model")
def test_a_start_at_a_terminal_says_what_it_does_and_since_when(tmp_path: Path) -> None:
    addresses = ["--listen", f"unix:{tmp_path}/worker", "--service-listen", f"unix:{tmp_path}/service", "--no-http"]
    terminal = Terminal([RADIXKV, "up", "--num-blocks", "64", "--no-chat", *addresses])
    try:
        for stage in ("code of the worker", "weights and tokenizer", "KV pool", "cache and servers"):
            terminal.wait_for(rf"\d\.\d s  {stage}\r\n")
        terminal.wait_for("Ctrl-C stops it")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()

"""What a person at a terminal sees while `radixkv up` starts."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from openai import OpenAI
from terminal import Terminal

pytestmark = pytest.mark.thorough

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
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[str]:
    """What `radixkv up` says until it serves."""
    folder.mkdir()
    command = [RADIXKV, "up", "--num-blocks", "64", "--no-chat", "--http", "127.0.0.1:0", *arguments]
    command += ["--listen", f"unix:{folder}/worker", "--service-listen", f"unix:{folder}/service"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if "Ctrl-C stops it" in line:
                    break
            yield said
        finally:
            process.terminate()
            assert process.wait(timeout=300) == 0


def num_responses(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("SELECT count(*) FROM responses").fetchone()[0])


@pytest.mark.usefixtures("default_model")
def test_a_second_start_names_the_file_that_the_first_one_holds_and_one_that_it_could_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXKV_STATE", str(tmp_path / "state"))
    held, free = tmp_path / "state" / "gateway.sqlite", tmp_path / "state" / "gateway-2.sqlite"
    with running(tmp_path / "first") as first:
        assert "--state" not in first
        with running(tmp_path / "second") as second:
            notice = next(line for line in second.splitlines() if "--state" in line)
            assert str(held) in notice
            assert notice.endswith(f"--state {free}")
            assert second.index(notice) > second.index("tree page")  # below what it serves, where it is seen
        assert not free.exists()
        with running(tmp_path / "third", "--state", str(free)) as third:
            assert "--state" not in third
            url = re.search(r"OpenAI API +(\S+)", third)
            assert url is not None
            with OpenAI(base_url=url[1], api_key="none", max_retries=0) as client:
                client.responses.create(model="SmolLM2-135M-Instruct", input="Hello", max_output_tokens=2)
    assert (num_responses(held), num_responses(free)) == (0, 1)

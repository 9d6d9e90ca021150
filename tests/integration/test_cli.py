"""The command line as a person meets it: at a terminal, and when something is wrong."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from radixkv import PoolShape, connect
from radixkv.cli import main
from radixkv.service import ServiceConfig, ServiceThread

RADIXKV = str(Path(sys.executable).parent / "radixkv")
PATIENCE_S = 60


class Terminal:
    """A process at a pseudo-terminal, driven as a person would."""

    def __init__(self, command: list[str]) -> None:
        self._master, slave = pty.openpty()
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

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.mark.usefixtures("default_model")
def test_up_at_a_terminal_chats_branches_stops_a_reply_and_leaves_cleanly() -> None:
    addresses = ["--listen", "127.0.0.1:0", "--service-listen", "127.0.0.1:0"]
    terminal = Terminal([RADIXKV, "up", *addresses, "--num-blocks", "256", "--temperature", "0", "--max-tokens", "400"])
    try:
        terminal.wait_for(r"generation\s+127\.0\.0\.1:\d+")
        terminal.wait_for("you>")
        terminal.type("What is the capital of France?\r")
        terminal.wait_for("The capital of France is Paris")
        terminal.wait_for(r"prompt 37 tokens: 0 reused, 37 computed")
        terminal.type("/regenerate 2\r")
        terminal.wait_for("2 drafts; each is shown when it is done")
        terminal.wait_for("bot [12]> The capital of France is Paris")
        terminal.wait_for("bot [12]> The capital of France is Paris")
        terminal.type("/edit 1\r")
        terminal.wait_for("edit 1>")
        terminal.type("\x7f in one word?\r")
        terminal.wait_for("30 reused, 10 computed")
        terminal.type("Tell me a very long story about a dragon.\r")
        terminal.wait_for(r"bot> \w+ \w+")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("stopped")
        terminal.type("/branches\r")
        terminal.wait_for(r"\*\s+4  2 turns")
        terminal.wait_for("you>")  # before its prompt stands, the terminal itself would take the key
        terminal.type("\x04")
        assert terminal.process.wait(timeout=30) == 0
    finally:
        terminal.close()


def test_a_reader_that_has_had_enough_ends_the_output_without_a_word() -> None:
    with (
        ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service,
        connect(service.addresses[0], PoolShape(8)),
    ):
        command = [RADIXKV, "stats", "--service", service.addresses[0]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.close()
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (141, "")


def test_serve_stops_on_sigterm_with_status_0() -> None:
    server = subprocess.Popen([RADIXKV, "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert "radixkv cache service on 127.0.0.1:" in server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=20) == 0
    server.stdout.close()


def test_a_port_in_use_is_one_line_that_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--listen", address]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"radixkv: {address} is in use")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["worker", "--model", "/nowhere"], "no model folder /nowhere"),
        (["serve", "--listen", "nonsense"], "host:port"),
        (["serve", "--listen", "127.0.0.1:0", "--lease-ttl", "0"], "lease_ttl_s"),
        (["stats", "--service", "127.0.0.1:1"], "cannot be reached"),
        (["chat", "--worker", "127.0.0.1:1"], "cannot be reached"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_status_1(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("radixkv: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_command_whose_packages_are_missing_names_them_and_how_to_install_them() -> None:
    program = "import sys; sys.modules['torch'] = None; from radixkv.cli import main; sys.exit(main(['worker']))"
    finished = subprocess.run([sys.executable, "-c", program], timeout=60, check=False, capture_output=True, text=True)
    assert finished.returncode == 1
    assert finished.stderr == (
        "radixkv: torch is not installed, which this command needs: pip install 'radixkv[worker]'\n"
    )


def test_stats_of_a_service_without_a_pool_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    with ServiceThread(ServiceConfig(addresses=("127.0.0.1:0",))) as service:
        assert main(["stats", "--service", service.addresses[0]]) == 0
    assert f"radixkv worker --service {service.addresses[0]}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["up", "serve", "worker", "chat", "stats"])
def test_help_tells_the_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "(default 127.0.0.1:5005" in capsys.readouterr().out or command == "chat"


def test_importing_radixkv_serving_a_cache_and_chatting_with_a_worker_need_no_torch() -> None:
    program = (
        "import sys, radixkv; assert 'grpc' not in sys.modules\n"
        "import radixkv.chat.terminal, radixkv.worker.generation_client\n"
        "from radixkv.service import ServiceConfig, ServiceThread\n"
        "with ServiceThread(ServiceConfig(addresses=('127.0.0.1:0',))) as service:\n"
        "    with radixkv.connect(service.addresses[0], radixkv.PoolShape(16)) as holder:\n"
        "        assert holder.acquire([1, 2, 3]).num_cached_tokens == 0\n"
        "assert not {'torch', 'transformers', 'triton'} & set(sys.modules)\n"
    )
    finished = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert finished.returncode == 0

"""Every command in the READMEs runs, and the servers among them stop cleanly on Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
SERVERS = ("radixkv up", "radixkv serve", "radixkv worker")
FOLDERS = (
    "",
    "radixkv",
    *(f"radixkv/{name}" for name in ("core", "service", "worker", "gateway", "cli", "testing")),
    "kernels",
    "bench",
)
READMES = [ROOT / folder / "README.md" for folder in FOLDERS]
HOLDER_PAGE = ROOT / "radixkv/client/README.md"  # its blocks are one program
HTTP = "http://127.0.0.1:8000"
MAX_LINES = 250
SCRIPT = "What is the capital of France?\n/regenerate\n/tree\n/quit\n"


def fenced(language: str) -> list[str]:
    texts = "\n".join(readme.read_text() for readme in READMES)
    return re.findall(rf"^```{language}\n(.*?)^```", texts, re.S | re.M)


def commands() -> list[str]:
    """Every shell command of the READMEs; of a line that installs first, what comes after the installation."""
    lines = [line for block in fenced("sh") for line in block.splitlines() if line]
    return [line.rsplit(" && ", 1)[-1].replace(".venv/bin/", "") for line in lines]


def is_free(port: int) -> bool:
    """Whether a server may listen there: no connection of another test has come by this port of its own."""
    with socket.socket() as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            here.bind(("127.0.0.1", port))
            return True
    return False


def start(command: str) -> subprocess.Popen[str]:
    """Run a command of this environment, with a script on its standard input."""
    for port in re.findall(r"--(?:listen|http) \S+:(\d+)", command):
        wait_until(lambda port=port: is_free(int(port)))  # type: ignore[misc]
    words = command.split()
    executable = Path(sys.executable).parent / words[0]
    assert executable.exists(), f"{words[0]} is not installed beside this Python"
    return subprocess.Popen(
        [str(executable), *words[1:]],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until_it_serves(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    output = ""
    for line in server.stdout:
        output += line
        if "Ctrl-C stops it" in line:
            return output
    raise AssertionError(f"the server ended before it served:\n{output}")


def run_to_its_end(command: str) -> str:
    process = start(command)
    output, _ = process.communicate(SCRIPT, timeout=300)
    assert process.returncode == 0, output
    return output


EXAMPLES = [block for block in fenced("python") if HTTP not in block]
assert any("LLM(" in block for block in EXAMPLES)


def is_thorough(block: str) -> bool:
    """Whether it loads the default model another time: the first example, `LLM`, does by default."""
    return "load(" in block or "Worker(" in block


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=[pytest.mark.thorough] if is_thorough(block) else []) for block in EXAMPLES],
    ids=map(str, range(len(EXAMPLES))),
)
def test_the_python_example_does_what_its_asserts_say(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def holder_page() -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", HOLDER_PAGE.read_text(), re.S | re.M))


def run_as_a_file(source: str) -> None:
    exec(compile(source, str(HOLDER_PAGE), "exec", dont_inherit=True), {"__name__": "page"})


def test_the_page_of_a_holder_is_an_engine_that_checks_itself() -> None:
    run_as_a_file(holder_page())


def test_the_engine_of_the_page_would_notice_that_it_copies_nothing() -> None:
    careless = holder_page().replace("in result.ops:", "in ():")
    with pytest.raises(AssertionError, match="the KV of another history"):
        run_as_a_file(careless)


@pytest.mark.thorough
@pytest.mark.usefixtures("default_model")
def test_the_service_commands_work_together_and_stop_cleanly() -> None:
    servers: list[subprocess.Popen[str]] = []
    shutil.rmtree("/tmp/radixkv-secure", ignore_errors=True)
    try:
        outputs: dict[str, str] = {}
        for command in commands():
            if command.startswith("radixkv up"):
                continue
            if command.startswith(SERVERS):
                servers.append(start(command))
                wait_until_it_serves(servers[-1])
            elif command.startswith("radixkv"):
                outputs[command] = run_to_its_end(command)
            elif command.startswith(("mkdir", "openssl")):
                subprocess.run(command.split(), check=True, capture_output=True)
        chats = [output for command, output in outputs.items() if command.startswith("radixkv chat")]
        assert len(chats) == 2
        assert all(re.search(r"prompt 37 tokens: 36 reused, 1 computed", chat) for chat in chats)
        assert any("pool default" in output for command, output in outputs.items() if " stats " in command)
        secured = [output for command, output in outputs.items() if " tree " in command and "--token-file" in command]
        assert "team-a" in secured[0]
    finally:
        for server in reversed(servers):
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=300) == 0
            server.communicate()


@pytest.fixture(scope="module")
def up(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: ARG001  it fetches the model
    """What `radixkv up` printed; it stops on Ctrl-C when the tests are done."""
    (command,) = [command for command in commands() if command.startswith("radixkv up")]
    state = tmp_path_factory.mktemp("up") / "state.sqlite"
    ports = "--listen 127.0.0.1:0 --service-listen 127.0.0.1:0 --http 127.0.0.1:0"
    server = start(f"{command} {ports} --num-blocks 512 --state {state}")
    try:
        yield wait_until_it_serves(server)
    finally:
        server.send_signal(signal.SIGINT)
        status = server.wait(timeout=300)
        server.communicate()
    assert status == 0


@pytest.mark.thorough
def test_chat_reaches_what_up_serves(up: str) -> None:
    address = re.search(r"generation\s+(\S+)", up)
    assert address, up
    reply = run_to_its_end(f"radixkv chat --worker {address[1]} --temperature 0")
    assert "The capital of France is Paris." in reply
    assert "36 reused, 1 computed" in reply


@pytest.mark.thorough
def test_the_http_examples_work_against_what_up_serves(up: str) -> None:
    http = re.search(r"OpenAI API\s+(http://\S+?)/v1", up)
    assert http, up
    blocks = [block for block in fenced("python") if HTTP in block]
    assert blocks
    for block in blocks:
        exec(compile(block.replace(HTTP, http[1]), "README.md", "exec"), {})
    lines = [command for command in commands() if command.startswith("curl")]
    assert lines
    for line in lines:
        done = subprocess.run(
            line.replace(HTTP, http[1]), shell=True, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout


def test_the_readme_is_a_page_and_its_links_lead_somewhere() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_LINES
    for readme in (*READMES, HOLDER_PAGE):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", readme.read_text()):
            file = (readme.parent / target).resolve() if target else readme
            assert file.exists(), f"{readme}: {target}"
            if anchor:
                page = file / "README.md" if file.is_dir() else file
                headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
                assert anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}, (
                    f"{readme}: {anchor}"
                )


def test_every_bench_command_is_one_that_ci_runs() -> None:
    ci = (ROOT / ".ci" / "checks.toml").read_text()
    benches = [re.search(r"bench\.([\w.]+)", command) for command in commands() if "bench." in command]
    for bench in benches:
        assert bench
        assert f"-m bench.{bench[1]} " in ci, f"{bench[0]} is not among .ci/checks.toml"

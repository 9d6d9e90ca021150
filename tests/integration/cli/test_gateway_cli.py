"""`radixkv gateway`, and the gateway that `radixkv worker` and `up` start beside the worker, as a person runs them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from many_hosts import Host
from openai import OpenAI
from tree_follower import follower

from radixkv import LimitError
from radixkv.client import Credentials
from radixkv.generation.client import GenerationClient
from radixkv.generation.request import Prompt
from radixkv.net.signals import EXIT_INTERRUPTED

pytestmark = pytest.mark.thorough

COMMAND = [sys.executable, "-m", "radixkv"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@contextmanager
def running(*arguments: str, until: str) -> Iterator[str]:
    """A command, from the line that matches `until`, whose first group is given, to Ctrl-C, which it must take well."""
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = ""
            for line in process.stdout:
                said += line
                if match := re.search(until, line):
                    break
            else:
                raise AssertionError(said)
            yield match[1]
        finally:
            process.send_signal(signal.SIGINT)
            try:
                rest = process.communicate(timeout=300)[0]
            finally:
                process.kill()
            assert process.returncode == 0, rest


def answer(url: str, key: str = "none") -> str:
    with OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        model = client.models.list().data[0].id
        reply = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=20)
        return reply.choices[0].message.content or ""


@pytest.mark.usefixtures("default_model")
def test_up_serves_the_api_and_a_gateway_of_its_own_reaches_the_worker(tmp_path: Path) -> None:
    free = "127.0.0.1:0"
    up = ["up", "--no-chat", "--num-blocks", "256", "--listen", free, "--service-listen", free, "--http", free]
    with running(*up, until=r"generation +(\S+)") as worker:
        keys = tmp_path / "keys.toml"
        keys.write_text('[[tenant]]\nname = "us"\nkeys = ["sha256:' + SHA256_OF_SESAME + '"]\n')
        arguments = [
            "gateway",
            "--worker",
            worker,
            "--listen",
            free,
            "--keys",
            str(keys),
            "--state",
            str(tmp_path / "s"),
        ]
        with running(*arguments, until=r"OpenAI API on (\S+)") as url:
            assert "Paris" in answer(url, "sesame")
            with pytest.raises(openai.AuthenticationError):
                answer(url, "other")
            headers = {"Authorization": "Bearer sesame"}
            assert httpx.post(f"{url}/radixkv/cache/search", json={"text": "x"}, headers=headers).status_code == 404


@pytest.mark.usefixtures("default_model")
def test_a_gateway_shows_the_tree_of_the_service_that_it_is_told(tmp_path: Path) -> None:
    free = "127.0.0.1:0"
    service = f"unix:{tmp_path}/service"
    up = ["up", "--no-chat", "--num-blocks", "256", "--listen", free, "--service-listen", service, "--no-http"]
    with running(*up, until=r"generation +(\S+)") as worker:
        gateway = ["gateway", "--worker", worker, "--service", service, "--listen", free, "--state", "none"]
        with running(*gateway, until=r"OpenAI API on (http://\S+)/v1") as url:
            answer(f"{url}/v1")
            with follower(url.removeprefix("http://")) as eye:
                eye.wait_until(lambda: bool(eye.nodes))
                assert eye.hello["service"] == service
                assert eye.post("/search", {"text": "capital of France"}).json()["ids"]


@pytest.mark.usefixtures("default_model")
def test_a_limit_of_the_command_line_is_one_for_both_doors_of_up(tmp_path: Path) -> None:
    keys, address = tmp_path / "keys.toml", f"unix:{tmp_path}/worker"
    keys.write_text('[[tenant]]\nname = "us"\nkeys = ["sha256:' + SHA256_OF_SESAME + '"]\n')
    up = ["up", "--no-chat", "--num-blocks", "256", "--listen", address, "--service-listen", f"unix:{tmp_path}/service"]
    up += ["--http", "127.0.0.1:0", "--state", "none", "--keys", str(keys), "--requests-per-minute", "1"]
    with running(*up, until=r"OpenAI API +(http://\S+)") as url:
        assert "Paris" in answer(url, "sesame")
        with (
            GenerationClient(address, credentials=Credentials(token="sesame")) as client,
            pytest.raises(LimitError, match="limit of 1 requests per minute"),
        ):
            client.tokenize(Prompt(text="What"))


@pytest.mark.usefixtures("default_model")
def test_up_shows_its_own_tree() -> None:
    free = "127.0.0.1:0"
    up = ["up", "--no-chat", "--num-blocks", "256", "--listen", free, "--service-listen", free, "--http", free]
    with running(*up, until=r"tree page +http://(\S+)/tree") as address:
        answer(f"http://{address}/v1")
        with follower(address) as eye:
            eye.wait_until(lambda: bool(eye.nodes))
            eye.wait_until(lambda: bool(eye.points and eye.points[-1][-1]))  # how fast the worker computes prompts


@pytest.mark.usefixtures("default_model")
def test_up_says_where_the_api_is() -> None:
    free = "127.0.0.1:0"
    up = ["up", "--no-chat", "--num-blocks", "256", "--listen", free, "--service-listen", free, "--http", free]
    with running(*up, until=r"OpenAI API +(http://\S+/v1)") as url:
        assert "Paris" in answer(url)


@contextmanager
def waiting(*flags: str, until: str) -> Iterator[subprocess.Popen[str]]:
    """A gateway that has no worker."""
    arguments = [*COMMAND, "gateway", *flags, "--listen", "127.0.0.1:0", "--state", "none"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            assert re.match(until, process.stdout.readline())
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("default_model")
def test_a_gateway_of_a_worker_that_is_not_there_waits_for_it_or_ctrl_c(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"
    said = f"Waiting for the worker at {re.escape(address)}: the server at .* cannot be reached"
    flags = ("--worker", address)
    with waiting(*flags, until=said) as served, waiting(*flags, until=said) as given_up:
        given_up.send_signal(signal.SIGINT)
        assert given_up.communicate(timeout=300)[0] == ""
        assert given_up.returncode == EXIT_INTERRUPTED
        free = "127.0.0.1:0"
        up = ["up", "--no-chat", "--num-blocks", "256", "--listen", address, "--service-listen", free, "--http", free]
        with running(*up, until=r"(OpenAI API)"):
            assert served.stdout is not None
            assert re.match("OpenAI API on .* of the worker at", served.stdout.readline())


def test_a_gateway_of_a_service_waits_for_its_first_worker_or_ctrl_c(default_model: str) -> None:
    host = Host(default_model, "default")
    host.stop_worker()
    flags = ("--service", host.address)
    said = f"Waiting for the workers of {host.address}: .* attach one"
    try:
        with waiting(*flags, until=said) as served, waiting(*flags, until=said) as given_up:
            given_up.send_signal(signal.SIGINT)
            assert given_up.communicate(timeout=300)[0] == ""
            assert given_up.returncode == EXIT_INTERRUPTED
            host.start_worker()
            assert served.stdout is not None
            assert re.match("OpenAI API on .* for gibberish of the workers of", served.stdout.readline())
            host.stop_worker()
            served.send_signal(signal.SIGINT)
            served.communicate(timeout=300)
            assert served.returncode == 0
    finally:
        host.close()


SHA256_OF_SESAME = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272"

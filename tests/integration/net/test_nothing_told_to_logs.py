"""Neither keys nor what people write are in any log, or in anything printed, however much is logged."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest
from guarded import tenant_row

from radixkv import InvalidArgumentError, PermissionDeniedError, UnauthenticatedError, connect
from radixkv.client import Credentials
from radixkv.generation.client import GenerationClient
from radixkv.generation.params import SamplingParams
from radixkv.generation.request import GenerateParams

pytestmark = pytest.mark.thorough

KEY, WRONG_KEY = "key-that-nobody-may-see-7261", "wrong-key-that-nobody-may-see-8312"
PROMPT, REPLY_BIAS = "zanzibarite quokkas", "please"
WRITTEN = (PROMPT, "zanzibarite", "quokka")
EVERYTHING = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from radixkv.cli import main
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def radixkv(*arguments: str, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that logs all it can."""
    process = subprocess.Popen(
        [sys.executable, "-c", EVERYTHING, *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        env=os.environ | {"GRPC_VERBOSITY": "DEBUG", "RADIXKV_TOKEN_FILE": ""},
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(300)


def wait_for(path: Path, pattern: str, process: subprocess.Popen[bytes]) -> re.Match[str]:
    """Until something was printed."""
    until_s = time.monotonic() + 500
    while time.monotonic() < until_s:
        found = re.search(pattern, path.read_text(errors="replace"))
        if found:
            return found
        assert process.poll() is None, path.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    raise AssertionError(f"no {pattern!r} within the time")


def talk_to_the_gateway(url: str) -> None:
    """Requests that succeed and requests that fail, each with something that is nobody else's business."""
    message = {"role": "user", "content": f"{PROMPT} {REPLY_BIAS}"}
    body = {"model": "SmolLM2-135M-Instruct", "messages": [message], "max_tokens": 4}
    for key in (KEY, WRONG_KEY):
        headers = {"Authorization": f"Bearer {key}"}
        httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=300)
        httpx.post(f"{url}/chat/completions", json={**body, "temperature": PROMPT}, headers=headers, timeout=300)
        httpx.post(f"{url}/chat/completions", content=f"{{{PROMPT}".encode(), headers=headers, timeout=300)
        httpx.post(f"{url}/messages", json=body, headers={"x-api-key": key}, timeout=300)
        made = httpx.post(f"{url}/radixkv/conversations", json={"title": PROMPT}, headers=headers, timeout=300)
        if made.status_code < 300:
            path = f"{url}/radixkv/conversations/{made.json()['id']}/messages"
            httpx.post(path, json={**message, "replies": {"n": 2, "max_tokens": 4}}, headers=headers, timeout=300)


def talk_over_grpc(service: str, worker: str) -> None:
    sampling = SamplingParams(max_tokens=4)
    with GenerationClient(worker, credentials=Credentials(token=KEY)) as client:
        list(client.generate(GenerateParams(text=PROMPT, sampling=sampling)))
        with pytest.raises(PermissionDeniedError):
            client.generate(GenerateParams(text=PROMPT, sampling=sampling, namespace="another"))
        with pytest.raises(InvalidArgumentError):
            client.generate(GenerateParams(text=PROMPT, sampling=sampling, adapter="none"))
    with (
        GenerationClient(worker, credentials=Credentials(token=WRONG_KEY)) as client,
        pytest.raises(UnauthenticatedError),
    ):
        client.generate(GenerateParams(text=PROMPT, sampling=sampling))
    for token in (KEY, WRONG_KEY):
        with (
            connect(service, credentials=Credentials(token=token)) as reader,
            pytest.raises((PermissionDeniedError, UnauthenticatedError)),
        ):
            reader.match([1, 2, 3])


@pytest.mark.usefixtures("default_model")
def test_no_log_holds_a_key_or_what_somebody_wrote(tmp_path: Path) -> None:
    keys, log = tmp_path / "keys.toml", tmp_path / "log"
    keys.write_text(tenant_row("writer", KEY))
    addresses = ("--listen", "127.0.0.1:0", "--service-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    settings = ("--num-blocks", "256", "--no-chat", "--log-requests", "--state", str(tmp_path / "state.sqlite"))
    with log.open("wb") as output:
        with radixkv("up", *addresses, *settings, "--keys", str(keys), output=output) as server:
            wait_for(log, "Ctrl-C stops it", server)
            url = wait_for(log, r"OpenAI API\s+(\S+)", server)[1]
            worker = wait_for(log, r"generation\s+(\S+)", server)[1]
            service = wait_for(log, r"cache service\s+(\S+)", server)[1]
            talk_to_the_gateway(url)
            talk_over_grpc(service, worker)
            keys.write_text(keys.read_text() + "# changed")
            talk_over_grpc(service, worker)
        assert server.returncode == 0
    printed = log.read_bytes()
    assert b"DEBUG" in printed, "nothing was logged that could have held anything"
    assert b"/v1/chat/completions" in printed
    assert b"writer" in printed
    for secret in (KEY, WRONG_KEY, *WRITTEN):
        at = printed.find(secret.encode())
        assert at < 0, printed[max(0, at - 300) : at + 100]

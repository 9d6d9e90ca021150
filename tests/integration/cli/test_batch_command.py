"""`radixkv batch`: a file of requests, answered into another one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batch_calls import body_of, jsonl, line
from chat_stack import Stack, chat_stack
from waiting import wait_until

COMMAND = (sys.executable, "-m", "radixkv", "batch")


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model, max_model_len=256) as stack:
        yield stack


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300)


def answers(path: Path) -> dict[str, Any]:
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    found = {each["custom_id"]: each["response"] for each in lines}
    assert len(found) == len(lines)
    return found


def test_a_file_is_answered_and_what_is_there_is_not_asked_again(stack: Stack, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = {f"q-{number}": body_of(f"{number}?") for number in range(20)}
    source.write_bytes(jsonl(*(line(name, body) for name, body in bodies.items())))
    done = run(source, output, "--gateway", stack.server.page_url)
    assert (done.returncode, "20 of 20 requests were answered now" in done.stdout) == (0, True), done.stderr
    first = answers(output)
    assert set(first) == set(bodies)
    assert {each["status_code"] for each in first.values()} == {200}

    bodies |= {"bad": body_of("Hi", temperature=9), "new": body_of("Hi")}
    source.write_bytes(jsonl(*(line(name, body) for name, body in bodies.items())))
    kept = output.read_bytes()
    output.write_bytes(kept + b'{"id": "batch_req_1", "custom_id": "ne')  # it was cut off
    num_before = len(stack.engine.prompts)
    done = run(source, output, "--gateway", stack.server.page_url)
    assert (done.returncode, "2 of 22 requests were answered now, 1 of them errors" in done.stdout) == (1, True)
    assert output.read_bytes().startswith(kept)
    assert answers(output)["bad"]["status_code"] == 400
    assert len(stack.engine.prompts) == num_before + 1


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(stack: Stack, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(jsonl(*(line(str(number), body_of(f"{number}.", max_tokens=64)) for number in range(400))))
    arguments = [*COMMAND, source, output, "--gateway", stack.server.page_url]
    stack.runner.gate.close_after(200)  # some are done by then, and no more
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (output.exists() and output.stat().st_size > 0) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    stack.runner.gate.open()
    assert process.returncode == 130
    assert "The same command goes on" in said
    num_done = len(answers(output))
    assert 0 < num_done < 400
    done = run(source, output, "--gateway", stack.server.page_url)
    assert f"{400 - num_done} of 400 requests were answered now" in done.stdout
    assert len(answers(output)) == 400


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"no json\n", "line 1"),
        (jsonl(line("a", {}), line("a", {})), "line 2"),
        (jsonl(line("a", {}), line("b", body_of("Hi", stream=True))), "stream"),
        (jsonl(line("a", {}, "/v1/embeddings")), "url must be"),
    ],
)
def test_a_line_that_is_no_request_is_told_before_anything_is_sent(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    done = run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--gateway", "http://127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert told in done.stderr
    assert "b'" not in done.stderr, "a line is shown as text"
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_of_other_lines_is_not_written_to(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(jsonl(line("a", body_of("Hi"))))
    (tmp_path / "out.jsonl").write_text("mine\n")
    done = run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--gateway", stack.server.page_url)
    assert (done.returncode, (tmp_path / "out.jsonl").read_text()) == (1, "mine\n")

"""A file of requests: how it is read, what is sent of it, when again, and what is written of each answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radixkv.cli import batch_run
from radixkv.cli.batch_run import BatchRun, Requests, read_requests
from radixkv.cli.program import main
from radixkv.client import Credentials
from radixkv.core.errors import InvalidArgumentError, UnavailableError

CHAT = "/v1/chat/completions"


def asked(name: str, text: str = "Hi", url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {
        "custom_id": name,
        "method": "POST",
        "url": url,
        "body": {"messages": [{"role": "user", "content": text}], **body},
    }


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def test_requests_run_by_their_prefixes_and_those_that_are_answered_not_again(source: Path, output: Path) -> None:
    lines = [asked("a", "zebra"), asked("b", "apple"), asked("c", "zebra crossing"), asked("d", "apple pie")]
    source.write_bytes(b"\n" + jsonl(*lines[:2]) + b"  \n" + jsonl(*lines[2:]))
    output.write_bytes(jsonl({"custom_id": "d"}, {"custom_id": "of another file"}))
    found = read_requests(source, output)
    assert (found.source, found.output, found.num_total) == (source, output, 4)
    content = source.read_bytes()
    told = [json.loads(content[one.offset : one.offset + one.size_bytes])["custom_id"] for one in found.left]
    assert sorted(told) == ["a", "b", "c"]
    assert abs(told.index("a") - told.index("c")) == 1, "those that begin alike run next to each other"


@pytest.mark.parametrize("cut", [b'{"custom_id": "b", "resp', b'{"custom_id": "b"}', b"x"])
def test_a_last_answer_that_was_cut_off_is_removed_and_asked_again(source: Path, output: Path, cut: bytes) -> None:
    source.write_bytes(jsonl(asked("a"), asked("b")))
    whole = jsonl({"custom_id": "a"})
    output.write_bytes(whole + cut)
    assert len(read_requests(source, output).left) == 1
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "line 1 is '{'; it must be a JSON object"),
        (jsonl(asked("a"), [1]), "line 2 is"),
        (jsonl(asked("a"), asked("b"), asked("a")), "line 3 is 'a'; it must be a custom_id of its own"),
        (jsonl(asked("a", url="/v1/embeddings")), "line 1 is"),
        (jsonl({**asked("a"), "method": "GET"}), "it must be a request: "),
        (jsonl(asked("a", stream=True)), "line 1: stream is True; it must be false or left out"),
        (b"[" * 100_000, "it must be a JSON object"),
        (b"\xff{}", "line 1 is '\ufffd{}'; it must be a JSON object"),
    ],
)
def test_a_line_that_is_no_request_is_named(source: Path, output: Path, content: bytes, complaint: str) -> None:
    source.write_bytes(content)
    with pytest.raises(InvalidArgumentError) as refused:
        read_requests(source, output)
    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 400
    assert not output.exists()


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"text\n", b"3\n"])
def test_a_file_of_other_lines_is_named_and_left_as_it_is(source: Path, output: Path, line: bytes) -> None:
    source.write_bytes(jsonl(asked("a")))
    output.write_bytes(jsonl({"custom_id": "a"}) + line + b"cut")
    with pytest.raises(InvalidArgumentError, match=r"line 2.*an answer of this command"):
        read_requests(source, output)
    assert output.read_bytes().endswith(line + b"cut")


def test_files_that_are_not_there_or_cannot_be_read_are_named(source: Path, output: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="No such file"):
        read_requests(source, output)
    source.write_bytes(jsonl(asked("a")))
    with pytest.raises(InvalidArgumentError, match="Is a directory"):
        read_requests(source, tmp_path)


Answer = tuple[int, dict[str, str], bytes]
DONE: Answer = (200, {"x-request-id": "req_1"}, b'{"choices": [1]}')


class Gateway:
    """Answers in turn what it was given; the last one to all others. `sent`: path, headers and body of each call."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = deque(answers)
        self.sent: list[tuple[str, dict[str, str], Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                gateway.sent.append((self.path, dict(self.headers.items()), body))
                status, headers, content = gateway.answers.popleft() if len(gateway.answers) > 1 else gateway.answers[0]
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Gateway]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.fixture
def waits_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would be made."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(batch_run, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))  # nobody else's
    return waited


def answers(output: Path) -> dict[str, Any]:
    return {each["custom_id"]: each["response"] for each in map(json.loads, output.read_text().splitlines())}


def requests(source: Path, output: Path, *lines: Any) -> Requests:
    source.write_bytes(jsonl(*lines))
    return read_requests(source, output)


def test_each_request_is_sent_once_in_the_background_and_its_answer_written(
    source: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output.write_bytes(jsonl({"custom_id": "before", "response": {}}))
    left = requests(
        source, output, asked("before"), asked("a", seed=3), asked("b", url="/v1/responses"), asked("c", priority=7)
    )
    with Gateway(DONE).serving() as gateway:
        assert BatchRun(left, gateway.url, None, 2, 1).run() == 0
    bodies = {body["messages"][0]["content"] + str(body.get("seed", "")): body for _, _, body in gateway.sent}
    assert sorted(body["priority"] for _, _, body in gateway.sent) == [-100, -100, 7]
    assert "Hi3" in bodies
    assert {path for path, _, _ in gateway.sent} == {CHAT, "/v1/responses"}
    assert not any("Authorization" in {name.title() for name in headers} for _, headers, _ in gateway.sent)
    assert {headers["content-type"] for _, headers, _ in gateway.sent} == {"application/json"}
    found = answers(output)
    assert set(found) == {"before", "a", "b", "c"}
    assert found["a"] == {"status_code": 200, "request_id": "req_1", "body": {"choices": [1]}}
    said = capsys.readouterr().out
    assert f"3 of 4 requests were answered now: {output}" in said


def test_errors_are_answers_and_the_status_says_so(
    source: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = requests(source, output, asked("a"), asked("b"), asked("c"))
    answers_given = (DONE, (400, {}, b'{"error": 1}'), (500, {}, b"no JSON " + b"x" * 2000))
    with Gateway(*answers_given).serving() as gateway:
        assert BatchRun(left, gateway.url, None, 1, 3).run() == 1
    found = answers(output)
    assert [each["status_code"] for each in found.values()] == [200, 400, 500]
    assert [each["request_id"] for each in found.values()] == ["req_1", "", ""]
    assert found["c"]["body"] == {"error": {"message": ("no JSON " + "x" * 2000)[:1000]}}
    assert "3 of 3 requests were answered now, 2 of them errors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "expected_s"),
    [
        ((429, {}, b"{}"), [1.0, 2.0, 4.0]),
        ((503, {"retry-after": "7"}, b"{}"), [7.0, 7.0, 7.0]),
        ((429, {"retry-after": "0"}, b"{}"), [1.0, 1.0, 1.0]),
        ((429, {"retry-after": "9999"}, b"{}"), [60.0, 60.0, 60.0]),
        ((429, {"retry-after": "soon"}, b"{}"), [1.0, 2.0, 4.0]),
    ],
)
def test_a_request_is_tried_again_where_it_is_refused_for_now(
    source: Path, output: Path, waits_s: list[float], answer: Answer, expected_s: list[float]
) -> None:
    with Gateway(answer, answer, answer, DONE).serving() as gateway:
        assert BatchRun(requests(source, output, asked("a")), gateway.url, None, 1, 4).run() == 0
    assert waits_s == expected_s
    assert answers(output)["a"]["status_code"] == 200


def test_the_pauses_grow_up_to_a_bound(source: Path, output: Path, waits_s: list[float]) -> None:
    with Gateway((429, {}, b"{}")).serving() as gateway:
        assert BatchRun(requests(source, output, asked("a")), gateway.url, None, 1, 9).run() == 1
    assert waits_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert answers(output)["a"]["status_code"] == 429, "the last try's answer is the answer"


def test_a_connection_that_breaks_is_tried_again(source: Path, output: Path, waits_s: list[float]) -> None:
    with Gateway((0, {}, b""), DONE).serving() as gateway:
        assert BatchRun(requests(source, output, asked("a")), gateway.url, None, 1, 2).run() == 0
    assert waits_s == [1.0]


def test_a_gateway_that_goes_away_ends_the_run_and_one_that_never_was_does_so_at_once(
    source: Path, output: Path, waits_s: list[float]
) -> None:
    left = requests(source, output, asked("a"), asked("b"))
    with Gateway(DONE, (0, {}, b"")).serving() as gateway, pytest.raises(UnavailableError) as lost:
        BatchRun(left, gateway.url, None, 1, 3).run()
    assert f"no gateway answers at {gateway.url}" in str(lost.value)
    assert str(output) in str(lost.value)
    assert len(answers(output)) == 1
    assert waits_s == [1.0, 2.0, 4.0]
    waits_s.clear()
    with pytest.raises(UnavailableError):
        BatchRun(read_requests(source, output), gateway.url, None, 1, 3).run()
    assert waits_s == []


def test_a_key_is_sent_from_its_file(source: Path, output: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    with Gateway(DONE).serving() as gateway:
        BatchRun(
            requests(source, output, asked("a")), gateway.url, Credentials(token_file=tmp_path / "key"), 1, 1
        ).run()
    ((_, headers, _),) = gateway.sent
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == "Bearer secret"


def test_where_all_is_answered_no_gateway_is_needed(
    source: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_bytes(jsonl(asked("a")))
    output.write_bytes(jsonl({"custom_id": "a"}))
    assert main(["batch", str(source), str(output)]) == 0
    assert "0 of 1 requests were answered now" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "values", "bound"),
    [("--at-once", ("0", "257"), "from 1 to 256"), ("--tries", ("0", "1001"), "from 1 to 1000")],
)
def test_a_number_of_requests_or_tries_past_its_bound_is_refused(
    flag: str, values: tuple[str, ...], bound: str, source: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_bytes(jsonl(asked("a")))
    output.write_bytes(jsonl({"custom_id": "a"}))
    for value in values:
        assert main(["batch", str(source), str(output), flag, value]) == 1
        assert f"{flag} is {value}; it must be {bound}" in capsys.readouterr().err
    for value in bound.removeprefix("from ").split(" to "):
        assert main(["batch", str(source), str(output), flag, value]) == 0

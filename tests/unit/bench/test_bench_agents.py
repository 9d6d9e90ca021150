"""What bench.agents counts as new, in which order it asks, and what it reads of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from bench.agents.__main__ import MOST_BEYOND, Timed, make_report
from bench.agents.llama import LlamaAnswer
from bench.agents.recording import Conversation, Request
from bench.agents.replay import Answer, Played, Seen, Turn, ask, interleaved


def request(body: int, *, is_turn: bool = True) -> Request:
    return Request("/v1/messages", {"number": body}, "", is_turn)


def test_new_is_what_stands_behind_the_longest_beginning_that_was_there() -> None:
    seen = Seen()
    assert seen.num_new([1, 2, 3]) == 3
    seen.add([1, 2, 3], [4, 5])
    seen.add([1, 9], [])
    assert seen.num_new([1, 2, 3, 4, 5, 6, 7]) == 2  # behind the reply
    assert seen.num_new([1, 2, 3, 8]) == 1
    assert seen.num_new([1, 9, 2, 3]) == 2
    assert seen.num_new([1, 2, 3]) == 0
    assert seen.num_new([2, 3]) == 2  # in the middle of another prompt is nowhere


def test_conversations_take_turns_and_a_title_is_no_turn() -> None:
    first = Conversation("a", "x", [request(0, is_turn=False), request(1), request(2)])
    second = Conversation("b", "y", [request(3)])
    turns = list(interleaved([first, second]))
    assert [(turn.agent, turn.place, turn.request.body["number"]) for turn in turns] == [
        ("a", -1, 0),
        ("b", 0, 3),
        ("a", 0, 1),
        ("a", 1, 2),
    ]


@contextmanager
def saying(*events: dict[str, Any]) -> Iterator[str]:
    """A server that answers every request with these events."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            for event in events:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


USAGE = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 75}
MESSAGES = (
    {"type": "message_start", "message": {"usage": {"input_tokens": 100}}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
    {"type": "message_delta", "delta": {}, "usage": USAGE},
    {"type": "message_stop"},
)
RESPONSES = (
    {"type": "response.created", "response": {"usage": None}},
    {"type": "response.output_text.delta", "delta": "a"},
    {
        "type": "response.completed",
        "response": {"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 75}}},
    },
)


@pytest.mark.parametrize("events", [MESSAGES, RESPONSES], ids=["messages", "responses"])
def test_a_stream_tells_the_prompt_and_what_of_it_was_found(events: tuple[dict[str, Any], ...]) -> None:
    with saying(*events) as address, httpx.Client(base_url=address, timeout=None) as client:
        answer = ask(client, request(0))
    assert answer[:2] == (100, 75)


def test_a_stream_without_a_token_is_no_answer() -> None:
    with (
        saying(MESSAGES[0], MESSAGES[2]) as address,
        httpx.Client(base_url=address, timeout=None) as client,
        pytest.raises(RuntimeError, match="nothing was generated"),
    ):
        ask(client, request(0))


@pytest.mark.parametrize("num_cached", [75, 74, 73])
def test_one_request_that_computes_more_than_its_new_tokens_and_one_fails_the_run(num_cached: int) -> None:
    turns = [Turn(agent, "orders", 0, request(0)) for agent in ("Claude Code", "Codex")]
    good, other = Played(turns[0], Answer(100, 75, 0.1), 25), Played(turns[1], Answer(100, num_cached, 0.1), 25)
    report = make_report([good, other], [], 0, "no peer")
    assert report.bars[0].passed == (75 - num_cached <= MOST_BEYOND)
    assert not any(bar.passed for bar in report.bars[1:])  # three quarters are found, and no times are there


def test_each_kind_of_request_is_held_against_llama_cpp_by_itself() -> None:
    timed = []
    for agent in ("Claude Code", "Codex"):
        for project, place, first_s in (("orders", 0, 9.0), ("weather", 0, 0.1), ("weather", 1, 0.4)):
            played = Played(Turn(agent, project, place, request(0)), Answer(100, 95, first_s), 5)
            timed.append(Timed(played, LlamaAnswer(50, 0.2)))
    report = make_report([each.ours for each in timed], timed, 0, "")
    assert [round(bar.value or 0, 3) for bar in report.bars] == [0, 0.95, 0.5, 2.0, 0.5, 2.0]
    assert [bar.passed for bar in report.bars] == [True, True, True, False, True, False]
    assert [row[0] for row in report.tables[1].rows][:3] == [
        "Claude Code: first of all",
        "Claude Code: new conversation",
        "Claude Code: next request",
    ]

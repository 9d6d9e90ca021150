"""What outlasts a request: followers of a conversation, replies that nobody waits for, the end of the server or the worker."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from chat_stack import Stack, chat_stack, gateway, gibberish_engine
from talk import Talk, message_id
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig
from radixkv.generation.client import GenerationClient
from radixkv.worker.server import GenerationServer


@pytest.fixture(scope="module")
def stack(default_model: str) -> Iterator[Stack]:
    with chat_stack(default_model) as stack:
        yield stack


@pytest.fixture
def talk(stack: Stack) -> Iterator[Talk]:
    with Talk(stack.server.url) as talk:
        yield talk


def config(folder: Path, drain_s: float) -> GatewayConfig:
    return GatewayConfig(listen="127.0.0.1:0", drain_s=drain_s, worker_wait_s=0.2, state_file=folder / "state.sqlite")


# -- following


def test_all_followers_see_the_same_from_whenever_they_join(stack: Stack, talk: Talk) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve"
    stack.dictate(text)
    stack.runner.gate.close_after(6)
    conversation_id = talk.begin()
    with talk.following(conversation_id) as early:
        assert early.messages == {}
        asked, begun = talk.say(conversation_id, "Count")
        early.wait(lambda: len(early.messages.get(begun["id"], {}).get("text", "")) > 8)
        with talk.following(conversation_id) as late:
            assert text.startswith(late.messages[begun["id"]]["text"])
            assert late.messages[begun["id"]]["text"] != ""
            stack.runner.gate.open()
            assert early.wait_end(begun["id"]) == late.wait_end(begun["id"])
            for follower in (early, late):
                follower.wait(lambda follower=follower: follower.conversation["head"] == begun["id"])  # type: ignore[misc]
            stored = talk.call("GET", f"/{conversation_id}")
            assert stored["messages"][1]["text"] == text
            for follower in (early, late):
                follower.wait(lambda follower=follower: follower.conversation == stored["conversation"])  # type: ignore[misc]
                assert list(follower.messages.values()) == stored["messages"]
            names = [name for name, _ in early.events if name != "delta"]
            assert names == ["snapshot", *("message", "conversation") * 3]
            told = [data["seq"] for name, data in early.events if name in ("message", "delta")]
            assert told == sorted(set(told))
    assert stored["messages"][0] == asked


def test_drafts_grow_side_by_side_before_their_followers(talk: Talk) -> None:
    conversation_id = talk.begin()
    with talk.following(conversation_id) as follower:
        _, *drafts = talk.say(conversation_id, "Hello", n=4, max_tokens=40, seed=3)
        for draft in drafts:
            follower.wait_end(draft["id"])
        follower.wait(
            lambda: all(m["details"]["cached_tokens"] is not None for m in list(follower.messages.values())[1:])
        )
        assert list(follower.messages.values()) == talk.messages(conversation_id)


def test_a_follower_is_told_of_names_branches_and_the_end(talk: Talk) -> None:
    conversation_id = talk.begin()
    path = f"/{conversation_id}/messages"
    with talk.following(conversation_id) as follower:
        (asked,) = talk.call("POST", path, {"role": "user", "text": "A river"})["messages"]
        follower.wait(lambda: follower.conversation["title"] == "A river")
        talk.call("PATCH", f"/{conversation_id}", {"title": "Rivers"})
        follower.wait(lambda: follower.conversation["title"] == "Rivers")
        talk.call("DELETE", f"{path}/{asked['id']}")
        follower.wait(lambda: follower.conversation["num_messages"] == 0)
        assert follower.messages == {}
        talk.call("DELETE", f"/{conversation_id}")
        follower.wait(lambda: follower.has_ended)
        assert follower.events[-1][0] == "deleted"


def test_a_follower_who_does_not_read_is_cut_off(stack: Stack, talk: Talk) -> None:
    conversation_id = talk.begin()
    gate, lives = stack.server.app.state.gate, stack.server.app.state.conversations.lives
    wait_until(lambda: gate.num_running == 0)
    host, port = stack.server.address.split(":")
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect((host, int(port)))
        request = f"GET /v1/radixkv/conversations/{conversation_id}/events HTTP/1.1\r\nHost: {host}\r\n\r\n"
        silent.sendall(request.encode())
        wait_until(lambda: gate.num_running == 1)
        with talk.following(conversation_id) as follower:
            sent = [message_id() for _ in range(12)]
            for own_id in sent:
                body = {"id": own_id, "role": "user", "text": "x" * 1_000_000}
                talk.call("POST", f"/{conversation_id}/messages", body)
                follower.wait(lambda own_id=own_id: own_id in follower.messages)  # type: ignore[misc]
            wait_until(lambda: gate.num_running == len(lives._lives[conversation_id].followers) == 1)
    with talk.following(conversation_id) as back:
        assert list(back.messages) == sent
    wait_until(lambda: not lives._lives)


def test_one_tenant_does_not_follow_without_bound(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixkv.gateway.api.conversations.replies.live.MAX_FOLLOWERS", 2)
    conversation_id = talk.begin()
    with talk.following(conversation_id):
        with talk.following(conversation_id):
            assert "close some" in talk.refused(429, "GET", f"/{conversation_id}/events")["message"]
        while True:  # until the server has seen that it left
            with talk.http.stream("GET", f"/{conversation_id}/events") as answer:
                if answer.status_code == 200:
                    break


def test_followers_do_not_keep_a_server_that_stops(default_model: str) -> None:
    with (
        chat_stack(default_model, GatewayConfig(listen="127.0.0.1:0", drain_s=500.0)) as stack,
        Talk(stack.server.url) as talk,
    ):
        conversation_id = talk.begin()
        with talk.following(conversation_id) as follower:
            stack.server.close()
            follower.wait(lambda: follower.has_ended)


# -- the end of the server


def test_a_reply_may_end_while_the_gateway_drains(default_model: str, tmp_path: Path) -> None:
    with gibberish_engine(default_model) as (engine, runner, _):
        with gateway(engine, config(tmp_path, 500.0)) as server, Talk(server.url) as talk:
            runner.gate.close()
            conversation_id = talk.begin()
            _, begun = talk.say(conversation_id, "Hello")
            with talk.following(conversation_id) as follower:
                server.drain()
                follower.wait(lambda: follower.has_ended)
            runner.gate.open()
        with gateway(engine, config(tmp_path, 0.2)) as server, Talk(server.url) as talk:
            reply = talk.message(conversation_id, begun["id"])
            assert (reply["status"], reply["error"]) == ("complete", None)
            assert reply["details"]["generated_tokens"] > 0


def test_what_is_still_written_when_the_gateway_stops_has_failed_and_keeps_its_text(
    default_model: str, tmp_path: Path
) -> None:
    with gibberish_engine(default_model) as (engine, runner, text):
        with gateway(engine, config(tmp_path, 0.2)) as server, Talk(server.url) as talk:
            runner.dictated.extend(text.encode("one two three four five six seven eight", special=False))
            runner.gate.close_after(5)
            conversation_id = talk.begin()
            asked, begun = talk.say(conversation_id, "Hello")
            with talk.following(conversation_id) as follower:
                follower.wait(lambda: "one two" in follower.messages[begun["id"]]["text"])
        runner.dictated.clear()
        runner.gate.open()
        with gateway(engine, config(tmp_path, 0.2)) as server, Talk(server.url) as talk:
            failed = talk.message(conversation_id, begun["id"])
            assert (failed["status"], failed["error"]) == ("failed", "the server stopped")
            assert failed["text"].startswith("one two")
            talk.turn(conversation_id, "Go on", failed["id"])
            again = talk.call("POST", f"/{conversation_id}/messages/{asked['id']}/replies", {"max_tokens": 8})[
                "messages"
            ]
            assert talk.ended(conversation_id, again[0]["id"])["status"] == "complete"


def test_a_conversation_goes_on_from_the_cache_after_a_restart(default_model: str, tmp_path: Path) -> None:
    with gibberish_engine(default_model) as (engine, _, _):
        parent, costs = None, []
        conversation_id = ""
        for _ in range(3):
            with gateway(engine, config(tmp_path, 1.0)) as server, Talk(server.url) as talk:
                conversation_id = conversation_id or talk.begin()
                _, reply = talk.turn(conversation_id, "Go on.", parent)
                details = reply["details"]
                if costs:
                    assert details["cached_tokens"] >= costs[-1] - 1
                costs.append(details["prompt_tokens"] + details["generated_tokens"])
                parent = reply["id"]


SERVED = """
import sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from chat_stack import gateway, gibberish_engine
from radixkv.gateway.config import GatewayConfig

with gibberish_engine(sys.argv[1], num_blocks=1024, max_model_len=8192) as (engine, runner, text):
    runner.dictated.extend(text.encode(" ".join(map(str, range(20_000))), special=False))
    config = GatewayConfig(listen="127.0.0.1:0", state_file=Path(sys.argv[2]))
    with gateway(engine, config) as server:
        print(server.url, flush=True)
        threading.Event().wait()
"""


class Lost(NamedTuple):
    """A reply of a gateway that was killed while it wrote it: what a follower was told and when, and what was kept."""

    asked: Any
    told: list[tuple[float, str]]
    seq: int
    messages: list[Any]

    @property
    def is_within_a_second(self) -> bool:
        """Whether what was kept has all that was told a second before the end. That is this machine's second, too."""
        *_, (last_s, _) = self.told
        before = [text for at_s, text in self.told if at_s <= last_s - 1.0 and text]
        return (
            self.messages[-1]["status"] == "failed"
            and bool(before)
            and self.messages[-1]["text"].startswith(before[-1])
        )


def kill_while_it_writes(model: str, folder: Path) -> Lost:
    folders = [folder for folder in sys.path if Path(folder).parent.name == "shared"]
    command = [sys.executable, "-c", SERVED, model, str(folder / "state.sqlite"), *folders]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told: list[tuple[float, str]] = []
    try:
        with Talk(process.stdout.readline().strip()) as talk:
            conversation_id = talk.begin()
            with talk.following(conversation_id) as follower:
                asked, begun = talk.say(conversation_id, "Count", max_tokens=6000)
                until_s = time.monotonic() + 3.0
                while (now_s := time.monotonic()) < until_s:
                    told.append((now_s, follower.messages.get(begun["id"], {}).get("text", "")))
                    time.sleep(0.01)
                os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with (
        gibberish_engine(model) as (engine, _, _),
        gateway(engine, config(folder, 0.2)) as server,
        Talk(server.url) as talk,
    ):
        messages = talk.messages(conversation_id)
        _, reply = talk.turn(
            conversation_id, "Go on", messages[0]["id"]
        )  # the reply may be longer than a prompt by now
        assert reply["status"] == "complete"
    seq = max(data["seq"] for name, data in follower.events if name == "delta")
    return Lost(asked, told, seq, messages)


def test_a_killed_gateway_loses_at_most_a_second_of_a_reply_and_no_message(default_model: str, tmp_path: Path) -> None:
    for number in range(5):  # a busy machine may be late with a second
        folder = tmp_path / str(number)
        folder.mkdir()
        lost = kill_while_it_writes(default_model, folder)
        if lost.is_within_a_second:
            break
    assert lost.is_within_a_second
    first, failed = lost.messages
    assert first == lost.asked
    assert failed["error"] == "the server ended before the reply was finished"
    told, kept = lost.told[-1][1], failed["text"]
    assert told.startswith(kept) or kept.startswith(told), "whichever of the two the kill came before"
    assert failed["seq"] > lost.seq


# -- the end of the worker


def test_a_reply_whose_worker_goes_keeps_its_text_and_another_one_works(default_model: str, tmp_path: Path) -> None:
    with gibberish_engine(default_model) as (engine, runner, text):
        worker = GenerationServer(engine, "127.0.0.1:0").start()
        with (
            GenerationClient(worker.address) as client,
            gateway(client, config(tmp_path, 0.2)) as server,
            Talk(server.url) as talk,
        ):
            runner.dictated.extend(text.encode("one two three four five six seven eight", special=False))
            runner.gate.close_after(5)
            conversation_id = talk.begin()
            asked, begun = talk.say(conversation_id, "Hello", n=1)
            with talk.following(conversation_id) as follower:
                follower.wait(lambda: "one two" in follower.messages[begun["id"]]["text"])
                worker.stop()
                failed = follower.wait_end(begun["id"])
            assert failed["status"] == "failed"
            assert failed["error"]
            assert failed["text"].startswith("one two")
            assert talk.message(conversation_id, begun["id"]) == failed
            runner.dictated.clear()
            runner.gate.open()
            body = {"role": "user", "text": "Is anybody there?", "replies": {}}
            assert talk.refused(503, "POST", f"/{conversation_id}/messages", body)["code"] == "unavailable"
            assert talk.messages(conversation_id)[-1]["text"] == "Is anybody there?"
            with GenerationServer(engine, worker.address):
                path = f"/{conversation_id}/messages/{asked['id']}/replies"
                while (answer := talk.http.post(path, json={"max_tokens": 8})).status_code == 503:
                    select.select([], [], [], 0.1)  # the channel comes back by itself
                reply = talk.ended(conversation_id, answer.json()["messages"][0]["id"])
                assert reply["status"] == "complete"


def test_the_state_file_holds_nothing_that_was_deleted(default_model: str, tmp_path: Path) -> None:
    with (
        gibberish_engine(default_model) as (engine, _, _),
        gateway(engine, config(tmp_path, 0.2)) as server,
        Talk(server.url) as talk,
    ):
        kept, gone = talk.begin(), talk.begin()
        talk.turn(kept, "A secret word: saxophone.")
        _, reply = talk.turn(gone, "A secret word: xylophone.")
        talk.turn(gone, "Tell me more of the bassoon.", reply["id"])
        talk.turn(kept, "A secret word: glockenspiel.")
        branch = next(m for m in talk.messages(kept) if "glockenspiel" in m["text"])
        talk.call("DELETE", f"/{gone}")
        talk.call("DELETE", f"/{kept}/messages/{branch['id']}")
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for word, is_there in (("saxophone", True), ("xylophone", False), ("bassoon", False), ("glockenspiel", False)):
        assert (word.encode() in content) == is_there, word

"""Calls of conversations that are kept on the server, and a follower of one, for tests."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import httpx

__all__ = ["Follower", "Talk", "message_id"]

DEADLINE_S = 300.0

Body = dict[str, Any]


def message_id() -> str:
    """An id of the caller's choice."""
    return f"msg_{uuid.uuid4().hex}"


class Talk:
    """A caller of a gateway at `url` (``.../v1``), on behalf of whose key it is."""

    def __init__(self, url: str, key: str = "") -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url = f"{url}/radixkv/conversations"
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE_S)

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def call(self, method: str, path: str = "", body: Any = None, **params: Any) -> Any:
        """The answer's JSON."""
        answer = self.http.request(method, f"{self.url}{path}", json=body, params=params)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def refused(self, status: int, method: str, path: str = "", body: Any = None, **params: Any) -> Body:
        """What is said of a call that is refused."""
        answer = self.http.request(method, f"{self.url}{path}", json=body, params=params)
        assert answer.status_code == status, answer.text
        error: Body = answer.json()["error"]
        return error

    def begin(self, **body: Any) -> str:
        """A new conversation's id."""
        conversation_id: str = self.call("POST", "", body)["id"]
        return conversation_id

    def messages(self, conversation_id: str) -> list[Body]:
        """All of it, in the order in which they came."""
        messages: list[Body] = self.call("GET", f"/{conversation_id}")["messages"]
        return messages

    def message(self, conversation_id: str, wanted: str) -> Body:
        """One of them."""
        return next(message for message in self.messages(conversation_id) if message["id"] == wanted)

    def say(self, conversation_id: str, text: str, parent: str | None = None, **reply: Any) -> list[Body]:
        """A user's message, and the replies that were begun to it."""
        body = {"parent": parent, "role": "user", "text": text, "replies": {"max_tokens": 24, **reply}}
        messages: list[Body] = self.call("POST", f"/{conversation_id}/messages", body)["messages"]
        return messages

    def ended(self, conversation_id: str, wanted: str) -> Body:
        """A reply, once it is no longer written."""
        while (message := self.message(conversation_id, wanted))["status"] == "running":
            time.sleep(0.002)
        return message

    def turn(self, conversation_id: str, text: str, parent: str | None = None, **reply: Any) -> tuple[str, Body]:
        """A user's message and the whole reply to it: the former's id, the latter."""
        asked, reply_begun = self.say(conversation_id, text, parent, **reply)
        return asked["id"], self.ended(conversation_id, reply_begun["id"])

    @contextmanager
    def following(self, conversation_id: str) -> Iterator[Follower]:
        """A follower, once it has its snapshot."""
        follower = Follower(self.http, conversation_id)
        try:
            follower.wait(lambda: bool(follower.events))
            yield follower
        finally:
            follower.close()


class Follower:
    """Follows a conversation on a thread of its own, and puts together what it is told.

    Attributes:
        events: all so far, as (name, data). messages: what they make, by id. conversation: the same.
        has_ended: the server has ended the stream.
    """

    def __init__(self, http: httpx.Client, conversation_id: str) -> None:
        self.events: list[tuple[str, Any]] = []
        self.messages: dict[str, Body] = {}
        self.conversation: Body = {}
        self.has_ended = False
        self.failure: BaseException | None = None
        self._is_closing = False
        self._news = threading.Condition()
        url = f"{http.base_url}{conversation_id}/events"
        self._client = httpx.Client(headers=http.headers, timeout=DEADLINE_S)
        self._answer = self._client.send(self._client.build_request("GET", url), stream=True)
        assert self._answer.status_code == 200, self._answer.read()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, holds: Callable[[], bool]) -> None:
        """Until something is so."""
        with self._news:
            assert self._news.wait_for(lambda: holds() or self.failure is not None, DEADLINE_S), self.events[-3:]
        assert self.failure is None, self.failure

    def wait_end(self, message_id: str) -> Body:
        """A reply, once it was told that it is written no longer."""
        self.wait(lambda: self.messages.get(message_id, {}).get("status", "running") != "running")
        return self.messages[message_id]

    def close(self) -> None:
        """Leave."""
        self._is_closing = True
        with contextlib.suppress(OSError):  # the server has closed it
            self._answer.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE_S)
        self._answer.close()
        self._client.close()

    def _run(self) -> None:
        try:
            name = ""
            for line in self._answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    with self._news:
                        self._take(name, json.loads(line.removeprefix("data: ")))
                        self._news.notify_all()
        except (httpx.HTTPError, httpx.StreamError, OSError, RuntimeError, ValueError):
            pass  # cut off, or closed here
        except BaseException as error:
            self.failure = error
        with self._news:
            self.has_ended = not self._is_closing
            self._news.notify_all()

    def _take(self, name: str, data: Any) -> None:
        self.events.append((name, data))
        match name:
            case "snapshot":
                self.conversation = data["conversation"]
                self.messages = {message["id"]: dict(message) for message in data["messages"]}
            case "message":
                before = self.messages.get(data["id"], {"text": ""})["text"]
                assert data["status"] != "running" or data["text"].startswith(before), "text that was told is gone"
                self.messages[data["id"]] = dict(data)
            case "delta":
                message = self.messages[data["id"]]
                assert message["status"] == "running"
                assert data["seq"] > message["seq"]
                message["text"] += data["text"]
                message["seq"] = data["seq"]
            case "conversation":
                self.conversation = data
            case "removed":
                for message_id in data["ids"]:
                    del self.messages[message_id]
            case _:
                assert name == "deleted"

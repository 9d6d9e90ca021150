"""Any gateway is as good as another: the same calls at random ones of four over one database, and at one with a file.

Every answer must be the same in both, ids and times aside: replies are drawn by seed from a model of hashes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_stack import gateway, gibberish_engine
from postgres_server import PostgresServer
from waiting import wait_until

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer

NUM_GATEWAYS = 4
WORDS = ("river", "stone", "Ünder", "日本", "count to", "why", "a b", "<|im_end|>")
_ID = re.compile(r"\b(conv|msg|resp|rs|item|gen|chatcmpl)[_-][0-9a-f]{8,}(_\d+)?\b")
_TIMES = frozenset({"created", "created_at", "updated", "completed_at", "trashed"})
_CACHE = frozenset({"cached_tokens", "loaded_tokens", "first_token_ms", "duration_ms", "usage"})
_COUNTS = frozenset({"version", "seq"})
"""They grow with each part of a reply that is stored."""

_GROWING = frozenset({"text", "status", "details", "thinking"})
"""Of a reply that has just begun."""

Json = Any


class World:
    """Gateways over one state. `call` goes to any of them; its answer has labels in place of ids."""

    def __init__(self, servers: Sequence[GatewayServer], http: Sequence[httpx.Client], rng: random.Random) -> None:
        self._servers, self._http, self._rng = servers, http, rng
        self._labels: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def call(self, method: str, path: str, body: Json = None) -> tuple[int, Json]:
        answer = self._rng.choice(self._http).request(method, self._spelled(path), json=self._spelled(body))
        told = self._labelled(answer.json() if answer.content else None)
        for server in self._servers:
            wait_until(lambda server=server: not server.app.state.transcripts._saving)  # type: ignore[misc]
            server.app.state.database.submit(lambda _: None).result()
        return answer.status_code, told

    def _spelled(self, value: Json) -> Json:
        if isinstance(value, str):
            return re.sub(r"\b[a-z]+#\d+", lambda found: self._real.get(found[0], f"{found[0][:4]}_{'0' * 32}"), value)
        if isinstance(value, list):
            return [self._spelled(each) for each in value]
        return {name: self._spelled(each) for name, each in value.items()} if isinstance(value, dict) else value

    def _labelled(self, value: Json) -> Json:
        if isinstance(value, str):
            return _ID.sub(self._label, value)
        if isinstance(value, list):
            return [self._labelled(each) for each in value]
        if isinstance(value, dict):
            told = {name: each for name, each in value.items() if name not in _TIMES | _CACHE | _COUNTS}
            return {name: self._labelled(each) for name, each in told.items()}
        return value

    def _label(self, found: re.Match[str]) -> str:
        if found[0] not in self._labels:
            label = f"{found[1]}#{len(self._labels)}"
            self._labels[found[0]], self._real[label] = label, found[0]
        return self._labels[found[0]]


class Caller:
    """Draws calls that make sense, and some that do not, and makes each in both worlds."""

    def __init__(self, one: World, four: World, rng: random.Random) -> None:
        self._worlds, self._rng = (one, four), rng
        self._messages: dict[str, list[Json]] = {}
        self._responses: list[str] = []
        self._lists: dict[str, list[str]] = {}
        self.log: list[str] = []
        self._calls: list[Callable[[], None]] = [
            self.begin, self.say, self.say, self.say, self.reply, self.go_on, self.edit, self.mark, self.change,
            self.throw, self.remove, self.look, self.search, self.bulk,
            self.respond, self.respond, self.respond, self.respond_later, self.look_up, self.forget,
            self.make_list, self.add_items, self.look_at_list, self.drop_of_list, self.chat,
        ]  # fmt: skip

    def step(self) -> None:
        self._rng.choice(self._calls)()

    def call(self, method: str, path: str, body: Json = None) -> tuple[int, Json]:
        self.log.append(f"{method} {path} {body}")
        one, four = (world.call(method, path, body) for world in self._worlds)
        if path.endswith(("/messages", "/replies")):
            for message in (*one[1].get("messages", ()), *four[1].get("messages", ())):
                for name in _GROWING:
                    message.pop(name, None)
        assert four == one, "\n".join(self.log[-30:])
        return four

    def settled(self, path: str) -> Json:
        """What is read there once nothing of it is being written."""
        self.log.append(f"... {path}")
        told = []
        for world in self._worlds:
            answers: list[Json] = []

            def is_whole(world: World = world, answers: list[Json] = answers) -> bool:
                answers[:] = [world.call("GET", path)]
                return not re.search("'status': '(running|queued|in_progress)'", str(answers))

            wait_until(is_whole)
            told += answers
        assert told[1] == told[0], "\n".join(self.log[-30:])
        return told[0][1]

    # -- conversations

    def _conversation(self) -> str:
        return self._rng.choice([*self._messages, "conv#999"])

    def _message(self, conversation: str, *roles: str) -> str:
        known = [
            each["id"] for each in self._messages.get(conversation, ()) if each["role"] in (roles or (each["role"],))
        ]
        return self._rng.choice([*known, *known, "msg#999"])

    def _path(self, conversation: str, rest: str = "") -> str:
        return f"/radixkv/conversations/{conversation}{rest}"

    def _words(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(1, 4)))

    def _options(self) -> Json:
        return {
            "max_tokens": self._rng.choice([1, 8, 20]),
            "seed": self._rng.randrange(9),
            "n": self._rng.choice([1, 1, 2]),
        }

    def _refresh(self, conversation: str) -> None:
        told = self.settled(self._path(conversation))
        if "messages" in told:
            self._messages[conversation] = told["messages"]
        else:
            self._messages.pop(conversation, None)

    def begin(self) -> None:
        body: Json = {"title": self._words()} if self._rng.random() < 0.5 else {}
        if self._rng.random() < 0.5:
            body["messages"] = [{"role": role, "text": self._words()} for role in ("system", "user", "assistant")]
        _, told = self.call("POST", "/radixkv/conversations", body)
        self._refresh(told["id"])

    def say(self) -> None:
        conversation = self._conversation()
        parent = self._rng.choice([None, self._message(conversation, "assistant"), self._message(conversation)])
        body = {"parent": parent, "role": "user", "text": self._words(), "replies": self._options()}
        self.call("POST", self._path(conversation, "/messages"), body)
        self._refresh(conversation)

    def reply(self) -> None:
        conversation = self._conversation()
        path = f"/messages/{self._message(conversation, 'user')}/replies"
        self.call("POST", self._path(conversation, path), self._options())
        self._refresh(conversation)

    def go_on(self) -> None:
        conversation = self._conversation()
        path = f"/messages/{self._message(conversation, 'assistant')}/replies"
        body = self._options() | {"continue": True, "position": self._rng.randrange(12)}
        self.call("POST", self._path(conversation, path), body)
        self._refresh(conversation)

    def edit(self) -> None:
        conversation = self._conversation()
        edit = {"message": self._message(conversation), "text": self._words()}
        body: Json = {"leaf": self._message(conversation), "edit": edit}
        self.call("POST", self._path(conversation, "/branches"), body)
        self._refresh(conversation)

    def mark(self) -> None:
        conversation = self._conversation()
        body = {"starred": self._rng.random() < 0.5, "name": self._rng.choice(["", "kept"])}
        self.call("PATCH", self._path(conversation, f"/messages/{self._message(conversation)}"), body)
        self._refresh(conversation)

    def change(self) -> None:
        body = self._rng.choice(
            [
                {"title": self._words()},
                {"tags": self._rng.sample(["x", "y", "z"], 2)},
                {"pinned": True},
                {"archived": self._rng.random() < 0.5},
                {"settings": {"temperature": 0.5, "instructions": "be brief"}},
                {"settings": None},
            ]
        )
        self.call("PATCH", self._path(self._conversation()), body)

    def throw(self) -> None:
        conversation, message = self._conversation(), ""
        if self._rng.random() < 0.7:
            message = f"/messages/{self._message(conversation)}"
        self.call("POST", self._path(conversation, f"{message}/trash"))
        self.call("GET", self._path(conversation, "/trash"))
        if self._rng.random() < 0.6:
            self.call("POST", self._path(conversation, f"{message}/restore"))
        self._refresh(conversation)

    def remove(self) -> None:
        conversation = self._conversation()
        path = "" if self._rng.random() < 0.3 else f"/messages/{self._message(conversation)}"
        self.call("DELETE", self._path(conversation, path))
        self._refresh(conversation)

    def look(self) -> None:
        self._refresh(self._conversation())
        self.call("GET", "/radixkv/conversations/tags")

    def search(self) -> None:
        query = self._rng.choice(
            ["", "?search=stone", "?search=日", "?trash=true", "?tag=x", "?archived=true", "?limit=2"]
        )
        self.call("GET", f"/radixkv/conversations{query}")

    def bulk(self) -> None:
        action = self._rng.choice(
            ["trash", "restore", "delete", "archive", "unarchive", "pin", "unpin", "tag", "untag"]
        )
        ids = list(dict.fromkeys(self._conversation() for _ in range(self._rng.randint(1, 2))))
        tag = {"tag": "x"} if action.endswith("tag") else {}
        self.call("POST", "/radixkv/conversations/bulk", {"ids": ids, "action": action, **tag})
        for conversation in ids:
            self._refresh(conversation)

    # -- responses, their lists of items, and chats

    def _response(self) -> str:
        return self._rng.choice([*self._responses[-6:], "resp#999"])

    def _list(self) -> str:
        return self._rng.choice([*self._lists, "conv#998"])

    def _asked(self) -> Json:
        body: Json = {
            "input": self._words(),
            "max_output_tokens": self._rng.choice([1, 8, 20]),
            "seed": self._rng.randrange(9),
        }
        way = self._rng.random()
        if way < 0.5 and self._responses:
            body["previous_response_id"] = self._response()
        elif way < 0.7 and self._lists:
            body["conversation"] = self._list()
        return body

    def respond(self) -> None:
        body = self._asked() | {"store": self._rng.random() < 0.8}
        status, told = self.call("POST", "/responses", body)
        if status == 200:
            self._responses.append(told["id"])

    def respond_later(self) -> None:
        status, told = self.call("POST", "/responses", self._asked() | {"background": True})
        if status == 200:
            self._responses.append(told["id"])
            self.settled(f"/responses/{told['id']}")

    def look_up(self) -> None:
        path = f"/responses/{self._response()}"
        self.call("GET", path)
        self.call("GET", f"{path}/input_items")
        if self._rng.random() < 0.3:
            self.call("POST", f"{path}/cancel")

    def forget(self) -> None:
        self.call("DELETE", f"/responses/{self._response()}")

    def make_list(self) -> None:
        body = {"metadata": {"of": self._words()}, "items": [{"role": "user", "content": self._words()}]}
        _, told = self.call("POST", "/conversations", body)
        self._lists[told["id"]] = []

    def add_items(self) -> None:
        made = self._list()
        items = [{"role": role, "content": self._words()} for role in ("user", "assistant")]
        status, told = self.call("POST", f"/conversations/{made}/items", {"items": items})
        if status == 200:
            self._lists[made] += [each["id"] for each in told["data"]]

    def look_at_list(self) -> None:
        made = self._list()
        self.call("GET", f"/conversations/{made}")
        self.call("GET", f"/conversations/{made}/items?order={self._rng.choice(['asc', 'desc'])}")

    def drop_of_list(self) -> None:
        made = self._list()
        items = self._lists.get(made) or ["msg#998"]
        if self._rng.random() < 0.7:
            self.call("DELETE", f"/conversations/{made}/items/{self._rng.choice(items)}")
        else:
            self.call("DELETE", f"/conversations/{made}")

    def chat(self) -> None:
        turns: list[Json] = []
        for _ in range(self._rng.randint(1, 3)):
            turns.append({"role": "user", "content": self._words()})
            body = {"messages": turns, "max_tokens": 8, "seed": self._rng.randrange(9)}
            _, told = self.call("POST", "/chat/completions", body)
            turns.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})


@pytest.fixture(scope="module")
def worlds(
    default_model: str, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], tuple[World, World]]]:
    with ExitStack() as stack:
        engine, _, _ = stack.enter_context(gibberish_engine(default_model))

        def world(state: str | Path, num_gateways: int, seed: int) -> World:
            config = GatewayConfig(listen="127.0.0.1:0", drain_s=1.0, state_file=state)
            servers = [stack.enter_context(gateway(engine, config)) for _ in range(num_gateways)]
            http = [stack.enter_context(httpx.Client(base_url=server.url, timeout=300)) for server in servers]
            return World(servers, http, random.Random(seed))

        def make(seed: int) -> tuple[World, World]:
            one = world(tmp_path_factory.mktemp("one") / "state.sqlite", 1, seed)
            return one, world(postgres.new_database(), NUM_GATEWAYS, seed)

        yield make


@pytest.mark.parametrize(
    ("seed", "num_steps"), [(0, 40), *(pytest.param(seed, 120, marks=pytest.mark.thorough) for seed in range(1, 4))]
)
def test_calls_at_any_of_four_gateways_are_answered_as_by_one(
    worlds: Callable[[int], tuple[World, World]], seed: int, num_steps: int
) -> None:
    caller = Caller(*worlds(seed), random.Random(seed))
    for _ in range(num_steps):
        caller.step()

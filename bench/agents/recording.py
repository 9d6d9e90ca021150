"""Requests of the agents: recorded at the first run, kept in the cache folder, never in the repository.

    agent ──> Recorder ──> gateway ──> Dictated ──> worker of a tiny model

The agent is the real one, the gateway ours; the replies are those of its script. Its requests belong to its vendor.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from bench.agents.clients import PACKAGES, Agent, ClaudeCode, Codex, fetch_agents
from bench.agents.dictation import Dictated
from bench.agents.models import MODEL_NAME, tiny_engine
from bench.agents.scripts import SCRIPTS, Script
from bench.common.report import Progress
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.server import GatewayServer
from radixkv.util.folders import cache_folder
from radixkv.worker.generations.text import ChatText

__all__ = ["AGENTS", "Conversation", "Request", "recorded"]

AGENTS = (ClaudeCode, Codex)
_TITLE = '{"title": "A short question"}'
_HOP_HEADERS = {"host", "accept-encoding", "connection", "content-length", "transfer-encoding"}


class Request(NamedTuple):
    """An agent's request, and its reply. `is_turn`: of the conversation itself; otherwise it requests a title for it."""

    path: str
    body: dict[str, Any]
    reply: str
    is_turn: bool


class Conversation(NamedTuple):
    """An agent's requests about one project, in order."""

    agent: str
    project: str
    requests: list[Request]


def recorded(num_projects: int) -> list[Conversation]:
    """Conversations of both agents about the first projects; recorded if missing.

    Raises:
        AgentMissingError: they must be recorded, and the agents are not available.
    """
    key = hashlib.blake2b(repr((PACKAGES, SCRIPTS)).encode(), digest_size=6).hexdigest()
    folder = cache_folder() / "agents" / key
    tapes = [
        _Tape(agent, script, folder / f"{agent.name.replace(' ', '-')}-{script.name}.jsonl")
        for script in SCRIPTS[:num_projects]
        for agent in AGENTS
    ]
    missing = [tape for tape in tapes if not tape.path.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _record(missing, fetch_agents())
    return [tape.read() for tape in tapes]


class _Tape(NamedTuple):
    agent: type[ClaudeCode] | type[Codex]
    script: Script
    path: Path

    def read(self) -> Conversation:
        lines = self.path.read_text().splitlines()
        return Conversation(self.agent.name, self.script.name, [Request(*json.loads(line)) for line in lines])

    def write(self, requests: Sequence[Request]) -> None:
        """Write the whole tape or nothing."""
        partial_tape = self.path.with_suffix(".partial")
        partial_tape.write_text("".join(json.dumps(request) + "\n" for request in requests))
        partial_tape.replace(self.path)


def _record(tapes: Sequence[_Tape], programs: Path) -> None:
    progress = Progress("conversations recorded", len(tapes))
    with tempfile.TemporaryDirectory(prefix="radixkv-agents-") as name, tiny_engine() as (engine, text):
        folder, dictated = Path(name), Dictated(engine)
        config = GatewayConfig(listen="127.0.0.1:0", model_name=MODEL_NAME, drain_s=1.0)
        with GatewayServer(dictated, config) as gateway:  # type: ignore[arg-type]  # a generator by its delegation
            for tape in tapes:
                recorder = Recorder(gateway.address, dictated, text)
                with recorder.listening() as address:
                    agent = tape.agent(programs, folder / tape.agent.name, address, MODEL_NAME)
                    _converse(agent, tape.script, folder / f"{agent.name} projects" / tape.script.name, recorder)
                tape.write(recorder.requests)
                progress.advance()


def _converse(agent: Agent, script: Script, folder: Path, recorder: Recorder) -> None:
    script.write_files(folder)
    for number, message in enumerate(script.messages):
        recorder.replies.extend(script.replies(message, agent, folder))
        agent.ask(message.said, folder, goes_on=number > 0)
        if recorder.replies or recorder.errors:
            left = len(recorder.replies)
            raise RuntimeError(f"{agent.name} has left out {left} replies of {script.name}; errors: {recorder.errors}")


@dataclass
class Recorder:
    """Proxy between an agent and the gateway: records the requests for replies, and dictates the replies.

    Attributes:
        replies: to the next turns.
        requests: so far.
        errors: refusals of the gateway.
    """

    gateway: str
    dictated: Dictated
    text: ChatText
    replies: deque[str] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Its address, until the end of the block."""
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self)) as server:
            thread = threading.Thread(target=server.serve_forever, name="recorder", daemon=True)
            thread.start()
            try:
                yield f"127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Forward one request, and stream its response. One at a time, so that each request gets its own reply."""
        content = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        with self._lock:
            if handler.command == "POST" and handler.path.partition("?")[0] in {ClaudeCode.path, Codex.path}:
                self._keep(handler.path, json.loads(content))
            upstream = http.client.HTTPConnection(self.gateway)
            try:
                upstream.request(handler.command, handler.path, content, _passed(handler.headers.items()))
                answer = upstream.getresponse()
                handler.send_response(answer.status)
                for name, value in _passed(answer.getheaders()).items():
                    handler.send_header(name, value)
                handler.send_header("Connection", "close")
                handler.end_headers()
                told = b""
                while piece := answer.read1(65_536):
                    handler.wfile.write(piece)
                    handler.wfile.flush()
                    told = piece
                if answer.status >= http.client.BAD_REQUEST:
                    self.errors.append(f"{answer.status} {handler.path}: {told[:300]!r}")
            finally:
                upstream.close()

    def _keep(self, path: str, body: dict[str, Any]) -> None:
        is_turn = bool(body.get("tools"))
        reply = self.replies.popleft() if is_turn and self.replies else _TITLE
        self.requests.append(Request(path, body, reply, is_turn))
        self.dictated.dictate(self.text.encode(reply, special=False))


def _passed(headers: Sequence[tuple[str, str]] | Any) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _HOP_HEADERS}


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, recorder: Recorder, *arguments: Any) -> None:
        self._recorder = recorder
        super().__init__(*arguments)

    def do_POST(self) -> None:
        self._recorder.pass_on(self)
        self.close_connection = True

    def do_GET(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error has the progress line."""

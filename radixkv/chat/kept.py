"""Conversations of a gateway's chat page in the terminal: list them, open one, and add messages to it.

A gateway stores text. So the token ids of an opened conversation are unknown until a reply is generated in it, and the chat
template then encodes its prompt again.
"""

from __future__ import annotations

import ssl
import uuid
from typing import Any, NamedTuple

import httpx

from radixkv.chat.conversation import FOLLOWS, ChatError, Conversation, Turn
from radixkv.core.errors import InvalidArgumentError
from radixkv.net.addresses import is_own_host
from radixkv.net.channel import Credentials

__all__ = ["KeptChat", "KeptChats", "KeptTitle", "gateway_url"]

NUM_LISTED = 20
_TIMEOUT_S = 30.0


def gateway_url(url: str, credentials: Credentials, name: str = "gateway") -> httpx.URL:
    """The URL of a gateway to which these credentials are sent; `name`: of the argument that it is.

    Raises:
        InvalidArgumentError: a malformed URL; a key would be sent in plaintext to another machine.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidArgumentError(name, url, "a URL such as http://127.0.0.1:8000")
    if credentials.has_token and parsed.scheme == "http" and not is_own_host(parsed.host):
        bound = "a URL of this machine, or of https: a key is never sent in plaintext to another machine"
        raise InvalidArgumentError(name, url, bound)
    return parsed


class KeptTitle(NamedTuple):
    """A kept conversation in a list."""

    id: str
    title: str
    num_messages: int


class KeptChats:
    """The conversations of one gateway that a key may see.

    Args:
        url: the gateway's: ``http://127.0.0.1:8000``.
        credentials: the key to send, and the certificate authorities that vouch for the gateway.

    Raises:
        InvalidArgumentError: a malformed URL; a key would be sent in plaintext to another machine.

    Every call raises ChatError if the gateway does not answer or rejects the request.
    """

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        credentials = credentials or Credentials()
        parsed = gateway_url(url, credentials)
        self._url = url
        self._credentials = credentials
        self._base = str(parsed.join("/v1/radixkv"))
        self._tls = ssl.create_default_context(cafile=credentials.ca_file) if parsed.scheme == "https" else False

    def latest(self) -> list[KeptTitle]:
        """The conversations updated last, the latest first; at most `NUM_LISTED`."""
        page = self.call("GET", f"?limit={NUM_LISTED}")["conversations"]
        return [KeptTitle(each["id"], each["title"], each["num_messages"]) for each in page]

    def call(self, method: str, path: str, body: Any = None, *, below: str = "/conversations") -> Any:
        """One request below the conversations' path, or another of radixkv's own. Returns the answer's JSON."""
        token = self._credentials.read_token()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        try:
            answer = httpx.request(
                method,
                self._base + below + path,
                json=body,
                headers=headers,
                verify=self._tls,
                trust_env=False,  # a proxy would read it
                timeout=_TIMEOUT_S,
            )
            told = answer.json()
            if not answer.is_success:
                hint = "; --token-file FILE names a key" if answer.status_code == httpx.codes.UNAUTHORIZED else ""
                raise ChatError(f"the gateway at {self._url} rejects that: {told['error']['message']}{hint}")
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ChatError(f"no gateway answers at {self._url}: {error}") from None
        return told


class KeptChat:
    """One kept conversation that is open in the terminal.

    Args:
        chats: its gateway. conversation_id: its id there.
        model_name: the model that the terminal's replies are stored as.
    """

    def __init__(self, chats: KeptChats, conversation_id: str, model_name: str) -> None:
        self._chats = chats
        self._path = f"/{conversation_id}"
        self._model_name = model_name
        self._ids: dict[Turn, str] = {}
        self._stored: set[Turn] = set()  # turns that the gateway has for certain

    def read(self, system_prompt: str | None) -> Conversation:
        """All its written branches; the current turn is the one where it was left. O(messages).

        Leaves out replies without text or still being written, and messages without a reply.

        Args:
            system_prompt: of branches without one.

        Raises:
            ChatError: two messages of one role follow each other.
        """
        told = self._chats.call("GET", self._path)
        conversation = Conversation(system_prompt)
        turns: dict[str | None, Turn] = {None: conversation.start}
        for message in _answered(told["messages"]):
            parent = turns[message["parent"]]
            if message["role"] not in FOLLOWS[parent.role]:
                raise ChatError("messages of one role follow each other there; only the chat page can show that")
            thinking = (message["details"] or {}).get("thinking") or ""
            turn = turns[message["id"]] = Turn(message["role"], message["text"], parent, thinking=thinking)
            self._ids[turn] = message["id"]
            self._stored.add(turn)
            if turn.role == "assistant":
                conversation.end_branch(turn)
        parents = {message["id"]: message["parent"] for message in told["messages"]}
        head = told["conversation"]["head"]
        while head is not None and (head not in turns or turns[head].role != "assistant"):
            head = parents[head]
        conversation.current = turns[head]
        return conversation

    def write(self, conversation: Conversation) -> None:
        """Add every turn that the gateway does not have yet."""
        for turn in conversation.turns():
            if turn in self._stored or (turn.role == "user" and not turn.children):
                continue
            message_id = self._ids.setdefault(turn, f"msg_{uuid.uuid4().hex}")  # so that a retry adds nothing twice
            assert turn.parent is not None, "a turn follows something"
            body = {"id": message_id, "parent": self._ids.get(turn.parent), "role": turn.role, "text": turn.text}
            if turn.role == "assistant":
                body |= {"model": self._model_name, "thinking": turn.thinking or None}
            self._chats.call("POST", f"{self._path}/messages", body)
            self._stored.add(turn)


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages that lead to a written reply, in their order: parents first."""
    kept: list[dict[str, Any]] = []
    needed: set[str] = set()
    for message in reversed(messages):
        is_written = message["role"] == "assistant" and message["text"] and message["status"] != "running"
        if is_written or message["id"] in needed:
            kept.append(message)
            needed.add(message["parent"])
    return kept[::-1]
